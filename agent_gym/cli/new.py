"""`agent-gym new env NAME`: a folder with a small environment, its registration and its test, to be changed."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from agent_gym.cli.parser import Parser
from agent_gym.errors import ConfigError

_PLACES = {
    "env.py.txt": "{name}/env.py",
    "__init__.py.txt": "{name}/__init__.py",
    "test.py.txt": "tests/test_{name}.py",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
}
"""Template to where it goes in the new folder."""


def main(argv: Sequence[str]) -> int:
    """Write the folder and say what to do with it."""
    summary = "Write a folder with a small environment that works, its registration and its test: yours to change."
    parser = Parser("new", summary, config=False)
    parser.add_argument("kind", choices=("env",), help="what to make")
    parser.add_argument("name", help="name of the package, for example my_task")
    parser.add_argument("--folder", help="where to; default: a folder of that name, here")
    parser.add_argument("--namespace", default="Mine", help="first part of the environment's id")
    arguments = parser.parse(argv)
    name = _check_name(arguments.name)
    if not re.fullmatch(r"[A-Za-z][\w-]*", arguments.namespace):
        raise ConfigError(f"new: --namespace is {arguments.namespace!r}; use letters and digits, for example Mine")
    folder = Path(arguments.folder or name)
    if folder.exists():
        raise ConfigError(f"new: {str(folder)!r} exists already; give another name or --folder")
    camel = "".join(part.capitalize() for part in name.split("_"))
    env_id = f"{arguments.namespace}/{camel}-v0"
    words = {
        "name": name,
        "camel": camel,
        "dashed": name.replace("_", "-"),
        "title": name.replace("_", " ").capitalize(),
        "env_id": env_id,
    }
    for template, place in _PLACES.items():
        path = folder / place.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = files("agent_gym.cli.new_env").joinpath(template).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(words), encoding="utf-8")
        print(path)
    print(
        f"\nNext:\n  cd {os.path.relpath(folder)}\n  python -m pytest\n  agent-gym play {name}:{env_id}\n"
        f"  agent-gym speedrun --env {name}:{env_id}"
    )
    return 0


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"new: {name!r} cannot name a package: use small letters, digits and _, for example my_task")
    found = find_spec(name)
    if found is not None and found.origin is not None:  # a mere folder has none, and hides nothing
        raise ConfigError(f"new: a module {name!r} is installed already, and would hide yours; choose another name")
    return name
