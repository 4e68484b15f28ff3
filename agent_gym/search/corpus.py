"""The texts that are searched, on disk: any of millions of documents by its position, at the cost of one read.

A corpus is a folder with `corpus.jsonl` in BEIR's form (one `{"_id", "title", "text"}` per line), the position of each
line in `offsets.npy`, and a manifest. Both files are mapped into memory, so that processes share their pages.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from tqdm import tqdm

from agent_gym.errors import ConfigError, EnvFailure, quoted
from agent_gym.search import files
from agent_gym.search.base import Document, ForkSafe

MANIFEST = "corpus.json"
_IDENTITY = {"kind": "corpus", "format": 1}
_TEXTS = "corpus.jsonl"
_OFFSETS = "offsets.npy"


class Corpus(ForkSafe, Sequence[Document]):
    """Documents in a folder that `Corpus.build` filled; `verify` compares checksums, about a second per gigabyte.

    `ConfigError` if the corpus is missing, or its files are not the ones that were written.
    """

    def __init__(self, folder: str | Path, *, verify: bool = True) -> None:
        self.folder = Path(folder).expanduser()
        if not (self.folder / MANIFEST).is_file():
            raise ConfigError(f"{self.folder} holds no corpus ({MANIFEST}), or one whose build was not finished")
        cure = f"delete {self.folder} and build the corpus again"
        manifest = files.read_manifest(self.folder / MANIFEST, _IDENTITY, ("count", "files"), cure)
        for name in (_TEXTS, _OFFSETS):
            files.check(self.folder / name, manifest["files"].get(name, {}), cure, verify=verify)
        self.checksum: str = manifest["files"][_TEXTS]["sha256"]
        self._offsets = files.array_of(self.folder / _OFFSETS, cure)
        if len(self._offsets) - 1 != manifest["count"]:
            raise ConfigError(f"{self.folder} has {len(self._offsets) - 1} documents, not {manifest['count']}; {cure}")
        with (self.folder / _TEXTS).open("rb") as file:
            self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        super().__init__()

    @classmethod
    def build(cls, folder: str | Path, documents: Iterable[Document], *, progress: bool = False) -> Self:
        """Write documents, for example a `Source`, to a folder, in their order, at 16 bytes of memory each.

        A build that was killed leaves no corpus; the same call begins again and gives the same bytes. `ConfigError` for
        no documents, an id that occurs twice, a folder with a corpus, and errors of the source.
        """
        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        with files.locked(folder):
            if (folder / MANIFEST).exists():
                raise ConfigError(f"{folder} holds a corpus already; open it with Corpus(folder), or delete it")
            offsets, keys, digest = array("q", [0]), array("Q"), hashlib.sha256()
            texts, places = folder / (_TEXTS + ".partial"), folder / (_OFFSETS + ".partial")
            with texts.open("w+b") as file:
                for n, document in enumerate(tqdm(documents, desc="corpus", unit=" documents", disable=not progress)):
                    line, id = _line(document, n), document.id.encode("utf-8", "replace")
                    file.write(line)
                    digest.update(line)
                    offsets.append(offsets[-1] + len(line))
                    keys.append(int.from_bytes(hashlib.blake2b(id, digest_size=8).digest()))
                if not keys:
                    raise ConfigError("there are no documents to write; check the source")
                file.flush()
                _refuse_duplicates(documents, file, offsets, np.frombuffer(keys, np.uint64))
            with places.open("wb") as target:
                np.save(target, np.frombuffer(offsets, np.int64))
            files.replace(places, folder / _OFFSETS)
            files.replace(texts, folder / _TEXTS)
            written = {"bytes": offsets[-1], "sha256": digest.hexdigest()}
            described = {_TEXTS: written, _OFFSETS: files.describe(folder / _OFFSETS)}
            files.write_json(folder / MANIFEST, {**_IDENTITY, "count": len(keys), "files": described})
        return cls(folder, verify=False)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        i = int(position) + (len(self) if position < 0 else 0)
        if not 0 <= i < len(self):
            raise IndexError(f"document {position} of {len(self)}")
        try:
            row = json.loads(self._texts[self._offsets[i] : self._offsets[i + 1]])
            return Document(row["_id"], row["title"], row["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise EnvFailure(f"{self.folder / _TEXTS}: document {i} is damaged; build the corpus again") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)


def checksum(documents: Sequence[Document]) -> str:
    """Return the checksum that a corpus of these documents has."""
    if isinstance(documents, Corpus):
        return documents.checksum
    digest = hashlib.sha256()
    for n, document in enumerate(documents):
        digest.update(_line(document, n))
    return digest.hexdigest()


def _line(document: Document, n: int) -> bytes:
    if not isinstance(document, Document) or not all(isinstance(part, str) for part in document) or not document.id:
        raise ConfigError(f"document {n} must be a Document of three texts with an id, and is {quoted(document)}")
    row = {"_id": document.id, "title": document.title, "text": document.text}
    # Half of a surrogate pair, which broken JSON can hold, has no UTF-8; it becomes a question mark.
    return json.dumps(row, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"


def _refuse_duplicates(documents: Iterable[Document], file: BinaryIO, offsets: array[int], keys: np.ndarray) -> None:
    """Raise for the first id that occurred before; hashes of 8 bytes find it, and the ids themselves decide."""
    order = np.argsort(keys, kind="stable")
    repeats = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    place = getattr(documents, "place", "document {}".format)
    for i in repeats[np.argsort(order[repeats + 1])]:
        first, second = order[i : i + 2].tolist()
        ids = []
        for n in (first, second):
            file.seek(offsets[n])
            ids.append(json.loads(file.readline())["_id"])
        if ids[0] == ids[1]:
            raise ConfigError(f"{place(second)}: the id {ids[0]!r} is also that of {place(first)}")
