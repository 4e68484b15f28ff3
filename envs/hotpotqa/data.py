"""HotpotQA's rows from any source (generator, file, folder, hub), and the parts that an episode needs.

The official JSON (`supporting_facts` and `context` as pairs), the hub's form (both as columns) and the rows of
2WikiMultihopQA and MuSiQue are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym import row_reader
from agent_gym.data import EMBEDDED, Row, Splits
from agent_gym.envs.hotpotqa.embedded import LEVELS, GeneratedQuestions
from agent_gym.errors import ConfigError, at_difficulty, only_embedded, quoted, some_of
from agent_gym.row_forms import aliases_of, answers_of, pairs, question_of
from agent_gym.row_golds import Fault, plain_name
from agent_gym.row_reader import ReadRows, Rules, rules_of, say_once
from agent_gym.row_splits import FolderSplits
from agent_gym.search import Document
from agent_gym.search.sources import hotpotqa_paragraphs

OWN = (
    "context", "paragraphs", "supporting_facts", "question_decomposition", "metadata", "answerable", "evidences",
    "evidences_id", "entity_ids", "answer_id", "answers_objects", "gold_ids", "answer_aliases",
)  # fmt: skip
"""Columns that the environment reads, or that repeat others: their content is searched and not shown."""
_SPLIT_NAMES = {"dev": "validation", "valid": "validation"}
_TEXTS = ("text", "paragraphtext", "sentences", "content", "contents", "passagetext", "snippet", "body")

LADDER: tuple[Mapping[str, Any], ...] = (
    {"levels": LEVELS},
    {"levels": ("easy",), "alone": True},
    {"levels": ("easy",)},
    {"levels": ("medium",)},
    {"levels": ("easy", "medium"), "hops": 3},
    {"levels": ("easy", "medium"), "hops": 4},
)
"""Arguments of `GeneratedQuestions`: the default, then by difficulty, without questions for yes or no, half of which
guessing solves."""


class HotpotQuestion(NamedTuple):
    """The parts of a row that an episode needs."""

    text: str
    answers: tuple[str, ...]  # the right answers: the gold answer, then its aliases
    titles: tuple[str, ...]  # of the gold paragraphs, each once, in the order in which the supporting facts name them
    facts: tuple[tuple[str, str], ...]  # the supporting facts as (title, sentence)


def read_question(row: Any) -> HotpotQuestion:
    """Read a row; a supporting fact whose sentence does not exist, of which the official files have some, is left out.

    `ConfigError` if it is not a row of HotpotQA.
    """
    problem = f"a HotpotQA task is a dict with question, answer, supporting_facts and context, got {quoted(row, 200)}"
    question = question_of(row, (*OWN, "choices")) if isinstance(row, Mapping) else None
    if question is None or not (answers_of(row) or row.get("context")):
        raise ConfigError(problem)
    if not answers_of(row):
        raise ConfigError(f"{quoted(question)} has no answer; leave such rows, as a hidden test split has them, out")
    try:
        row = official(row)
        named = pairs(row.get("supporting_facts") or [], "sent_id")
        context = {title: list(sentences) for title, sentences in pairs(row.get("context") or [], "sentences")}
        facts = [(title, context[title][n]) for title, n in named if title in context and 0 <= n < len(context[title])]
        answers = (*answers_of(row), *aliases_of(row))
        titles = tuple(dict.fromkeys(title for title, _ in named))
        if not all(isinstance(text, str) for text in (*titles, *(sentence for _, sentence in facts))):
            raise TypeError("a title or a sentence is not a text")
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{problem} ({error})") from error
    return HotpotQuestion(question, answers, titles, tuple(facts))


def paragraphs(rows: Iterable[Mapping[str, Any]]) -> list[Document]:
    """Return the paragraphs of rows, each once."""
    return list(hotpotqa_paragraphs(map(official, rows)))


def check_row(row: Row) -> None:
    """Raise `ConfigError` for a row, with `question` and `answer`, that cannot be played or searched."""
    read_question(row)
    for title, sentences in pairs(official(row).get("context") or [], "sentences"):
        if not title or not all(isinstance(text, str) for text in (title, *sentences)):
            raise Fault("the context holds a paragraph that is not a title with texts", (title, sentences))


RULES = rules_of(own=OWN, check=check_row)


def questions(
    data: str, levels: Sequence[str] | None = None, difficulty: int | None = None, rules: Rules = RULES
) -> tuple[Splits, list[Sequence[Row]]]:
    """Return the splits of a data source, and the rows whose paragraphs are searched together: none of "embedded".

    `ConfigError` for an unknown level, or one that a split does not have, or a difficulty that is not 1 to 5, or not of
    embedded questions; and as `load`.
    """
    only_embedded("difficulty", difficulty, data)
    levels = None if levels is None else some_of("levels", levels, LEVELS)
    if data == EMBEDDED:
        return GeneratedQuestions.splits(**at_difficulty(difficulty, LADDER, levels=levels)), []
    splits = load(data, rules)
    searched = distinct(splits)
    if levels is not None:
        splits = _like(splits, {split: _at_levels(rows, levels) for split, rows in splits.items()})
    for split, rows in splits.items():
        if not rows:
            raise ConfigError(f"{data}: split {split!r} has no question of the levels {', '.join(levels or LEVELS)}")
    return splits, searched


def _at_levels(rows: Sequence[Row], levels: Sequence[str]) -> Sequence[Row]:
    return [row for row in rows if row.get("level") in levels]


def _like(splits: Splits, others: dict[str, Any]) -> Splits:
    return FolderSplits(others) if isinstance(splits, FolderSplits) else others


def distinct(splits: Splits) -> list[Sequence[Row]]:
    """Return the rows of each split once: a split may go by two names."""
    return list({id(rows): rows for rows in splits.values()}.values())


def load(data: str | Path, rules: Rules = RULES) -> Splits:
    """Load the rows of a file, a folder or a hub name. The dev split serves as test where there is none.

    In a folder with the official files the ones for the full wiki, which come without the gold paragraphs, and test
    files, whose answers are not public, are passed over; elsewhere a test split without answers is. Rows that MuSiQue
    marks as ones without an answer are left out. `ConfigError` as `row_reader.load`.
    """
    config = "distractor" if "hotpot" in str(data) else None
    loaded = row_reader.load(data, rules, config, _is_passed_over)
    splits: dict[str, Any] = {}
    for name, rows in loaded.items():
        splits[name if _SPLIT_NAMES.get(name) in loaded else _SPLIT_NAMES.get(name, name)] = _answerable(rows, data)
    if "validation" in splits and not Path(data).expanduser().is_file():
        splits.setdefault("test", splits["validation"])
    return _like(loaded, splits)


def _is_passed_over(file: Path) -> bool:
    words = re.split(r"[_.]", file.name)
    return words[0] in ("hotpot", "musique") and bool({"fullwiki", "test"} & {*words})


def _answerable(rows: Sequence[Row], data: str | Path) -> Sequence[Row]:
    if not any("answerable" in row for row in rows[:1]):
        return rows
    kept = ReadRows(row for row in rows if row.get("answerable") is not False)
    if len(kept) < len(rows):
        say_once(f"{data}: {len(rows) - len(kept):,} of {len(rows):,} rows are left out: answerable is false")
    if not kept:
        raise ConfigError(f"{data}: no row is answerable")
    return kept if len(kept) < len(rows) else rows


def official(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of MuSiQue (arXiv:2108.00573) in HotpotQA's form, each paragraph as a sentence; others stay.

    Some copies of 2WikiMultihopQA (arXiv:2011.01060) hold columns as JSON texts. FlashRAG has them in `metadata`, and
    calls the sentences of a paragraph its content.
    """
    if "paragraphs" not in row:
        if "context" not in row and isinstance(metadata := row.get("metadata"), Mapping):
            row = {**metadata, **row}
        texts = {name: row[name] for name in ("supporting_facts", "context") if isinstance(row.get(name), str)}
        texts = {name: text for name, text in texts.items() if text.lstrip()[:1] in ("[", "{")}
        row = {**row, **{name: json.loads(text) for name, text in texts.items()}} if texts else row
        if isinstance(context := row.get("context"), Mapping) and "content" in context:
            row = {**row, "context": {"title": context["title"], "sentences": context["content"]}}
        elif isinstance(context, str | list) and any(isinstance(one, str | Mapping) for one in _listed(context)):
            row = {**row, "context": [_titled(one, n) for n, one in enumerate(_listed(context), 1)]}
        return row
    # In the order of the decomposition, which is the order in which one would search.
    steps = [step.get("paragraph_support_idx") for step in row.get("question_decomposition") or ()]
    order = {index: n for n, index in enumerate(steps)}
    gold = [paragraph for paragraph in row["paragraphs"] if paragraph["is_supporting"]]
    gold.sort(key=lambda paragraph: order.get(paragraph.get("idx"), len(order)))
    # Titles are not unique there, and of the paragraphs with one title `read_question` takes the last.
    others = [paragraph for paragraph in row["paragraphs"] if not paragraph["is_supporting"]]
    return {
        "question": row["question"],
        "answer": row["answer"],
        "answer_aliases": aliases_of(row),
        "supporting_facts": [[paragraph["title"], 0] for paragraph in gold],
        "context": [[paragraph["title"], [paragraph["paragraph_text"]]] for paragraph in [*others, *gold]],
    }


def _listed(context: Any) -> list[Any]:
    return [context] if isinstance(context, str) else context


def _titled(paragraph: Any, number: int) -> Any:
    """Return a paragraph that is a text, or an object with a title and a text, as HotpotQA's pair."""
    if isinstance(paragraph, str):
        return [f"Paragraph {number}", [paragraph]]
    if not isinstance(paragraph, Mapping):
        return paragraph
    keys = {plain_name(str(key)): value for key, value in paragraph.items()}
    text = next((keys[name] for name in _TEXTS if keys.get(name)), None)
    if isinstance(text, str) or (isinstance(text, list) and all(isinstance(one, str) for one in text)):
        return [keys.get("title") or f"Paragraph {number}", [text] if isinstance(text, str) else text]
    named = ", ".join(map(str, paragraph))[:100]
    raise Fault(f"the context holds a paragraph of a form that is not known (keys: {named})")
