"""Documents from files: every form that is promised, and a file and line for everything that is wrong."""

from __future__ import annotations

import gzip
import json
import os
from typing import Any

import pytest

from agent_gym.errors import ConfigError
from agent_gym.search import Document
from agent_gym.search.corpus import Corpus
from agent_gym.search.sources import (
    Source,
    hotpotqa_paragraphs,
    open_source,
    read_dataset,
    read_documents,
    read_hotpotqa,
)

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
    ("line", "message"),
    [
        ('{"_id": "2", "text": "x"', "not valid JSON"),
        ('["2", "x"]', "must be an object"),
        ('{"title": "x", "text": "x"}', "no column '_id'; it has: title, text"),
        ('{"_id": true, "text": "x"}', "_id is True"),
        ('{"_id": "2", "text": null}', "text is 'None'; it must be a text"),
        ('{"_id": "2", "text": "x", "title": ["a"]}', "title is"),
        ('{"_id": "2", "text": "\udcff"}', "not valid JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, line, message):
    (tmp_path / "c.jsonl").write_bytes(
        LINES.splitlines()[0].encode() + b"\n\n" + line.encode("utf-8", "surrogateescape") + b"\n"
    )
    raised = complaint(read_documents(tmp_path / "c.jsonl"))
    assert raised.startswith(f"{tmp_path / 'c.jsonl'}, line 3: ") and message in raised


def test_a_file_that_breaks_off_is_named_with_what_was_read_last(tmp_path):
    lines = "".join(json.dumps({"_id": str(n), "text": os.urandom(50).hex()}) + "\n" for n in range(1000))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-2000])
    assert "c.jsonl.gz, after line " in complaint(read_documents(tmp_path / "c.jsonl.gz"))
    (tmp_path / "c.jsonl.gz").write_bytes(lines.encode())
    assert "c.jsonl.gz: cannot be read" in complaint(read_documents(tmp_path / "c.jsonl.gz"))
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    assert "c.parquet: cannot be read" in complaint(read_documents(tmp_path / "c.parquet"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": must hold a JSON list"),
        ("[", ", example 0: not valid JSON"),
        ('[{"_id": "1", "text": ""}, {"_id": "2"', ", example 1: not valid JSON"),
        ('[{"_id": "1", "text": ""}, 3]', ", example 1: a row must be an object"),
    ],
)
def test_what_is_wrong_in_a_list_is_named_with_its_example(tmp_path, text, message):
    (tmp_path / "c.json").write_text(text)
    assert complaint(read_documents(tmp_path / "c.json")).startswith(f"{tmp_path / 'c.json'}{message}")


def test_files_that_are_not_there_or_not_known(tmp_path):
    for name in (tmp_path / "none.jsonl", "none.jsonl"):
        with pytest.raises(ConfigError, match="no such file"):
            open_source(name)
    (tmp_path / "c.csv").write_text("a")
    with pytest.raises(ConfigError, match=r"must end in \.jsonl"):
        read_documents(tmp_path / "c.csv")


def test_a_data_set_of_the_hub_is_read_by_its_split(monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(
        [{"_id": "1", "title": "a", "text": "b"}, {"_id": "2", "title": None, "text": "c"}]
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict({"corpus": rows}))
    source = read_dataset("BeIR/hotpotqa", "corpus")
    assert list(source) == [Document("1", "a", "b"), Document("2", "", "c")]
    assert source.place(1) == "BeIR/hotpotqa, split corpus, row 1"
    assert "split corpus, row 0: no column 'body'" in complaint(read_dataset("BeIR/hotpotqa", text="body"))
    with pytest.raises(ConfigError, match="split is 'test'; it must be one of corpus"):
        read_dataset("BeIR/hotpotqa", split="test")
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


@pytest.mark.parametrize(
    "context",
    [None, "text", [["A"]], [["A", "text"]], [["A", [1]]], [["", ["a"]]], {"title": ["A"], "sentences": []}, {}],
)
def test_contexts_of_another_form_are_refused(context):
    assert "example 1: context must be [[title, [sentence, ...]], ...]" in complaint(
        hotpotqa_paragraphs([OFFICIAL, {"context": context}])
    )
