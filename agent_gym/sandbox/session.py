"""Sessions of a `LocalSandbox`: one process per session, which is stopped between two calls."""

from __future__ import annotations

import os
import secrets
import socket
import time
import weakref
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from agent_gym.sandbox.base import Execution, SandboxError
from agent_gym.sandbox.inside import PID_BYTES, TOKEN_BYTES, cpu_clock
from agent_gym.sandbox.process import SLACK_S, ForkServer, Lost, Streams, encode

if TYPE_CHECKING:
    from agent_gym.sandbox.local import LocalSandbox

_OVER = "the session is over: its names are lost\n"


class Session:
    """Programs that share their names, like the cells of a notebook. Also a context that closes it. One call at a time.

    The value of a last expression is printed, as the interactive interpreter does. `sys.exit` ends a call only. After a
    limit, a crash or `os._exit` the session is over: the names are lost, and further calls return the status "killed".

    All calls are one trust domain: the remains of one can read a later call and forge its result. So no call may judge
    an earlier one of the policy.
    """

    def __init__(self, sandbox: LocalSandbox, seed: int) -> None:
        self._sandbox, self._limits = sandbox, sandbox.limits
        self._maker, self._over = os.getpid(), False
        with ExitStack() as failed:
            self._files = Streams(None)
            failed.callback(self._files.close)
            try:
                self._control, theirs = socket.socketpair()
            except OSError as error:
                raise SandboxError(f"no socket can be made for a session: {error}") from error
            failed.callback(self._control.close)
            self._control.settimeout(self._limits.wall_seconds + SLACK_S)
            with theirs:
                self._server = sandbox.server()
                request, files = sandbox.request(seed, self._limits, session=True), self._files
                self._id: int = request["id"]
                self._ended = self._server.start(request, [theirs.fileno(), files.stdin, files.stdout, files.stderr])
            pid = b""
            with suppress(OSError):
                pid = self._receive(PID_BYTES)
            if len(pid) < PID_BYTES:
                self._server.wait(self._ended, self._limits)
                raise files.unconfined()
            self._clock = cpu_clock(int.from_bytes(pid, "little"))
            failed.pop_all()
        # A session that is not closed would keep its memory until this process ends.
        self._finalizer = weakref.finalize(self, _end, self._maker, self._server, self._id, self._control, self._files)

    @property
    def over(self) -> bool:
        """Whether its process has ended, as after a limit, a crash or `os._exit`."""
        return self._over

    def run(self, code: str) -> Execution:
        """Run the next program; raise `SandboxError` if the sandbox failed or the session is another process's."""
        if os.getpid() != self._maker:
            raise SandboxError("a session cannot be used in a forked process; begin one there")
        if self._over:
            return Execution("killed", "", _OVER, None, 0.0, False)
        source = encode(code)
        with self._sandbox.slot:
            self._files.clear()
            limits = self._limits
            before = self._cpu_seconds()
            go = {"op": "go", "id": self._id, "cpu_seconds": limits.cpu_seconds, "wall_seconds": limits.wall_seconds}
            self._server.send(go)
            token, answer = secrets.token_bytes(TOKEN_BYTES), b""
            try:
                self._control.sendall(token + len(source).to_bytes(4, "little") + source)
                answer = self._receive(TOKEN_BYTES + 1)
            except TimeoutError as error:
                self.close()
                raise SandboxError("the fork server of a session does not answer") from error
            except OSError:
                pass  # the process has ended, which the fork server reports
            if len(answer) <= TOKEN_BYTES:
                # The process may have closed the socket and run on; then it is ended by a limit.
                ended, self._over = self._server.wait(self._ended, limits), True
                status, killed, spent = ended["code"], ended["killed"], ended["cpu_seconds"] - before
            elif answer[:TOKEN_BYTES] == token:
                self._server.send({"op": "stop", "id": self._id})
                status, killed, spent = answer[-1], None, self._cpu_seconds() - before
                if spent >= limits.cpu_seconds:
                    killed, self._over = "cpu", True
            else:
                self.close()
                about = "a program wrote to the session's control socket\n"
                return Execution("killed", "", about + _OVER, None, 0.0, False)
            result = self._files.judge(status, killed, max(0.0, spent), limits)
            if self._over:
                self.close()
            return result

    def close(self) -> None:
        """End it; nothing happens if it has ended."""
        self._over = True
        self._finalizer()

    def _receive(self, length: int) -> bytes:
        """Read so many bytes, or fewer if the process has ended."""
        data = b""
        while len(data) < length and (piece := self._control.recv(length - len(data))):
            data += piece
        return data

    def _cpu_seconds(self) -> float:
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return 0.0  # it has ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(maker: int, server: ForkServer, id_: int, control: socket.socket, files: Streams) -> None:
    if os.getpid() == maker:
        with suppress(Lost):
            server.send({"op": "kill", "id": id_})
    control.close()
    files.close()
