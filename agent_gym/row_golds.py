"""Gold answers of data sets: from the value of a column to the texts that count as right.

A value is read by its form and never by the name of its column alone. What has no form here is refused with its reason:
an object whose text became the gold answer would pay for the text of the object.

| value | what is right |
|---|---|
| a text; a finite number | that |
| true, false | yes or true, no or false (BoolQ, StrategyQA) |
| a list, also of lists | any of its entries |
| `{"value", "aliases", "normalized_aliases", ...}` | any of these (TriviaQA, arXiv:1705.03551) |
| `{"text": [...], "answer_start": [...]}` | any of the texts (SQuAD, arXiv:1606.05250; Natural Questions) |
| `{"short_answers": [...], "yes_no_answer": ...}` | any of these (Natural Questions) |
| `{"number", "date", "spans"}` | the number, or the one span (DROP, arXiv:1903.00161) |
| `{"target": [...]}` | any of these (Search-R1); refused with other keys beside it, as TinyZero's `numbers` |
| `{"role": "assistant", "content": ...}` | the content (TRL's completion) |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from agent_gym.errors import ConfigError, quoted

_LARGEST = 10**4000
_LEVELS = 8  # of lists in lists
_HIDDEN = ("<unk>", "?")  # what test splits without public answers hold
_ODD = ("", " ", "\n", "\t", "\r", "{", "?", "<")  # what an empty text, an object or a hidden answer begins with
_OBJECTS: tuple[tuple[tuple[str, ...], str], ...] = (  # keys whose values are answers, then the others it may have
    (
        ("value", "aliases", "normalizedaliases", "humananswers"),
        "normalizedvalue matchedwikientityname normalizedmatchedwikientityname type",
    ),
    (("text",), "answerstart answerend starttoken endtoken startbyte endbyte answerid type inputtext label"),
    (("target",), ""),
    (("answer",), ""),
    (("answers",), ""),
    (("groundtruth",), ""),
    (("content",), "role"),
)


class Fault(ConfigError):
    """Why a row cannot be used: its kind, which is the same for all such rows, and the value."""

    def __init__(self, kind: str, value: Any = None) -> None:
        self.kind, self.value = kind, "" if value is None else quoted(value)
        super().__init__(f"{kind}: {self.value}" if self.value else kind)


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """Return a name of a column or key in small letters and digits alone: `Golden_Answers` is goldenanswers."""
    return re.sub("[^a-z0-9]", "", name.lower())


def object_of(value: Any) -> Any:
    """Return the object that a text holds as JSON, as some copies write them; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            held = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return held if isinstance(held, dict) else value
    return value


def golds(value: Any) -> tuple[str, ...]:
    """Return what counts as right, each once and the first one first; none for a value that is empty.

    Raises:
        Fault: for a value of a kind that is no answer.
    """
    if type(value) is str and value[:1] not in _ODD:
        return (value,)
    return tuple(dict.fromkeys(_golds(value, 0)))


def is_plain(value: Any) -> bool:
    """Whether a value is an answer as it stands: a text, a number, or a list of such."""
    if isinstance(value, list) and value:
        return all(isinstance(one, str | int | float) and is_plain(one) for one in value)
    if isinstance(value, str):
        return bool(value.strip()) and not value.lstrip().startswith("{") and value.strip() not in _HIDDEN
    return is_number(value)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    # An integer may be too large for a float, and for Python to print.
    return abs(value) < _LARGEST if isinstance(value, int) else math.isfinite(value)


def _golds(value: Any, level: int) -> Iterator[str]:
    value = object_of(value.item() if hasattr(value, "item") and not isinstance(value, Sequence) else value)
    if value is None:
        return
    if isinstance(value, bool):
        yield from ("yes", "true") if value else ("no", "false")
    elif isinstance(value, int | float | Decimal):
        if not is_number(value):
            raise Fault("the answer is not a number that can be written", value)
        yield str(value)
    elif isinstance(value, str):
        if value.strip() and value.strip() not in _HIDDEN:
            yield value
    elif isinstance(value, Mapping):
        yield from _of_object(value, level)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray) and level < _LEVELS:
        lists = [isinstance(one, list | tuple) for one in value if one is not None]
        if any(lists) and not all(lists):
            raise Fault("the answer is a list of lists and other values, of which nothing says which one is right")
        for one in value:
            yield from _golds(one, level + 1)
    else:
        deep = isinstance(value, Sequence) and level >= _LEVELS
        raise Fault("the answer is a list of lists of lists" if deep else f"the answer is a {type(value).__name__}")


def _of_object(value: Mapping[Any, Any], level: int) -> Iterator[str]:
    keys = {plain_name(str(key)): one for key, one in value.items()}
    if not keys:
        return
    if level >= _LEVELS:
        raise Fault("the answer is nested too deeply")
    if "shortanswers" in keys:
        yield from _of_natural_questions(keys, level)
        return
    if "spans" in keys and keys.keys() <= {"spans", "number", "date", "types", "workerid", "hitid", "validatedanswers"}:
        yield from _of_drop(keys)
        return
    for answers, others in _OBJECTS:
        known = keys.keys() <= {*answers, *others.split()} and keys.get("role") in (None, "assistant")
        if answers[0] in keys and known:
            for name in answers:
                yield from _golds(keys.get(name), level + 1)
            return
    named = ", ".join(sorted(map(str, value))[:6])
    beside = " beside target" if "target" in keys else ""
    raise Fault(f"the answer is an object of a form that is not known{beside} (keys: {named[:100]})")


def _of_natural_questions(keys: Mapping[str, Any], level: int) -> Iterator[str]:
    found = [*_golds(keys["shortanswers"], level + 1)]
    yes_no = keys.get("yesnoanswer")
    said = [yes_no] if isinstance(yes_no, str | int) else yes_no if isinstance(yes_no, Sequence) else []
    words = {"yes": "yes", "1": "yes", "no": "no", "0": "no"}
    yield from found or [words[str(one).lower()] for one in said if str(one).lower() in words]


def _of_drop(keys: Mapping[str, Any]) -> Iterator[str]:
    number, spans = keys.get("number"), keys["spans"]
    given = [*dict.fromkeys(_golds(spans, 1))]
    if isinstance(number, str | int | float) and str(number).strip():
        yield str(number)
    elif len(given) > 1:
        raise Fault("the answer is several spans, all of which are asked for", given)
    elif not given and isinstance(date := keys.get("date"), Mapping) and any(date.values()):
        yield " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))
    yield from given
