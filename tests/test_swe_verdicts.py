"""Verdicts on software: the variants of tests, sessions that change nothing, and packages that a session may read."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from swe_tools import made_env, shared_task

from agent_gym.prepare.release_tasks import NoTask, settled
from agent_gym.sandbox import terminal, verdicts
from agent_gym.sandbox.suites import Suite
from agent_gym.sandbox.verdicts import Hidden, Variant

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")


@pytest.fixture(scope="module")
def task() -> Path:
    return shared_task()


def call(env: Any, name: str, **arguments: Any) -> Any:
    return env.step(env.parser.render(name, arguments))


def test_a_variant_that_changes_another_test_is_left_out() -> None:
    """Tests that share a state: where the first fails, so do those that run after it, variants or not."""
    opened = "_open = []\n\n\ndef test_opened():\n    _open.append(1)\n    assert 1 + 1 == 2\n    _open.clear()\n"
    closed = "".join(f"\n\ndef test_{n}():\n    assert not _open and {n} + 0 == {n}\n" for n in range(6))
    source, names = opened + closed, ["t.py::test_opened", *(f"t.py::test_{n}" for n in range(6))]
    ends = [source.index(expected) + len(expected) for expected in ("1 == 2", *(f"0 == {n}" for n in range(6)))]
    variants = [Variant("t.py", at - 1, at, "9", (one,), (one,)) for at, one in zip(ends, names, strict=True)]
    suite = Suite({"t.py": source.encode()}, ("",), ("t.py",))
    held = settled(suite, Hidden(tuple(names[1:]), tuple(names[:1]), tuple(variants), 20.0))
    assert held.variants == tuple(variants[1:]) and held.pass_to_pass == ("t.py::test_opened",)
    with pytest.raises(NoTask, match="depends on which tests are variants"):
        settled(suite, Hidden(tuple(names), (), tuple(variants), 20.0))


def test_lots_give_each_judging_test_both_sides_in_the_first_two_runs() -> None:
    ids = [(f"t.py::{name}",) for name in "abc"]
    variants = [Variant("t.py", at, at + 1, "x", one, one) for at, one in enumerate(ids)]
    hidden = Hidden(("t.py::a", "t.py::b"), ("t.py::c",), tuple(variants), 20.0)
    seen = set()
    for seed in range(50):
        drawn = [{one.ids[0] for one in run} for run in verdicts._draw(hidden, 4, random.Random(seed))]
        assert drawn[0] ^ drawn[1] == {"t.py::a", "t.py::b", "t.py::c"} and len(drawn) == 5
        seen.add(tuple(map(frozenset, drawn)))
    assert len(seen) > 40
    alone = Hidden(("t.py::a",), (), tuple(variants[:1]), 20.0)
    assert len(verdicts._draw(alone, 4, random.Random(0))) == 13, "a guess would be right in 1 of 8"


def test_a_session_that_leaves_the_package_as_it_was_runs_no_test(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    real = verdicts.run_suite
    monkeypatch.setattr(verdicts, "run_suite", lambda *args, **kwargs: runs.append(args) or real(*args, **kwargs))
    env, path = made_env(task), "src/wordlets/__init__.py"
    for command, expected in {
        "ls": 0,
        f"sed -i s/Counter/X/g {path}; sed -i s/X/Counter/g {path}": 0,
        f"python3 -m compileall -q src; touch {path}; echo > other; rm -r tests": 0,
        f"echo >> {path}": 2,
    }.items():
        env.reset(seed=0)
        call(env, "bash", command=command)
        _, reward, _, _, info = call(env, "finish")
        assert (len(runs), reward, info["metrics"]["fail_to_pass"]) == (expected, 0.0, 0.0), command


def test_a_session_has_no_package_of_this_machine_but_pytest(task: Path) -> None:
    env = made_env(task)
    env.reset(seed=0)
    named = r"\( -path '*-packages/*.py' -o -path '*/ensurepip/*.whl' \)"
    names = "sed 's,.*-packages/,,' | cut -d/ -f1 | sort -u"
    found = call(env, "bash", command=f"find / -path /proc -prune -o {named} -print 2> /dev/null | {names}")[0]
    tops = set(found.splitlines()) - {"[no output]"}
    assert tops <= {Path(path).name for path in terminal._pytest().values()}


def test_a_module_on_a_path_that_a_program_added_is_no_part_of_pytest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Setuptools adds its folder of other packages, tomli among them, when it is imported."""
    for name in ("tomli", "exceptiongroup"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert {"tomli.py", "exceptiongroup.py"}.isdisjoint(terminal._pytest.__wrapped__())
