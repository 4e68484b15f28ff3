"""ReTool as an environment: a problem, a Python interpreter inside of the policy's reasoning, an answer in a box."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from agent_gym.env import Reply
from agent_gym.envs.retool.data import EMBEDDED, problem_of, problems
from agent_gym.envs.retool.protocols import ARGUMENT, NAME, PROTOCOLS
from agent_gym.envs.retool.scoring import math_equal
from agent_gym.errors import one_of, require, whole_number
from agent_gym.formats.code import CodeParser, unfenced
from agent_gym.protocols import takes_protocol
from agent_gym.rewards import boxed_answer, boxed_format, preset_weights
from agent_gym.row_opening import RowOpening
from agent_gym.row_reader import Rules, rules_of
from agent_gym.sandbox import Execution, Sandbox, Session, make_sandbox
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Parser, TextTool, ToolCall, ToolResult

STYLES = ("full", "retool", "verl")
MIN_OUTPUT_CHARS = 100
NO_OUTPUT = "[no output]"
LOST = "All names are lost; the next program starts anew."
_CUT = "\n[... cut ...]\n"
_RETOOL_CHARS, _VERL_CHARS = 400, 256
_CARELESS = 0.7  # how likely the expert in style "careless" forgets to print
_PRINTED = re.compile(r"^print\((.*)\)$", re.MULTILINE)
_LIMITS = {
    "cpu_limit": "TimeoutError: the program took too much CPU time",
    "wall_limit": "TimeoutError: the program took too long",
    "memory_limit": "MemoryError: the program needed too much memory",
    "output_limit": "OSError: the program wrote too much",
    "killed": "SystemError: the program crashed",
}
REWARDS: Mapping[str, Mapping[str, float]] = {
    "outcome": {"outcome": 1.0},
    "retool": {"outcome": 1.0, "failure": 1.0},
    "verl": {"outcome": 1.0, "failure": 1.0, "turn_bonus": 1.0},
}
"""Name of a reward to the weights of its terms; terms that are not named weigh nothing."""


class CodeInterpreter(TextTool):
    """Runs programs of the policy in a sandbox, one after the other.

    `ConfigError` for settings that cannot be; also if this machine cannot hold programs.
    """

    def __init__(
        self,
        sandbox: str | Sandbox | None,
        stateful: bool,
        style: str,
        max_output_chars: int,
        about: tuple[str, str] | None = None,
        edit: Callable[[str], str] | None = None,
    ) -> None:
        one_of("output_style", style, STYLES)
        whole_number("max_output_chars", max_output_chars, MIN_OUTPUT_CHARS)
        state = "Each program starts anew, so that it has to be complete, with its imports."
        if stateful:
            state = "Names are kept from one program to the next; the value of a last expression is printed."
        description, program = about or (f"Run a Python program and return what it prints. {state}", "the program")
        super().__init__(NAME, description, ARGUMENT, program, self._answer)
        self._sandbox = make_sandbox(sandbox)
        self._stateful, self._style, self._max_chars, self._edit = stateful, style, max_output_chars, edit
        self._session: Session | None = None
        self._before: list[str] = []  # the programs of the session, in their order
        if stateful:
            self._sandbox.session().close()
        self.begin(0)

    def begin(self, seed: int) -> None:
        self.close()
        self._seed = seed
        self.programs = self.failed = 0

    def _answer(self, code: str) -> ToolResult:
        execution = self._run(self._edit(code) if self._edit else unfenced(code))
        text = shown(execution, self._style, self._max_chars)
        self.programs += 1
        self.failed += not execution.succeeded
        if self._stateful and (execution.status not in ("ok", "error") or getattr(self._session, "over", False)):
            # A program that ran into a limit was ended with all its names, and `os._exit` ends them, too. The next
            # program gets a new session.
            self.close()
            text = f"{text}\n{LOST}"
        return ToolResult(text, error=not execution.succeeded)

    def _run(self, code: str) -> Execution:
        if not self._stateful:
            return self._sandbox.run(code, seed=self._seed)
        if self._session is None:
            self._session = self._sandbox.session(seed=self._seed)
            for earlier in self._before:  # of a copy, whose session has to get its names first
                self._session.run(earlier)
        self._before.append(code)
        return self._session.run(code)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session, self._before = None, []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}


def shown(execution: Execution, style: str, max_chars: int) -> str:
    """Write a program's result for the policy, in at most `max_chars` characters.

    The style "full" is the output, then the traceback or the limit; of long texts the beginning and the end. "retool"
    is, as in ReTool's evaluation, the output, or the last line of the traceback alone, in 400 characters; unlike there,
    a program that prints nothing is not a TypeError. "verl" is both outputs to the last newline, in 256 characters, or
    three words where time was up, as verl's tool and its loop of turns have it.
    """
    if style == "verl":
        late = execution.status in ("cpu_limit", "wall_limit")
        text = "no stdout here" if late else execution.stdout + execution.stderr
        return _cut(text, min(_VERL_CHARS, max_chars) // 2, "...(truncated)...")
    stdout, stderr = execution.stdout.rstrip(), execution.stderr.rstrip()
    verdict = _LIMITS.get(execution.status, "")
    if execution.status == "memory_limit" and execution.stderr:
        verdict = ""  # its traceback names it
    elif execution.status == "error" and not stderr:
        verdict = f"SystemExit: {execution.exit_code}"
    if style == "full":
        text, cut, limit = "\n".join(filter(None, (stdout, stderr, verdict))) or NO_OUTPUT, _CUT, max_chars
        return text if len(text) <= limit else _cut(text, (limit - len(cut)) // 2, cut)
    text = (stdout.strip() or NO_OUTPUT) if execution.succeeded else verdict or stderr.rpartition("\n")[2]
    return _cut(text, min(_RETOOL_CHARS, max_chars) // 2, "...")


def _cut(text: str, half: int, mark: str) -> str:
    """Return at most twice `half` characters of a text, with the mark where it was cut."""
    return text if len(text) <= 2 * half else text[:half] + mark + text[-half:]


class ReToolEnv(RowOpening, ToolEnv):
    r"""Mathematical problems, solved with a Python interpreter.

    ## Description
    Each episode is one problem. The policy may run programs as often as its turns allow; a turn without a program is
    the final answer. Programs run in a sandbox (`agent_gym.sandbox`): they compute and print, and can reach no file,
    network or other process.

    ## Observation
    `reset` returns the problem. A program is answered by its output, in ReTool's protocol
    `\n<interpreter>\n...</interpreter>\n\n` inside the policy's turn (`rendering="inline"`; a `</code>` that the policy
    did not write is written before it), or as a tool message (`rendering="chat"`). `output_style="full"` shows the
    output, then the traceback; "retool" the output or else the last line of the traceback, in 400 characters; "verl"
    both outputs as they are, in 256. Neither times nor paths are shown: the same program has the same answer. Integers
    of any length are printed, up to `max_output_chars`. The final answer returns nothing.

    ## Action
    Free text. A program as `<code>...</code>`, as a ```python fence, or as the tool call
    `{"name": "code_interpreter", "arguments": {"code": "..."}}` in Hermes form; the system prompt shows the first
    (inline) or the last (chat). Of several, `agent_gym/formats/code.py` decides which is meant. Inline, a turn stops at
    `</code>`. The answer in `\boxed{}`, of which the last counts.

    ## Reward
    - `outcome` (weight 1): 1 if the answer equals the gold answer, 0 for another answer, none, or no turns left. Where
      the gold answer is a number, only a numeral of that value is right, and nothing is computed. Other gold answers
      are compared part by part and by value, with bounds on the computation that an answer may leave (scoring.py). Read
      are TeX, Unicode (`2√3`, `x³`, `½`), texts of Python and sympy (`pi/4`, `x**2`, `1 + 2*I`, `Matrix(...)`,
      `Interval(0, oo)`, `{1, 2}`), relations for intervals (`x > 2`), Markdown (`**73**`), mixed numbers (`3 1/2`),
      recurring decimals (`0.\overline{3}`). A unit or a name (`x = 5`) may be left out, and must be right if it is
      there. Words, bases, moduli, dots, points, brackets and the order of pairs count.
    - `failure` (0): -1 if the episode ends, by an answer or for want of turns, and was not solved.
    - `format` (0): 1 if the last turn states exactly one answer in a box, and nothing after it but `</answer>`.
    - `code_runs` (0): share of a turn's programs that ran without an error. A process term. It is paid every turn, so
      that a policy can collect it by idling; keep its weight small.
    - `turn_bonus` (0): the addition of verl's recipe to its -1 for a failure: 0.1 per turn before the last, at most
        0.4.

    `reward="retool"` pays +1 and -1 (`outcome` and `failure`, as the paper does), "verl" also the bonus: a wrong answer
    then gets min(-0.6, -1 + (num_turns - 2) / 2 * 0.1). Which answers are right is decided as above, and not as there.
    `reward_weights` replaces single weights. Where a rollout's budget of tokens or seconds ends an episode, no term is
    paid, not even `failure`.

    ## Episode end
    `terminated` when the policy answers, `truncated` after `max_turns` turns. `is_success` is `outcome` alone.
    `info["metrics"]` has `programs` and `failed_programs` so far.

    ## Arguments
    - `data`: "embedded" (default), a local file or folder, or a hub name such as "BytedTsinghua-SIA/DAPO-Math-17k". Its
      rows may have any form of agent_gym/row_forms.py (MATH, AIME, verl's), and are checked, all of them. Problems that
      repeat are left out.
    - `columns`: names of other columns, as {"question": "Body+Question", "answer": "Answer"}.
    - `skip_bad`: whether rows that cannot be played are left out, and counted on stderr. False (default): an error.
    - `protocol`: "retool" or "verl" plays as these do (docs/protocols.md): prompt, format, output, and, unless they are
      given, turns and reward. None (default) as described here.
    - `difficulty`: 1 to 5, of embedded problems: small numbers and simple kinds, small, medium and large numbers of all
      kinds, large numbers of the ones that are hard to program.
    - `level`: 1 to 3 for embedded problems with small to large numbers; None (default) mixes them.
    - `kinds`: embedded problems of some kinds only, such as ("modular-power", "unpayable"); None (default) for all.
    - `parser`: reads programs in another format than these, such as `TagParser({"code_interpreter": "code"})`.
    - `stateful`: whether the programs of an episode share their names, as the cells of a notebook do, and the value of
      a last expression is printed. A program that runs into a limit, crashes or calls `os._exit` loses all names; its
      result says so, and the next one starts anew. False (default) as in ReTool.
    - `sandbox`: "local" (default), the address of a server that speaks SandboxFusion's protocol, or a sandbox. Programs
      must not be able to read the data.
    - everything `ToolEnv` and `TextEnv` take.

    ## Data
    "embedded" is a seeded generator (embedded/) of 17 kinds of problems: 20,000 train, 1,000 validation and 1,000 test
    problems. No problem of another split has kind and numbers, in any order, of one in train; validation and test have
    other sentences, too, `unseen_numbers` and `unseen_numbers_dev` (1,000 each) the ones of train. In train, kinds with
    few numbers come back (13,229 of 20,000 are distinct); elsewhere no problem occurs twice, and a choice of `kinds` or
    `level` may have fewer than 1,000. DAPO-Math-17k has about 17,400 problems (Apache-2.0), each a hundred times. On
    data without programs the expert answers at once.

    ## References
    Feng et al., ReTool, arXiv:2504.11536, with the protocol of its evaluation code. Yu et al., DAPO, arXiv:2503.14476.
    Unlike there, programs are isolated, one that prints nothing is not an error, and an empty one is reported as empty.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {
        "outcome": 1.0,
        **dict.fromkeys(("failure", "format", "code_runs", "turn_bonus"), 0.0),
    }
    process_terms: ClassVar[frozenset[str]] = frozenset({"code_runs"})
    default_system_prompt: ClassVar[str] = (
        "Solve the problem step by step. Let programs do the computations. When you know the answer, end with\n"
        "<answer>\n\\boxed{the answer}\n</answer>"
    )

    row_rules: ClassVar[Rules] = rules_of(check=problem_of)

    @takes_protocol(PROTOCOLS)
    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        columns: Mapping[str, str] | None = None,
        skip_bad: bool = False,
        protocol: str | None = None,
        level: int | None = None,
        kinds: Sequence[str] | None = None,
        difficulty: int | None = None,
        rendering: str = "inline",
        stateful: bool = False,
        sandbox: str | Sandbox | None = "local",
        output_style: str = "full",
        max_output_chars: int = 2000,
        reward: str = "outcome",
        parser: Parser | None = None,
        reward_weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.protocol = PROTOCOLS[protocol] if protocol else None
        weights = preset_weights(reward, REWARDS, type(self).reward_weights, reward_weights)
        if importlib.util.find_spec("math_verify") is None:
            require("math_verify", "math")  # not imported here: it runs in a separate process
        self.inline = one_of("rendering", rendering, ("inline", "chat")) == "inline"
        self.rules = rules_of(columns, check=problem_of, skip_bad=skip_bad)
        self.row_system = kwargs.get("system_prompt") is None and not protocol
        tasks = problems(data, level, kinds, difficulty, self.rules)
        about, edit = (self.protocol.about, self.protocol.edit) if self.protocol else (None, None)
        self._interpreter = CodeInterpreter(sandbox, stateful, output_style, max_output_chars, about, edit)
        parser = parser or CodeParser(NAME, ARGUMENT, blocks=self.inline)
        super().__init__(tasks, tools=[self._interpreter], parser=parser, reward_weights=weights, **kwargs)

    def gold(self, task: Any) -> list[str]:
        return [*problem_of(self.rules.again(task)).golds]

    def begin(self, task: Any) -> str:
        row = self.rules.again(task)
        self._given, self._careless = problem_of(row), False
        self.open_row(row)
        # Programs draw random numbers too, and the seed decides everything.
        self._interpreter.begin(int(self.np_random.integers(1 << 31)))
        return self.protocol.prompt.replace("{question}", self._given.text) if self.protocol else self._given.text

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        ran = self._interpreter
        reply.metrics |= {"programs": float(ran.programs), "failed_programs": float(ran.failed)}
        last = reply.terminated or self.turn + 1 >= self.max_turns
        if last:
            ran.close()  # an environment that waits for its next episode holds no process
        if last and not reply.success:
            reply.terms |= {"failure": -1.0, "turn_bonus": min(0.4, 0.1 * self.turn)}
        if self.inline and reply.tool_calls:
            outputs = "\n".join(call.answer for call in reply.tool_calls)
            end = self.parser.missing_end(action) if isinstance(self.parser, CodeParser) else ""
            reply.text = f"{end}\n<interpreter>\n{outputs}</interpreter>\n\n"
        return reply

    def answer(self, text: str) -> Reply:
        stated = boxed_answer(text)
        correct = any(math_equal(stated, gold, self._given.text) for gold in self._given.golds)
        terms = {"outcome": float(correct), "format": boxed_format(text)}
        return Reply(terms=terms, terminated=True, success=correct)

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        return {"code_runs": sum(not result.error for result in results) / len(results)}

    def expert_action(self, style: str = "default") -> str:
        """Run a program that finds the answer, and state it.

        "direct" states it at once. "careless" forgets `print` in seven of ten episodes, and does not know the answer.
        """
        self.check_style(style, ("default", "direct", "careless"))
        program, answer = self._given.program, self._given.golds[0]
        if self.turn == 0:
            self._careless = style == "careless" and bool(self.np_random.random() < _CARELESS)
        if self._careless and program:
            program, answer = _PRINTED.sub(r"\1", program), "unknown"
        if style != "direct" and program and self.turn == 0 and self.max_turns > 1:
            return f"A program finds it.\n{self.parser.render(NAME, {ARGUMENT: program})}"
        return f"<answer>\n\\boxed{{{answer}}}\n</answer>"

    def close(self) -> None:
        self._interpreter.close()
        super().close()
