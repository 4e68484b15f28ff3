"""Data sets of the hub and files from addresses, fetched from servers on this machine that fail as real ones do."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("datasets")

import datasets
import pyarrow
import pyarrow.parquet
from cli_tools import small_disk
from prepare_tools import as_on_the_hub, contents, multi_hop_rows, musique_rows, read_table, word_problems, write_lines

from agent_gym.errors import ConfigError
from agent_gym.prepare import RECIPES, Options, prepare, sources
from agent_gym.search import Corpus


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve GET and HEAD, and give the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        do_GET = do_HEAD = lambda self: answer(self)  # noqa: E731

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str], cut: int | None):
    """Answer, and break off after `cut` bytes."""
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(content))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(content[:cut])
        handler.close_connection = cut is not None


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
    with pytest.raises(ConfigError, match=r"^openai/gsm8k \(main\), split train, row 2: answer is 'None'; it must"):
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

    def refuse(self: Any, name: str, *, revision: str, timeout: float) -> None:
        raise OSError("name not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("was asked again"))
    with pytest.raises(ConfigError, match=r"from the Hugging Face hub \(OSError\)"):
        prepare("gsm8k", output=tmp_path / "out")


# The hub's own client, which asks a server with as much of the hub's protocol as it needs.


def hub_files(config: str, splits: Mapping[str, list[dict[str, Any]]]) -> dict[str, bytes]:
    """The files of a data set on the hub, by path."""
    data = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    files = {"README.md": f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{data}---\n".encode()}
    for split, rows in splits.items():
        content = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content)
        files[f"{config}/{split}-00000-of-00001.parquet"] = content.getvalue()
    return files


def hub_answer(name: str, revision: str, files: Mapping[str, bytes], path: str) -> tuple[int, bytes, dict[str, str]]:
    """Return status, content and headers, as the hub does for a data set that has one folder."""
    api, commit = f"/api/datasets/{name}", {"X-Repo-Commit": revision}
    if path == f"{api}/revision/{revision}":
        return (
            200,
            json.dumps({"id": name, "sha": revision, "siblings": [{"rfilename": one} for one in files]}).encode(),
            {},
        )
    if path.startswith(f"{api}/tree/{revision}"):
        folder = path.removeprefix(f"{api}/tree/{revision}").lstrip("/")
        listed = [
            {"type": "file", "path": one, "size": len(content), "oid": "0" * 40}
            for one, content in files.items()
            if one.rpartition("/")[0] == folder
        ]
        inside = {one.rpartition("/")[0] for one in files} - {""} if not folder else ()
        listed += [{"type": "directory", "path": one, "oid": "0" * 40} for one in inside]
        return 200, json.dumps(listed).encode(), {}
    file = path.removeprefix(f"/datasets/{name}/resolve/{revision}/")
    if file in files:
        return 200, files[file], {"ETag": hashlib.sha1(files[file]).hexdigest(), **commit}
    return 404, b"", {"X-Error-Code": "RepoNotFound" if file == path else "EntryNotFound", **commit}


def test_the_real_client_fetches_the_named_revision_once_also_when_it_is_killed(tmp_path):
    rows = {"train": word_problems(30), "test": word_problems(7)}
    revision, files = RECIPES["gsm8k"].tables[0].hub.revision, hub_files("main", rows)
    requests: list[str] = []
    victims: list[subprocess.Popen[str]] = []  # to be killed when the second split is fetched

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        requests.append(f"{handler.command} {path}")
        if victims and handler.command == "GET" and "/test-" in path:
            victims.pop().kill()
        send(handler, *hub_answer("openai/gsm8k", revision, files, path), None)

    def start(output: str, offline: str = "0") -> subprocess.Popen[str]:
        home = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": offline}
        words = [sys.executable, "-m", "agent_gym", "prepare", "gsm8k", "--output", str(tmp_path / output)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, env={**os.environ, **home}, **pipes)

    with serving(answer) as address:
        victims.append(killed := start("out"))
        killed.communicate(timeout=120)
        assert killed.returncode == -signal.SIGKILL
        for output, offline in (("out", "0"), ("other", "1")):  # the second time from the cache of the client
            asked, process = len(requests), start(output, offline)
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
        assert len(requests) == asked and contents(tmp_path / "out") == contents(tmp_path / "other")
    fetched = [request for request in requests if re.match(r"GET .*/train-.*\.parquet", request)]
    assert len(fetched) == 1
    for split, expected in rows.items():
        assert read_table(tmp_path / "out" / "data" / f"{split}.parquet") == expected


# Addresses.


class Site:
    """What the server has and does: path to content, bytes after which it breaks off, and what was fetched."""

    url = ""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.break_after: list[int] = []
        self.fetched: list[str] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path not in self.files:
            handler.send_error(404)
            return
        self.fetched.append(handler.path)
        send(handler, 200, self.files[handler.path], {}, self.break_after.pop(0) if self.break_after else None)


@pytest.fixture
def site() -> Iterator[Site]:
    here = Site()
    with serving(here.answer) as here.url:
        yield here


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
        done = small_disk(["prepare", "gsm8k", "--from", source, "--output", str(tmp_path / "out")], limit)
        (message,) = [line for line in done.stderr.splitlines() if "agent-gym: " in line]
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert f"cannot write {tmp_path / 'out'}" in message and "File too large; make room" in message
    prepare("gsm8k", source=[str(local)], output=tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*Not a directory; give another folder by --output"):
        prepare("gsm8k", source=[str(local)], output=tmp_path / "file" / "out")
