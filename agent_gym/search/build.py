"""Build the index of a corpus: encode, train, add, and write the manifest last.

Encoding takes hours, and is resumed where it stopped: its vectors are kept on disk (`VectorShards`). The manifest names
the corpus, the encoder (`Origin`) and the bytes of an index, and all is compared when it is opened, since an index of
another corpus or encoder would answer with the wrong documents and no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from tqdm import tqdm

from agent_gym.errors import ConfigError, require
from agent_gym.search import corpus as corpora
from agent_gym.search import files
from agent_gym.search.base import Document
from agent_gym.search.encoder import Encoder, EncoderSpec, Vectors, checked_vectors, probe, probes_agree
from agent_gym.search.index import build_of, choose_kind, factory, faiss_threads

MANIFEST = "index.json"
_ENCODE_AT_ONCE = 1024  # so many texts are sorted by length together, and the bar moves
_Record = TypeVar("_Record")


def build_index(
    corpus: Sequence[Document],
    encoder: Encoder,
    folder: str | Path,
    *,
    kind: str = "auto",
    device: str = "cpu",
    shard_size: int = 4096,
    threads: int = 1,
    progress: bool = False,
) -> Manifest:
    """Build an index, or resume building it. Where a whole one exists, this returns at once.

    After a kill at any moment the same call resumes and ends with the same bytes. The vectors stay in the folder
    `vectors`, for another kind; it may be deleted. `agent_gym.search.index` has the kinds; `device`, where the index
    will be searched, decides the kind for "auto". `shard_size` is documents per file of vectors, which a kill loses at
    most. With more than one of the `threads`, which train and add, HNSW graphs are as good but differ from build to
    build.

    Raises:
        ConfigError: for an empty corpus, a kind that cannot be made of it, or a folder of another corpus, encoder or
            process.
        EnvFailure: if the encoder returns something else than vectors.
    """
    folder = Path(folder).expanduser()
    if not len(corpus):
        raise ConfigError("the corpus is empty; an index needs at least one document")
    if shard_size < 1 or threads < 1:
        raise ConfigError(f"shard_size is {shard_size} and threads {threads}; both must be at least 1")
    kind = choose_kind(kind, len(corpus), encoder.spec.dimension, device)
    faiss = require("faiss", "search")  # to fail now and not after the encoding
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        origin = Origin.of(corpus, encoder)
        if (folder / MANIFEST).exists():
            finished = Manifest.read(folder)
            finished.origin.check(origin, folder)
            if finished.index == kind:
                with suppress(ConfigError):  # a damaged file, for which DenseRetriever asks for this build
                    finished.checked_file(folder)
                    return finished
        shards = VectorShards(folder / "vectors", origin, shard_size)
        _encode(corpus, encoder, shards, progress)
        with faiss_threads(threads):
            index = build_of(kind, len(corpus), encoder.spec.dimension, shards.pick, progress)
        path = folder / f"{kind}.faiss"
        partial = path.with_name(path.name + ".partial")
        faiss.write_index(index, str(partial))
        files.replace(partial, path)
        parameters = {"factory": factory(kind, len(corpus), encoder.spec.dimension), "faiss": faiss.__version__}
        manifest = Manifest(index=kind, parameters=parameters, origin=shards.origin, file=files.describe(path))
        files.write_json(folder / MANIFEST, asdict(manifest))  # after this, and not before, there is an index
        for other in folder.glob("*.faiss*"):
            if other != path:  # an earlier kind, which the manifest was about until now
                other.unlink()
        return manifest


def _encode(corpus: Sequence[Document], encoder: Encoder, shards: VectorShards, progress: bool) -> None:
    missing = shards.missing()
    done = len(corpus) - sum(len(shards.span(shard)) for shard in missing)
    with tqdm(total=len(corpus), initial=done, desc="encoding", unit=" documents", disable=not progress) as bar:
        for shard in missing:
            # Cut the same way on every run: which texts share a batch decides the last bits of their vectors.
            parts = []
            span = shards.span(shard)
            for start in range(0, len(span), _ENCODE_AT_ONCE):
                documents = [corpus[n] for n in span[start : start + _ENCODE_AT_ONCE]]
                parts.append(checked_vectors(encoder.encode_documents(documents), len(documents), encoder.spec))
                bar.update(len(documents))
            shards.write(shard, np.concatenate(parts))


class VectorShards:
    """The vectors of a corpus on disk, as float16 in files of `shard_size`.

    For vectors of length 1 float16 is finer than the bfloat16 the encoder computed in. A file gets its name, with its
    checksum in it, when it is complete; else it is made again. A folder that is there keeps its own `shard_size`.
    """

    def __init__(self, folder: Path, origin: Origin, shard_size: int) -> None:
        self.folder, self.origin, self.shard_size = folder, origin, shard_size
        header = folder / "vectors.json"
        if header.exists():
            found = _read(header, _Header)
            found.origin.check(origin, folder)
            self.shard_size = found.shard_size
        else:
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(header, asdict(_Header(origin=origin, shard_size=shard_size)))

    def span(self, shard: int) -> range:
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.origin.count))

    def missing(self) -> list[int]:
        """Verify the existing files; return the numbers of the files that still have to be made."""
        self._paths: dict[int, Path] = {}
        for path in sorted(self.folder.glob("*.npy")):
            number, _, checksum = path.stem.partition("-")
            if files.sha256_of(path).startswith(checksum) and len(checksum) == 16:
                self._paths[int(number)] = path
            else:
                path.unlink()
        return [shard for shard in range(-(-self.origin.count // self.shard_size)) if shard not in self._paths]

    def write(self, shard: int, vectors: Vectors) -> None:
        partial = self.folder / "shard.partial"
        with partial.open("wb") as file:
            np.save(file, vectors.astype(np.float16))
        path = self.folder / f"{shard:06}-{files.sha256_of(partial)[:16]}.npy"
        files.replace(partial, path)
        self._paths[shard] = path

    def pick(self, positions: NDArray[np.int64]) -> Vectors:
        """Return the vectors of ascending positions."""
        picked = np.empty((len(positions), self.origin.encoder.dimension), np.float32)
        shards = positions // self.shard_size
        for shard in np.unique(shards).tolist():
            chosen = shards == shard
            vectors = np.load(self._paths[shard], mmap_mode="r")
            picked[chosen] = vectors[positions[chosen] - self.span(shard).start]
        return picked


@dataclass(frozen=True)
class Origin:
    """Where vectors come from."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    corpus: str  # its checksum
    count: int
    encoder: EncoderSpec
    probe: list[float]  # the encoder's vectors of two fixed texts

    @classmethod
    def of(cls, corpus: Sequence[Document], encoder: Encoder) -> Self:
        return cls(corpora.checksum(corpus), len(corpus), encoder.spec, probe(encoder))

    def check(self, given: Origin, where: Path) -> None:
        """Raise `ConfigError` for another corpus or encoder. A model may be moved; its vectors may not change."""
        if (given.corpus, given.count) != (self.corpus, self.count):
            raise ConfigError(
                f"{where} belongs to a corpus of {self.count:,} documents with the checksum {self.corpus[:12]}, and "
                f"the given corpus has {given.count:,} and {given.corpus[:12]}; give that corpus, or build an index of "
                "this one in another folder"
            )
        made, other = f"{where} was made by the encoder {self.encoder.name!r}", repr(given.encoder.name)
        cure = "give that encoder, or build an index with this one in another folder"
        for name, expected in asdict(self.encoder).items():
            found = getattr(given.encoder, name)
            if name != "name" and found != expected:
                raise ConfigError(f"{made} with {name}={expected!r}, and {other} has {found!r}; {cure}")
        if not probes_agree(self.probe, given.probe):
            about = "gives the same text another vector, so it is another model or a later state of it"
            raise ConfigError(f"{made}, and {other} {about}; {cure}")


