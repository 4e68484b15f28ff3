"""The repository keeps its shape: rooms and links, guards, the import contract, small files, light imports."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("envs", "trainers", "registry")
needs_links = pytest.mark.skipif(
    not (ROOT / "agent_gym" / "envs").is_symlink(), reason="this checkout has no links, which the linters follow"
)
BIN = Path(sys.executable).parent


def product_files(*patterns: str) -> list[Path]:
    """The files of this repository that match; a link to a room does not count a second time."""
    folders = [
        ROOT / name for name in ("agent_gym", *ROOMS, "benchmarks", "docs", "examples", "notebooks", "tests", ".ci")
    ]
    found = [file for name in patterns for file in ROOT.glob(name)]
    found += [file for folder in folders for name in patterns for file in folder.rglob(name)]
    links = [ROOT / "agent_gym" / room for room in ROOMS]
    return sorted({file for file in found if not any(file.is_relative_to(link) for link in links) and file.is_file()})


def scratch_copy(folder: Path) -> None:
    """Copy what the linters read, links as links, so that a test can plant a mistake in it."""
    for name in ("agent_gym", *ROOMS):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    words, env = [str(part) for part in command], {**os.environ, **env}
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def test_a_room_refuses_to_be_a_top_level_package():
    code = f"""
for room in {ROOMS}:
    try:
        __import__(room)
    except ImportError as error:
        print(error)
"""
    messages = run(sys.executable, "-c", code).stdout.splitlines()
    assert [message.rpartition(": ")[2] for message in messages] == [f"import 'agent_gym.{room}'" for room in ROOMS]


@pytest.mark.parametrize("links", [True, False])
def test_a_module_of_a_room_has_one_name_and_path_and_a_breakpoint_there_is_hit(links, tmp_path):
    """In a checkout as git makes it: with the links, or where it may not make any (core.symlinks=false)."""
    scratch_copy(tmp_path)
    for room in ROOMS:
        link = tmp_path / "agent_gym" / room
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / room) if links else link.write_text(f"../{room}")
    (tmp_path / "play.py").write_text(
        "import gymnasium, agent_gym, sys\n"
        "env = gymnasium.make('AgentR1/GSM8K-v0').unwrapped\n"
        "module = type(env).__module__\n"
        "print('seen', agent_gym.__path__[0], sys.modules[module].__file__, module)\n"
        "env.reset(seed=0)\n"
    )
    file = tmp_path / "envs" / "gsm8k" / "env.py"
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if "gold_answer(worked)" in line)
    stops = [part for command in (f"b envs/gsm8k/env.py:{number}", "c", "where", "q") for part in ("-c", command)]
    done = run(sys.executable, "-m", "pdb", *stops, "play.py", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert f"seen {tmp_path} {file} agent_gym.envs.gsm8k.env" in done.stdout, done.stderr
    assert f"> {file}({number})begin()" in done.stdout, done.stdout + done.stderr


def test_no_folder_of_the_repository_hides_a_module_of_the_package():
    outside = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    inside = {path.stem for path in (ROOT / "agent_gym").iterdir()} - set(ROOMS)
    assert outside & inside - {"__pycache__"} == set()


@needs_links
def test_the_contract_catches_each_mistake(tmp_path):
    scratch_copy(tmp_path)
    mistakes = {
        "agent_gym/transcript.py": "import agent_gym.envs",
        "agent_gym/newcomer.py": "",
        "trainers/__init__.py": "import agent_gym.envs.gsm8k",
        "envs/planted/__init__.py": "import agent_gym.envs.gsm8k\nimport torch",
    }
    for file, lines in mistakes.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        with (tmp_path / file).open("a") as source:
            source.write(f"\n{lines}\n")
    done = run(BIN / "lint-imports", "--no-logo", "--no-cache", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    broken = "".join(line for line in done.stdout.splitlines() if " BROKEN" in line)
    for words in ("point down", "concrete environment", "do not know each other", "without the training stack"):
        assert words in broken, done.stdout
    for words in ("agent_gym.transcript -> agent_gym.envs", "agent_gym.newcomer", "planted -> torch"):
        assert words in done.stdout, done.stdout


@needs_links
@pytest.mark.slow
def test_mypy_sees_every_room_once(tmp_path):
    scratch_copy(tmp_path)
    folders = ("agent_gym", *(f"agent_gym/{room}" for room in ROOMS), "agent_gym/policies", "agent_gym/envs/gsm8k")
    for folder in folders:
        (tmp_path / folder / "planted.py").write_text('number: int = "text"\n')
    # Other people's packages are left out of it: only the walk over our own files is on trial here.
    done = run(BIN / "mypy", "--follow-imports=skip", "--cache-dir", tmp_path / "cache", cwd=tmp_path)
    found = sorted(text.partition(":")[0] for text in done.stdout.splitlines() if "planted.py" in text)
    assert found == sorted(f"{folder}/planted.py" for folder in folders), done.stdout + done.stderr


def test_files_stay_small():
    sizes = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in product_files("*.py")}
    assert {name: size for name, size in sizes.items() if size > 500} == {}


def test_no_pattern_that_older_pythons_misread():
    """Possessive groups miss matches before Python 3.11.5 (its issue 106052); single characters may be possessive."""
    tricky = re.compile(r"\)[*+?]\+|\(\?>")
    assert [str(file) for file in product_files("*.py") if tricky.search(file.read_text(encoding="utf-8"))] == []


def test_importing_the_package_is_light():
    heavy = ("torch", "transformers", "trl", "datasets", "vllm", "matplotlib", "pandas", "scipy")
    code = f"import agent_gym, sys; agent_gym.list_envs(); print(*sys.modules.keys() & set({heavy}))"
    done = run(sys.executable, "-c", f"{code}; print(*[m for m in sys.modules if m.startswith('agent_gym.envs.')])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_every_import_is_of_a_declared_dependency():
    """What is imported must be declared by name, not be there because another package happened to bring it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [names for extra, names in project["optional-dependencies"].items() if extra != "dev"]
    dependencies = sum(extras, project["dependencies"])
    names = (re.split(r"[<>=~!\[ ]", dependency)[0] for dependency in dependencies)
    declared = {name.lower().replace("-", "_") for name in names} | {
        "pil",
        "yaml",
    }  # modules of Pillow and of PyYAML, which transformers needs
    missing: dict[str, str] = {}
    for file in product_files("*.py"):
        if file.relative_to(ROOT).parts[0] not in ("agent_gym", *ROOMS):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"agent_gym"}:
                if top.lower() not in declared:
                    missing.setdefault(top, file.name)
    assert missing == {}


def test_no_file_names_a_place_on_one_machine():
    places = re.compile(r"(?<![\w.:/])/(?:home|root|work|opt|mnt|Users|private)/\w+")
    found: dict[str, str] = {}
    for file in product_files("*.py", "*.md", "*.toml", "*.txt", "*.sh", "*.yaml", "*.ipynb", "run"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if places.search(line):
                found[f"{file.relative_to(ROOT)}:{number}"] = line.strip()
    # One example of a path is the one a user types to name a Python of their own.
    # The other is the home inside of the sandbox.
    allowed = ("PYTHON=/opt/python3.12/bin/python3", "/home/agent")
    assert {place: line for place, line in found.items() if not any(one in line for one in allowed)} == {}
