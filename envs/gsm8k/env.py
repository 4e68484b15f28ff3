"""GSM8K as an environment: a word problem, a calculator, a final number.

The calculator trusts nothing in the text of the policy. A regular expression admits numbers, signs and parentheses
only, and the operators of a table are evaluated, in exact fractions. Length, exponents and digits are bounded before
the work is done. It does not use `ast.parse`, which fails in CPython 3.11 if two threads parse at the same time.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from agent_gym.data import Splits, load_splits
from agent_gym.env import Reply
from agent_gym.envs.gsm8k.embedded import LADDER, GeneratedProblems
from agent_gym.errors import ConfigError, only_embedded, whole_number
from agent_gym.rewards import answer_format, final_answer, number_match
from agent_gym.row_forms import answers_of
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import ToolCall, ToolResult, tool

EMBEDDED_SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000}
_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]*)>>")

MAX_LENGTH = 500  # characters; the longest annotation of GSM8K has 36
MAX_BITS = 4096  # size a power may grow to, so that 9**9**9 fails before it is computed
MAX_DIGITS = 50  # digits before the point, or zeros after it, that are still printed

Number = int | Fraction

_LIMIT = 10**MAX_DIGITS
# A comma belongs to a number only as a proper thousands separator: `1,20` is more likely a slip than 120.
_NUMBER = r"(?:\$\s*)?((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
# The last group takes what is neither number nor sign, so that nothing is skipped between two tokens.
_TOKEN = re.compile(rf"{_NUMBER}|(\*\*|//|[-+*/%()])|(\S)")
_TYPOGRAPHY = str.maketrans({"×": "*", "÷": "/", "−": "-"})


@tool
def calculator(expression: str) -> ToolResult:
    """Evaluate an arithmetic expression with + - * / % ** and parentheses.

    Args:
        expression: for example "48/2 + 3".
    """
    result = calculate(expression)
    return ToolResult(result, result.startswith("Error"))


class GSM8KEnv(ToolEnv):
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
    - `answer` (weight 1): 1 if the stated number equals the gold number; 72, 72.0 and $72 are the same number. Where a
      turn has no tags, what stands after `####` is read, too, as in the solutions of GSM8K itself.
    - `format` (weight 0.1): 1 if the last turn states exactly one `<answer>...</answer>` that is not empty, and nothing
      after it.
    - `call` (weight 0, off): minus the share of a turn's calls that failed. It looks only at whether a call could be
      evaluated, never at the gold solution, and has no positive part that could be farmed by calling again. It is a
      process term: it judges the turn and not the outcome.

    ## Episode end
    `terminated` when the policy answers, `truncated` after `max_turns` turns. `is_success` is `answer` alone.

    ## Arguments
    - `data`: "embedded" (default), a local file or folder with the columns question and answer, or as verl and Agent-R1
      write them (agent_gym/row_forms.py), or "openai/gsm8k".
    - `difficulty`: 1 to 5, of embedded problems: so many calculations, and from 3 on one to three sentences with idle
      numbers. None (default): 1 to 4 calculations, mixed, and no idle numbers.
    - `use_calculator`: False removes the tool.
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

    def __init__(
        self,
        data: str = "embedded",
        *,
        difficulty: int | None = None,
        use_calculator: bool = True,
        system_prompt: str | None = None,
        **kwargs: Any,
    ) -> None:
        if system_prompt is None and not use_calculator:
            system_prompt = self.no_tool_system_prompt
        tools = [calculator] if use_calculator else []
        super().__init__(problems(data, difficulty), tools=tools, system_prompt=system_prompt, **kwargs)

    def gold(self, task: Any) -> list[str]:
        return [gold_answer(text) for text in answers_of(task)]

    def begin(self, task: Any) -> str:
        row = task if isinstance(task, Mapping) else {}
        # Data may have several answers.
        texts = [row.get("question"), *(answer if isinstance(answer := row.get("answer"), list) else [answer])]
        question, *answers = [text for text in texts if isinstance(text, str)] or [""]
        if len(answers) != len(texts) - 1 or not answers:
            raise ConfigError(f"a GSM8K task is a dict with the texts question and answer, got {task!r:.200}")
        self._worked, self._golds = answers[0], [gold_answer(worked) for worked in answers]
        return question

    def answer(self, text: str) -> Reply:
        stated = final_answer(text)
        correct = max(number_match(stated, gold) for gold in self._golds)
        terms = {"answer": correct, "format": answer_format(text)}
        return Reply(terms=terms, terminated=True, success=bool(correct))

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        return {"call": -sum([result.error for result in results]) / len(results)}

    def expert_action(self, style: str = "default") -> str:
        """Play the next annotated computation as a call, then state the gold answer ("direct" states it at once)."""
        if style not in ("default", "direct"):
            raise ConfigError(f"the GSM8K expert has no style {style!r}; known: default, direct")
        steps = annotated_steps(self._worked) if self.tools and style == "default" else []
        # One call per turn, or more where the turns would not suffice: the last turn is for the answer.
        turns, turn, n = min(len(steps), self.max_turns - 1), self.turn, len(steps)
        if turn >= turns:
            return f"<answer>{self._golds[0]}</answer>"
        due = steps[turn * n // turns : (turn + 1) * n // turns]
        return "\n".join(self.parser.render("calculator", {"expression": expression}) for expression, _ in due)


def problems(data: str, difficulty: int | None = None) -> Splits:
    """Return the splits of a GSM8K data source: "embedded", perhaps of one difficulty, a path, or a hub name."""
    if data == "embedded":
        level = None if difficulty is None else whole_number("difficulty", difficulty, 1, len(LADDER))
        return {split: GeneratedProblems(split, size, level) for split, size in EMBEDDED_SIZES.items()}
    only_embedded("difficulty", difficulty, data)
    return load_splits(data, columns=("question", "answer"), config="main")


def annotated_steps(answer: str) -> list[tuple[str, str]]:
    """Return the (expression, value) pairs of a worked answer in order.

    GSM8K marks each computation of a solution, as in `48/2 = <<48/2=24>>24` (arXiv:2110.14168, section 4.2). The left
    side is what a person would have typed into a calculator. One row in 12 of the test split (one in 16 of train) ends
    in prose, its last computation without a mark; the expert does not invent the missing call.
    """
    return [(match[1].strip(), match[2].strip()) for match in _ANNOTATION.finditer(answer)]


def gold_answer(answer: str) -> str:
    """Return what stands after the last `####` of a worked answer, without thousands separators."""
    return answer.rpartition("####")[2].strip().replace(",", "")


class _Problem(Exception):
    """A fault of an expression, in words for the policy."""


def calculate(expression: str) -> str:
    """Evaluate one arithmetic expression.

    The arithmetic is exact (`0.1+0.2` is `0.3`, `1/3*3` is `1`); only the printed result is rounded, half to
    even: to six decimals, or to six significant digits where the result is smaller than one. An integer prints
    without a point, and nothing prints in scientific notation.

    `%` is a percentage when no operand follows it (`20%*50` is `10`) and the remainder when one does (`20%6` is
    `2`). Before a sign it could be either, and that is an error.

    Args:
        expression: at most `MAX_LENGTH` characters of any text.

    Returns:
        The number, or a line that starts with `Error:` and names what is wrong. Never raises.
    """
    try:
        if len(expression) > MAX_LENGTH:
            raise _Problem(f"{len(expression)} characters are too many, at most {MAX_LENGTH} are allowed")
        return _show(_evaluate(_postfix(expression)))
    except _Problem as problem:
        return f"Error: {problem}"
    except ZeroDivisionError:
        return "Error: division by zero"


def _postfix(expression: str) -> list[Number | str]:
    """Check that operands and operators alternate, and write `1+2*3` as `1 2 3 * +`, by Dijkstra's shunting yard."""
    tokens = _TOKEN.findall(expression.translate(_TYPOGRAPHY))
    if not tokens:
        raise _Problem("the expression is empty")
    output: list[Number | str] = []
    waiting: list[str] = []  # operators whose right operand is not complete, and open parentheses
    want_operand = True
    for place, (number, sign, stray) in enumerate(tokens):
        if stray:
            raise _Problem(f"unexpected {ascii(stray)}")  # printable even where it is a lone surrogate
        if number or sign == "(":
            if not want_operand:
                raise _Problem(f"an operator is missing before '{number or sign}'")
        elif want_operand and sign not in "+-":
            raise _Problem(f"a number is missing before '{sign}'")
        if number:
            whole, _, decimals = number.replace(",", "").partition(".")
            output.append(_divide(int(whole + decimals), 10 ** len(decimals)) if decimals else int(whole))
            want_operand = False
        elif sign == "(":
            waiting.append(sign)
        elif want_operand:
            if sign == "-":
                output.append(-1)
                waiting.append("-1 times")
        elif sign == "%" and _is_percentage(tokens[place + 1 :]):
            output += [100, "/"]
        else:
            # A power groups to the right, so that the one before it is not complete yet.
            while waiting and sign != "**" and _BINDING[waiting[-1]] >= _BINDING[sign]:
                output.append(waiting.pop())
            if sign != ")":
                waiting.append(sign)
                want_operand = True
            elif waiting:
                waiting.pop()
            else:
                raise _Problem("')' without '('")
    if want_operand:
        raise _Problem("a number is missing at the end")
    if "(" in waiting:
        raise _Problem("'(' without ')'")
    return output + waiting[::-1]


