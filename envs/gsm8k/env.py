"""GSM8K as an environment: a word problem, a calculator, a final number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_gym.data import EMBEDDED, Row, Splits
from agent_gym.env import Reply
from agent_gym.envs.gsm8k.calculator import calculator
from agent_gym.envs.gsm8k.embedded import GeneratedProblems
from agent_gym.envs.gsm8k.protocols import ARGUMENT, PROTOCOLS, TOOL, AnswerTool, checked, strict_match
from agent_gym.envs.gsm8k.scoring import same_number, stated_answer
from agent_gym.errors import only_embedded
from agent_gym.formats.react import ReActParser
from agent_gym.protocols import takes_protocol
from agent_gym.rewards import answer_format, parse_number
from agent_gym.row_golds import Fault, golds
from agent_gym.row_opening import RowOpening
from agent_gym.row_reader import Rules, load, rules_of
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Parser, Tool, ToolCall, ToolResult

_HASTE = 0.7
"""How likely the expert in style "hasty" leaves out the last computation."""
_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]*)>>")


class GSM8KEnv(RowOpening, ToolEnv):
    """Grade-school word problems, solved with a calculator.

    ## Description
    Each episode is one problem of GSM8K. The policy may call a calculator as often as its turns allow and then states
    the answer. A turn without a tool call is the final answer, whatever it says.

    ## Observation
    `reset` returns the question (after the system prompt, if there is one). A call returns the value as text, or a line
    that starts with "Error:". The answer returns nothing: the gold answer is never shown.

    ## Action
    Free text. A call in Hermes form: `<tool_call>{"name": "calculator", "arguments": {"expression":
    "48/2"}}</tool_call>`, several per turn if wanted. The answer as `<answer>72</answer>`.

    ## Reward
    - `answer` (weight 1): 1 if the stated number equals the gold number; 72, 72.0, $72 and 72 cm are the same number.
      Also read are `3/4`, `1 1/2`, `1 000`, `18 cm^2`, `1.8e1` and `5*3=15` (scoring.py), tags in any case, and, where
      a turn has no tags, the text after `####`, as in the solutions of GSM8K itself.
    - `format` (weight 0.1): 1 if the last turn states exactly one `<answer>...</answer>` that is not empty, and nothing
      after it.
    - `call` (weight 0, off): minus the share of a turn's calls that failed. It looks only at whether a call could be
      evaluated, never at the gold solution, and has no positive part that could be farmed by calling again. It is a
      process term: it judges the turn and not the outcome.

    ## Episode end
    `terminated` when the policy answers, `truncated` after `max_turns` turns. `is_success` is `answer` alone.

    ## Arguments
    - `data`: "embedded" (default), a local file or folder with the columns question and answer, or as verl and Agent-R1
      write them (agent_gym/row_forms.py), or "openai/gsm8k". All rows are checked: each needs a number as its answer.
    - `columns`: names of other columns, as {"question": "Body+Question", "answer": "Answer"}.
    - `skip_bad`: whether rows that cannot be played are left out, and counted on stderr. False (default): an error.
    - `difficulty`: 1 to 5, of embedded problems: so many calculations, and from 3 on one to three sentences with idle
      numbers. None (default): 1 to 4 calculations, mixed, and no idle numbers.
    - `use_calculator`: False removes the tool.
    - `parser`: "react" for thoughts, `Action: Calculator[48/2]` and `Action: Finish[24]` (agent_gym/formats/react.py).
    - `protocol`: "verl" (one turn, no tool) or "agent-r1" (a tool that tells whether an answer is right) plays as these
      do (docs/protocols.md): prompt, tool, turns, and their strict matching of the text after `####`.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    ## Ids
    `AgentR1/GSM8K-v0` (calculator, 8 turns), `AgentR1/GSM8K-NoTool-v0` (no tool, 1 turn).

    ## Data
    "embedded" is a seeded generator of problems in GSM8K's own format (embedded/__init__.py): 20,000 train, 1,000
    validation and 1,000 test problems, the latter two from sentence patterns that never occur in train.
    "openai/gsm8k" has 7,473 train and 1,319 test problems (MIT licence).

    ## References
    Cobbe et al., Training Verifiers to Solve Math Word Problems, arXiv:2110.14168. The tool setting follows Agent-R1's
    GSM8K recipe (arXiv:2511.14460), except that its tool showed the policy whether an answer was right.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"answer": 1.0, "format": 0.1, "call": 0.0}
    process_terms: ClassVar[frozenset[str]] = frozenset({"call"})
    default_system_prompt: ClassVar[str] = (
        "Solve the problem. Use the calculator for each computation. When you know the answer, write it as a number "
        "in <answer></answer>."
    )
    no_tool_system_prompt: ClassVar[str] = (
        "Solve the problem step by step, then write the answer as a number in <answer></answer>."
    )

    react_system_prompt: ClassVar[str] = (
        "Solve the problem. Use the calculator for each computation. When you know the answer, finish with the number."
    )

    @staticmethod
    def check_row(row: Row) -> None:
        """Raise `ConfigError` for a row, with `question` and `answer`, whose answer is not one number."""
        if None in map(parse_number, map(gold_answer, golds(row["answer"]))):
            cure = "AgentR1/ReTool-v0 compares fractions and expressions, too"
            raise Fault(f"the answer is not one number, so that no answer could be right; {cure}", row["answer"])

    row_rules: ClassVar[Rules] = rules_of(check=check_row)

    @takes_protocol(PROTOCOLS)
    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        columns: Mapping[str, str] | None = None,
        skip_bad: bool = False,
        protocol: str | None = None,
        difficulty: int | None = None,
        use_calculator: bool = True,
        parser: Parser | str | None = None,
        system_prompt: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.row_system = system_prompt is None and not protocol
        if system_prompt is None and not use_calculator:
            system_prompt = self.no_tool_system_prompt
        self.protocol = PROTOCOLS[protocol] if protocol else None
        self.rules = rules_of(columns, check=None if protocol else self.check_row, skip_bad=skip_bad)
        tools: list[Tool] = [calculator] if use_calculator else []
        if self.protocol and self.protocol.about:
            summary, about = self.protocol.about
            tools = [AnswerTool(TOOL, summary, ARGUMENT, about, self._judge)]
        if parser == "react":
            known = {one.name: next(iter(one.parameters["properties"])) for one in tools}
            parser = ReActParser(known)
            system_prompt = self.react_system_prompt if system_prompt is None else system_prompt
        tasks = problems(data, difficulty, self.rules)
        super().__init__(tasks, tools=tools, parser=parser, system_prompt=system_prompt, **kwargs)

    def gold(self, task: Any) -> list[str]:
        return [gold_answer(text) for text in golds(self.rules.again(task)["answer"])]

    def begin(self, task: Any) -> str:
        row = self.rules.again(task)
        question, answers = self.open_row(row), golds(row["answer"])
        self._worked, self._golds = answers[0], [gold_answer(worked) for worked in answers]
        self._hasty = False
        return question + self.protocol.suffix if self.protocol else question

    def answer(self, text: str) -> Reply:
        if self.protocol:
            correct = max(strict_match(text, gold) for gold in self._golds)
        else:
            stated = stated_answer(text)
            correct = max(same_number(stated, gold) for gold in self._golds)
        terms = {"answer": correct, "format": answer_format(text)}
        return Reply(terms=terms, terminated=True, success=bool(correct))

    def _judge(self, answer: str) -> ToolResult:
        return checked(answer, self._golds[0])

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        if isinstance(self.parser, ReActParser):
            for call in reply.tool_calls:
                call.answer = self.parser.observe(call.answer)
        return reply

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        return {"call": -sum([result.error for result in results]) / len(results)}

    def expert_action(self, style: str = "default") -> str:
        """Play the next annotated computation as a call, then state the gold answer.

        "direct" states it at once. "hasty" leaves out the last of several computations in seven of ten episodes, and
        states the result of the one before it.
        """
        self.check_style(style, ("default", "direct", "hasty"))
        if self.protocol:
            action = f"#### {self._golds[0]}"
            if self.tools and self.turn == 0:
                action = self.parser.render(TOOL, {ARGUMENT: self._golds[0]})
            return self.protocol.turn.replace("{}", action)
        steps, answer = annotated_steps(self._worked) if self.tools and style != "direct" else [], self._golds[0]
        if self.turn == 0:
            self._hasty = style == "hasty" and len(steps) > 1 and bool(self.np_random.random() < _HASTE)
        if self._hasty:
            steps, answer = steps[:-1], steps[-2][1]
        # One call per turn, or more where the turns would not suffice: the last turn is for the answer.
        turns, turn, n = min(len(steps), self.max_turns - 1), self.turn, len(steps)
        if turn >= turns:
            if isinstance(self.parser, ReActParser) and self.parser.finish:
                return self.parser.render_answer(answer)
            return f"<answer>{answer}</answer>"
        due = steps[turn * n // turns : (turn + 1) * n // turns]
        return "\n".join(self.parser.render("calculator", {"expression": expression}) for expression, _ in due)


def problems(data: str, difficulty: int | None, rules: Rules) -> Splits:
    """Return the splits of a GSM8K data source: "embedded", perhaps of one difficulty, a path, or a hub name."""
    only_embedded("difficulty", difficulty, data)
    if data == EMBEDDED:
        return GeneratedProblems.splits(difficulty=difficulty)
    return load(data, rules, config="main")


def annotated_steps(answer: str) -> list[tuple[str, str]]:
    """Return the (expression, value) pairs of a worked answer in order.

    GSM8K marks each computation of a solution, as in `48/2 = <<48/2=24>>24` (arXiv:2110.14168, section 4.2). The left
    side is a person's input to a calculator. One row in 12 of the test split (one in 16 of train) ends in prose, its
    last computation without a mark; the expert does not invent the missing call.
    """
    return [(match[1].strip(), match[2].strip()) for match in _ANNOTATION.finditer(answer)]


def gold_answer(answer: str) -> str:
    """Return the text after the last `####` of a worked answer, without thousands separators."""
    return answer.rpartition("####")[2].strip().replace(",", "")
