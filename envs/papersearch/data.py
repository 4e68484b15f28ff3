"""Where questions and their papers come from: the generator, or a folder with a dump of papers and its questions.

A folder holds the papers as `papers.jsonl`, one per line, `{"paper_id", "title", "abstract", "year", "references"}` and
`authors` if they are known; a reference to a paper that is not in it is left out, since no dump of the literature is
complete. The questions are in `train.jsonl`, `validation.jsonl` (or `dev.jsonl`) and `test.jsonl`, or as one
`queries.jsonl`, which is the split "train". Names may end in anything that `agent_gym.row_files` reads. A question
is `{"query_id", "question", "papers"}`, perhaps with `related` (papers near to the answer), or a row of PaSa's
AutoScholarQuery and RealScholarQuery (arXiv:2501.10120), `{"qid", "question", "answer_arxiv_id", ...}`, where the
`paper_id` of a paper is its arXiv id. PaSa's query dates are not looked at: leave later papers out of the dump.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_gym.data import EMBEDDED, Row, Splits
from agent_gym.envs.papersearch.embedded import GeneratedQueries
from agent_gym.envs.papersearch.embedded.field import DEFAULT, get_field
from agent_gym.envs.papersearch.tools import Library, Paper
from agent_gym.errors import ConfigError, only_embedded
from agent_gym.row_files import Broken, read_rows, read_with_broken
from agent_gym.row_reader import Report, say_once
from agent_gym.row_splits import FolderSplits, find_files, stem_of

COLUMNS = ("paper_id", "title", "abstract", "year", "references")
# Observations put ids in brackets, answers list them with commas or on separate lines.
_NO_ID = re.compile(r"[\s,\[\]]|^$")


class Query(NamedTuple):
    """The parts of a row that an episode needs: the question, its papers, and the expert's actions."""

    text: str
    papers: tuple[str, ...]  # ids, each once
    searches: tuple[str, ...]  # the expert's first search
    expands: tuple[str, ...]  # papers that the expert expands, in this order, if it has seen them
    related: frozenset[str] = frozenset()  # ids of papers that are about the question and no answer to it


def open_data(data: str, difficulty: int | None = None, skip_bad: bool = False) -> tuple[Splits, Library | None]:
    """Return the splits of a data source, and the papers that all of its questions are searched in, if they share them.

    `ConfigError` if the folder does not exist, or with file and line for a fault in it; and for a difficulty that is
    not 1 to 5, or that data does not have.
    """
    if data == EMBEDDED:
        return GeneratedQueries.splits(difficulty=DEFAULT if difficulty is None else difficulty), None
    only_embedded("difficulty", difficulty, data)
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"data is {data!r}; allowed: 'embedded', or a folder with papers.jsonl and queries.jsonl (or train.jsonl, "
            "validation.jsonl, test.jsonl)"
        )
    # The times of change are part of the key, so that an edited file is read again.
    changed = tuple((file.name, file.stat().st_mtime_ns) for file in sorted(folder.iterdir()))
    return _open_folder(folder.resolve(), changed, skip_bad)


@functools.lru_cache(maxsize=4)
def _open_folder(folder: Path, _changed: tuple[tuple[str, int], ...], skip_bad: bool) -> tuple[Splits, Library]:
    papers = [file for file in sorted(folder.iterdir()) if stem_of(file).lower() == "papers"]
    if len(papers) != 1:
        holds = "holds no papers.jsonl" if not papers else f"holds {len(papers)} files of papers; give one papers.jsonl"
        raise ConfigError(f"{folder} {holds}, with {', '.join(COLUMNS)} in each line")
    library = _read_papers(read_rows(papers[0]))
    try:
        found = find_files(folder, pass_over=lambda file: file in papers).splits
    except ConfigError as error:
        if "holds no " not in str(error):
            raise
        raise ConfigError(f"{folder} holds no questions: queries.jsonl, or train.jsonl and so on") from None
    splits = FolderSplits()
    for split, files in found.items():
        name = "validation" if split == "dev" and "validation" not in found else split
        splits[name] = _read_queries(files, library, skip_bad)
    if "validation" in splits:
        splits.setdefault("test", splits["validation"])
    return splits, library


def read_task(task: Any, shared: Library | None) -> tuple[Query, Library]:
    """Read a row, and find the papers that it is searched in: its field's, its data's, or its own `corpus`.

    `ConfigError` if it is not a row, or asks for papers that are not there.
    """
    _need("a task of paper search", task, ("question", "papers"))
    if "corpus" in task:
        if not isinstance(task["corpus"], list | tuple):
            raise ConfigError(f"corpus is {str(task['corpus'])[:50]!r}; it must be a list of {', '.join(COLUMNS)}")
        library = _read_papers((f"corpus, paper {n}", row) for n, row in enumerate(task["corpus"]))
    elif shared is not None:
        library = shared
    elif isinstance(task.get("field"), int):
        library = get_field(task["field"], task["difficulty"]).library
    else:
        raise ConfigError("a task that was handed in has nothing to search: give it a corpus, a list of papers")
    return _read_query("the task", task, library), library


