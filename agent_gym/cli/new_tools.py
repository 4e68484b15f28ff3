"""The tools of `agent-gym new env --tools`: read from a file, moved with the files that they open, and tried there.

A function that opens "shop.db" finds it next to its module afterwards, wherever a command runs: the literal becomes
`_beside("shop.db")` in the copy. A path that is put together is not followed; the trial in the new place shows it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import numpy as np

from agent_gym.errors import ConfigError, described, quoted
from agent_gym.tool_env import draw_argument, words_of
from agent_gym.tool_results import raised_so_far
from agent_gym.tools import Tool, tool

_CALLS, _SECONDS = 60, 10.0  # made-up calls of each tool, and how long they may take together
_LONGEST = 200  # characters of an answer that a policy can be asked to repeat
_TRIAL_S = 60.0
_MOST_BYTES = 100_000_000  # of a folder that comes along
_OWN = ("data", "env.py", "__init__.py", "tools.py", "files")  # names in the package that are taken
_OPENERS = {"Path", "PurePath", "join", "open", "listdir", "scandir", "glob", "iglob", "walk", "connect", "joinpath"}
_BESIDE = Path(__file__).with_name("beside.txt").read_text()
_TRIAL = Path(__file__).with_name("trial.txt")


class Brought(NamedTuple):
    """The files to copy: file or folder to its place in the package, and lines on the rest."""

    source: str  # of the copied module
    files: dict[Path, str]
    notes: list[str]


_opened: list[Path] | None = None  # files opened while a file is imported
_listening = False


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event in ("open", "sqlite3.connect") and isinstance(arguments[0], str | bytes):
        _opened.append(Path(os.fsdecode(arguments[0])))


def load(path: Path) -> tuple[dict[str, Tool], list[Path]]:
    """Import a file and make tools of its public functions; return them, and the files that it opened meanwhile.

    Raises:
        ConfigError: if there is none, one cannot be a tool, or the file cannot be read or imported.
    """
    global _opened, _listening
    if path.suffix != ".py":
        raise ConfigError(f"new: --tools is {str(path)!r}; it takes a Python file")
    if not _listening:
        sys.addaudithook(_listen)  # it cannot be taken away again
        _listening = True
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        defined = [one.name for one in body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
        if beside := _neighbours(path):
            cure = "write it into the file, or install it as a package"
            raise ConfigError(f"new: {path} imports {beside[0]!r} beside it, which would not come along; {cure}")
        _opened = []
        module = run_path(str(path))
    except ConfigError:
        raise
    except OSError as error:
        if _opened is not None:
            raise ConfigError(f"new: {path} cannot be imported: {described(error)}") from error
        raise ConfigError(f"new: cannot read {path}: {error.strerror}; --tools takes a Python file") from error
    except (Exception, SystemExit) as error:  # it is the user's code
        raise ConfigError(f"new: {path} cannot be imported: {described(error)}") from error
    finally:
        opened, _opened = _opened or [], None
    made = {name: module[name] for name in defined}
    found: dict[str, Tool] = {name: one if isinstance(one, Tool) else tool(one) for name, one in made.items()}
    if not found:
        raise ConfigError(f"new: {path} defines no public function; a tool is a typed function with a docstring")
    return found, opened


def _neighbours(path: Path) -> list[str]:
    """Return the modules in the folder of a file that it imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = [name.partition(".")[0] for name in names]
    return [top for top in tops if top and path.with_name(f"{top}.py").exists() and top not in sys.stdlib_module_names]


