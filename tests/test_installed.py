"""Messages about missing packages name a command that works for the Python that runs, and other versions are named."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_gym import installed
from agent_gym.errors import ConfigError, require
from agent_gym.installed import install_command, other_versions

ROOT = Path(__file__).resolve().parents[1]


def missing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_the_command_is_for_the_python_that_runs(tmp_path: Path, monkeypatch: Any) -> None:
    python = Path(sys.executable)
    (tmp_path / "pip").write_text("#!/bin/sh\n")
    (tmp_path / "pip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # another Python's pip, or none
    assert install_command("train") == f"{python} -m pip install 'agent-gym[train]'"
    without = SimpleNamespace(find_spec=lambda name: None)  # as in the environments that uv makes
    monkeypatch.setattr(installed, "PathFinder", without)
    assert install_command("train") == f"uv pip install --python {python} 'agent-gym[train]'"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert install_command("train") == "pip install 'agent-gym[train]'"
    with pytest.raises(ConfigError, match=r"needs the package 'nowhere_to_be': pip install 'agent-gym\[train\]'"):
        require("nowhere_to_be", "train")


def test_setuptools_can_be_imported_after_it() -> None:
    asked = "from agent_gym.installed import install_command; install_command('train'); import setuptools"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=60)


def test_a_clone_that_is_not_installed_is_named_by_its_folder(monkeypatch: Any) -> None:
    monkeypatch.setattr(installed, "version", missing)
    assert install_command("search").endswith(f"pip install -e '{ROOT}[search]'")


def test_only_other_versions_of_exact_pins_are_named(monkeypatch: Any) -> None:
    there = {"agent-gym": "1", "torch": "2.13.0+cpu", "trl": "1.15.0", "vllm": "0.30.0", "numpy": "9"}
    monkeypatch.setattr(installed, "version", lambda name: there.get(name) or missing(name))
    lines = ["numpy<3,>=2.1", 'torch==2.13.0; extra == "train"', 'trl==1.16.0; extra == "train"']
    lines += [
        'peft<1,>=0.21; extra == "train"',
        'transformers==5.17.0; extra == "train"',
        'vllm==0.31.0; extra == "vllm"',
    ]
    monkeypatch.setattr(installed, "requires", lambda name: lines)
    (sentence,) = other_versions("train")
    assert sentence.startswith("trl 1.15.0 is installed, and agent_gym was tested with 1.16.0: ")
    assert [one.partition(" ")[0] for one in other_versions("train", "vllm")] == ["trl", "vllm"]
