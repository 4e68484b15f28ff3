"""What stands beside an index: of which corpus it is, by which encoder, and which bytes.

The worst that can happen to a search engine is to answer with the wrong documents and no error: an index whose
positions belong to another corpus, or queries encoded by another model than the passages. So everything is compared
when an index is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agent_gym.errors import ConfigError
from agent_gym.search import files
from agent_gym.search.encoder import Encoder, EncoderSpec, probe, probes_agree

MANIFEST = "index.json"
METRIC = "inner product of vectors of length 1"
_FORMAT = 1

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Origin:
    """Where vectors come from.

    Attributes:
        corpus: checksum of the corpus.
        count: its documents, and so the vectors.
        encoder: what decides their encoder.
        probe: what that encoder makes of two fixed texts (`agent_gym.search.encoder.probe`).
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    corpus: str
    count: int
    encoder: EncoderSpec
    probe: list[float]

    @classmethod
    def of(cls, checksum: str, count: int, encoder: Encoder) -> Self:
        """Describe what this encoder makes of this corpus."""
        return cls(checksum, count, encoder.spec, probe(encoder))

    def check_corpus(self, checksum: str, count: int, where: Path) -> None:
        """Compare with a corpus.

        Raises:
            ConfigError: if it is another one.
        """
        if (checksum, count) != (self.corpus, self.count):
            raise ConfigError(
                f"{where} belongs to a corpus of {self.count:,} documents with the checksum {self.corpus[:12]}, and "
                f"the given corpus has {count:,} and {checksum[:12]}; give that corpus, or build an index of this one "
                "in another folder"
            )

    def check_encoder(self, encoder: EncoderSpec, probe: list[float], where: Path) -> None:
        """Compare with an encoder. Its name may differ (a model can be moved), what it does may not.

        Raises:
            ConfigError: if it is another one, or another use of the same one.
        """
        cure = "give that encoder, or build an index with this one in another folder"
        for name, expected in asdict(self.encoder).items():
            found = getattr(encoder, name)
            if name != "name" and found != expected:
                raise ConfigError(
                    f"{where} was made by the encoder {self.encoder.name!r} with {name}={expected!r}, and "
                    f"{encoder.name!r} has {found!r}; {cure}"
                )
        if not probes_agree(self.probe, probe):
            raise ConfigError(
                f"{where} was made by the encoder {self.encoder.name!r}, and {encoder.name!r} gives the same text "
                f"another vector, so it is another model or a later state of it; {cure}"
            )


@dataclass(frozen=True)
class FileRecord:
    """What shows whether a file is the one that was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Attributes:
        index: its kind (`agent_gym.search.index.KINDS`).
        parameters: with which it was built.
        metric: what a score is.
        origin: where its vectors come from.
        file: the size and the checksum of its file.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    index: str
    parameters: dict[str, int | str]
    metric: str
    origin: Origin
    file: FileRecord

    @property
    def file_name(self) -> str:
        """The name of the file with the index, in the folder of the manifest."""
        return f"{self.index}.faiss"

    def check_file(self, folder: Path, *, verify: bool = True) -> None:
        """Compare the file with what was written; all of its bytes, or without `verify` only their number.

        Raises:
            ConfigError: if it is missing, cut off or damaged.
        """
        cure = "build the index again (build_index with the same arguments; the vectors are kept)"
        files.check(folder / self.file_name, asdict(self.file), cure, verify=verify)

    def write(self, folder: Path) -> None:
        """Write it; after this, and not before, there is an index."""
        write_record(folder / MANIFEST, "index", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder.

        Raises:
            ConfigError: if there is none, or one that does not say what it must.
        """
        if not (folder / MANIFEST).is_file():
            raise ConfigError(
                f"{folder} holds no index ({MANIFEST}), or one whose build was not finished; build it with build_index"
            )
        return read_record(folder / MANIFEST, "index", cls)


def write_record(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write a file of ours that says what it is and in which format."""
    files.write_json(path, {"kind": kind, "format": _FORMAT, **content})


def read_record(path: Path, kind: str, shape: type[_Read]) -> _Read:
    """Read what `write_record` wrote.

    Raises:
        ConfigError: if it cannot be read, is of a newer format, or has fields that are missing, wrong or unknown.
    """
    cure = f"delete {path} and build the index again"
    content = files.read_json(path, cure)
    written, version = content.pop("kind", None), content.pop("format", None)
    if isinstance(version, int) and version > _FORMAT:
        raise ConfigError(
            f"{path} has format {version}, and this version of agent-gym reads up to {_FORMAT}; update agent-gym, or "
            "build the index again"
        )
    if (written, version) != (kind, _FORMAT):
        raise ConfigError(f"{path} is {written!r} of format {version!r}; expected {kind!r} of format {_FORMAT}; {cure}")
    try:
        # Strictly, so that no "3" passes for 3; as JSON again, since only there a dataclass may come as an object.
        return TypeAdapter(shape).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path} is damaged at {place!r}: {first['msg']}; {cure}") from error
