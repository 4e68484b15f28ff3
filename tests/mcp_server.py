"""A server of the Model Context Protocol for the tests: `mcp_server.py` over stdio, `mcp_server.py PORT` over HTTP."""

from __future__ import annotations

import os
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError

ROOMS = {"Ada": 101, "Bo": 202}
server = MCPServer("directory")


@server.tool()
def room_of(name: str, loud: bool = False) -> str:
    """Tell in which room a person sits."""
    if name not in ROOMS:
        raise ToolError(f"nobody is called {name!r}")
    return f"ROOM {ROOMS[name]}" if loud else str(ROOMS[name])


@server.tool()
def about(name: str) -> str:
    """Tell a variable of the environment, or the process id."""
    return str(os.getpid()) if name == "pid" else os.environ.get(name, "unset")


@server.tool()
def numbers(up_to: int) -> dict[str, list[int]]:
    """List numbers."""
    return {"numbers": list(range(up_to))}


@server.tool()
def picture() -> list[str | Image]:
    """Show a picture."""
    return ["look:", Image(data=b"x", format="png")]


@server.tool()
def wait(seconds: float) -> str:
    """Answer late."""
    time.sleep(seconds)
    return "done"


@server.tool()
def die(once: str = "") -> str:
    """End the server, or only the first time if a file can be made that says so."""
    if once and os.path.exists(once):
        return "alive"
    if once:
        open(once, "w").close()
    print("these are my last words", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
