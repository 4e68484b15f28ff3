"""Documents from files and on disk: each promised form, the same bytes after each kill, and nothing half there."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_tools import until

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document
from agent_gym.search.corpus import Corpus, checksum
from agent_gym.search.sources import (
    Source,
    hotpotqa_paragraphs,
    open_source,
    read_dataset,
    read_documents,
    read_hotpotqa,
)


def readable(document: Document) -> Document:
    """As it comes back: what has no UTF-8 is a question mark."""
    return Document(*(part.encode("utf-8", "replace").decode() for part in document))


texts = st.text(st.characters(exclude_categories=()), max_size=40)
documents = st.lists(
    st.builds(Document, texts.filter(bool), texts, texts), min_size=1, max_size=8, unique_by=lambda d: readable(d).id
)
THREE = [Document("a", "Ä", "first\nline"), Document("b", "", ""), Document("c", "\u2028", '"quoted" \x00 \U0001f600')]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@given(documents)
def test_what_was_written_is_read(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("corpus")
    expected = list(map(readable, written))
    corpus = Corpus.build(folder, written)
    assert list(corpus) == expected and len(corpus) == len(expected)
    assert [corpus[i] for i in range(-len(expected), 0)] == expected
    assert corpus[1:] == expected[1:] and corpus[np.int64(0)] == expected[0]
    assert checksum(written) == corpus.checksum == checksum(Corpus(folder))
    for position in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match=f"of {len(expected)}"):
            corpus[position]
    assert copy.deepcopy(corpus) is corpus and list(pickle.loads(pickle.dumps(corpus))) == expected


BUILD = """
import sys, time
from agent_gym.search import Document
from agent_gym.search.corpus import Corpus

def documents():
    for n in range(2000):
        time.sleep(float(sys.argv[2]))
        yield Document(str(n), f"title {n}", "word " * (n % 50))

Corpus.build(sys.argv[1], documents())
"""


def test_a_killed_process_leaves_what_the_next_one_goes_on_with(tmp_path):
    def run(folder: Path, pause: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", BUILD, str(folder), pause], stderr=subprocess.PIPE)

    assert run(tmp_path / "whole", "0").wait(timeout=120) == 0
    killed = run(tmp_path / "killed", "0.001")
    partial = tmp_path / "killed" / "corpus.jsonl.partial"
    until(lambda: partial.exists() and partial.stat().st_size > 30_000, 100)
    assert killed.poll() is None
    with pytest.raises(ConfigError, match="another process is writing"):
        Corpus.build(tmp_path / "killed", THREE)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    whole = bytes_of(tmp_path / "whole")
    # As the kill left it, and as one between the renames of two files would have.
    for left in ((), ("offsets.npy",), ("offsets.npy", "corpus.jsonl")):
        for name in left:
            (tmp_path / "killed" / name).write_bytes(whole[name])
        (tmp_path / "killed" / "corpus.json").unlink(missing_ok=True)
        with pytest.raises(ConfigError, match="holds no corpus"):
            Corpus(tmp_path / "killed")
        assert run(tmp_path / "killed", "0").wait(timeout=120) == 0
        assert bytes_of(tmp_path / "killed") == whole


def test_what_cannot_be_a_corpus_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no documents"):
        Corpus.build(tmp_path / "empty", [])
    with pytest.raises(ConfigError, match="document 2: the id 'a' is also that of document 0"):
        Corpus.build(tmp_path / "twice", [*THREE[:2], THREE[0], THREE[1]])
    for wrong in ({"_id": "b"}, Document("", "", "")):
        with pytest.raises(ConfigError, match="document 1 must be a Document of three texts with an id"):
            Corpus.build(tmp_path / "wrong", [THREE[0], wrong])
    Corpus.build(tmp_path / "done", THREE)
    with pytest.raises(ConfigError, match="holds a corpus already"):
        Corpus.build(tmp_path / "done", THREE)


def test_damaged_files_are_refused(tmp_path):
    Corpus.build(tmp_path, THREE)
    for name in ("corpus.jsonl", "offsets.npy", "corpus.json"):
        whole = (tmp_path / name).read_bytes()
        for damaged in (b"", whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:]):
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(ConfigError, match=f"{name}.*build the corpus again"):
                Corpus(tmp_path)
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "corpus.jsonl").write_bytes(
        (tmp_path / "corpus.jsonl").read_bytes().replace(b'"_id": "b"', b'"_id": "b}')
    )
    corpus = Corpus(tmp_path, verify=False)
    assert corpus[0] == THREE[0]
    with pytest.raises(EnvFailure, match="document 1 is damaged"):
        corpus[1]


def test_a_manifest_that_does_not_fit_is_refused(tmp_path):
    Corpus.build(tmp_path, THREE)
    manifest = json.loads((tmp_path / "corpus.json").read_text())
    for content, message in (
        (manifest | {"format": 99}, "written for format 99"),
        (manifest | {"count": 4}, "has 3 documents, not 4"),
        (manifest | {"files": {}}, "written with None"),
        ({}, "has no 'kind'"),
    ):
        (tmp_path / "corpus.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=message):
            Corpus(tmp_path)


def test_memory_does_not_grow_with_the_texts(tmp_path):
    """Eighty megabytes of text are written and read within a few of memory."""
    script = """
