"""Multiple-choice rows in their usual forms, read about twice as fast as row_forms.py reads any form.

A question, choices as a list, as the hub's `{"text": [...], "label": [...]}` or as the columns A to D, and an answer
that is a label or a number: most benchmarks have these. A row with anything else is left to row_forms.py, whose reading
of the usual ones is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_gym.row_choices import ALPHABET, LABEL, NeedsSurvey, Survey

if TYPE_CHECKING:
    from agent_gym.row_forms import Plan

_FIRST = "{?<["  # characters that begin other forms of a text
_NUMERAL = "-0123456789"  # and of a choice that a number may mean


class Usual(NamedTuple):
    """Where a row of some columns has its parts."""

    question: str
    choices: tuple[str, ...]  # one column, or one for each
    answer: str
    used: frozenset[str]


def usual_columns(plan: Plan, columns: tuple[str, ...], own: tuple[str, ...]) -> Usual | None:
    """Return where rows of these columns have their parts, None if they may have more than the usual ones."""
    answers = (*plan.answers, *plan.other_answers, *plan.indexes, *plan.targets, *plan.solutions)
    more = plan.body or plan.prompt or plan.scores or plan.listed or {"extra_info", "reward_model"} & {*columns}
    if more or "choices" in own or len(plan.questions) != 1 or not plan.choices or len(answers) != 1:
        return None
    if any(column not in own for column in plan.contexts) or not ({*answers} & {*plan.answers, *plan.indexes}):
        return None
    if len(plan.choices) > 1 and not all(len(name) == 1 for name in plan.choices):
        return None
    used = frozenset((plan.questions[0], answers[0], *plan.choices))
    return Usual(plan.questions[0], plan.choices, answers[0], used)


def read_usual(row: Mapping[str, Any], usual: Usual, survey: Survey) -> tuple[str, tuple[str, ...]] | None:
    """Return the question with its choices and the right answers of a row; None if it is not in a usual form.

    Raises:
        NeedsSurvey: as `row_forms.read`.
    """
    asked, value = row[usual.question], row[usual.answer]
    if type(asked) is not str or not asked or asked[0] in _FIRST or asked != asked.strip():
        return None
    found = _texts(row, usual.choices)
    if found is None:
        return None
    labels, texts = found
    place = _place(value, labels, texts, usual, survey)
    if place is None or texts[0].casefold() in asked.casefold():  # the question may show its choices already
        return None
    survey.places[place] += 1
    shown = "\n".join([f"{mark}. {one}" for mark, one in zip(labels, texts, strict=True)])
    return f"{asked}\n\n{shown}", (labels[place], texts[place])


def _texts(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
    held: Any = row[columns[0]] if len(columns) == 1 else [row[name] for name in columns]
    labels: Any = None
    if type(held) is dict and len(held) == 2:
        held, labels = held.get("text"), held.get("label")
        if type(labels) is not list:
            return None
    if type(held) is not list or not 2 <= len(held) <= len(ALPHABET):
        return None
    for one in held:
        if type(one) is not str or not one or one[0] in _FIRST or one[0].isspace() or one[-1].isspace():
            return None
    if labels is None:
        return None if LABEL.match(held[0]) else (ALPHABET[: len(held)], held)
    if len(labels) != len(held) or len({*labels}) < len(labels):
        return None
    return (labels, held) if all(type(one) is str and len(one) == 1 and one.isalpha() for one in labels) else None


def _place(value: Any, labels: Sequence[str], texts: Sequence[str], usual: Usual, survey: Survey) -> int | None:
    """Return the place of the right choice; None where another reading is possible."""
    if min(map(len, texts)) < 3:  # a choice may be the text of a letter
        return None
    if type(value) is str:
        if value not in labels:
            return None
        survey.used.add("the label of a choice")
        return labels.index(value)
    if type(value) is not int or not 0 <= value <= len(labels) or any(one[0] in _NUMERAL for one in texts):
        return None
    if survey.open:
        survey.lowest |= value == 0
        survey.highest |= value == len(labels)
        survey.only_index = True
        if not survey.lowest:
            raise NeedsSurvey
    elif not (survey.lowest or survey.highest):
        return None
    place = value - survey.first
    if not 0 <= place < len(labels):
        return None
    survey.used.add(f"the number of a choice, counted from {survey.first}")
    return place
