"""The quick reading of usual multiple-choice rows is that of the reader of any form."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent_gym import row_forms, row_reader
from agent_gym.errors import ConfigError
from agent_gym.row_reader import read_sources, rules_of

TEXTS: list[Any] = [
    "Mars",
    "an iron nail",
    "B",
    "b.",
    "A. one",
    "12",
    "-3",
    "1.",
    "x y",
    "  padded",
    "two\nlines",
    "",
    "{a}",
    "[1]",
]
TEXTS += [
    "Straße",
    "the same",
    "The Same.",
    "(A) two",
    "C) three",
    "no",
    "True",
    "½",
    None,
    7,
    2.5,
    True,
    "?",
    "<b>x</b>",
]
ASKED: list[Any] = [
    "Which one?",
    "Which?\nA. Mars\nB. an iron nail",
    "Mars or not?",
    " padded? ",
    "",
    "{q}",
    "[q]",
    "<q>",
    None,
    5,
]
ANSWERS = ["A", "B", "D", "E", "a", "(B)", "Mars", "", None, 0, 1, 3, 4, 5, -1, "1", "0", 2.0, True, ["A"], ["A", "B"]]


def some_row(rng: random.Random, form: str, plain: bool) -> dict[str, Any]:
    size = rng.choice([2, 3, 4, 4, 4, 5])
    usual = [f"choice {rng.randrange(1000)} of them" for _ in range(size)]
    texts: list[Any] = usual if plain else [rng.choice(TEXTS) if rng.random() < 0.2 else one for one in usual]
    asked = "Which of these is it?" if plain or rng.random() < 0.8 else rng.choice(ASKED)
    letters = ["A", "B", "C", "D", "E"][:size]
    answer: Any = rng.choice(letters) if plain or rng.random() < 0.7 else rng.choice(ANSWERS)
    if form == "list":
        return {"question": asked, "choices": texts, "answer": rng.randrange(size) if rng.random() < 0.8 else answer}
    if form == "numbers":
        return {"question": asked, "options": texts, "label": rng.randint(1, size) if rng.random() < 0.9 else answer}
    if form == "hub":
        labels = letters if plain or rng.random() < 0.9 else [str(n + 1) for n in range(size)]
        return {"id": "7", "question": asked, "choices": {"text": texts, "label": labels}, "answerKey": answer}
    columns = dict(zip("ABCD", [*texts, *texts][:4], strict=True))
    more = {"context": "A story."} if not plain and rng.random() < 0.1 else {}
    return {"Question": asked, **columns, **more, "answer": answer}


def outcome(rows: list[dict[str, Any]]) -> Any:
    row_reader._SAID.clear()
    try:
        return read_sources({"train": lambda: ((f"row {n}", row) for n, row in enumerate(rows))}, rules_of(), "rows")
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("form", ["list", "numbers", "hub", "columns"])
def test_rows_are_read_as_by_the_reader_of_any_form(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, quick = random.Random(form), 0
    for number in range(150):
        size = rng.choice([1, 3, 30])
        rows = [some_row(rng, form, plain=number % 3 == 0 or rng.random() < 0.7) for _ in range(size)]
        found, said = outcome(rows), capsys.readouterr().err
        with monkeypatch.context() as patch:
            patch.setattr(row_forms, "_usual", lambda *_: None)
            assert (outcome(rows), capsys.readouterr().err) == (found, said), rows
        quick += isinstance(found, dict)
    assert quick > 20
