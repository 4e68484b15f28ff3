"""How an agent runs: a function in a thread of this process, or a program in a separate process.

Both get the base URL and the key of their episode and report their end to its session. A function that is async has a
separate event loop, so that one which blocks holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError, EnvFailure, require
from agent_gym.gateway.server import AgentSession, Ended

_TAIL = 1 << 16  # bytes of a program's output that are kept
_PASSED = re.compile(
    "PATH|HOME|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|TERM|USER|LOGNAME|SHELL|VIRTUAL_ENV|PYTHONPATH|LD_LIBRARY_PATH"
)
"""The variables of this process that a program gets. It runs the policy's code, which must not find keys there."""


class Output(NamedTuple):
    """The result of a program."""

    text: str  # its output, the end of it if that is long
    folder: Path  # in which it ran; it is removed when the reward is known


class FunctionAgent:
    """Runs `agent(client, task)`: an async function gets an `openai.AsyncOpenAI`, any other an `openai.OpenAI`."""

    def __init__(self, function: Callable[..., Any], task: Any, session: AgentSession) -> None:
        self._function, self._task, self._session = function, task, session
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._stopped = False
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    def _run(self) -> None:
        try:
            if any(map(inspect.iscoroutinefunction, (self._function, type(self._function).__call__))):
                result = asyncio.run(self._run_async())
            else:
                with self._client("OpenAI") as client:
                    result = self._function(client, self._task)
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("the agent returned a coroutine, which nothing awaits: make it an `async def`")
            self._session.end(Ended(result))
        except BaseException as error:  # SystemExit, too: the episode has to know
            self._session.end(Ended(error=error))

    async def _run_async(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        if self._stopped:
            raise asyncio.CancelledError
        async with self._client("AsyncOpenAI") as client:
            return await self._function(client, self._task)

    def _client(self, kind: str) -> Any:
        openai = require("openai", "serve")
        http = {"OpenAI": openai.DefaultHttpxClient, "AsyncOpenAI": openai.DefaultAsyncHttpxClient}[kind]
        # To this machine, through no proxy and without certificates. A turn may wait for the turns of all others.
        return getattr(openai, kind)(
            base_url=self._session.url,
            api_key=self._session.key,
            timeout=None,
            http_client=http(trust_env=False, verify=False, timeout=None),
        )

    def stop(self) -> None:
        """End it, as far as that can be done; calling it again does no harm."""
        self._stopped = True
        if self._running:
            loop, task = self._running
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(task.cancel)


class ProgramAgent:
    """Runs a command in a separate folder, with the address and the key in its environment.

    Fields of the task are written in the command as `{name}`, each inside of one word. `{base_url}`, `{api_key}` and
    `{folder}` are there for programs that want them as flags. Nothing else of the task reaches the program: it runs the
    policy's code, which must not find the answer there. Of the variables of this process it gets `PATH`, `HOME` and
    their like, and the ones that `passed` names.
    """

    def __init__(
        self, command: Sequence[str], task: Mapping[str, Any], session: AgentSession, passed: Collection[str] = ()
    ) -> None:
        self._session, self._folder = session, Path(tempfile.mkdtemp(prefix="agent-gym-"))
        fields = {**task, "base_url": session.url, "api_key": session.key, "folder": self._folder}
        words = [re.sub(r"\{(\w+)\}", lambda found: _field(found[1], fields), word) for word in command]
        urls = {"OPENAI_BASE_URL": session.url, "OPENAI_API_BASE": session.url, "ANTHROPIC_BASE_URL": session.root}
        keys = {"OPENAI_API_KEY": session.key, "ANTHROPIC_API_KEY": session.key, "NO_PROXY": "127.0.0.1,localhost"}
        known = {name: value for name, value in os.environ.items() if name in passed or _PASSED.fullmatch(name)}
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                cwd=self._folder,
                env={**known, **urls, **keys},
                start_new_session=True,  # so that all that it starts ends with it
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ConfigError(f"the agent {command[0]!r} cannot be started: {error.strerror or error}") from error
        threading.Thread(target=self._wait, name="agent", daemon=True).start()

    def _wait(self) -> None:
        code = self._process.wait()
        if code == 0:
            return self._session.end(Ended(Output(_tail(self._out), self._folder)))
        fate = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        output = _tail(self._err).strip() or _tail(self._out).strip()
        self._session.end(Ended(error=EnvFailure(f"the program {fate}: {output[-500:]}")))

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _field(name: str, fields: Mapping[str, Any]) -> str:
    if name not in fields:
        raise ConfigError(f"the command of the agent has {{{name}}}; the task has {', '.join(fields)}")
    return str(fields[name])


def _tail(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    return bytes(file.read()).decode("utf-8", "replace")