@dataclass(frozen=True, kw_only=True)
class _Header:
    kind: Literal["vectors"] = "vectors"
    format: Literal[1] = 1
    origin: Origin
    shard_size: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of an index: its kind (`agent_gym.search.index.KINDS`), from where, and the bytes of its file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["index"] = "index"
    format: Literal[1] = 1
    index: str
    parameters: dict[str, str]  # FAISS's description of the index, and its version
    metric: str = "inner product of vectors of length 1"
    origin: Origin
    file: dict[str, Any]  # `files.describe`

    def checked_file(self, folder: Path, *, verify: bool = True) -> Path:
        """Return the file of the index; `ConfigError` if it is not the one that was written."""
        path = folder / f"{self.index}.faiss"
        cure = "build the index again (build_index with the same arguments; the vectors are kept)"
        files.check(path, self.file, cure, verify=verify)
        return path

    @classmethod
    def read(cls, folder: Path) -> Self:
        if not (folder / MANIFEST).is_file():
            raise ConfigError(
                f"{folder} holds no index ({MANIFEST}), or one whose build was not finished; build it with build_index"
            )
        return _read(folder / MANIFEST, cls)


def _read(path: Path, kind: type[_Record]) -> _Record:
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes(), strict=True)  # strictly: no "3" passes for 3
    except (OSError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise ConfigError(
            f"{path} cannot be read at {place!r}: {first['msg']}; delete it and build the index again, or update "
            "agent-gym if a later version wrote it"
        ) from error
