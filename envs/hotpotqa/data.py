"""HotpotQA's rows from where they are: the generator, a file, a folder, the hub; and what an episode needs of one.

Official JSON (`supporting_facts` as pairs, `context` as pairs) and the hub's form (both as columns) are understood.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gym.data import Row, Splits, load_splits
from agent_gym.envs.hotpotqa.generator import LEVELS, SPLIT_SIZES, GeneratedQuestions, check_levels
from agent_gym.errors import ConfigError

EMBEDDED = "embedded"
COLUMNS = ("question", "answer", "supporting_facts", "context")
_SPLIT_NAMES = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}


@dataclass(frozen=True, slots=True)
class Question:
    """What an episode needs of a row.

    Attributes:
        text: the question.
        answers: what counts as right; the first is the gold answer, the others are aliases.
        titles: of the gold paragraphs, each once, in the order in which the supporting facts name them.
        facts: the supporting facts as (title, sentence).
    """

    text: str
    answers: tuple[str, ...]
    titles: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


def read_question(row: Any) -> Question:
    """Read a row.

    Raises:
        ConfigError: if it is no row of HotpotQA. A supporting fact whose sentence does not exist, of which the official
            files have some, is left out.
    """
    problem = f"a HotpotQA task is a dict with question, answer, supporting_facts and context, got {row!r:.200}"
    if not isinstance(row, Mapping) or not all(isinstance(row.get(key), str) for key in ("question", "answer")):
        raise ConfigError(problem)
    try:
        named = _pairs(row.get("supporting_facts") or [], "sent_id")
        context = {title: list(sentences) for title, sentences in _pairs(row.get("context") or [], "sentences")}
        facts = [(title, context[title][n]) for title, n in named if title in context and 0 <= n < len(context[title])]
        answers = (row["answer"], *row.get("answer_aliases", ()))
        titles = tuple(dict.fromkeys(title for title, _ in named))
        if not all(isinstance(text, str) for text in (*answers, *titles, *(sentence for _, sentence in facts))):
            raise TypeError("a title, a sentence or an alias is no text")
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{problem} ({error})") from error
    return Question(row["question"], answers, titles, tuple(facts))


def questions(data: str, levels: Sequence[str] | None = None) -> Splits:
    """Return the splits of a data source.

    Args:
        data: "embedded"; a file; a folder with the official files or one file per split; or a name on the hub.
        levels: keep only questions of these levels.

    Raises:
        ConfigError: if nothing is found or a column is missing; see `load_splits`.
    """
    if levels is not None:
        levels = check_levels(levels)
    if data == EMBEDDED:
        return _embedded(tuple(levels or LEVELS))
    splits = _with_all_splits(_load(data))
    if levels is None:
        return splits
    kept = {split: [row for row in rows if row.get("level") in levels] for split, rows in splits.items()}
    empty = [split for split, rows in kept.items() if not rows]
    if empty:
        raise ConfigError(f"{data}: split {empty[0]!r} has no question of the levels {', '.join(levels)}")
    return kept


def row_lists(data: str) -> list[Sequence[Row]]:
    """Return all rows of a source that was loaded, whatever their level, as they came; each list once."""
    return list({id(rows): rows for rows in _load(data).values()}.values())


@functools.lru_cache(maxsize=8)
def _embedded(levels: tuple[str, ...]) -> Splits:
    return {split: GeneratedQuestions(split, levels=levels) for split in SPLIT_SIZES}


def _load(data: str) -> Splits:
    path = Path(data).expanduser()
    if not path.is_dir():
        return load_splits(data, columns=COLUMNS, config="distractor")
    # hotpot_train_v1.1.json, hotpot_dev_distractor_v1.json. The full-wiki files come without the gold paragraphs, and
    # that of the test split without answers.
    files = [file for file in sorted(path.glob("hotpot_*.json")) if "fullwiki" not in file.name]
    if not files:
        return load_splits(data, columns=COLUMNS)
    return {
        _SPLIT_NAMES[part]: load_splits(str(file), columns=COLUMNS)["train"]
        for file in files
        for part in file.stem.split("_")
        if part in _SPLIT_NAMES
    }


def _with_all_splits(splits: Splits) -> dict[str, Sequence[Row]]:
    """Let the dev split serve as test: the answers of HotpotQA's own test split are not public."""
    full = {_SPLIT_NAMES.get(split, split): rows for split, rows in splits.items()}
    if "validation" in full:
        full.setdefault("test", full["validation"])
    return full


def _pairs(value: Any, second: str) -> list[tuple[Any, Any]]:
    """Read pairs that the hub stores as two columns."""
    if isinstance(value, Mapping):
        return list(zip(value["title"], value[second], strict=True))
    return [(first, rest) for first, rest in value]
