"""Files from addresses: a real server on this machine that breaks off, changes its files, and knows no ranges."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_tools import small_disk
from prepare_tools import word_problems, write_lines

from agent_gym.errors import ConfigError
from agent_gym.prepare import download, forecast, prepare
from agent_gym.prepare.download import fetch, size_of

DATA = bytes(range(256)) * 5000


class Site:
    """What the server has and does.

    Attributes:
        files: path to content.
        etag: of all files; None sends none.
        ranges: whether parts can be asked for.
        break_after: bytes after which a connection is cut, each number used once.
        requests: the range that was asked for, and what was sent: (header, status, bytes).
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etag: str | None = '"1"'
        self.ranges = True
        self.break_after: list[int] = []
        self.requests: list[tuple[str | None, int, int]] = []
        self.failing = 0

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        content = self.files.get(handler.path)
        asked = handler.headers.get("Range")
        if self.failing:
            self.failing -= 1
            return handler.send_error(503)
        if content is None:
            return handler.send_error(404)
        start = 0
        if asked and self.ranges and handler.headers.get("If-Range") == self.etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        partial = bool(asked) and self.ranges and handler.headers.get("If-Range") == self.etag
        if partial and start >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            self.requests.append((asked, 416, 0))
            return None
        handler.send_response(206 if partial else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        if self.etag:
            handler.send_header("ETag", self.etag)
        handler.end_headers()
        body = content[start:]
        if handler.command == "GET":
            cut = self.break_after.pop(0) if self.break_after else None
            handler.wfile.write(body[:cut])
            self.requests.append((asked, 206 if partial else 200, len(body[:cut])))
            handler.close_connection = cut is not None
        return None


@pytest.fixture
def site(monkeypatch) -> Iterator[Any]:
    monkeypatch.setattr(download, "_PAUSES_S", (0.0, 0.0))
    here = Site()

    class Handler(BaseHTTPRequestHandler):
        do_GET = do_HEAD = lambda self: here.answer(self)  # noqa: E731

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    here.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


def leftovers(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_is_fetched_once(site, tmp_path):
    site.files["/a.bin"] = DATA
    fetch(site.url + "/a.bin", tmp_path / "a.bin")
    fetch(site.url + "/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA and leftovers(tmp_path) == ["a.bin"]
    assert site.requests == [(None, 200, len(DATA))]
    assert size_of(site.url + "/a.bin") == len(DATA)


def test_an_interrupted_download_goes_on_where_it_stopped(site, tmp_path):
    site.files["/a.bin"] = DATA
    site.break_after = [100_000, 200_000]
    fetch(site.url + "/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert [status for _, status, _ in site.requests] == [200, 206, 206]
    assert sum(sent for *_, sent in site.requests) == len(DATA), "nothing came twice"


def test_a_later_process_goes_on_too(site, tmp_path):
    site.files["/a.bin"] = DATA
    site.break_after = [10_000, 10_000, 10_000]
    with pytest.raises(ConfigError, match=r"/a\.bin \(the connection ended after 30000 of 1280000 bytes\)"):
        fetch(site.url + "/a.bin", tmp_path / "a.bin")
    assert leftovers(tmp_path) == ["a.bin.partial", "a.bin.version"]
    fetch(site.url + "/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA and site.requests[-1] == ("bytes=30000-", 206, len(DATA) - 30_000)


def test_killed_after_the_last_byte(site, tmp_path):
    site.files["/a.bin"] = DATA
    (tmp_path / "a.bin.partial").write_bytes(DATA)
    (tmp_path / "a.bin.version").write_text('"1"')
    fetch(site.url + "/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == DATA and site.requests == [(f"bytes={len(DATA)}-", 416, 0)]


@pytest.mark.parametrize("change", ["version", "shorter", "no ranges", "no version"])
def test_halves_of_two_versions_are_not_put_together(site, tmp_path, change):
    site.files["/a.bin"] = DATA
    site.break_after = [50_000] * 3
    if change == "no version":
        site.etag = None
    with pytest.raises(ConfigError):
        fetch(site.url + "/a.bin", tmp_path / "a.bin")
    new = DATA[::-1]
    if change == "version":
        site.files["/a.bin"], site.etag = new, '"2"'
    elif change == "shorter":  # under the old version, against all rules
        new = site.files["/a.bin"] = DATA[:7]
    elif change == "no ranges":
        new, site.ranges = DATA, False
    else:
        site.files["/a.bin"] = new
    fetch(site.url + "/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == new


def test_a_server_that_fails_is_asked_again_and_one_that_refuses_is_not(site, tmp_path):
    site.files["/a.bin"] = DATA
    site.failing = 2
    fetch(site.url + "/a.bin", tmp_path / "a.bin")
    with pytest.raises(ConfigError, match=r"/none \(Not Found\)"):
        fetch(site.url + "/none", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"cannot reach .*/none \(Not Found\)"):
        size_of(site.url + "/none")


def test_nobody_there(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_PAUSES_S", (0.0, 0.0))
    with pytest.raises(ConfigError, match=r"cannot download http://127\.0\.0\.1:9/a .*Connection refused"):
        fetch("http://127.0.0.1:9/a", tmp_path / "a")


def test_a_file_with_another_checksum_is_refused(site, tmp_path):
    site.files["/a.bin"] = DATA
    with pytest.raises(ConfigError, match="its checksum is another one"):
        fetch(site.url + "/a.bin", tmp_path / "a.bin", sha256="0" * 64)
    assert leftovers(tmp_path) in ([], ["a.bin.version"])


def test_a_recipe_takes_addresses(site, tmp_path):
    pytest.importorskip("pyarrow")
    rows = word_problems(50)
    data = write_lines(tmp_path / "train.jsonl", rows).read_bytes()
    site.files["/data/train.jsonl"] = data
    url = f"{site.url}/data/train.jsonl?download=true"
    site.files["/data/train.jsonl?download=true"] = data
    folder, lines = forecast("gsm8k", source=[url], output=tmp_path / "out")
    assert not folder.exists() and (lines[0].action, lines[0].size) == ("fetch", len(data))
    site.break_after = [1000] * 3
    with pytest.raises(ConfigError, match="what has arrived is kept"):
        prepare("gsm8k", source=[url], output=tmp_path / "out")
    prepared = prepare("gsm8k", source=[url], output=tmp_path / "out")
    assert prepared.pieces["data/train.parquet"]["rows"] == 50 and prepared.source == [{"url": url}]
    assert sum(sent for *_, sent in site.requests) == len(data)
    assert not (tmp_path / "out" / "downloads").exists()
    assert prepare("gsm8k", source=[url], output=tmp_path / "out").made == ()
    assert sum(sent for *_, sent in site.requests) == len(data), "it is not fetched again"


def test_two_addresses_that_end_in_one_name_are_two_files(site, tmp_path):
    pytest.importorskip("pyarrow")
    name, urls = "train-00000-of-00001.jsonl", []
    for folder in ("main", "extra"):
        rows = [{**row, "question": f"{folder} {row['question']}"} for row in word_problems(20)]
        site.files[f"/{folder}/{name}"] = write_lines(tmp_path / folder / name, rows).read_bytes()
        urls.append(f"{site.url}/{folder}/{name}")
    whole = len(site.files[f"/main/{name}"])
    site.break_after = [whole, *[500] * 3]  # the second one breaks off, as if killed
    with pytest.raises(ConfigError, match="what has arrived is kept"):
        prepare("gsm8k", source=urls, output=tmp_path / "out")
    prepared = prepare("gsm8k", source=urls, output=tmp_path / "out")
    assert sum(sent for *_, sent in site.requests) == sum(map(len, site.files.values())), "it went on where it was"
    assert [part["url"] for part in prepared.source] == urls
    pyarrow = pytest.importorskip("pyarrow.parquet")
    questions = pyarrow.read_table(prepared.folder / "data" / "train.parquet")["question"].to_pylist()
    assert [text.split()[0] for text in questions] == ["main"] * 20 + ["extra"] * 20
    local = [str(tmp_path / folder / name) for folder in ("main", "extra")]
    again = prepare("gsm8k", source=local, output=tmp_path / "local")
    assert (again.folder / "data" / "train.parquet").read_bytes() == (
        prepared.folder / "data" / "train.parquet"
    ).read_bytes()
    for twice in (urls[:1] * 2, local[:1] * 2):
        with pytest.raises(ConfigError, match="give one of them|given twice"):
            prepare("gsm8k", source=twice, output=tmp_path / "twice")


def test_a_killed_download_is_not_taken_for_that_of_another_address(site, tmp_path):
    pytest.importorskip("pyarrow")
    for folder in ("a", "b"):
        rows = [{**row, "question": f"{folder} {row['question']}"} for row in word_problems(5)]
        site.files[f"/{folder}/train.jsonl"] = write_lines(tmp_path / folder / "train.jsonl", rows).read_bytes()
    fetched = [f"{site.url}/a/train.jsonl", f"{site.url}/missing.jsonl"]
    with pytest.raises(ConfigError, match="Not Found"):
        prepare("gsm8k", source=fetched, output=tmp_path / "out")
    prepared = prepare("gsm8k", source=[f"{site.url}/b/train.jsonl"], output=tmp_path / "out")
    pyarrow = pytest.importorskip("pyarrow.parquet")
    questions = pyarrow.read_table(prepared.folder / "data" / "train.parquet")["question"].to_pylist()
    assert {text.split()[0] for text in questions} == {"b"}
    both = [f"{site.url}/{folder}/train.jsonl" for folder in ("a", "b")]
    with pytest.raises(ConfigError, match=f"{both[0]}, {both[1]} would be the same split"):
        prepare("gsm8k", source=both, output=tmp_path / "both")


def test_a_full_disk_is_no_broken_connection(site, tmp_path):
    site.files["/train.jsonl"] = DATA
    words = ["prepare", "gsm8k", "--from", f"{site.url}/train.jsonl", "--output", str(tmp_path / "out")]
    done = small_disk(words, 100_000)
    (said,) = [line for line in done.stderr.splitlines() if "agent-gym: " in line]
    assert done.returncode == 1 and f"cannot write {tmp_path / 'out'}" in said and "File too large; make room" in said
    assert len(site.requests) == 1, "asking the server again would not help"


def test_a_disk_that_is_full_of_what_is_made(tmp_path):
    pytest.importorskip("pyarrow")
    source = write_lines(tmp_path / "train.jsonl", word_problems(3000))
    done = small_disk(["prepare", "gsm8k", "--from", str(source), "--output", str(tmp_path / "out")], 5_000)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"cannot write {tmp_path / 'out'}" in done.stderr and "make room" in done.stderr
    prepare("gsm8k", source=[str(source)], output=tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*Not a directory; give another folder by --output"):
        prepare("gsm8k", source=[str(source)], output=tmp_path / "file" / "out")