import re, sys
from pathlib import Path
from agent_gym.search import Document
from agent_gym.search.corpus import Corpus

def peak():  # of this program; the one of getrusage begins with that of the process it was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = peak()
corpus = Corpus.build(sys.argv[1], (Document(str(n), "", "x" * 20_000) for n in range(4000)))
print((peak() - before) // 1024, len(corpus))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    grown, count = map(int, done.stdout.split())
    assert count == 4000 and grown < 20, f"{grown} MB for 80 MB of text"
    assert os.path.getsize(tmp_path / "corpus.jsonl") > 80_000_000


# Sources.

ROWS = [
    {"_id": "1", "title": "Ä", "text": "one", "metadata": {"url": "x"}},
    {"_id": 2, "title": None, "text": "two\nlines"},
    {"_id": "3", "text": ""},
]
DOCUMENTS = [Document("1", "Ä", "one"), Document("2", "", "two\nlines"), Document("3", "", "")]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def complaint(source: Source) -> str:
    with pytest.raises(ConfigError) as caught:
        list(source)
    return str(caught.value)


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz", "corpus.json", "corpus.json.gz"])
def test_beir_files_are_read(tmp_path, name):
    text = LINES.replace("\n", "\n\n") if "jsonl" in name else "\ufeff" + json.dumps(ROWS, indent=1)
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    source = open_source(tmp_path / name)
    assert list(source) == DOCUMENTS
    assert list(source) == DOCUMENTS, "a source can be read again"
    (tmp_path / "twice.jsonl").write_text(LINES + "\n" + LINES)
    with pytest.raises(ConfigError, match=r"twice\.jsonl, line 5: the id '1' is also that of .*twice\.jsonl, line 1$"):
        Corpus.build(tmp_path / "corpus", open_source(tmp_path / "twice.jsonl"))


def test_parquet_is_read_with_other_column_names(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    rows = [{"docid": n, "heading": f"t{n}", "body": str(n)} for n in range(3000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "wiki.parquet")
    source = read_documents(tmp_path / "wiki.parquet", id="docid", title="heading", text="body")
    assert list(source) == [Document(str(n), f"t{n}", str(n)) for n in range(3000)]
    assert "wiki.parquet, row 0: no column '_id'; it has: docid, heading, body" in complaint(
        open_source(tmp_path / "wiki.parquet")
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", '\n{"_id": "2", "text": "x"', ", line 2: not valid JSON"),
        ("c.jsonl", '{"_id": "2", "text": "\udcff"}', ", line 1: not valid JSON"),
        ("c.jsonl", '["2", "x"]', ", line 1: a row must be an object"),
        ("c.jsonl", '{"title": "x", "text": "x"}', ", line 1: no column '_id'; it has: title, text"),
        ("c.jsonl", '{"_id": true, "text": "x"}', ", line 1: _id is True"),
        ("c.jsonl", '{"_id": "2", "text": null}', ", line 1: text is None; it must be a text"),
        ("c.json", "", " holds no rows"),
        ("c.json", '[{"_id": "1", "text": ""}, {"_id": "2"', ": not valid JSON: Expecting ',' delimiter: line 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, errors="surrogateescape")
    assert complaint(read_documents(tmp_path / name)).startswith(f"{tmp_path / name}{message}")


def test_a_file_that_breaks_off_is_named_with_what_was_read_last(tmp_path):
    lines = "".join(json.dumps({"_id": str(n), "text": os.urandom(50).hex()}) + "\n" for n in range(1000))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-2000])
    assert "c.jsonl.gz, after line " in complaint(read_documents(tmp_path / "c.jsonl.gz"))
    (tmp_path / "c.jsonl.gz").write_bytes(lines.encode())
    assert "c.jsonl.gz: cannot be read" in complaint(read_documents(tmp_path / "c.jsonl.gz"))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    assert "c.parquet: cannot be read" in complaint(read_documents(tmp_path / "c.parquet"))


def test_files_that_are_not_there_or_not_known(tmp_path):
    for name in (tmp_path / "none.jsonl", "none.jsonl"):
        with pytest.raises(ConfigError, match="no such file"):
            open_source(name)
    (tmp_path / "c.txt").write_text("a")
    with pytest.raises(ConfigError, match=r"must end in \.jsonl"):
        read_documents(tmp_path / "c.txt")


def test_a_data_set_of_the_hub_is_read_by_its_split(monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(
        [{"_id": "1", "title": "a", "text": "b"}, {"_id": "2", "title": None, "text": "c"}]
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict({"corpus": rows}))
    source = read_dataset("team/corpus", "all")
    assert list(source) == [Document("1", "a", "b"), Document("2", "", "c")]
    assert source.place(1) == "team/corpus, split corpus, row 1"
    with pytest.raises(ConfigError, match="split corpus, row 0: no column 'body'"):
        read_dataset("team/corpus", text="body")
    with pytest.raises(ConfigError, match="split is 'test'; it must be one of corpus"):
        read_dataset("team/corpus", split="test")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"cannot load the data set 'nobody/nothing'.*give a local"):
        open_source("nobody/nothing")


OFFICIAL: dict[str, Any] = {"context": [["A", ["One.", " Two. ", ""]], ["B", []], ["A", ["Another."]]]}
HUB: dict[str, Any] = {"context": {"title": ["B", "A", "A (2)"], "sentences": [[""], ["One.", "Two."], ["Third."]]}}
PARAGRAPHS = [
    Document("A", "A", "One. Two."),
    Document("B", "B", ""),
    Document("A (2)", "A", "Another."),
    Document("A (2) (2)", "A (2)", "Third."),
]


def test_the_paragraphs_of_questions_are_collected_once(tmp_path):
    assert list(hotpotqa_paragraphs([OFFICIAL, HUB])) == PARAGRAPHS
    (tmp_path / "train.json").write_text(json.dumps([OFFICIAL]))
    (tmp_path / "dev.jsonl").write_text(json.dumps(HUB))
    source = read_hotpotqa(tmp_path / "train.json", tmp_path / "dev.jsonl")
    assert list(source) == PARAGRAPHS
    assert source.place(3) == f"{tmp_path / 'dev.jsonl'}, line 1"
    assert list(open_source(tmp_path / "train.json")) == PARAGRAPHS[:3]


def test_contexts_of_another_form_are_refused():
    lists = [None, "text", [["A"]], [["A", "text"]], [["A", [1]]], [["", ["a"]]]]
    for context in (*lists, {"title": ["A"], "sentences": []}, {}):
        message = complaint(hotpotqa_paragraphs([OFFICIAL, {"context": context}]))
        assert "example 1: context must be [[title, [sentence, ...]], ...]" in message
