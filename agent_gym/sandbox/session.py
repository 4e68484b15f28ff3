"""Sessions of a `LocalSandbox`: one process per session, which stands still between two calls."""

from __future__ import annotations

import os
import secrets
import socket
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from agent_gym.sandbox import streams
from agent_gym.sandbox.base import Execution, SandboxError
from agent_gym.sandbox.inside import TOKEN_BYTES, Exit
from agent_gym.sandbox.process import SLACK_S, ForkServer, Lost

if TYPE_CHECKING:
    from agent_gym.sandbox.local import LocalSandbox

_OVER = "the session is over: its names are lost\n"


class Session:
    """Programs that share their names, like the cells of a notebook. Also a context that closes it. One call at a time.

    The value of a last expression is printed, as the interactive interpreter does. `sys.exit` ends a call only. After a
    limit or a crash the session is over: the names are lost, and further calls return the status "killed".

    All calls are one trust domain: what one leaves behind, such as a thread or a changed builtin, can read a later
    call, keep it from running and make up its result. Other sessions and `Sandbox.run` are out of its reach. So no call
    may judge what an earlier one of the policy has done.
    """

    def __init__(self, sandbox: LocalSandbox, seed: int) -> None:
        self._sandbox, self._limits = sandbox, sandbox.limits
        self._files = streams.Streams(None)
        try:
            self._control, theirs = socket.socketpair()
        except OSError as error:
            self._files.close()
            raise SandboxError(f"no socket can be made for a session: {error}") from error
        self._maker = os.getpid()
        try:
            self._server: ForkServer = sandbox.server()
            request, files = sandbox.request(seed, self._limits, session=True), self._files
            self._id: int = request["id"]
            self._ended = self._server.start(request, [theirs.fileno(), files.stdin, files.stdout, files.stderr])
            self._clock = self._server.cpu_clock(self._id)
        except BaseException:
            self._control.close()
            self._files.close()
            raise
        finally:
            theirs.close()
        # A session that is not closed would keep its memory until this process ends.
        self._finalizer = weakref.finalize(self, _end, self._maker, self._server, self._id, self._control, self._files)
        self._over = False

    def run(self, code: str) -> Execution:
        """Run the next program; raise `SandboxError` if the sandbox failed or the session is another process's."""
        if os.getpid() != self._maker:
            raise SandboxError("a session cannot be used in a forked process; begin one there")
        if self._over:
            return Execution("killed", "", _OVER, None, 0.0, False)
        with self._sandbox.slot:
            return self._run(streams.encode(code))

    def close(self) -> None:
        """End it; nothing happens if it has ended."""
        self._over = True
        self._finalizer()

    def _run(self, source: bytes) -> Execution:
        self._files.clear()
        limits = self._limits
        before = self._cpu_seconds()
        go = {"op": "go", "id": self._id, "cpu_seconds": limits.cpu_seconds, "wall_seconds": limits.wall_seconds}
        self._server.send(go)
        token, answer = secrets.token_bytes(TOKEN_BYTES), b""
        try:
            self._control.settimeout(limits.wall_seconds + SLACK_S)
            self._control.sendall(token + len(source).to_bytes(4, "little") + source)
            while len(answer) <= TOKEN_BYTES and (piece := self._control.recv(TOKEN_BYTES + 1 - len(answer))):
                answer += piece
        except TimeoutError as error:
            self.close()
            raise SandboxError("the fork server of a session does not answer") from error
        except OSError:
            pass  # the process has ended, which the fork server reports
        whole = len(answer) > TOKEN_BYTES
        if whole and answer[:TOKEN_BYTES] != token:
            self.close()
            about = "a program wrote to the session's control socket\n"
            return Execution("killed", "", about + _OVER, None, 0.0, False)
        if whole:
            self._server.send({"op": "stop", "id": self._id})
            ended: Exit = {
                "id": self._id,
                "code": answer[-1],
                "killed": None,
                "cpu_seconds": max(0.0, self._cpu_seconds() - before),
                "confined": True,
            }
            if ended["cpu_seconds"] >= limits.cpu_seconds:
                ended["killed"] = "cpu"
                self._over = True
        else:
            # The process may have closed the socket and run on; then it is ended by a limit.
            ended = self._server.wait(self._ended, limits)
            if not ended["confined"]:
                reason = os.pread(self._files.stderr, 1000, 0).decode(errors="replace")
                self.close()
                raise SandboxError(f"a session could not be confined, and did not run: {reason}")
            ended["cpu_seconds"] = max(0.0, ended["cpu_seconds"] - before)
            self._over = True
        result = streams.judge(self._files, ended, limits)
        if self._over:
            self.close()
        return result

    def _cpu_seconds(self) -> float:
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return 0.0  # it has ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(maker: int, server: ForkServer, id_: int, control: socket.socket, files: streams.Streams) -> None:
    if os.getpid() == maker:
        with suppress(Lost):
            server.send({"op": "kill", "id": id_})
    control.close()
    files.close()
