"""Tasks of software as an environment: a shell, an editor, and the tests of the next release."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from agent_gym.env import Reply
from agent_gym.envs.swe.editor import Editor
from agent_gym.envs.swe.judging import NotExported, changes_of, judged
from agent_gym.envs.swe.tasks import instruction_of, open_tasks, opened, read_task
from agent_gym.errors import ConfigError, quoted
from agent_gym.sandbox.bash_tool import ARGUMENT, NAME, BashTool
from agent_gym.sandbox.terminal import ENVIRONMENT, shared_terminals
from agent_gym.sandbox.verdicts import SuiteVerdict
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Parser, ToolCall, ToolResult

_DONE = "The change is made."
_NOTHING = SuiteVerdict(False, 0.0, 0.0, False, 0.0)


def finish() -> str:
    """Say that the change is made: the tests run, and the task ends."""
    return _DONE


class SweEnv(ToolEnv):
    """Change a Python package from one release into the next, judged by the next one's tests.

    ## Description
    Each episode is the source of a release of a package, as its archive on the package index has it, and an
    instruction. The policy has a shell and an editor in a sandbox without a network (`agent_gym.sandbox.terminal`),
    with Python and pytest. The tests of the next release decide, those that fail before it and pass with it
    (fail-to-pass), and those that pass in both (pass-to-pass).

    ## Observation
    `reset` returns the instruction. A command is answered by its two outputs, at most `max_output_chars` characters of
    them, and its exit code if that is not 0; a use of the editor by the changed lines, or an error. The end returns
    nothing, or the answer of `finish`.

    ## Action
    Tool calls of `bash`, `editor` and `finish`, run in their order. `finish`, and any turn without a call, ends the
    episode.

    ## Reward
    - `outcome` (weight 1): 1 if all tests of both kinds pass, else 0.
    - `fail_to_pass`, `pass_to_pass` (0): the shares of these tests that pass, at the end. Process terms.
    - `errors` (0): -1 for a turn in which a call failed. A process term.

    Tests run after the session has ended, over a read-only tree: the files of the start, the policy's changes of the
    package, and the next release's tests, conftest.py files and settings of pytest. Changes elsewhere do not count, nor
    do links, binary files, and files that Python or pytest would read on their own. The package's code runs
    in the process of the tests, so that each test runs several times, as it is and with another expected value: a
    package that passes the second is not paid (agent_gym/sandbox/verdicts.py names the limits of this).

    ## Episode end
    `terminated` by `finish`, by a turn without a call, or when the calls have taken `seconds`; `truncated` after
    `max_turns` turns. In each case tests run, if the package is changed. `is_success` is `outcome`. `info["metrics"]`
    has `commands`, `failed_commands`, and at the end both shares, and `forged`: a test passed as it is and changed.

    ## Arguments
    - `level`: of the instruction: "names" (the changelog's entry and the names of the failing tests), "changelog" (the
      entry alone), or "traceback" (both, and how the tests fail). "function" plays the tasks of one function.
    - `seconds`: for all calls together, 600 by default.
    - `max_output_chars`: the shown part of an output, 4,000 characters by default.
    - `data`: a folder of tasks, or one with such a folder per split; None is that of `agent-gym prepare swe`, or of
      `agent-gym prepare swe-functions` for the level "function".
    - everything `ToolEnv` and `TextEnv` take; `max_turns` is 40.

    ## Ids
    `AgentR1/SWE-v0`

    ## Data
    `agent-gym prepare swe` makes the tasks from source archives of consecutive releases, and `swe-functions` of one
    release with a body taken out; nothing of them is in this repository. All tasks of a package are in one split. The
    expert applies the difference.

    ## References
    After SWE-bench (Jimenez et al., 2024), whose tasks are issues of repositories and need an image each.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {
        "outcome": 1.0,
        "fail_to_pass": 0.0,
        "pass_to_pass": 0.0,
        "errors": 0.0,
    }
    process_terms: ClassVar[frozenset[str]] = frozenset({"fail_to_pass", "pass_to_pass", "errors"})
    rollout_budget: ClassVar[Mapping[str, int]] = {"max_turn_tokens": 32_768, "max_tokens": 131_072}
    default_system_prompt: ClassVar[str] = (
        "Change the source code as the task says. Look at it, edit it, and try it with bash and the editor. When the "
        "change is made, call finish."
    )

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        level: str = "names",
        seconds: float = 600.0,
        max_output_chars: int = 4000,
        parser: Parser | None = None,
        max_turns: int = 40,
        **kwargs: Any,
    ) -> None:
        tasks, self._folders = open_tasks(data, level)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise ConfigError(f"seconds is {quoted(seconds)}; it must be a number above 0")
        shared_terminals()  # refuses machines that cannot hold a shell
        self.level, self.seconds = level, float(seconds)
        self._bash = BashTool(max_output_chars)
        tools: list[Any] = [self._bash, Editor(self._bash).editor, finish]
        super().__init__(tasks, tools=tools, parser=parser, max_turns=max_turns, **kwargs)

    def gold(self, task: Any) -> dict[str, Any]:
        return {"patch": read_task(self._folder(task)).patch}

    def _folder(self, task: Any) -> Path:
        folder = self._folders.get(str(task["name"])) if isinstance(task, Mapping) and "name" in task else None
        if folder is None:
            raise ConfigError(f"a task is {{'name': ...}}, one of the {len(self._folders)} in data; got {quoted(task)}")
        return folder

    def begin(self, task: Any) -> str:
        self._here = self._folder(task)  # whose archives the first command reads
        self._bash.start(partial(opened, self._here), self.seconds)
        return instruction_of(self._here, self.level)

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        finished = any(call.name == finish.__name__ and not call.failed for call in reply.tool_calls)
        if not reply.terminated and (finished or self._bash.late or self.turn + 1 >= self.max_turns):
            ended = self.answer(action)
            reply.terms |= ended.terms
            reply.metrics |= ended.metrics
            reply.terminated, reply.success = finished or self._bash.late, ended.success
        reply.metrics |= {"commands": float(self._bash.commands), "failed_commands": float(self._bash.failed)}
        return reply

    def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls one after the other: they change the same files."""
        return [super(SweEnv, self)._run([call])[0] for call in calls]

    def answer(self, text: str) -> Reply:
        try:
            task = read_task(self._here)
            changes = changes_of(task, self._bash.terminal()) if self._bash.touched else {}
            verdict = judged(task, changes)
            error = None
        except NotExported as refusal:
            verdict, error = _NOTHING, str(refusal)
        self._bash.close()
        terms = {"outcome": float(verdict.solved), "fail_to_pass": verdict.fail_to_pass}
        terms["pass_to_pass"] = verdict.pass_to_pass
        metrics = {"forged": float(verdict.forged)}
        metrics |= {"fail_to_pass": verdict.fail_to_pass, "pass_to_pass": verdict.pass_to_pass}
        return Reply(terms=terms, metrics=metrics, terminated=True, success=verdict.solved, error=error)

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        return {"errors": -float(any(result.error for result in results))}

    def expert_action(self) -> str:
        if not shutil.which("git", path=ENVIRONMENT["PATH"]):
            raise ConfigError("the expert applies its difference by git, and /usr/bin has none; install it")
        if self.turn:
            return self.parser.render(finish.__name__, {})
        command = f"git apply --whitespace=nowarn - <<'GOLDEN_END'\n{read_task(self._here).patch}GOLDEN_END"
        return self.parser.render(NAME, {ARGUMENT: command})

    def close(self) -> None:
        self._bash.close()
        super().close()
