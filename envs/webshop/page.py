"""The shop as a web page on this machine: a person shops as a policy does, and sees the reward and its parts.

Each visit is a separate environment, so that goals, turns and rewards are as for a policy. The page is page.html and
page.js; the texts of products reach it as text only.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from agent_gym.envs.webshop.env import ARGUMENTS, WebShopEnv
from agent_gym.errors import ConfigError
from agent_gym.serve.server import HTTPException, Server, page_routes, post
from agent_gym.tools import HermesParser

Earned = list[tuple[str, float]]
"""The actions of a visit, each with its reward."""
_VISITS = 200  # that are remembered; a person who comes back to an older one begins anew


class ShopServer(Server):
    """Serves the page."""

    def __init__(self, make: Callable[[], WebShopEnv], listener: socket.socket) -> None:
        self._make = make
        self._visits: OrderedDict[str, tuple[WebShopEnv, Earned]] = OrderedDict()
        self._lock = threading.Lock()
        example = '{"visit": "...", "name": "search", "argument": "red dress"}'
        works = {"/start": self._start, "/act": self._act}
        routes = [post(path, work, example, 1 << 16, "search for less") for path, work in works.items()]
        super().__init__(listener, [*page_routes(__package__), *routes])

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        env = self._make()
        try:
            env.reset(options={key: request[key] for key in ("split", "index") if key in request})
        except ConfigError as error:
            raise HTTPException(400, str(error)) from error
        visit = secrets.token_urlsafe(12)
        with self._lock:
            self._visits[visit] = env, []
            while len(self._visits) > _VISITS:
                self._visits.popitem(last=False)
        return _state(visit, env, [])

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        visit, name, argument = (request.get(key) for key in ("visit", "name", "argument"))
        if not (isinstance(visit, str) and isinstance(name, str) and isinstance(argument, str)):
            raise HTTPException(400, "visit, name and argument must be texts")
        if name not in ARGUMENTS:
            raise HTTPException(400, f"name must be one of {', '.join(ARGUMENTS)}")
        with self._lock:
            if visit not in self._visits:
                raise HTTPException(404, "this visit is over; reload the page for another")
            self._visits.move_to_end(visit)
            env, earned = self._visits[visit]
            if not _is_over(env):
                reward = env.step(HermesParser().render(name, {ARGUMENTS[name]: argument}))[1]
                earned.append((f"{name}[{argument}]", reward))
        return _state(visit, env, earned)


def _state(visit: str, env: WebShopEnv, earned: Earned) -> dict[str, Any]:
    session, instruction, over = env.session, env.session.goal["instruction_text"], _is_over(env)
    clickables = session.clickables()
    shown = [
        {
            "kind": piece.kind,
            "text": piece.text.strip(),
            "click": piece.text.lower() if piece.kind != "text" and piece.text.lower() in clickables else None,
            "chosen": piece.kind == "option" and piece.text in session.chosen.values(),
        }
        for piece in session.pieces()
    ]
    # The instruction is above, and the search has a separate field.
    start = next((i for i, piece in enumerate(shown) if piece["text"] == instruction.strip()), -1)
    return {
        "visit": visit,
        "page": session.page,
        "instruction": instruction,
        "pieces": [] if session.page in ("index", "done") or over else shown[start + 1 :],
        "turns": env.turn,
        "max_turns": env.max_turns,
        "over": over,
        "score": session.score or 0.0,
        "parts": session.parts,
        "earned": earned,
    }


def _is_over(env: WebShopEnv) -> bool:
    return env.session.page == "done" or env.turn >= env.max_turns
