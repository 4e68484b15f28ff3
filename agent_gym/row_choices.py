"""Multiple choice: the choices of a row in the forms of data sets, as they are shown, and the choice that is right.

The gold answer may be a letter, a label, the text of a choice, or its number, from 0 or from 1. Its form follows from
all rows of a data set (`Survey`), since one row often leaves two readings; where all rows do, it is refused. Letter and
text of the right choice are both right.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent_gym.row_golds import Fault, golds, object_of, plain_name

NAMES = ("choices", "options", "endings", "candidates", "answerchoices", "answeroptions", "choicelist", "optionlist")
"""The columns that hold all choices, as `plain_name` writes them."""
_GROUP = re.compile(r"(option|opt|op|choice|sol|answer|ending)([a-j]|\d)")
LABEL = re.compile(r"\s*[(\[]?\s*([A-Za-z]|\d{1,2})\s*[)\].:]\s*")
_LABELS = ("label", "labels", "key", "id", "option", "letter")
_TEXTS = ("text", "texts", "value", "content", "optiontext", "choice", "answer")
_MOST = 100
_MANY = 20  # rows
ALPHABET = [chr(ord("A") + n) for n in range(26)]
_BARE = re.compile(r"^\s*[(\[]?\s*|\s*[)\].:]*\s*$")


class NeedsSurvey(Exception):
    """The answer of a row follows from all rows of the data set, and the survey of them is still open."""


class Choice(NamedTuple):
    """One of the choices."""

    label: str
    text: str


@dataclass
class Survey:
    """The facts of all rows of a data set about answers that are numbers.

    It is open while the rows are read for the first time, and takes account of each.
    """

    open: bool = False
    lowest: bool = False  # some answer is 0
    highest: bool = False  # some answer is the number of choices
    only_index: bool = False  # some answer can only be the number of a choice
    only_text: bool = False  # some answer can only be the text of one
    from_one: bool = False  # the columns of the choices are numbered from 1
    used: set[str] = field(default_factory=set)  # how answers were read, for a line about it
    places: Counter[int] = field(default_factory=Counter)  # of the right choices

    def look(self, value: Any, choices: Sequence[Choice], columns: Sequence[str] = ()) -> None:
        """Take account of a row."""
        self.from_one = self.from_one or (len(columns) > 1 and columns[0].endswith("1"))
        for number in _numbers(value):
            self.lowest |= number == 0
            self.highest |= number == len(choices)
            as_text, as_index = bool(_by_text(str(value), choices)), 0 <= number <= len(choices)
            self.only_index |= as_index and not as_text
            self.only_text |= as_text and not as_index

    @property
    def always(self) -> int | None:
        """The place of the right choice, from 1 on, if it is the same in many rows and in all of them."""
        alike = len(self.places) == 1 and self.places.total() >= _MANY
        return next(iter(self.places)) + 1 if alike else None

    @property
    def first(self) -> int:
        """The number of the first choice."""
        return int(self.highest and not self.lowest)


def choice_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that hold choices: one with all, or one for each, as A, B, C or option1, option2."""
    plain = {name: plain_name(name) for name in names}
    if listed := [name for name, word in plain.items() if word in NAMES]:
        return tuple(listed)
    letters = [name for name in plain if len(name) == 1 and name.isalpha() and name.isupper()]
    if _in_order(letters):
        return tuple(sorted(letters))
    groups: dict[str, dict[str, str]] = {}
    for name, word in plain.items():
        if match := _GROUP.fullmatch(word):
            groups.setdefault(match[1], {})[match[2]] = name
    return next((tuple(one[key] for key in sorted(one)) for one in groups.values() if _in_order([*one])), ())


def _in_order(marks: Sequence[str]) -> bool:
    found = sorted(marks)
    return len(found) > 1 and found[0] in ("A", "a", "0", "1") and all(
        ord(after) == ord(before) + 1 for before, after in zip(found, found[1:], strict=False)
    )  # fmt: skip


