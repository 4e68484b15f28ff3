"""A corpus on disk: any document by position, the same bytes after every kill, and nothing that is half there."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gym.errors import ConfigError, EnvFailure
from agent_gym.search import Document
from agent_gym.search.corpus import Corpus, checksum


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
    give_up = time.monotonic() + 100
    while not (partial.exists() and partial.stat().st_size > 30_000):
        assert killed.poll() is None and time.monotonic() < give_up
        time.sleep(0.002)
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


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"format": 99}, "written for format 99"), ({"count": 4}, "has 3 documents, not 4"), ({"files": {}}, "None")],
)
def test_a_manifest_that_does_not_fit_is_refused(tmp_path, change, complaint):
    Corpus.build(tmp_path, THREE)
    manifest = json.loads((tmp_path / "corpus.json").read_text())
    (tmp_path / "corpus.json").write_text(json.dumps(manifest | change))
    with pytest.raises(ConfigError, match=complaint):
        Corpus(tmp_path)
    (tmp_path / "corpus.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no 'kind'"):
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
