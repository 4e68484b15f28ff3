"""`agent-gym new env`: a package with an environment that works: a small game, or one made of what a user has.

With `--from` its tasks are the rows of a data set, with `--tools` its tools the functions of a Python file, and both go
together. Tools alone get made-up questions: each tool is called some times with made-up arguments, and what it answers
is the answer.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import keyword
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from runpy import run_path
from string import Template
from typing import Any

import numpy as np

from agent_gym.cli.new_rows import dealt, read_splits
from agent_gym.cli.parser import COLUMNS_HELP, Parser, columns
from agent_gym.errors import ConfigError, described, writing
from agent_gym.tool_env import draw_argument, words_of
from agent_gym.tools import Tool, tool

# Template to where it goes in the new folder.
_PLACES = {
    "env.py.txt": "{name}/env.py",
    "__init__.py.txt": "{name}/__init__.py",
    "test.py.txt": "tests/test_{name}.py",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
}
_QUESTIONS = {"env.py.txt": "questions.py.txt", "test.py.txt": "questions-test.py.txt"}
_CALLS, _SECONDS = 60, 10.0  # made-up calls of each tool, and how long they may take together
_LONGEST = 200  # characters of an answer that a policy can be asked to repeat


def new(argv: Sequence[str]) -> int:
    """Write a folder with an environment that works, its registration and its test: yours to change."""
    parser = Parser("new", new.__doc__)
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
    camel = "".join(part.capitalize() for part in name.split("_"))
    env_id = f"{arguments.namespace}/{camel}-v0"
    title, dashed = name.replace("_", " ").capitalize(), name.replace("_", "-")
    words = {"name": name, "camel": camel, "dashed": dashed, "title": title, "env_id": env_id}
    words |= {"summary": "find a number in three guesses", "tools": "()", "data": "drawn from the seed"}
    found = _load(Path(arguments.tools)) if arguments.tools else {}
    if arguments.data:
        splits, told = read_splits(arguments.data, arguments.columns, arguments.skip_bad)
    else:
        splits, told = _made_up_splits(found) if found else {}, []
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
    if found:
        shutil.copyfile(arguments.tools, folder / name / "tools.py")
        print(folder / name / "tools.py")
    print(
        f"\nNext:\n  cd {shlex.quote(os.path.relpath(folder))}\n  python -m pytest\n  agent-gym play {name}:{env_id}\n"
        f"  agent-gym certify {name}:{env_id} --quick\n  agent-gym speedrun --env {name}:{env_id}"
    )
    return 0


def _write(path: Path, text: str) -> None:
    with writing(path, "name another folder with --folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # half of a surrogate pair, as JSON has it
    print(path)


def _load(path: Path) -> dict[str, Tool]:
    """Import a file and make tools of its public functions; `ConfigError` if there is none, or one cannot be a tool."""
    if path.suffix != ".py":
        raise ConfigError(f"new: --tools is {str(path)!r}; it takes a Python file")
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        defined = [one.name for one in body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
        if beside := _neighbours(path):
            cure = "write it into the file, or install it as a package"
            raise ConfigError(f"new: {path} imports {beside[0]!r} beside it, which would not come along; {cure}")
        module = run_path(str(path))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"new: cannot read {path}: {error.strerror}; --tools takes a Python file") from error
    except (Exception, SystemExit) as error:  # it is the user's code
        raise ConfigError(f"new: {path} cannot be imported: {described(error)}") from error
    found: dict[str, Tool] = {name: tool(module[name]) for name in defined}
    if not found:
        raise ConfigError(f"new: {path} defines no public function; a tool is a typed function with a docstring")
    return found


def _neighbours(path: Path) -> list[str]:
    """Return the modules in the folder of a file that it imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = [name.partition(".")[0] for name in names]
    return [top for top in tops if top and path.with_name(f"{top}.py").exists() and top not in sys.stdlib_module_names]


def _made_up_splits(tools: Mapping[str, Tool]) -> dict[str, list[Mapping[str, Any]]]:
    """Return made-up rows of the tools by split."""
    rows = {row["question"]: row for row in _made_up(tools)}
    if not rows:
        raise ConfigError("new: no tool answered a made-up call; give questions and answers with --from")
    return dealt([*rows.values()])


def _made_up(tools: Mapping[str, Tool]) -> Iterator[dict[str, Any]]:
    rng, until = np.random.default_rng(0), time.monotonic() + _SECONDS
    for name, one in tools.items():
        schema = one.schema["function"]
        words = words_of(" ".join(re.findall(r'"([^"\n]+)"', json.dumps(schema))) or name)
        for _ in range(_CALLS):
            properties = schema["parameters"].get("properties", {})
            given = {key: draw_argument(kind, words, rng) for key, kind in properties.items()}
            if time.monotonic() > until:
                return
            try:
                result = one.run(given)
            except Exception:  # made-up arguments are often no good ones
                continue
            if not result.error and 0 < len(result.text.strip()) <= _LONGEST:
                shown = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
                question = f"What does {name} answer" + (f" for {shown}?" if shown else "?")
                yield {"question": question, "answer": result.text.strip(), "call": {"name": name, "arguments": given}}
