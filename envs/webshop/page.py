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
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any

from agent_gym.envs.webshop.session import pieces
from agent_gym.envs.webshop.tools import ARGUMENTS
from agent_gym.errors import ConfigError
from agent_gym.serving import BadRequest, JsonHandler, JsonServer, json_object

if TYPE_CHECKING:
    from agent_gym.envs.webshop.env import WebShopEnv

_VISITS = 200
"""Visits that are remembered; who comes back to an older one begins anew."""
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class ShopServer(JsonServer):
    """Serves the page, in the thread that calls `serve_forever`.

    Raises:
        ConfigError: if another server was faster to listen there.
    """

    def __init__(self, make: Callable[[], WebShopEnv], listener: socket.socket) -> None:
        self._make = make
        self._visits: OrderedDict[str, WebShopEnv] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(listener, _Handler)

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


class _Handler(JsonHandler):
    server: ShopServer

    places = "there are the page (GET /), POST /start and POST /act"
    max_request_bytes = 1 << 16
    too_long = "search for less"

    def do_GET(self) -> None:
        """Send the page and its script; anything else is JSON."""
        found = _FILES.get(self.path.partition("?")[0])
        if found is None:
            super().do_GET()
            return
        name, kind = found
        body = resources.files("agent_gym.envs.webshop").joinpath(name).read_bytes()
        self.send_response(HTTPStatus.OK)
        for header, value in (("Content-Type", kind), ("Content-Length", str(len(body)))):
            self.send_header(header, value)
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def work(self, path: str, body: bytes) -> Mapping[str, Any]:
        """Begin a visit, or do something in one."""
        if path not in ("/start", "/act"):
            raise BadRequest(HTTPStatus.NOT_FOUND, self.places)
        request = json_object(body, '{"visit": "...", "name": "search", "argument": "red dress"}')
        if path == "/start":
            try:
                return self.server.start({key: request[key] for key in ("split", "index") if key in request})
            except ConfigError as error:
                raise BadRequest(HTTPStatus.BAD_REQUEST, str(error)) from error
        values = [request.get(key) for key in ("visit", "name", "argument")]
        if not all(isinstance(value, str) for value in values):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "visit, name and argument must be texts")
        if request["name"] not in ARGUMENTS:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"name must be one of {', '.join(ARGUMENTS)}")
        try:
            return self.server.act(*values)  # type: ignore[arg-type]
        except KeyError as error:
            raise BadRequest(HTTPStatus.NOT_FOUND, "this visit is over; reload the page for another") from error
