"""Data sets of the hub and files from addresses, fetched from servers on this machine that fail as real ones do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("datasets")

import datasets
from cli_tools import small_disk
from prepare_tools import as_on_the_hub, contents, multi_hop_rows, musique_rows, read_table, word_problems, write_lines

from agent_gym.errors import ConfigError
from agent_gym.prepare import RECIPES, Options, prepare, sources
from agent_gym.search import Corpus

# The hub, of which `datasets` is asked.


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


def test_the_rows_of_the_hub_become_the_same_files_as_a_local_copy(tmp_path, served):
    splits, asked = served
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
    (tmp_path / "hub" / "data" / "test.parquet").unlink()
    assert prepare("gsm8k", output=tmp_path / "hub").made == ("data/test.parquet",)


def test_only_the_splits_of_the_recipe_are_taken_and_documents_come_from_the_hub_too(tmp_path, served):
    splits, asked = served
    hotpot = [as_on_the_hub(row) for row in multi_hop_rows(2)]
    splits["hotpotqa/hotpot_qa"] = {"train": hotpot, "validation": hotpot[:1]}
    splits["framolfese/2WikiMultihopQA"] = {"train": hotpot, "validation": hotpot, "test": hotpot}
    splits["bdsaglam/musique"] = {"train": musique_rows(2), "validation": musique_rows(1)}
    documents = [{"_id": "12", "title": None, "text": "a"}, {"_id": "7", "title": "b", "text": ""}]
    splits["BeIR/hotpotqa"] = {"corpus": documents}
    prepared = prepare("multihopqa", output=tmp_path / "out", options=Options(index="none"))
    tables = [path for path in prepared.pieces if path.endswith(".parquet")]
    assert len(tables) == 6 and not [path for path in tables if "test" in path]
    assert [name for name, *_ in asked] == [table.hub.name for table in RECIPES["multihopqa"].tables]
    prepare("hotpotqa-fullwiki", output=tmp_path / "wiki", options=Options(index="none"))
    assert list(Corpus(tmp_path / "wiki" / "corpus")) == [("12", "", "a"), ("7", "b", "")]
    splits["openai/gsm8k"] = {"train": [*word_problems(2), {"question": "x", "answer": None}], "test": []}
    with pytest.raises(ConfigError, match=r"^openai/gsm8k \(main\), split train, row 2: it names no answer"):
        prepare("gsm8k", output=tmp_path / "other")


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES.values() if recipe.tables], ids=lambda one: one.name)
def test_out_of_reach_one_line_names_what_and_how_else(tmp_path, recipe):
    sources.load.cache_clear()
    with pytest.raises(ConfigError) as caught:
        prepare(recipe.name, output=tmp_path / "out")
    message, table = str(caught.value), recipe.tables[0]
    assert message.startswith(f"cannot load {table.hub} from the Hugging Face hub (ConnectionError); ")
    assert "--from PATH" in message and table.local in message and "\n" not in message
    assert ('data="embedded"' in message) == recipe.embedded


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path, monkeypatch):
    """`load_dataset` itself would try again for half a minute."""
    import huggingface_hub

    sources.load.cache_clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("was asked again"))
    with pytest.raises(ConfigError, match=r"from the Hugging Face hub \((Connect|Offline)"):
        prepare("gsm8k", output=tmp_path / "out")


# Addresses.


class Site(ThreadingHTTPServer):
    """What the server has and does: path to content, bytes after which it breaks off, and what was fetched."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.break_after: list[int] = []
        self.fetched: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        site: Any = self.server
        if self.path not in site.files:
            self.send_error(404)
            return
        site.fetched.append(self.path)
        content, cut = site.files[self.path], site.break_after.pop(0) if site.break_after else None
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut])
        self.close_connection = cut is not None

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_download_that_broke_off_is_fetched_again_and_leaves_nothing_behind(site, tmp_path):
    rows = word_problems(50)
    path, out = "/data/train.jsonl?download=true", tmp_path / "out"
    site.files[path] = write_lines(tmp_path / "train.jsonl", rows).read_bytes()
    url = site.url + path
    site.break_after = [1000]
    with pytest.raises(ConfigError, match=r"cannot download .*the same command tries it again\. A copy on this"):
        prepare("gsm8k", source=[url], output=out)
    assert not [file for file in out.rglob("*") if file.is_file()]
    for _ in range(2):  # the second time nothing is fetched
        prepared = prepare("gsm8k", source=[url], output=out)
        assert read_table(out / "data" / "train.parquet") == rows and prepared.source == [{"url": url}]
        assert sorted(file.name for file in out.iterdir()) == ["data", "manifest.json"]
    assert prepared.made == () and len(site.fetched) == 2


def test_two_addresses_that_end_in_one_name_are_two_files(site, tmp_path):
    name, urls = "train-00000-of-00001.jsonl", []
    for folder in ("main", "extra"):
        rows = [{**row, "question": f"{folder} {row['question']}"} for row in word_problems(20)]
        site.files[f"/{folder}/{name}"] = write_lines(tmp_path / folder / name, rows).read_bytes()
        urls.append(f"{site.url}/{folder}/{name}")
    whole = len(site.files[f"/main/{name}"])
    site.break_after = [whole, 500]
    with pytest.raises(ConfigError, match="cannot download"):
        prepare("gsm8k", source=urls, output=tmp_path / "out")
    # What has arrived whole is not fetched again, and no other address gets it.
    prepared = prepare("gsm8k", source=urls, output=tmp_path / "out")
    assert [path.split("/")[1] for path in site.fetched] == ["main", "extra", "extra"]
    assert [part["url"] for part in prepared.source] == urls
    questions = [row["question"] for row in read_table(tmp_path / "out" / "data" / "train.parquet")]
    assert [text.split()[0] for text in questions] == ["main"] * 20 + ["extra"] * 20
    with pytest.raises(ConfigError, match="are one file, or have one name"):
        prepare("gsm8k", source=[urls[0], urls[0]], output=tmp_path / "twice")
    site.files |= {path.replace(name, "train.jsonl"): content for path, content in site.files.items()}
    urls = [url.replace(name, "train.jsonl") for url in urls]
    with pytest.raises(ConfigError, match=f"{urls[0]}, {urls[1]} would be the same split"):
        prepare("gsm8k", source=urls, output=tmp_path / "both")


def test_a_server_that_has_no_such_file_or_does_not_answer(site, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot download .*/none \(.*Not Found.*\)"):
        prepare("gsm8k", source=[f"{site.url}/none"], output=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/a .*Connection refused") as caught:
        prepare("gsm8k", source=["http://127.0.0.1:9/a"], output=tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_no_broken_connection(site, tmp_path):
    site.files["/train.jsonl"] = bytes(1_280_000)
    local = write_lines(tmp_path / "train.jsonl", word_problems(3000))
    for source, limit in ((f"{site.url}/train.jsonl", 100_000), (str(local), 5_000)):
        message = small_disk(["prepare", "gsm8k", "--from", source, "--output", str(tmp_path / "out")], limit)
        assert f"cannot write {tmp_path / 'out'}" in message and "File too large; make room" in message
    prepare("gsm8k", source=[str(local)], output=tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*Not a directory; give another folder by --output"):
        prepare("gsm8k", source=[str(local)], output=tmp_path / "file" / "out")