def _is_percentage(following: list[tuple[str, str, str]]) -> bool:
    """Whether the `%` before these tokens is a percentage; an operand after it makes it a remainder."""
    number, sign, _ = following[0] if following else ("", "", "")
    if sign in ("+", "-"):
        raise _Problem(f"'%' before '{sign}' is ambiguous, put the percentage in parentheses")
    return not number and sign != "("


def _evaluate(postfix: list[Number | str]) -> Number:
    values: list[Number] = []
    for item in postfix:
        if isinstance(item, str):
            right = values.pop()
            item = _OPERATORS[item](values.pop(), right)
        values.append(item)
    return values[0]


def _divide(left: Number, right: Number) -> Number:
    quotient, remainder = divmod(left, right)  # integers are about ten times faster than fractions
    return Fraction(left) / right if remainder else quotient


def _power(base: Number, exponent: Number) -> Number:
    if exponent.denominator != 1:
        raise _Problem("the exponent must be a whole number")
    power = int(exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(power) > MAX_BITS:
        raise _Problem("the power is too large")
    # -1, 0 and 1 pass the bound above with any exponent, and the parity is all that matters to them.
    return Fraction(base) ** (power if bits > 1 or base == 0 else power % 2)


_OPERATORS: dict[str, Callable[[Any, Any], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "//": operator.floordiv,
    "%": operator.mod,
    "-1 times": operator.mul,
    "**": _power,
}
# The higher binds the tighter, as in Python; a closing parenthesis completes everything since the opening one.
_BINDING = {"(": 0, ")": 1, "+": 2, "-": 2, "*": 3, "/": 3, "//": 3, "%": 3, "-1 times": 4, "**": 5}


def _show(value: Number) -> str:
    """Write a number as `calculate` promises: an integer, or a decimal without trailing zeros."""
    size = abs(value)
    if size >= _LIMIT or 0 < size * _LIMIT < 1:
        raise _Problem(f"the result needs more than {MAX_DIGITS} digits")
    if value.denominator == 1:
        return str(value.numerator)
    places = 6
    while size * 10 ** (places - 5) < 1:  # one more place for every zero right after the point
        places += 1
    digits = str(round(size * 10**places)).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text
