"""A hub on this machine: as much of the Hugging Face hub's protocol as its own client needs to load a data set."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class FakeHub:
    """Data sets in one revision each, as files.

    Attributes:
        files: (name, revision) to path to content.
        requests: what was asked, as "GET /path".
        before: called with each of these before it is answered.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.before: Callable[[str], None] = lambda request: None

    def add(self, name: str, revision: str, config: str, splits: Mapping[str, list[dict[str, Any]]]) -> None:
        """Add a data set with one configuration, in parquet."""
        import pyarrow
        import pyarrow.parquet

        files = {}
        for split, rows in splits.items():
            content = io.BytesIO()
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), content)
            files[f"{config}/{split}-00000-of-00001.parquet"] = content.getvalue()
        data = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
        card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{data}---\n"
        self.files[name, revision] = {"README.md": card.encode(), **files}

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Return status, content and headers."""
        for (name, revision), files in self.files.items():
            api, file = f"/api/datasets/{name}", path.removeprefix(f"/datasets/{name}/resolve/{revision}/")
            if path == f"{api}/revision/{revision}":
                about = {"id": name, "sha": revision, "siblings": [{"rfilename": each} for each in files]}
                return 200, json.dumps(about).encode(), {}
            if path.startswith(f"{api}/tree/{revision}"):
                folder = path.removeprefix(f"{api}/tree/{revision}").lstrip("/")
                listed: list[dict[str, Any]] = []
                for each in files:
                    above = each.rpartition("/")[0]
                    if above == folder:
                        listed.append({"type": "file", "path": each, "size": len(files[each]), "oid": "0" * 40})
                    elif not folder and {"type": "directory", "path": above, "oid": "0" * 40} not in listed:
                        listed.append({"type": "directory", "path": above, "oid": "0" * 40})
                return 200, json.dumps(listed).encode(), {}
            if file in files:
                return 200, files[file], {"ETag": hashlib.sha1(files[file]).hexdigest(), "X-Repo-Commit": revision}
            if file != path:
                return 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": revision}
        return 404, b"", {"X-Error-Code": "RepoNotFound"}

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve, and give the address for HF_ENDPOINT."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests.append(f"{self.command} {path}")
                hub.before(hub.requests[-1])
                status, content, headers = hub.answer(path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = answer

            def log_message(self, *arguments: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
