"""The lab: a script per world that knows its wording and solves nothing by itself, and how far it gets at most.

The scripts see what a policy sees. A world that becomes easier for its script fails here; one that becomes harder may
lower `REACHES` in the script's file.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from runpy import run_path

import pytest

from agent_gym import ConfigError, make
from agent_gym.certify.record import Subject, outcome, script_turns
from agent_gym.registry import ENVS

SCRIPTS = sorted((Path(__file__).parent / "attacks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_no_script_under_50_lines_gets_further_than_was_written_down(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 50
    for node in ast.walk(ast.parse(source)):
        named = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        named += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in named} <= set(sys.stdlib_module_names), "it reads more than a policy"
    names = run_path(str(script))
    kwargs = names.get("ENV_KWARGS", {})
    if any(entry.id == names["ENV_ID"] and entry.needs for entry in ENVS):
        try:
            prepared = make(names["ENV_ID"], **kwargs)
        except ConfigError as error:
            pytest.skip(str(error))
        if "test" not in prepared.tasks:
            pytest.skip("what is prepared here has no test tasks")

    def world():
        return make(names["ENV_ID"], **kwargs)

    tasks = range(min(100, len(world().tasks["test"])))
    subject, env = Subject(names["ENV_ID"], kwargs), world()
    logs = [subject.trace(env, script_turns(env, names["attack"]), ("test", index)) for index in tasks]
    success = sum(outcome(log)[1] for log in logs) / len(logs)
    assert success <= names["REACHES"] + 0.0005, f"{script.name} now solves {success:.3f}"
