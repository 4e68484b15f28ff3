"""The answer of a row: which of its columns states it, whether they agree, and how a worked solution is read.

A column that states an answer comes before one that names the number of a choice, and both before the output that a
model should write. Two columns of answers that say different things are refused, since one of them alone would be paid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agent_gym.rewards import boxed_answer
from agent_gym.row_choices import Choice, Survey, right_choice
from agent_gym.row_golds import Fault, golds, plain_name

CURE = 'name the column that is meant: columns={"question": ..., "answer": ...}'
_STATED = re.compile(  # as in MetaMathQA; "A: 18" is a whole line
    r"(?:\b(?:final )?answer is:?\s*|^\W*(?:the )?(?:final |correct )?(?:answer|ans|a)\s*:\s*)(\S.*?)\.?\s*$",
    re.IGNORECASE,
)
_LONGEST = 200  # characters of a completion that is an answer and no solution
_ALL_OF = re.compile(r"multi-?_?span|multiple_?spans", re.IGNORECASE)  # TAT-QA's answer_type


class Candidate(NamedTuple):
    """A column that may hold the answer."""

    name: str
    value: Any
    kind: str  # "answer"; "nested" in an object; "index" of a choice; "target" that a model should write; "solution"


def right_answers(
    row: Mapping[str, Any], candidates: Iterable[Candidate], choices: Sequence[Choice], survey: Survey
) -> tuple[tuple[str, ...], list[str]]:
    """Return the right answers, the gold one first, and the columns that they are from; none where all are empty.

    Args:
        row: the row as it is.
        candidates: its columns, the first one first.
        choices: the ones that the question shows.
        survey: of all rows of the data set.

    Raises:
        Fault: if a value is of a wrong kind, or two columns disagree.
        NeedsSurvey: as `right_choice`.
    """
    good: dict[str, tuple[str, ...]] = {}
    faults: list[Fault] = []
    for name, value, kind in candidates:
        if good and kind != "answer" and not (choices and kind == "index"):
            break
        try:
            found = _read(row, name, value, kind, choices, survey)
        except Fault as fault:
            faults.append(fault)
            continue
        if found:
            good[name] = found
    if not good:
        if faults:
            raise faults[0]
        return (), []
    (name, found), *others = good.items()
    for other, said in others:
        if not {*map(_key, found)} & {*map(_key, said)}:
            found = _with_parts(name, found, other, said)
    if len(found) > 1 and not choices and _wants_all(row):
        raise Fault("the answer is several parts, all of which are asked for", [*found])
    return found, [*good]


def _read(
    row: Mapping[str, Any], name: str, value: Any, kind: str, choices: Sequence[Choice], survey: Survey
) -> tuple[str, ...]:
    if kind == "answer":
        value = _listed(value, name)
    elif kind in ("target", "solution"):
        value = _solved(value, name, row)
    elif kind == "index":
        if value in (-1, "-1"):  # as the hub hides the labels of test splits
            return ()
        if not choices and _counts(value):
            raise Fault(f"{name} names a choice, and the row shows no choices", value)
    if choices:
        return right_choice(value, choices, survey, index=kind == "index")
    if type(value) is str and ("\n" in value or "\\boxed" in value) and kind in ("answer", "nested"):
        value = _concluded(value, name)
    return golds(value)


def _counts(value: Any) -> bool:
    """Whether a value can be the number or the letter of a choice."""
    return isinstance(value, int | bool) or (isinstance(value, str) and bool(re.fullmatch(r"\W*(\w|\d\d)\W*", value)))


def _listed(value: Any, name: str) -> Any:
    """Return the list that a text holds as JSON, in columns that hold lists."""
    if isinstance(value, str) and value.startswith("[") and plain_name(name).endswith("s"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _key(text: str) -> str:
    last = text.rpartition("####")[2].strip().strip("$").casefold().rstrip(".")
    bare = last.replace(",", "")
    try:
        return repr(float(bare))
    except ValueError:
        return "".join(last.split())


def _with_parts(name: str, found: tuple[str, ...], other: str, said: tuple[str, ...]) -> tuple[str, ...]:
    """Return all answers where a column holds several in one text, parted by semicolons, one of which another names."""
    for column, whole, one in ((name, found, said), (other, said, found)):
        parts = whole[0].split(";") if plain_name(column).endswith("s") and len(whole) == 1 else []
        several = [part.strip() for part in parts if part.strip()]
        if {*map(_key, several)} & {*map(_key, one)}:
            return tuple(dict.fromkeys((*one, *several)))
    raise Fault(f"{name} and {other} are different answers; {CURE}", (found[0], said[0]))


def _wants_all(row: Mapping[str, Any]) -> bool:
    """Whether the row says that its answer has several parts, as OlympiadBench and TAT-QA do."""
    for column, value in row.items():
        name = plain_name(str(column))
        if name in ("ismultipleanswer", "multipleanswers") and value in (True, "True", "true"):
            return True
        if name == "answertype" and isinstance(value, str) and _ALL_OF.fullmatch(value):
            return True
    return False


def _solved(value: Any, name: str, row: Mapping[str, Any]) -> Any:
    """Return the answer that a target, a completion or a worked solution states.

    That is the last box, the text after `####` or "the answer is", else all of a line that is short.
    """
    numbers = next((column for column in row if plain_name(str(column)) in ("nums", "numbers")), None)
    if numbers and plain_name(name) == "target" and value is not None:
        raise Fault(f"target is to be reached with {numbers}, and is no answer to a question")
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
        value = value[0]
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):  # TRL's completion
        value = value["content"]
    if not isinstance(value, str):
        return value
    if stated := _stated(value):
        return stated
    if "\n" in value.strip() or len(value) > _LONGEST:
        raise Fault(f"{name} is worked out and states no answer: in a box, after ####, or as 'The answer is: '")
    return value


def _stated(text: str) -> str | None:
    if box := boxed(text):
        return box
    if "####" in text:
        return text.rpartition("####")[2].strip()
    last = text.strip().splitlines()[-1] if text.strip() else ""
    found = _STATED.search(last)
    return found[1] if found else None


def _concluded(text: str, name: str) -> str:
    """Return the answer that a solution in a column of answers ends with; `Fault` if it is long and ends with none.

    Rows of GSM8K stay as they are, since each environment reads the number after `####`.
    """
    if "####" in text or ("\n" not in text.strip() and text.count("boxed") > 1):
        return text
    stated = _stated(text)
    if stated is None and len(text) > _LONGEST:
        raise Fault(f"{name} is worked out and states no answer: in a box, after ####, or as 'The answer is: '")
    return stated or text


def boxed(solution: str) -> str | None:
    r"""Return the last box of a solution; hendrycks MATH also has `\fbox{3}` and `\boxed 3`."""
    if "boxed" not in solution and "\\fbox" not in solution:
        return None
    solution = solution.replace("\\fbox", "\\boxed")
    return boxed_answer(re.sub(r"\\boxed +([^\s{}$]+)", r"\\boxed{\1}", solution))
