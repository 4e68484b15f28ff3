"""Where documents come from: files of JSON lines or parquet, HotpotQA's contexts, data sets of the hub, corpora.

A source is read as a stream, as often as needed, since a corpus can be larger than the memory, and knows in which file
and line each document is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_gym.data import load_splits
from agent_gym.errors import ConfigError, quoted
from agent_gym.row_files import SUFFIXES, read_rows, suffix_of
from agent_gym.row_forms import pairs
from agent_gym.search import corpus as corpora
from agent_gym.search.base import Document
from agent_gym.search.corpus import Corpus

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again; `read` gives them with places, such as "corpus.jsonl, line 3"."""

    read: Callable[[], Iterator[tuple[str, Document]]]

    def __iter__(self) -> Iterator[Document]:
        return (document for _, document in self.read())

    def place(self, n: int) -> str:
        """Return the place of document n; reads up to there."""
        return next(islice(self.read(), n, None))[0]


def read_documents(path: str | Path, *, id: str = "_id", title: str = "title", text: str = "text") -> Source:
    """Read a file with one document per row, by default BEIR's `corpus.jsonl` or `corpus.jsonl.gz`.

    The file is one that `row_files` reads: JSON lines, a JSON list, CSV, TSV, Parquet. `id` (a text or a whole number),
    `title` (documents may lack it) and `text` name the columns. When it is read, a `ConfigError` names the file and
    line of the fault.
    """
    path = existing(path)
    return Source(lambda: ((place, _document(place, row, id, title, text)) for place, row in read_rows(path)))


def read_dataset(
    name: str,
    config: str | None = None,
    split: str | None = None,
    *,
    id: str = "_id",
    title: str = "title",
    text: str = "text",
) -> Source:
    """Read a data set of the hub, for example `read_dataset("BeIR/hotpotqa", "corpus")`.

    The split may be left out where there is one only; `id`, `title` and `text` name the columns. `ConfigError` if it
    cannot be loaded, has other columns, or the split has to be named.
    """
    splits = load_splits(name, columns=(id, text), config=config)
    if split is None and len(splits) == 1:
        [split] = splits
    if split is None or split not in splits:
        raise ConfigError(f"{name}: split is {split!r}; it must be one of {', '.join(splits)}")
    place, rows = f"{name}, split {split}, row {{}}".format, splits[split]
    return Source(lambda: ((place(n), _document(place(n), row, id, title, text)) for n, row in enumerate(rows)))


def read_hotpotqa(*files: str | Path) -> Source:
    """Read the paragraphs of HotpotQA's questions: official .json lists, or the hub's rows as .jsonl or .parquet."""
    paths = [existing(file) for file in files]
    return Source(lambda: _paragraphs(chain.from_iterable(map(read_rows, paths))))


def hotpotqa_paragraphs(examples: Iterable[Row]) -> Source:
    """Collect the paragraphs of questions (distractor setting) that are in memory, each once, in their order.

    A paragraph's id is its title, with " (2)" and so on where the title occurs with another text. The `context` of a
    question is the official `[[title, [sentence, ...]], ...]` or the hub's `{"title": [...], "sentences": [...]}`.
    """
    return Source(lambda: _paragraphs((f"example {n}", row) for n, row in enumerate(examples)))


def open_source(name: str | Path) -> Source:
    """Read whatever `name` names: a file of documents, a file of HotpotQA's questions, or a data set of the hub."""
    path = Path(name).expanduser()
    if not path.exists() and str(name).count("/") <= 1 and not str(name).startswith((".", "/", "~")):
        if not suffix_of(path.name):
            return read_dataset(str(name))
    _, first = next(read_rows(existing(path)), ("", {}))
    return read_hotpotqa(path) if "context" in first else read_documents(path)


@lru_cache(maxsize=8)
def open_documents(name: str) -> Iterable[Document]:
    """Open a corpus folder, a file of documents (BEIR's corpus.jsonl) or of questions, or a data set of the hub."""
    folder = Path(name).expanduser()
    return Corpus(folder) if (folder / corpora.MANIFEST).is_file() else open_source(name)


def documents_of(corpus: Iterable[Document]) -> Sequence[Document]:
    """Read a source into memory; a corpus folder stays on disk."""
    return corpus if isinstance(corpus, Corpus) else list(corpus)


@contextmanager
def open_corpus(name: str | Path, *, progress: bool = False) -> Iterator[Corpus]:
    """Open a corpus folder, or a source of `open_source`, which is written to a temporary one."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        yield Corpus(folder)
        return
    with TemporaryDirectory(prefix="agent-gym-corpus-") as temporary:
        yield Corpus.build(temporary, open_source(name), progress=progress)


def _document(place: str, row: Row, id: str, title: str, text: str) -> Document:
    for column in (id, text):
        if column not in row:
            raise ConfigError(f"{place}: no column {column!r}; it has: {', '.join(map(str, row))}")
    name, heading = row[id], row.get(title)
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{place}: {id} is {name!r}; it must be a text that is not empty, or a whole number")
    document = Document(name, "" if heading is None else heading, row[text])
    for column, value in ((title, document.title), (text, document.text)):
        if not isinstance(value, str):
            raise ConfigError(f"{place}: {column} is {quoted(value)}; it must be a text")
    return document


def _paragraphs(rows: Iterable[tuple[str, Row]]) -> Iterator[tuple[str, Document]]:
    seen: set[bytes] = set()  # of digests: the texts of all of Wikipedia's paragraphs would not fit into memory
    titles: dict[str, int] = {}
    for place, row in rows:
        for title, sentences in _context(place, row):
            text = " ".join(filter(None, map(str.strip, sentences)))
            key = hashlib.blake2b(f"{title}\n{text}".encode("utf-8", "replace"), digest_size=16).digest()
            if key in seen:
                continue
            seen.add(key)
            name = title
            while name in titles:  # "A (2)" may itself be a title
                titles[title] += 1
                name = f"{title} ({titles[title]})"
            titles[name] = 1
            yield place, Document(name, title, text)


def _context(place: str, row: Row) -> list[tuple[str, list[str]]]:
    try:
        context = pairs(row.get("context"), "sentences")
        for title, sentences in context:
            if not (title and isinstance(sentences, list) and all(isinstance(s, str) for s in (title, *sentences))):
                raise ValueError(title)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{place}: context must be [[title, [sentence, ...]], ...] or "
            f"{{'title': [...], 'sentences': [[...], ...]}}, and is {quoted(row.get('context'))}"
        ) from None
    return context


def existing(path: str | Path) -> Path:
    """Return the path of a file that can be read by its name; `ConfigError` for any other."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"no such file: {str(path)!r}")
    if not suffix_of(path.name):
        raise ConfigError(f"{path}: its name does not show what it holds; it must end in {', '.join(SUFFIXES)}")
    return path
