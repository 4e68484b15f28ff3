"""The forms in which data sets write a question and its answers, read as one: `question` and `answer`.

| form | question | answers |
|---|---|---|
| GSM8K, HotpotQA, nq_open | `question` | `answer`, a text or a list |
| FlashRAG (NQ, TriviaQA, PopQA, ...) | `question` | `golden_answers` |
| MATH, MATH-500, AIME | `problem`, `Problem` | `answer`, `Answer`, else the last box of `solution` |
| verl, Search-R1, DAPO-Math-17k, Agent-R1 | `extra_info.question`, else the last message in `prompt` | as below |

The last form has the answers in `extra_info.answers`, `extra_info.answer` or `reward_model.ground_truth`: a text, a
list, or Search-R1's `{"target": [...]}`. What its programs write around a question in `prompt` is left out. Of several
answers any is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.rewards import boxed_answer

FORMS = (
    "question (or problem, prompt, extra_info.question) and answer (or answers, golden_answers, solution, "
    "reward_model.ground_truth)"
)
_ANSWERS = ("answer", "Answer", "answers", "golden_answers")
_FRAMES = (  # what stands before and behind a question in a prompt
    (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n",
        '\n\nRemember to put your answer on its own line after "Answer:".',
    ),  # DAPO-Math-17k
    ("Answer the given question. You must conduct reasoning inside <think>", "\n"),  # Search-R1, up to "Question: "
    ("Question: ", "\nYou FIRST think about the reasoning process as an internal monologue"),  # Agent-R1
    ("", " Let's think step by step and output the final answer"),  # verl's GSM8K and MATH
)


def question_of(row: Mapping[str, Any]) -> str | None:
    """Return the question of a row in one of the forms, None if there is none."""
    extra = _mapping(row.get("extra_info"))
    for value in (row.get("question"), row.get("problem"), row.get("Problem"), extra.get("question")):
        if isinstance(value, str):
            return value
    prompt = row.get("prompt")
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        asked = [message["content"] for message in prompt if _mapping(message).get("role") == "user"]
        prompt = asked[-1] if asked else None
    return _unframed(prompt) if isinstance(prompt, str) else None


def _unframed(prompt: str) -> str:
    for before, behind in _FRAMES:
        if prompt.startswith(before) and behind in prompt:
            inside = prompt.removeprefix(before).rpartition(behind)[0]
            return inside.rpartition("Question: ")[2]
    return prompt


def answers_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what counts as right, the gold answer first; none if the row has none, or hides it."""
    extra = _mapping(row.get("extra_info"))
    truth = _mapping(row.get("reward_model")).get("ground_truth")
    boxed = _boxed(row["solution"]) if isinstance(row.get("solution"), str) else None
    named = (row.get(name) for name in _ANSWERS)
    for value in (*named, extra.get("answers"), extra.get("answer"), _mapping(truth).get("target", truth), boxed):
        texts = tuple(_texts(value))
        if texts:
            return texts
    return ()


def aliases_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what else counts as right, from `answer_aliases`: a text or a list, which some copies hold as a JSON text.

    Raises ValueError for a text that begins as a list and is none.
    """
    aliases = row.get("answer_aliases")
    return tuple(_texts(json.loads(aliases) if isinstance(aliases, str) and aliases.startswith("[") else aliases))


def _boxed(solution: str) -> str | None:
    r"""Return the last box of a solution; hendrycks MATH also has `\fbox{3}` and `\boxed 3`."""
    solution = solution.replace("\\fbox", "\\boxed")
    return boxed_answer(re.sub(r"\\boxed +([^\s{}$]+)", r"\\boxed{\1}", solution))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and value.startswith("{"):  # some copies hold an object as a JSON text
        with suppress(ValueError):
            value = json.loads(value)
    return value if isinstance(value, Mapping) else {}


def pairs(value: Any, second: str) -> list[tuple[Any, Any]]:
    """Read HotpotQA's pairs of a title and something: the official `[[title, something], ...]`, or the hub's columns.

    The columns are "title" and `second`. Some copies hold either form as a JSON text. Raises KeyError, TypeError or
    ValueError for anything else.
    """
    value = json.loads(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return list(zip(value["title"], value[second], strict=True))
    return [(first, rest) for first, rest in value]


def completed(row: Any, columns: tuple[str, ...], where: str) -> dict[str, Any]:
    """Return a row with these columns: as it is if it has them, else with `question` and `answer` as another form says.

    Raises:
        ConfigError: if a column is missing in any form; it lists the columns found and the forms.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: a row must be an object with the columns {', '.join(columns)}")
    if all(column in row for column in columns):
        return row  # type: ignore[return-value]
    read: dict[str, Callable[[], Any]] = {"question": lambda: question_of(row), "answer": lambda: _one(answers_of(row))}
    found = {name: read[name]() for name in columns if name in read and name not in row}
    missing = [name for name in columns if name not in row and found.get(name) is None]
    if missing:
        forms = f"; a row has {FORMS}" if missing[0] in read else ""
        if missing[0] == "answer" and (named := [name for name in _ANSWERS if name in row]):
            held = ", ".join(f"{name} is {row[name]!r:.80}" for name in named)
            raise ConfigError(f"{where}: it names no answer: {held}; leave such rows out{forms}")
        raise ConfigError(f"{where}: no column {missing[0]!r}; it has: {', '.join(map(str, row))}{forms}")
    return {**row, **found}


def _one(answers: tuple[str, ...]) -> str | list[str] | None:
    return None if not answers else answers[0] if len(answers) == 1 else list(answers)