def brought(path: Path, opened: Sequence[Path]) -> Brought:
    """Find the files that a module opens: files that it names, in its folder or here, and files opened at import."""
    source = path.read_text(encoding="utf-8")
    tree, files, notes = ast.parse(source), dict[Path, str](), list[str]()
    bases = [path.resolve().parent, Path.cwd()]
    changed: list[tuple[ast.Constant, str]] = []
    fixed, relative_already = _unchangeable(tree), _beside_itself(tree)
    for node, opens in _texts(tree):
        text = str(node.value)  # where nothing opens it, it needs a dot or a slash to be the name of a file
        found = _named(text, bases, opens) if opens or re.search(r"[./]", text) else None
        if found is None or found[0] == path.resolve():
            continue
        place, relative = found
        if relative is None:
            notes.append(f"tools.py opens {str(place)!r}, which stays where it is")
            continue
        if place.is_dir() and (size := _size(place)) > _MOST_BYTES:
            notes.append(f"the folder {node.value!r} has {size:,} bytes and does not come along: copy it yourself")
            continue
        files[place] = relative
        if id(node) in relative_already and relative == str(Path(str(node.value))):
            continue  # the module finds it next to itself, wherever that is
        if id(node) in fixed:
            cure = "open it by Path(__file__).parent"
            notes.append(f"{node.value!r} in line {node.lineno} of tools.py is looked for where a command runs; {cure}")
        else:
            changed.append((node, relative))
    for one in (file.resolve() for file in opened):
        inside = next((base for base in bases if one.is_relative_to(base)), None)
        known = one in files or any(one.is_relative_to(place) for place in files)
        if inside is None or known or one.suffix in (".py", ".pyc") or not one.is_file():
            continue
        relative = str(one.relative_to(inside))
        if _taken(relative):
            notes.append(f"{relative!r}, opened at import, does not come along: the package has that name itself")
        else:
            files[one] = relative
            notes.append(f"{relative!r} is opened at import by a path that is put together: see whether it is found")
    for one in [*files]:
        for more in (one.with_name(one.name + end) for end in ("-wal", "-shm", "-journal")):  # SQLite's
            if more.is_file():
                files[more] = str(Path(files[one]).with_name(more.name))
    return Brought(_rewritten(source, tree, changed), files, list(dict.fromkeys(notes)))


def _texts(tree: ast.AST) -> Iterator[tuple[ast.Constant, bool]]:
    """Yield the string literals of a module, and whether something that opens files is given each."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    given: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            given |= {id(node.left), id(node.right)}
        elif isinstance(node, ast.Call):
            name = str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))
            if name in _OPENERS or name.startswith(("read_", "load")):
                given |= {id(one) for one in (*node.args, *(key.value for key in node.keywords))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node, id(node) in given


def _unchangeable(tree: ast.AST) -> set[int]:
    """Return the texts that a policy reads, as defaults and hints of arguments: they cannot become paths."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            parts = [*node.defaults, *node.kw_defaults, *(one.annotation for one in (*node.args, *node.kwonlyargs))]
            found |= {id(inner) for part in parts if part is not None for inner in ast.walk(part)}
    return found


def _beside_itself(tree: ast.AST) -> set[int]:
    """Return the texts in calls and paths that mention `__file__`, as in `Path(__file__).with_name("shop.db")`."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.BinOp):
            parts = list(ast.walk(node))
            if any(isinstance(part, ast.Name) and part.id == "__file__" for part in parts):
                found |= {id(part) for part in parts}
    return found


def calls_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the calls that a row names for the expert: `call`, or `calls` in their order."""
    named = row.get("calls", row.get("call"))
    return [call for call in (named if isinstance(named, list) else [named]) if isinstance(call, Mapping)]


def _named(text: str, bases: Sequence[Path], opens: bool) -> tuple[Path, str | None] | None:
    """Return the file or folder that a text names and its place in the package; no place if it is elsewhere."""
    if not text.strip("./") or len(text) > 200 or "\n" in text or "\0" in text:
        return None
    if Path(text).is_absolute() or text.startswith("~"):
        place = Path(text).expanduser()
        return (place, None) if opens and place.is_file() else None
    for base in bases:
        place = (base / text).resolve()
        if place.is_file() or (opens and place.is_dir()):
            if not place.is_relative_to(base):
                return place, None
            relative = str(place.relative_to(base))
            return place, str(Path("files") / relative) if _taken(relative) else relative
    return None


def _taken(relative: str) -> bool:
    return Path(relative).parts[0] in _OWN


def _size(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


def _rewritten(source: str, tree: ast.Module, changed: Sequence[tuple[ast.Constant, str]]) -> str:
    """Return a module in which texts are paths next to it."""
    if not changed:
        return source
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # columns count bytes
    for node, relative in sorted(changed, key=lambda one: (-one[0].lineno, -one[0].col_offset)):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        tail = lines[last][node.end_col_offset :]
        lines[first : last + 1] = [lines[first][: node.col_offset] + f"_beside({json.dumps(relative)})".encode() + tail]
    numbers = {node.lineno for node, _ in changed}
    statement = next(one for one in tree.body if numbers & set(range(_begin(one), (one.end_lineno or 0) + 1)))
    at = _begin(statement) - 1
    before, behind = b"".join(lines[:at]).decode(), b"".join(lines[at:]).decode()
    return f"{before.rstrip()}\n\n\n{_BESIDE}{behind}" if before.strip() else f"{_BESIDE}{behind}"


def _begin(statement: ast.stmt) -> int:
    return min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])


