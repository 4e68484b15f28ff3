"""Files from addresses: a real server on this machine that breaks off, fails, and has files of one name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from cli_tools import small_disk
from prepare_tools import read_table, word_problems, write_lines

from agent_gym.errors import ConfigError
from agent_gym.prepare import forecast, prepare


class Site:
    """What the server has and does: path to content, bytes after which it breaks off, and what was fetched."""

    def __init__(self) -> None:
        self.url = ""
        self.files: dict[str, bytes] = {}
        self.break_after: list[int] = []
        self.fetched: list[str] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        content = self.files.get(handler.path)
        if content is None:
            handler.send_error(404)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command == "GET":
            self.fetched.append(handler.path)
            cut = self.break_after.pop(0) if self.break_after else None
            handler.wfile.write(content[:cut])
            handler.close_connection = cut is not None


@pytest.fixture
def site() -> Iterator[Site]:
    here = Site()

    class Handler(BaseHTTPRequestHandler):
        do_GET = do_HEAD = lambda self: here.answer(self)  # noqa: E731

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    here.url = f"http://127.0.0.1:{server.server_port}"
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_that_broke_off_is_fetched_again_and_leaves_nothing_behind(site, tmp_path):
    rows = word_problems(50)
    path, out = "/data/train.jsonl?download=true", tmp_path / "out"
    site.files[path] = write_lines(tmp_path / "train.jsonl", rows).read_bytes()
    url = site.url + path
    folder, lines = forecast("gsm8k", source=[url], output=out)
    assert not folder.exists() and (lines[0].action, lines[0].size) == ("fetch", len(site.files[path]))
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
    with pytest.raises(ConfigError, match=r"cannot reach .*/none \(Not Found\)"):
        forecast("gsm8k", source=[f"{site.url}/none"], output=tmp_path / "out")
    for ask in (prepare, forecast):
        with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9/a .*Connection refused") as caught:
            ask("gsm8k", source=["http://127.0.0.1:9/a"], output=tmp_path / "out")
        assert "\n" not in str(caught.value)


def test_a_full_disk_is_no_broken_connection(site, tmp_path):
    site.files["/train.jsonl"] = bytes(1_280_000)
    words = ["prepare", "gsm8k", "--from", f"{site.url}/train.jsonl", "--output", str(tmp_path / "out")]
    done = small_disk(words, 100_000)
    (message,) = [line for line in done.stderr.splitlines() if "agent-gym: " in line]
    assert done.returncode == 1 and "File too large; make room" in message
    assert f"cannot write {tmp_path / 'out'}" in message


def test_a_disk_that_is_full_of_what_is_made(tmp_path):
    source = write_lines(tmp_path / "train.jsonl", word_problems(3000))
    done = small_disk(["prepare", "gsm8k", "--from", str(source), "--output", str(tmp_path / "out")], 5_000)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"cannot write {tmp_path / 'out'}" in done.stderr and "make room" in done.stderr
    prepare("gsm8k", source=[str(source)], output=tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*Not a directory; give another folder by --output"):
        prepare("gsm8k", source=[str(source)], output=tmp_path / "file" / "out")