def choices_of(row: Mapping[str, Any], columns: Sequence[str]) -> list[Choice]:
    """Return the choices that columns of a row hold; none where they are empty.

    Raises:
        Fault: for a form that is not known.
    """
    if len(columns) == 1:
        return parsed(row[columns[0]])
    held = [column for column in columns if plain_name(column) in NAMES]
    if held:  # such as choices, and options that say the same
        return next((found for column in held if (found := parsed(row[column]))), [])
    texts = {column: row[column] for column in columns if row[column] not in (None, "")}
    if len(texts) > 1 and [*texts] != [*columns][: len(texts)]:
        raise Fault("a choice between others is empty", [*texts])
    # Letters, and not the numbers of the columns: the answers may be counted from another one.
    letters = [chr(ord("A") + n) for n in range(len(texts))]
    found = [Choice(letter, _text(text)) for letter, text in zip(letters, texts.values(), strict=True)]
    return found if len(found) > 1 else []


def parsed(value: Any) -> list[Choice]:
    """Read the value of a column with all choices; see `choices_of`."""
    if isinstance(value, str):
        value = _of_text(value)
    if value is None or (hasattr(value, "__len__") and not len(value)):
        return []
    if type(value) is list and type(value[0]) is str and len(value) <= _MOST:
        return _lettered(value)
    if isinstance(value, Mapping):
        keys = {plain_name(str(key)): one for key, one in value.items()}
        labels, texts = _either(keys, _LABELS), _either(keys, _TEXTS)
        if isinstance(texts, Sequence) and not isinstance(texts, str):
            if not isinstance(labels, Sequence) or isinstance(labels, str) or len(labels) != len(texts):
                return _lettered(texts)
            return [Choice(_text(label), _text(text)) for label, text in zip(labels, texts, strict=True)]
        filled = {str(key).strip(): text for key, text in value.items() if text is not None}
        short = 1 < len(filled) <= _MOST and max(map(len, filled)) <= 2
        return [Choice(key, _text(text)) for key, text in filled.items()] if short else _odd(value)
    if not isinstance(value, Sequence) or isinstance(value, bytes) or len(value) > _MOST:
        return _odd(value)
    if all(isinstance(one, Mapping) for one in value):
        keyed = [{plain_name(str(key)): part for key, part in one.items()} for one in value]
        texts = [_either(one, _TEXTS) for one in keyed]
        labels = [_either(one, _LABELS) for one in keyed]
        if None in labels or labels == texts:
            return _lettered(texts)
        return [Choice(_text(label), _text(text)) for label, text in zip(labels, texts, strict=True)]
    return _lettered(value)


def _odd(value: Any) -> list[Choice]:
    raise Fault(f"the choices are of a form that is not known ({type(value).__name__})", value)