def copy_files(files: Mapping[Path, str], package: Path) -> None:
    """Copy the collected files into the package; again over existing files."""
    for source, relative in files.items():
        target = package / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)


def made_up_rows(path: Path, along: Brought) -> list[dict[str, Any]]:
    """Return questions by made-up calls; `ConfigError` with the first error if no tool answers one.

    A copy of the file and of all that comes along is called: a call may write, and the originals must not change.
    """
    before = len(raised_so_far())
    refusals: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        copied = Path(temporary, path.name).resolve()
        copied.write_text(along.source, encoding="utf-8")
        copy_files(along.files, copied.parent)
        with chdir(copied.parent):  # for names that are looked for where a command runs
            rows = [*_made_up(load(copied)[0], refusals)]
    if not rows:
        new = raised_so_far()[before:]
        refusals = [*map(str, new), *refusals, "their answers are empty, or too long to be asked for"]
        told = refusals[0].replace(str(copied), str(path))
        raise ConfigError(f"new: no tool answered a made-up call: {told}; give questions and answers with --from")
    return rows


def _made_up(tools: Mapping[str, Tool], refusals: list[str]) -> Iterator[dict[str, Any]]:
    rng, until = np.random.default_rng(0), time.monotonic() + _SECONDS
    for name, one in tools.items():
        for _ in range(_CALLS):
            given = _draw(one, rng)
            if time.monotonic() > until:
                return
            try:
                result = one.run(given)
            except Exception as error:  # a tool of the user's own class
                refusals.append(f"{name}: {described(error)}")
                continue
            if result.error:
                refusals.append(f"{name}: {result.text}")
            elif 0 < len(result.text.strip()) <= _LONGEST:
                shown = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
                question = f"What does {name} answer" + (f" for {shown}?" if shown else "?")
                yield {"question": question, "answer": result.text.strip(), "call": {"name": name, "arguments": given}}


def _draw(one: Tool, rng: np.random.Generator) -> dict[str, Any]:
    schema = one.schema["function"]
    words = words_of(" ".join(re.findall(r'"([^"\n]+)"', json.dumps(schema))) or one.name)
    properties = schema["parameters"].get("properties", {})
    return {key: draw_argument(kind, words, rng) for key, kind in properties.items()}


def tried(
    folder: Path, name: str, tools: Mapping[str, Tool], rows: Iterable[Mapping[str, Any]]
) -> tuple[list[str], bool]:
    """Call each tool once in the new package, in a separate process and thread.

    Returns lines, and whether tools.py can be imported there. The arguments come from the first row with a call of the
    tool, or made up. Files that this leaves are removed.
    """
    rng, calls, made_up = np.random.default_rng(1), dict[str, dict[str, Any]](), set[str]()
    wanted = [call for row in rows for call in calls_of(row)]
    for one in tools:
        call = next((call for call in wanted if call.get("name") == one), None)
        calls[one] = dict(call.get("arguments") or {}) if call else _draw(tools[one], rng)
        made_up |= set() if call else {one}
    before = {*folder.rglob("*")}
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "said.json"
        code = f"import sys; sys.path[:] = {[one for one in sys.path if one]!r}\n{_TRIAL.read_text()}"
        command = [sys.executable, "-c", code, name, json.dumps(calls), str(output)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=_TRIAL_S)
            said = json.loads(output.read_text(encoding="utf-8"))
        except subprocess.TimeoutExpired:
            said = {"": ("broke", f"no answer in {_TRIAL_S:g} s")}
        except (OSError, ValueError):
            said = {"": ("broke", "the process ended without a word")}
    lines = []
    for file in sorted({*folder.rglob("*")} - before, reverse=True):
        if file.is_file():
            lines.append(f"tried      the tools made {file.relative_to(folder)}, which did not come along; removed")
            file.unlink()
    if "" in said:
        return [f"tried      tools.py does not work in its new place: {said[''][1]}", *lines], False
    for one, (what, text) in said.items():
        shown = ", ".join(f"{key}={quoted(value, 40)}" for key, value in calls[one].items())
        about = " (made up)" if one in made_up and shown else ""
        words = f": {quoted(' '.join(text.split()), 100)}" if what == "answers" else f": {' '.join(text.split()):.400}"
        lines.append(f"tried      {one}({shown}){about} {what}{words}")
    return lines, True
