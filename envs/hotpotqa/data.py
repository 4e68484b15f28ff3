"""HotpotQA's rows from where they are (the generator, a file, a folder, the hub), and what an episode needs of one.

The official JSON (`supporting_facts` and `context` as pairs), the hub's form (both as columns) and the rows of
2WikiMultihopQA and MuSiQue are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.data import EMBEDDED, Row, Splits, load_splits
from agent_gym.envs.hotpotqa.embedded import LEVELS, GeneratedQuestions
from agent_gym.errors import ConfigError, at_difficulty, only_embedded, some_of
from agent_gym.row_forms import aliases_of, answers_of, pairs, question_of
from agent_gym.search import Document
from agent_gym.search.sources import hotpotqa_paragraphs

COLUMNS = ("question", "answer")
_SPLIT_NAMES = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}


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


class Question(NamedTuple):
    """What an episode needs of a row."""

    text: str
    answers: tuple[str, ...]  # what counts as right: the gold answer, then its aliases
    titles: tuple[str, ...]  # of the gold paragraphs, each once, in the order in which the supporting facts name them
    facts: tuple[tuple[str, str], ...]  # the supporting facts as (title, sentence)


def read_question(row: Any) -> Question:
    """Read a row; a supporting fact whose sentence does not exist, of which the official files have some, is left out.

    `ConfigError` if it is no row of HotpotQA.
    """
    problem = f"a HotpotQA task is a dict with question, answer, supporting_facts and context, got {row!r:.200}"
    question = question_of(row) if isinstance(row, Mapping) else None
    if question is None or not (answers_of(row) or row.get("context")):
        raise ConfigError(problem)
    if not answers_of(row):
        raise ConfigError(f"{question[:80]!r} has no answer; leave such rows, as a hidden test split has them, out")
    try:
        row = official(row)
        named = pairs(row.get("supporting_facts") or [], "sent_id")
        context = {title: list(sentences) for title, sentences in pairs(row.get("context") or [], "sentences")}
        facts = [(title, context[title][n]) for title, n in named if title in context and 0 <= n < len(context[title])]
        answers = (*answers_of(row), *aliases_of(row))
        titles = tuple(dict.fromkeys(title for title, _ in named))
        if not all(isinstance(text, str) for text in (*titles, *(sentence for _, sentence in facts))):
            raise TypeError("a title or a sentence is no text")
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{problem} ({error})") from error
    return Question(question, answers, titles, tuple(facts))


def paragraphs(rows: Iterable[Mapping[str, Any]]) -> list[Document]:
    """Return the paragraphs of rows, each once."""
    return list(hotpotqa_paragraphs(map(official, rows)))


def questions(
    data: str, levels: Sequence[str] | None = None, difficulty: int | None = None
) -> tuple[Splits, list[Sequence[Row]]]:
    """Return the splits of a data source, and the rows whose paragraphs are searched together: none of "embedded".

    `ConfigError` for an unknown level, or one that a split does not have, or a difficulty that is not 1 to 5, or not of
    embedded questions; and as `load`.
    """
    only_embedded("difficulty", difficulty, data)
    levels = None if levels is None else some_of("levels", levels, LEVELS)
    if data == EMBEDDED:
        return GeneratedQuestions.splits(**at_difficulty(difficulty, LADDER, levels=levels)), []
    splits = load(data)
    searched = distinct(splits)
    if levels is not None:
        splits = {split: [row for row in rows if row.get("level") in levels] for split, rows in splits.items()}
    for split, rows in splits.items():
        if not rows:
            raise ConfigError(f"{data}: split {split!r} has no question of the levels {', '.join(levels or LEVELS)}")
    return splits, searched


def distinct(splits: Splits) -> list[Sequence[Row]]:
    """Return the rows of each split once: a split may go by two names."""
    return list({id(rows): rows for rows in splits.values()}.values())


def load(data: str | Path) -> dict[str, Sequence[Row]]:
    """Load the rows of a file, a folder or a hub name. The dev split serves as test where there is none.

    A file is one split, that of its name. A folder holds `train.json` and so on, or files under their official names,
    such as hotpot_dev_distractor_v1.json. Those for the full wiki, which come without the gold paragraphs, and test
    files, whose answers are not public, are passed over. `ConfigError` as `load_splits`, and if two files are of the
    same split.
    """
    path = Path(data).expanduser()
    splits: dict[str, Sequence[Row]] = {}
    for file in sorted(path.iterdir()) if path.is_dir() else []:
        words = re.split(r"[_.]", file.name)
        split = next((_SPLIT_NAMES[word] for word in words if word in _SPLIT_NAMES), None)
        if split is None or words[0] not in ("hotpot", "musique") or "fullwiki" in words or "test" in words:
            continue
        if split in splits:
            raise ConfigError(f"{data} holds two files of the split {split!r}; give the folder or file of one")
        (splits[split],) = load_splits(str(file), columns=COLUMNS).values()
    if not splits:
        loaded = load_splits(data, columns=COLUMNS, config="distractor" if "hotpot" in str(data) else None)
        splits = {_SPLIT_NAMES.get(split, split): rows for split, rows in loaded.items()}
    if len(splits) > 1 and "test" in splits and not splits["test"][0].get("answer"):
        del splits["test"]  # 2WikiMultihopQA's answers, as HotpotQA's, are not public
    if "validation" in splits and not path.is_file():
        splits.setdefault("test", splits["validation"])
    return splits


def official(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of MuSiQue (arXiv:2108.00573) in HotpotQA's form, each paragraph as a sentence; others stay.

    Some copies of 2WikiMultihopQA (arXiv:2011.01060) hold columns as JSON texts. FlashRAG has them in `metadata`, and
    calls the sentences of a paragraph its content.
    """
    if "paragraphs" not in row:
        if "context" not in row and isinstance(metadata := row.get("metadata"), Mapping):
            row = {**metadata, **row}
        texts = {name: row[name] for name in ("supporting_facts", "context") if isinstance(row.get(name), str)}
        row = {**row, **{name: json.loads(text) for name, text in texts.items()}} if texts else row
        if isinstance(context := row.get("context"), Mapping) and "content" in context:
            row = {**row, "context": {"title": context["title"], "sentences": context["content"]}}
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
