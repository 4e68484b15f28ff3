"""The shop as a web page on this machine: a person shops as a policy does, and sees the reward and its parts.

Each visit is an environment of its own, so that goals, turns and rewards are those of a policy. The page is page.html
and page.js; whatever products say reaches it as text. What the page may load is this server's own, by its
Content-Security-Policy, and nothing else; and no other page may show it in a frame.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent_gym.envs.webshop.session import pieces
from agent_gym.envs.webshop.tools import ARGUMENTS
from agent_gym.errors import ConfigError
from agent_gym.serve.server import HTTPException, Server, page_routes, post

if TYPE_CHECKING:
    from agent_gym.envs.webshop.env import WebShopEnv

_VISITS = 200
"""Visits that are remembered; a person who comes back to an older one begins anew."""
_KINDS = {"page.html": "text/html", "page.js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class ShopServer(Server):
    """Serves the page.

    Raises:
        ConfigError: if another server was faster to listen there.
    """

    def __init__(self, make: Callable[[], WebShopEnv], listener: socket.socket) -> None:
        self._make = make
        self._visits: OrderedDict[str, WebShopEnv] = OrderedDict()
        self._lock = threading.Lock()
        example = '{"visit": "...", "name": "search", "argument": "red dress"}'
        limits: dict[str, Any] = {"example": example, "most_bytes": 1 << 16, "too_long": "search for less"}
        routes = [post("/start", self._start, **limits), post("/act", self._act, **limits)]
        super().__init__(listener, [*page_routes(__package__, _KINDS, _POLICY), *routes])

    def start(self, options: dict[str, Any]) -> dict[str, Any]:
        """Begin a visit.

        Raises:
            ConfigError: for a task that there is not.
        """
        env = self._make()
        env.reset(options=options)
        visit = secrets.token_urlsafe(12)
        with self._lock:
            self._visits[visit] = env
            while len(self._visits) > _VISITS:
                self._visits.popitem(last=False)
        return state(visit, env)

    def act(self, visit: str, name: str, argument: str) -> dict[str, Any]:
        """Search or click.

        Raises:
            KeyError: for a visit that is not remembered.
        """
        with self._lock:
            env = self._visits[visit]
            self._visits.move_to_end(visit)
            if not is_over(env):
                env.act(name, argument)
        return state(visit, env)

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.start({key: request[key] for key in ("split", "index") if key in request})
        except ConfigError as error:
            raise HTTPException(400, str(error)) from error

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        visit, name, argument = (request.get(key) for key in ("visit", "name", "argument"))
        if not (isinstance(visit, str) and isinstance(name, str) and isinstance(argument, str)):
            raise HTTPException(400, "visit, name and argument must be texts")
        if name not in ARGUMENTS:
            raise HTTPException(400, f"name must be one of {', '.join(ARGUMENTS)}")
        try:
            return self.act(visit, name, argument)
        except KeyError as error:
            raise HTTPException(404, "this visit is over; reload the page for another") from error


def state(visit: str, env: WebShopEnv) -> dict[str, Any]:
    """Return what the page shows."""
    session = env.session
    clickables = session.clickables()
    shown = [
        {
            "kind": piece.kind,
            "text": piece.text.strip(),
            "click": piece.text.lower() if piece.kind != "text" and piece.text.lower() in clickables else None,
            "chosen": piece.kind == "option" and piece.text in session.chosen.values(),
        }
        for piece in pieces(session)
    ]
    # The instruction stands above, and the search has a field of its own.
    start = next((i for i, piece in enumerate(shown) if piece["text"] == session.goal["instruction_text"].strip()), -1)
    over = is_over(env)
    return {
        "visit": visit,
        "page": session.page,
        "instruction": session.goal["instruction_text"],
        "pieces": [] if session.page in ("index", "done") or over else shown[start + 1 :],
        "turns": env.turn,
        "max_turns": env.max_turns,
        "over": over,
        "score": session.score or 0.0,
        "parts": session.parts,
    }


def is_over(env: WebShopEnv) -> bool:
    """Whether something was bought, or no turns are left."""
    return env.session.page == "done" or env.turn >= env.max_turns
