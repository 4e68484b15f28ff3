"""Terminal tasks as an environment: a shell, files, and tests of the result."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from agent_gym.env import Reply
from agent_gym.envs.terminal.data import EMBEDDED, open_data, task_of
from agent_gym.envs.terminal.harbor import Task
from agent_gym.envs.terminal.session import files_of, opened
from agent_gym.errors import ConfigError
from agent_gym.sandbox.bash_tool import ARGUMENT, NAME, BashTool
from agent_gym.sandbox.terminal import ENVIRONMENT, LIMITS, pack, shared_terminals
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Parser, ToolCall, ToolResult

DONE = "The task is done."

# The rewards of tasks without any action. Many episodes end at once, and training plays each task several times.
_UNTOUCHED: dict[bytes, float] = {}


class Shell(BashTool):
    """Runs the commands of an episode, and its tests."""

    def begin(self, task: Task) -> None:
        self._task = task
        self.start(partial(opened, task), task.seconds)

    def test(self) -> float:
        """End the session, run the tests and return their reward; for files that no command has touched only once."""
        tests = pack({f"/{path}": content for path, content in self._task.tests.items()}, ())
        about = repr((self._task.folder, self._task.setup, self._task.test_variables)).encode()
        untouched = (
            b"" if self.touched else hashlib.sha256(files_of(self._task).archive + tests.archive + about).digest()
        )
        reward = _UNTOUCHED.get(untouched)
        if reward is None:
            seconds = self._task.test_seconds
            limits = replace(LIMITS, cpu_seconds=seconds, wall_seconds=seconds)
            variables, shown = self._task.test_variables, self._task.shown
            reward = reward_of(self.terminal().test(tests, limits, variables, shown).stderr)
        if untouched:
            _UNTOUCHED[untouched] = reward
        self.close()
        return reward


def reward_of(text: str) -> float:
    """Read the report of tests, a number or JSON with one: 0 to 1, and 0 for anything else.

    Tests that write none have failed on the policy's files: they ran out of time or memory, or raised.
    """
    value: Any = None
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if isinstance(value, dict):
        value = value.get("reward", next(iter(value.values()), None) if len(value) == 1 else None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return min(1.0, max(0.0, float(value)))


class TerminalEnv(ToolEnv):
    """Tasks for a shell, judged by tests of the files.

    ## Description
    Each episode is a folder of files and a task: count, move, repair, query, commit. The policy runs commands in bash,
    with the programs of the machine (coreutils, grep, sed, awk, git, python3). A turn without a command ends the
    episode, and the tests of the task run. Commands run in a sandbox (`agent_gym.sandbox.terminal`): they can change
    the session's own folders and nothing else, and reach no network, no other episode, and neither tests nor solution.

    ## Observation
    `reset` returns the task. A command is answered by its two outputs as they were written, at most `max_output_chars`
    characters, the beginning and the end of longer ones, and by its exit code if that is not 0. The end returns
    nothing.

    ## Action
    A tool call of `bash` with the argument `command`. Files, the current folder and exported variables are kept from
    one command to the next. All processes end with their command. Any turn without a call says that the task is done.

    ## Reward
    - `outcome` (weight 1): 1 if all tests pass, else 0.
    - `share` (0): the reward that the tests write, 0 to 1. Embedded tasks: the share of the goals that are reached, and
      0 if a file is harmed that had to stay.
    - `errors` (0): -1 for a turn in which a command had an exit code other than 0. A process term.

    Tests run after the session has ended, when none of its processes is left, in a separate process, from a folder that
    was never there before; and at the end of the turns or of the time, too. Embedded tests run nothing that the policy
    wrote. Tests that fail to give a reward give 0; if the sandbox fails it is an `EnvFailure`.

    ## Episode end
    `terminated` by a turn without a command, or when the commands have taken the task's time (10 minutes, or the time
    in its task.toml says); `truncated` after `max_turns` turns. `is_success` is `outcome`. A command has 10 seconds of
    CPU time, 30 by the clock, 512 MB, 64 processes and 32 MB of files. `info["metrics"]` has `commands` and
    `failed_commands`.

    ## Arguments
    - `data`: "embedded" (default), or a folder of tasks, at any depth, in Harbor's format or Terminal-Bench 1's, or one
      such folder per split in it. A task that needs more than is here is refused (docs/terminal.md).
    - `skip`: leave such tasks out, with a warning that counts the reasons. False (default) raises.
    - `difficulty`: 1 to 5, of embedded tasks; None (default) has all in turn.
    - `max_output_chars`: the shown part of an output, 4,000 characters by default.
    - everything `ToolEnv` and `TextEnv` take. `max_turns` is 12.

    ## Data
    "embedded" is a seeded generator (embedded/) of 15 kinds: 2,000 train, 100 validation and 200 test tasks, of
    difficulty 1 to 5 in turn. No two splits share a wording or a goal state. `write_embedded(folder)` of
    `agent_gym.envs.terminal.data` writes them as folders for Harbor. The expert types a task's `solution/solve.sh`.

    ## References
    Harbor and Terminal-Bench 2, harborframework.com. Unlike there, no container is used: the user is not root, programs
    are the machine's, and nothing can be installed.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"outcome": 1.0, "share": 0.0, "errors": 0.0}
    process_terms: ClassVar[frozenset[str]] = frozenset({"errors"})
    default_system_prompt: ClassVar[str] = (
        "Solve the task with commands in bash, one at a time. Files are in the current folder. When everything is "
        "done, say so in a turn without a command."
    )

    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        skip: bool = False,
        difficulty: int | None = None,
        max_output_chars: int = 4000,
        parser: Parser | None = None,
        max_turns: int = 12,
        **kwargs: Any,
    ) -> None:
        shared_terminals()  # refuses machines that cannot hold a shell
        if data == EMBEDDED and not shutil.which("git", path=ENVIRONMENT["PATH"]):
            raise ConfigError("the embedded tasks need git, and /usr/bin has none; install it")
        self._shell = Shell(max_output_chars)
        tasks = open_data(data, difficulty, skip)
        super().__init__(tasks, tools=[self._shell], parser=parser, max_turns=max_turns, **kwargs)

    def gold(self, task: Any) -> dict[str, Any]:
        if "checks" in task:
            return dict(task["checks"])
        return {name: str(content) for name, content in task_of(task).tests.items()}

    def begin(self, task: Any) -> str:
        self._given = task_of(task)
        self._shell.begin(self._given)
        return self._given.instruction

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        if not reply.terminated and (self._shell.late or self.turn + 1 >= self.max_turns):
            ended = self.answer(action)
            reply.terms |= ended.terms
            reply.terminated, reply.success = self._shell.late, ended.success
        reply.metrics |= {"commands": float(self._shell.commands), "failed_commands": float(self._shell.failed)}
        return reply

    def answer(self, text: str) -> Reply:
        reward = self._shell.test()
        terms = {"outcome": float(reward == 1.0), "share": reward}
        return Reply(terms=terms, terminated=True, success=reward == 1.0)

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        return {"errors": -float(any(result.error for result in results))}

    def expert_action(self) -> str:
        if not self._given.solution:
            raise ConfigError(f"{self.place} has no solution/solve.sh")
        if self.turn < len(self._given.solution):
            return self.parser.render(NAME, {ARGUMENT: self._given.solution[self.turn]})
        return DONE

    def close(self) -> None:
        self._shell.close()
        super().close()
