"""The vectors of a corpus on disk: what costs hours to make, kept so that no kill loses more than minutes.

A folder with one file per few thousand documents, float16, which for vectors of length 1 is finer than the bfloat16 the
encoder computed in. A file is renamed to its name when it is complete, and the name carries its checksum: so it is
there and right, or it is made again. Every kind of index is built from these files and from nothing else; a build that
was killed ten times gives the bytes of one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent_gym.errors import ConfigError
from agent_gym.retrieval import files
from agent_gym.retrieval.encoder import Vectors
from agent_gym.retrieval.manifest import Origin, read_record, write_record

_HEADER = "vectors.json"
_PARTIAL = "shard.partial"


@dataclass(frozen=True)
class _Header:
    origin: Origin
    shard_size: int


class VectorShards:
    """The vectors of a corpus, in files of `shard_size`.

    Args:
        folder: where they are, or shall be.
        origin: of which corpus and which encoder.
        shard_size: documents per file, if the folder is new; else it keeps its own.

    Raises:
        ConfigError: if the folder holds vectors of another corpus or encoder.
    """

    def __init__(self, folder: Path, origin: Origin, shard_size: int) -> None:
        self.folder, self.origin = folder, origin
        header = folder / _HEADER
        if header.exists():
            found = read_record(header, "vectors", _Header)
            found.origin.check_corpus(origin.corpus, origin.count, folder)
            found.origin.check_encoder(origin.encoder, origin.probe, folder)
            shard_size = found.shard_size
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_record(header, "vectors", asdict(_Header(origin, shard_size)))
        self.shard_size = shard_size
        self._paths: dict[int, Path] = {}

    def __len__(self) -> int:
        return -(-self.origin.count // self.shard_size)

    def span(self, shard: int) -> range:
        """The positions whose vectors the file holds."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.origin.count))

    def missing(self) -> list[int]:
        """Read what is there; return the numbers of the files that still have to be made."""
        self._paths = {}
        for path in sorted(self.folder.glob("*.npy")):
            number, _, checksum = path.stem.partition("-")
            if files.sha256_of(path).startswith(checksum) and len(checksum) == 16:
                self._paths[int(number)] = path
            else:
                path.unlink()
        return [shard for shard in range(len(self)) if shard not in self._paths]

    def write(self, shard: int, vectors: Vectors) -> None:
        """Write one file."""
        partial = self.folder / _PARTIAL
        with partial.open("wb") as file:
            np.save(file, vectors.astype(np.float16))
        path = self.folder / f"{shard:06}-{files.sha256_of(partial)[:16]}.npy"
        files.replace(partial, path)
        self._paths[shard] = path

    def read(self, start: int, stop: int) -> Vectors:
        """Return the vectors of the positions from start to stop; only these are read."""
        shards = range(start // self.shard_size, -(-stop // self.shard_size))
        parts = [self._open(s)[max(start - self.span(s).start, 0) : stop - self.span(s).start] for s in shards]
        return np.concatenate(parts, dtype=np.float32)

    def pick(self, positions: Sequence[int] | NDArray[np.int64]) -> Vectors:
        """Return the vectors of some positions, which must ascend."""
        places = np.asarray(positions)
        picked = np.empty((len(places), self.origin.encoder.dimension), np.float32)
        shards = places // self.shard_size
        for shard in np.unique(shards):
            chosen = shards == shard
            picked[chosen] = self._open(int(shard))[places[chosen] - self.span(int(shard)).start]
        return picked

    def _open(self, shard: int) -> NDArray[np.float16]:
        vectors = np.load(self._paths[shard], mmap_mode="r")
        expected = (len(self.span(shard)), self.origin.encoder.dimension)
        if vectors.shape != expected:
            raise ConfigError(
                f"{self._paths[shard]} has shape {vectors.shape}, not {expected}; delete it and build again"
            )
        return vectors