def _either(keys: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((keys[name] for name in names if keys.get(name) is not None), None)


def scored(value: Any) -> list[Choice]:
    """Read an object of choices and the score of each: BIG-bench's `{"yes": 1, "no": 0}`, or lists of both.

    `choices` and `labels` are the names of TruthfulQA's lists. None where it is empty.
    """
    value = object_of(value)
    if not isinstance(value, Mapping) or not value:
        return []
    listed = value.get("choices")
    return _lettered(listed if isinstance(listed, list) else [*value])


def best_scored(value: Any) -> list[Any]:
    """Return the choices with the highest score in an object that `scored` reads; none where all are 0."""
    value = object_of(value)
    if not isinstance(value, Mapping) or not value:
        return []
    scores = value
    if isinstance(value.get("choices"), list) and isinstance(value.get("labels"), list):
        scores = dict(zip(value["choices"], value["labels"], strict=False))
    if not all(isinstance(score, int | float) for score in scores.values()):
        raise Fault("the score of a choice is not a number", [*scores.values()])
    best = max(scores.values())
    return [choice for choice, score in scores.items() if score == best and score > 0]


def are_options(value: Any, named: Sequence[Any]) -> bool:
    """Whether a list is the options of a question, and no list of right answers: a value names one of its entries."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(one, str) for one in value):
        return False
    for one in named:
        if isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= len(value):
            return True
        if isinstance(one, str) and (mark := LABEL.fullmatch(f"{one}.")) and one not in value:
            place = ord(mark[1].upper()) - ord("A") if mark[1].isalpha() else int(mark[1])
            if 0 <= place <= len(value):
                return True
    return False


def _text(value: Any) -> str:
    if type(value) is str and value and value[0] not in "{?<" and (text := value.strip()):
        return text
    found = golds(value) if not isinstance(value, Mapping | list | tuple) else ()
    if isinstance(value, bool):
        return str(value)
    if len(found) != 1:
        raise Fault("a choice is empty, or neither text nor number", value)
    return found[0].strip()


def _of_text(text: str) -> Any:
    """Read a list or an object that a cell holds as JSON or in Python's spelling, or choices after their labels."""
    stripped = text.strip()
    if stripped[:1] in "[{" and stripped and len(stripped) < 100_000:
        for read in (json.loads, ast.literal_eval):
            try:
                return read(stripped)
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                continue
    # "A. x\nB. y" or MathQA's "a ) 38 , b ) 27.5 , c ) 30"
    lines = [line for line in stripped.splitlines() if line.strip()]
    if len(lines) < 2:
        lines = _by_labels(stripped)
    if stripped and len(lines) < 2:
        raise Fault("the choices are one text", text)
    return lines


def _by_labels(text: str) -> list[str]:
    """Split a line of choices at their labels, which are letters in their order: `A) 3 B) 4`, `(a) 3, (b) 4`."""
    begins = re.match(r"[(\[]?([Aa])\s*[)\].:]", text)
    starts, at = [0], 1
    for number in range(1, 26) if begins else ():
        letter = chr(ord(begins[1]) + number)  # type: ignore[index]
        found = re.compile(rf"(?<=[\s,;])[(\[]?{letter}\s*[)\].:](?=\s|\S)").search(text, at)
        if found is None:
            break
        starts.append(found.start())
        at = found.end()
    ends = [*starts[1:], len(text)]
    return [text[start:end].strip().rstrip(",;").rstrip() for start, end in zip(starts, ends, strict=True)]


def _lettered(texts: Sequence[Any]) -> list[Choice]:
    """Give choices their letters, which some data sets have written before them."""
    words = [_text(text) for text in texts]
    letters = ALPHABET[: len(words)] if len(words) <= 26 else [str(n + 1) for n in range(len(words))]
    first = LABEL.match(words[0]) if words else None
    marks = [LABEL.match(word) for word in words] if first and first[1].upper() == letters[0] else []
    if marks and [mark and mark[1].upper() for mark in marks] == letters:
        words = [word[mark.end() :].strip() if mark else word for word, mark in zip(words, marks, strict=True)]
        if not all(words):
            raise Fault("a choice is empty", texts)
    return [*map(Choice, letters, words)]


def block(choices: Sequence[Choice]) -> str:
    """Return choices as they are shown, one per line."""
    return "\n".join(f"{one.label}. {one.text}" for one in choices)


def are_in(choices: Sequence[Choice], text: str) -> bool:
    """Whether a text shows the choices with their labels already."""
    lowered, at = text.casefold(), 0
    if not all(one.text.casefold() in lowered for one in choices):
        return False
    for one in choices:
        label, words = re.escape(one.label.casefold()), re.escape(one.text.casefold())
        if not (found := re.compile(rf"(?<!\w)[(\[]?{label}\s*[)\].:]\s*{words}").search(lowered, at)):
            return False
        at = found.end()
    return True


def right_choice(value: Any, choices: Sequence[Choice], survey: Survey, *, index: bool) -> tuple[str, ...]:
    """Return the label and the text of the choice that an answer names, none for an empty one.

    Args:
        value: the answer.
        choices: at least one.
        survey: of all rows of the data set.
        index: whether the name of its column says that it is a label or a number.

    Raises:
        Fault: if it names no choice, several, or leaves two readings.
        NeedsSurvey: if it is a number and the survey is open.
    """
    if type(value) is str or type(value) is int:
        alone = _named(value, choices, survey, index) if value != "" else None
        if alone:
            survey.places[choices.index(alone)] += 1
        if alone is None and value != "":
            raise Fault("the answer is none of the choices", value)
        return () if alone is None else (alone.label, alone.text) if alone.label != alone.text else (alone.text,)
    values: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if len(values) == 2 and Choice(*map(str, values)) in choices:  # results of this function
        return tuple(map(str, values))
    if isinstance(value, Mapping | bool):
        values = golds(value)
    found = [_named(one, choices, survey, index) for one in values if one not in (None, "")]
    if isinstance(value, bool):  # choices are yes and no, or true and false
        found = [one for one in found if one] or [None]
    named = [one for one in found if one is not None]
    if len(named) < len(found):
        raise Fault("the answer is none of the choices", value)
    if len(set(named)) > 1:
        raise Fault("the answer names several choices, and one of them alone would count as right", value)
    if named:
        survey.places[choices.index(named[0])] += 1
    return tuple(dict.fromkeys((named[0].label, named[0].text))) if named else ()


def _named(value: Any, choices: Sequence[Choice], survey: Survey, index: bool) -> Choice | None:
    text = _text(value)
    labelled, by_text = _by_label(text, choices), _by_text(text, choices)
    if labelled:
        if by_text and labelled not in by_text and not index:
            raise Fault("the answer is the label of one choice and the text of another", value)
        survey.used.add("the label of a choice")
        return labelled
    if numbers := _numbers(value):
        # Where some row has 0, numbers begin at 0, whatever the others have.
        if survey.open and (not survey.lowest or (by_text and not index)):
            raise NeedsSurvey
        if not (survey.lowest or survey.highest or by_text) and (survey.from_one or isinstance(value, str)):
            raise Fault("the answer is the number of a choice, and no row tells whether the first is 0 or 1", value)
        return _numbered(numbers[0], by_text, choices, survey, index)
    if by_text:
        survey.used.add("the text of a choice")
        return by_text[0]
    mark = LABEL.match(text)  # "(B) Paris"
    inside = _by_label(mark[1], choices) if mark else None
    return inside if mark and inside in _by_text(text[mark.end() :], choices) else None


def _numbered(
    number: int, by_text: Sequence[Choice], choices: Sequence[Choice], survey: Survey, index: bool
) -> Choice | None:
    """Decide whether a number is the text of a choice or counts them."""
    place = number - survey.first
    counted = choices[place] if 0 <= place < len(choices) else None
    if by_text and not index and (survey.only_text > survey.only_index or counted is None or counted in by_text):
        survey.used.add("the text of a choice")
        return by_text[0]
    if by_text and not index and survey.only_index == survey.only_text:
        raise Fault("the answer is the number of one choice and the text of another", number)
    if counted is None:
        raise Fault(f"the answer is the number of a choice that is not there, counted from {survey.first}", number)
    survey.used.add(f"the number of a choice, counted from {survey.first}")
    return counted


def _numbers(value: Any) -> list[int]:
    """Return the whole number that a value is, if it is one."""
    if type(value) is int:
        return [value] if abs(value) < 1000 else []
    if isinstance(value, str):
        bare = value.strip()
        return [int(bare)] if len(bare) < 5 and re.fullmatch(r"-?\d{1,3}", bare) else []
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1 and abs(value) < 1000:
        return [int(value)]
    return []


def _by_label(text: str, choices: Sequence[Choice]) -> Choice | None:
    bare = text if text.isalnum() else _BARE.sub("", text)
    for one in choices:
        if one.label == bare:
            return one
    bare = bare.casefold()
    return next((one for one in choices if one.label.casefold() == bare), None)


def _by_text(text: str, choices: Sequence[Choice]) -> list[Choice]:
    words = text.casefold().split()
    wanted, first = " ".join(words).rstrip("."), words[0].rstrip(".") if words else ""
    found = []
    for one in choices:
        text = one.text.casefold()
        if first in text and " ".join(text.split()).rstrip(".") == wanted:  # the first is quick, and says no to most
            found.append(one)
    return found