def _read_query(place: str, row: Mapping[str, Any], library: Library) -> Query:
    if not isinstance(row["question"], str):
        raise ConfigError(f"{place}: question is {str(row['question'])[:50]!r}; it must be a text")
    papers = tuple(dict.fromkeys(_ids(place, "papers", row["papers"])))
    if not papers:
        raise ConfigError(f"{place}: papers is empty; a question without an answer cannot be scored")
    unknown = [paper for paper in papers if paper not in library.papers]
    if unknown:
        raise ConfigError(f"{place}: asks for the paper {unknown[0]!r}, which is not among the papers to search")
    searches = tuple(map(str, row.get("searches") or [row["question"]]))
    related = frozenset(_ids(place, "related", row.get("related") or ()))
    return Query(row["question"], papers, searches, tuple(map(str, row.get("expands") or ())), related)


def _read_queries(files: Sequence[Path], library: Library, skip_bad: bool) -> Sequence[Row]:
    rows, report = list[Row](), Report()
    for place, row in (placed for file in files for placed in read_with_broken(file)):
        report.rows += 1
        try:
            if (query := _query(place, row, library)) is not None:
                rows.append(query)
        except ConfigError as error:
            report.fault(place, ConfigError(str(error).removeprefix(f"{place}: ")))
    if report.faults and not skip_bad:
        raise report.error()
    if not rows:
        raise ConfigError(f"{files[0]} holds no question that papers of the folder could answer")
    if report.faults:
        say_once(f"{report.bad:,} of {report.rows:,} rows are left out: {report.reasons()}")
    return rows


def _query(place: str, row: Any, library: Library) -> Row | None:
    """Return a row of either form, None if no paper that it asks for is in the dump; `ConfigError` for a bad one."""
    if isinstance(row, Broken):
        raise ConfigError(row.reason)
    if "papers" not in row and "answer_arxiv_id" in row:
        _need(place, row, ("qid", "question"))
        # No dump holds all that was ever cited. A missing paper cannot be found, and is not asked for.
        answer = _ids(place, "answer_arxiv_id", row["answer_arxiv_id"])
        papers = [paper for paper in answer if paper in library.papers]
        if not papers:
            return None
        row = {"query_id": row["qid"], "question": row["question"], "papers": papers}
    _need(place, row, ("query_id", "question", "papers"))
    _read_query(place, row, library)
    return dict(row)


def _read_papers(rows: Iterable[tuple[str, Any]]) -> Library:
    places: dict[str, str] = {}
    papers = []
    for place, row in rows:
        _need(place, row, COLUMNS)
        (paper_id,) = _ids(place, "paper_id", [row["paper_id"]])
        title, abstract, year, authors = row["title"], row["abstract"], row["year"], row.get("authors") or []
        are_texts = isinstance(authors, list | tuple) and all(isinstance(author, str) for author in authors)
        for column, good, wanted in (
            ("title", isinstance(title, str) and title.strip(), "a text that is not empty"),
            ("abstract", isinstance(abstract, str | None), "a text, or null if there is none"),
            ("year", type(year) in (int, type(None)), "a whole number, or null if it is not known"),
            ("authors", are_texts, "a list of texts"),
        ):
            if not good:
                raise ConfigError(f"{place}: {column} is {str(row.get(column))[:50]!r}; it must be {wanted}")
        if paper_id in places:
            raise ConfigError(f"{place}: the paper_id {paper_id!r} is also that of {places[paper_id]}")
        places[paper_id] = place
        references = _ids(place, "references", row["references"])
        papers.append(Paper(paper_id, title, abstract or "", year, references, tuple(authors)))
    return Library(papers)


def _ids(place: str, column: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        ids = [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in value]
        if all(isinstance(one, str) and not _NO_ID.search(one) for one in ids):
            return tuple(ids)
    raise ConfigError(
        f"{place}: {column} is {str(value)[:80]!r}; it must be a list of ids, texts without spaces, commas and brackets"
    )


def _need(place: str, row: Any, columns: Sequence[str]) -> None:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{place}: must be an object with {', '.join(columns)}, and is {str(row)[:50]!r}")
    for column in columns:
        if column not in row:
            raise ConfigError(f"{place}: no column {column!r}; it has: {', '.join(map(str, row))}")
