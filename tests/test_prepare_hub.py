"""Data sets of the hub, which no test reaches: what is asked of its client, and what is said when it cannot answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("datasets")

import datasets
from fake_hub import FakeHub
from prepare_tools import as_on_the_hub, contents, multi_hop_rows, musique_rows, read_table, word_problems, write_lines

from agent_gym.errors import ConfigError
from agent_gym.prepare import RECIPES, Options, prepare, sources
from agent_gym.search import Corpus


@pytest.fixture
def served(monkeypatch):
    """What the hub serves: name to splits, to be filled by the test; and what was asked of it."""
    splits: dict[str, dict[str, list[dict[str, Any]]]] = {}
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, revision: str) -> Any:
        asked.append((name, config, revision))
        return datasets.DatasetDict({key: datasets.Dataset.from_list(rows) for key, rows in splits[name].items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    sources.load.cache_clear()
    yield splits, asked
    sources.load.cache_clear()


def test_the_rows_of_the_hub_become_the_same_files_as_a_local_copy(tmp_path, served, monkeypatch):
    splits, asked = served
    monkeypatch.setattr(sources, "_ROWS_AT_ONCE", 3)
    rows = {"train": word_problems(8), "test": word_problems(4)}
    splits["openai/gsm8k"] = rows
    prepare("gsm8k", output=tmp_path / "hub")
    assert asked == [("openai/gsm8k", "main", RECIPES["gsm8k"].tables[0].hub.revision)]
    for split, content in rows.items():
        write_lines(tmp_path / "local" / f"{split}.jsonl", content)
    prepare("gsm8k", source=[str(tmp_path / "local")], output=tmp_path / "copy")
    from_hub, copied = contents(tmp_path / "hub"), contents(tmp_path / "copy")
    source = json.loads(from_hub.pop("manifest.json"))["source"]
    assert source == [{"hub": "openai/gsm8k", "config": "main", "revision": asked[0][2]}]
    assert copied.pop("manifest.json") and from_hub == copied
    assert prepare("gsm8k", output=tmp_path / "hub").made == () and len(asked) == 1


def test_only_the_splits_of_the_recipe_are_taken(tmp_path, served):
    splits, asked = served
    hotpot = [as_on_the_hub(row) for row in multi_hop_rows(2)]
    splits["hotpotqa/hotpot_qa"] = {"train": hotpot, "validation": hotpot[:1]}
    splits["framolfese/2WikiMultihopQA"] = {"train": hotpot, "validation": hotpot, "test": hotpot}
    splits["bdsaglam/musique"] = {"train": musique_rows(2), "validation": musique_rows(1)}
    prepared = prepare("multihopqa", output=tmp_path / "out", options=Options(index="none"))
    tables = [path for path in prepared.pieces if path.endswith(".parquet")]
    assert len(tables) == 6 and not [path for path in tables if "test" in path]
    assert [name for name, *_ in asked] == [table.hub.name for table in RECIPES["multihopqa"].tables]


def test_the_documents_of_the_full_wiki_come_from_the_hub_too(tmp_path, served):
    splits, _ = served
    splits["hotpotqa/hotpot_qa"] = {"train": [as_on_the_hub(row) for row in multi_hop_rows(2)]}
    splits["hotpotqa/hotpot_qa"]["validation"] = splits["hotpotqa/hotpot_qa"]["train"]
    documents = [{"_id": "12", "title": None, "text": "a"}, {"_id": "7", "title": "b", "text": ""}]
    splits["BeIR/hotpotqa"] = {"corpus": documents}
    prepare("hotpotqa-fullwiki", output=tmp_path / "out", options=Options(index="none"))
    assert list(Corpus(tmp_path / "out" / "corpus")) == [("12", "", "a"), ("7", "b", "")]


def test_a_hub_row_of_another_form_is_told_with_its_place(tmp_path, served):
    splits, _ = served
    splits["openai/gsm8k"] = {"train": [*word_problems(2), {"question": "x", "answer": None}], "test": []}
    with pytest.raises(ConfigError, match=r"^openai/gsm8k \(main\), split train, row 2: answer is 'None'; it must"):
        prepare("gsm8k", output=tmp_path / "out")


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES.values() if recipe.tables], ids=lambda one: one.name)
def test_out_of_reach_one_line_says_what_and_how_else(tmp_path, recipe):
    sources.load.cache_clear()
    with pytest.raises(ConfigError) as caught:
        prepare(recipe.name, output=tmp_path / "out")
    message = str(caught.value)
    table = recipe.tables[0]
    assert message.startswith(f"cannot load {table.hub} from the Hugging Face hub (ConnectionError); ")
    assert "--from PATH" in message and table.local in message and "\n" not in message
    assert ('data="embedded"' in message) == recipe.embedded


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path, monkeypatch):
    """`load_dataset` itself would try again for half a minute."""
    import huggingface_hub

    sources.load.cache_clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    calls = []

    def refuse(self: Any, *arguments: Any, **named: Any) -> None:
        calls.append(named["timeout"])
        raise OSError("name not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("was asked again"))
    with pytest.raises(ConfigError, match=r"from the Hugging Face hub \(OSError\)"):
        prepare("gsm8k", output=tmp_path / "out")
    assert len(calls) == 1


# The hub's own client, against a hub on this machine.


@pytest.fixture
def fake_hub(tmp_path):
    """A hub with GSM8K, and a way to start the command against it."""
    hub = FakeHub()
    rows = {"train": word_problems(30), "test": word_problems(7)}
    hub.add("openai/gsm8k", RECIPES["gsm8k"].tables[0].hub.revision, "main", rows)
    with hub.serving() as address:

        def start(output: str, **environment: str) -> subprocess.Popen[str]:
            home = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
            return subprocess.Popen(
                [sys.executable, "-m", "agent_gym", "prepare", "gsm8k", "--output", str(tmp_path / output)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **home, **environment},
            )

        yield hub, start


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_the_real_client_fetches_the_named_revision_once(tmp_path, fake_hub):
    hub, start = fake_hub
    assert "data/train.parquet    30" in finish(start("out"))
    assert read_table(tmp_path / "out" / "data" / "test.parquet") == word_problems(7)
    asked = len(hub.requests)
    assert finish(start("out")).count("already there") == 2 and len(hub.requests) == asked
    finish(start("other", HF_HUB_OFFLINE="1"))  # from the cache of the client
    assert len(hub.requests) == asked
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


def test_killed_while_it_downloads_it_fetches_only_the_rest(tmp_path, fake_hub):
    hub, start = fake_hub
    process = start("out")

    def kill(request: str) -> None:
        if request.startswith("GET") and request.endswith("test-00000-of-00001.parquet"):
            process.kill()

    hub.before = kill
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    hub.before = lambda request: None
    finish(start("out"))
    fetched = [request.rpartition("/")[2] for request in hub.requests if re.match(r"GET .*\.parquet", request)]
    assert fetched.count("train-00000-of-00001.parquet") == 1
    assert read_table(tmp_path / "out" / "data" / "train.parquet") == word_problems(30)
