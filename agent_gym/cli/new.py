"""`agent-gym new env`: a package with an environment that works: a small game, or one made of a user's data or tools.

With `--from` its tasks are the rows of a data set, with `--tools` its tools the functions of a Python file, and both go
together. Tools alone get made-up questions: each tool is called some times with made-up arguments, and the tool's
answer is the gold answer.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from agent_gym.cli.new_rows import dealt, read_splits
from agent_gym.cli.new_tools import Brought, brought, calls_of, copy_files, load, made_up_rows, tried
from agent_gym.cli.parser import COLUMNS_HELP, CommandParser, columns
from agent_gym.dependencies import DISTRIBUTION
from agent_gym.errors import ConfigError, write_whole, writing
from agent_gym.tools import Tool

# Template to where it goes in the new folder.
_PLACES = {
    "env.py.txt": "{name}/env.py",
    "__init__.py.txt": "{name}/__init__.py",
    "test.py.txt": "tests/test_{name}.py",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
}
_QUESTIONS = {"env.py.txt": "questions.py.txt", "test.py.txt": "questions-test.py.txt"}


def new(argv: Sequence[str]) -> int:
    """Write a folder with an environment that works, its registration and its test: yours to change."""
    parser = CommandParser("new", new.__doc__)
    parser.flag("kind", "what to make", choices=("env",))
    parser.flag("name", "name of the package, for example my_task")
    parser.flag("--folder", "where to; default: a folder of that name, here")
    parser.flag("--namespace", "first part of the environment's id", default="Mine")
    help_text = "questions and answers: a file (JSON lines, JSON, CSV, TSV, Parquet), a folder of splits, or a hub name"
    parser.flag("--from DATA", help_text, dest="data")
    parser.flag("--columns", COLUMNS_HELP, type=columns)
    help_text = "leave out rows that cannot be used, and count them; else they are an error"
    parser.flag("--skip_bad", help_text, action="store_true")
    help_text = "a file whose public functions become tools; without --from each is called with made-up arguments"
    parser.flag("--tools FILE.py", help_text)
    arguments = parser.parse(argv)
    name, folder = arguments.name, _checked_folder(arguments)
    camel = "".join(part.capitalize() for part in name.split("_"))
    env_id = f"{arguments.namespace}/{camel}-v0"
    title, dashed = name.replace("_", " ").capitalize(), name.replace("_", "-")
    words = {"name": name, "camel": camel, "dashed": dashed, "title": title, "env_id": env_id}
    words |= {
        "distribution": DISTRIBUTION,
        "summary": "find a number in three guesses",
        "tools": "()",
        "data": "drawn from the seed",
    }
    found, opened = load(Path(arguments.tools)) if arguments.tools else ({}, [])
    along = brought(Path(arguments.tools), opened) if found else None
    if arguments.data:
        splits, told = read_splits(arguments.data, arguments.columns, arguments.skip_bad)
    else:
        splits, told = _made_up_splits(Path(arguments.tools), along) if along else {}, []
    if splits:
        calls = "".join(f"tools.{one}, " for one in found)
        words |= {
            "summary": "questions, answered with tools" if found else "questions, answered at once",
            "tools": f"({', '.join(map(repr, found))},)" if found else "()",
            "data": "rows of data/",
            "functions": f"tools=[{calls.removesuffix(', ')}], " if found else "",
            "imports": "from . import tools\n\n" if found else "",
        }
    for template, place in _PLACES.items():
        source = _QUESTIONS.get(template, template) if splits else template
        text = files("agent_gym.cli").joinpath("new-env", source).read_text(encoding="utf-8")
        _write(folder / place.format(name=name), Template(text).substitute(words))
    for split, rows in splits.items():
        text = "".join(f"{json.dumps(row, ensure_ascii=False, default=str)}\n" for row in rows)
        _write(folder / name / "data" / f"{split}.jsonl", text)
    for line in told:
        print(f"rows: {line}")
    works = along is None or _move_tools(folder, name, found, along, splits)
    print(
        f"\nNext:\n  cd {shlex.quote(os.path.relpath(folder))}\n  python -m pytest\n  agent-gym play {name}:{env_id}\n"
        f"  agent-gym certify {name}:{env_id} --quick\n  agent-gym speedrun --env {name}:{env_id}"
    )
    return 0 if works else 1


def _checked_folder(arguments: Any) -> Path:
    """Return the folder to write; `ConfigError` for a name, a namespace or a folder that cannot be."""
    name = arguments.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"new: {name!r} cannot name a package: use small letters, digits and _, for example my_task")
    installed = importlib.util.find_spec(name)
    if installed is not None and installed.origin is not None:  # a mere folder has none, and hides nothing
        raise ConfigError(f"new: a module {name!r} is installed already, and would hide yours; choose another name")
    if not re.fullmatch(r"[A-Za-z][\w-]*", arguments.namespace):
        raise ConfigError(f"new: --namespace is {arguments.namespace!r}; use letters and digits, for example Mine")
    folder = Path(arguments.folder or name)
    if folder.exists():
        raise ConfigError(f"new: {str(folder)!r} exists already; give another name or --folder")
    return folder


def _move_tools(
    folder: Path,
    name: str,
    tools: Mapping[str, Tool],
    along: Brought,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
) -> bool:
    """Write tools.py and the files that it opens, call each tool once there, and print it.

    Returns whether it can be imported.
    """
    package = folder / name
    _write(package / "tools.py", along.source)
    with writing(package, "name another folder with --folder"):
        copy_files(along.files, package)
    for relative in along.files.values():
        print(f"{package / relative}, which tools.py opens")
    rows = [row for some in splits.values() for row in some]
    lines, works = tried(folder, name, tools, rows)
    copy_files(along.files, package)  # as they were before the calls
    if not any(map(calls_of, rows)):
        example = json.dumps({"name": next(iter(tools)), "arguments": {}})
        lines.append(
            "note       no row has a call: the expert answers without a tool, and shows nothing of them; give rows a "
            f"column call, such as {example}, or calls, a list of them"
        )
    for line in [*(f"note       {note}" for note in along.notes), *lines]:
        print(line)
    return works


def _write(path: Path, text: str) -> None:
    # "backslashreplace" is for half of a surrogate pair, as JSON has it.
    write_whole(path, text.encode(errors="backslashreplace"), "name another folder with --folder")
    print(path)


def _made_up_splits(path: Path, along: Brought) -> dict[str, list[Mapping[str, Any]]]:
    """Return made-up rows of the tools by split."""
    rows = {row["question"]: row for row in made_up_rows(path, along)}
    return dealt([*rows.values()])
