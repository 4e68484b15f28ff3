"""Break lines on purpose, one at a time, and say which breaks the nearest test files notice.

    python tests/broken_lines.py [WORDS of breaks to run]

Run it before and after tests are made cheaper: the same breaks, or more, must be noticed. Nothing is written: each
break is a fork in which the source of one module is changed as it is imported. The default selection of tests is run.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent


class Break(NamedTuple):
    """One occurrence of `text` in a module becomes `instead`; `tests` are the nearest files."""

    module: str
    text: str
    instead: str
    tests: str


ESTIMATORS = "test_estimators.py test_estimators_critic.py"
BROKEN = "test_broken_checkpoints.py"
BREAKS = (
    Break("trainers.estimators.groups", 'if scale == "none":', 'if scale == "group":', ESTIMATORS),
    Break("trainers.estimators.groups", "max(1.0, count - 1)", "max(1.0, count)", ESTIMATORS),
    Break("trainers.estimators.groups", "size / (size - 1).clamp(min=1)", "(size - 1).clamp(min=1) / size", ESTIMATORS),
    Break("trainers.estimators.groups", "apart**2 * n * m / (n + m)", "apart**2 * n / (n + m)", ESTIMATORS),
    Break(
        "trainers.estimators.groups",
        "torch.stack([tasks[mask], anchors",
        "torch.stack([anchors[mask], anchors",
        ESTIMATORS,
    ),
    Break(
        "trainers.estimators.groups",
        "experience.episode_returns - required(",
        "experience.episode_returns + required(",
        ESTIMATORS,
    ),
    Break("trainers.estimators.gae", "lam * next_advantage", "next_advantage", ESTIMATORS),
    Break("trainers.estimators.gae", "torch.where(mask[:, t], values[:, t], next_value)", "values[:, t]", ESTIMATORS),
    Break("trainers.estimators.gae", "targets - experience.acting_rewards", "targets", ESTIMATORS),
    Break(
        "trainers.estimators.gae", "torch.where(ends, 0.0, torch.full", "torch.where(ends, 1.0, torch.full", ESTIMATORS
    ),
    Break("trainers.losses", "ratio.clamp(1 - low, 1 + high)", "ratio.clamp(1 - high, 1 + low)", "test_losses.py"),
    Break(
        "trainers.losses", "(ratio > dual) & (advantages < 0)", "(ratio > dual) & (advantages > 0)", "test_losses.py"
    ),
    Break("trainers.losses", "difference.exp() - difference - 1", "difference.exp() - difference", "test_losses.py"),
    Break("trainers.losses", "torch.maximum(error, (near", "torch.minimum(error, (near", "test_losses.py"),
    Break("trainers.losses", '"episode": episodes,', '"episode": rows,', "test_losses.py"),
    Break(
        "envs.gsm8k.calculator",
        "_BINDING[waiting[-1]] >= _BINDING[sign]",
        "_BINDING[waiting[-1]] > _BINDING[sign]",
        "test_gsm8k_calculator.py",
    ),
    Break("envs.gsm8k.calculator", 'if "(" in waiting:', 'if "[" in waiting:', "test_gsm8k_calculator.py"),
    Break("envs.gsm8k.calculator", "10 ** len(decimals)", "10 ** len(whole)", "test_gsm8k_calculator.py"),
    Break("cli.trl_fields", '- {"None"}', '- {"none"}', "test_early.py"),
    Break("cli.early", 'and key != "env"', 'and key == "env"', "test_early.py"),
    Break(
        "policies.small_tokenizer",
        "skip_special_tokens=skip_special_tokens",
        "skip_special_tokens=False",
        "test_imports.py",
    ),
    Break(
        "policies.small_tokenizer",
        "trim_blocks=True",
        "trim_blocks=False, keep_trailing_newline=True",
        "test_imports.py",
    ),
    Break("trainers.resumed", "if not zipfile.is_zipfile(path):", "if not path.stat().st_size:", BROKEN),
    Break("trainers.resumed", 'check_weights(folder, "critic/', 'check_weights(folder, "critics/', BROKEN),
    Break("gateway.known_turns", "self._tail += added[1]", "self._tail = added[1]", "test_known_turns.py"),
    Break("gateway.journal", "[*prompt[kept:], *turn", "[*turn", "test_gateway_journal.py"),
    Break("gateway.journal", 'self._append(key, {"place": place})', "pass", "test_gateway_journal.py"),
    Break("search.base", "if tokens <= limit:", "if tokens <= limit + 1:", "test_question_envs.py"),
    Break("sandbox.local", "next(alike, None) or kind(**settings)", "kind(**settings)", "test_sandbox_local.py"),
    Break("sandbox.local", "files.clear()", "pass", "test_sandbox_local.py"),
    Break("vector", "AutoresetMode.SAME_STEP:", "AutoresetMode.NEXT_STEP:", "test_vector.py"),
    Break("cli.launch", 'agent_gym.cli.launch", name, *argv', 'agent_gym.cli.launch", name', "test_cli_training.py"),
    Break("prepare.run", '"unfinished"', '"finished"', "test_prepare_again.py"),
)


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from a changed source."""

    change = ("", "")

    def get_code(self, fullname: str) -> CodeType:  # never from a cache of bytecode
        source = Path(self.path).read_text(encoding="utf-8")
        if source.count(self.change[0]) < 1:
            raise SystemExit(f"{self.path} has no line with {self.change[0]!r}")
        return compile(source.replace(*self.change, 1), self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module, the broken one."""

    def __init__(self, one: Break) -> None:
        self.one = one

    def find_spec(self, fullname: str, path: object, target: object = None) -> object:
        if fullname != f"agent_gym.{self.one.module}":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)  # type: ignore[arg-type]
        loader = Changed(fullname, str(spec.origin))  # type: ignore[union-attr]
        loader.change = (self.one.text, self.one.instead)
        return importlib.util.spec_from_file_location(fullname, str(spec.origin), loader=loader)  # type: ignore[union-attr]


def noticed(one: Break) -> bool:
    """Run the tests of a break in a fork, up to the first failure."""
    child = os.fork()
    if child == 0:
        sys.meta_path.insert(0, Finder(one))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        files = [str(TESTS / file) for file in one.tests.split()]
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files])
        os._exit(0 if code == pytest.ExitCode.TESTS_FAILED else 1)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    sys.path.insert(0, str(TESTS.parent))
    for name in ("torch", "transformers", "trl", "hypothesis"):  # once, and not in each fork
        with contextlib.suppress(ImportError):
            __import__(name)
    words, missed = sys.argv[1:], 0
    for one in BREAKS:
        if words and not any(word in f"{one.module} {one.text}" for word in words):
            continue
        began, found = time.monotonic(), noticed(one)
        missed += not found
        print(f"{'noticed' if found else 'MISSED '} {one.module}: {one.text} -> {one.instead}", end="")
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    raise SystemExit(f"{missed} breaks are missed" if missed else 0)


if __name__ == "__main__":
    main()
