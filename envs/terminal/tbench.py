"""Tasks of Terminal-Bench 1: task.yaml, Dockerfile, tests, run-tests.sh and solution.sh in one folder.

    https://www.tbench.ai/docs/task-overview. There, tests lie in /tests, run-tests.sh is run in the working folder with
TEST_DIR=/tests, and a task is solved if all tests of pytest pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_gym.envs.terminal.harbor import Parts, read_tree
from agent_gym.envs.terminal.needs import Reason, Unfit
from agent_gym.errors import ConfigError
from agent_gym.untrusted import check_depth, read_text

_ENDS = "/logs/verifier/ends"
_SCRIPT = f"""export PYTEST_ENDS={_ENDS}
bash /tests/run-tests.sh
[ -s {_ENDS} ] && ! grep -qv '^0$' {_ENDS} && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")


def read_parts(folder: Path) -> Parts:
    """Read the data of a task's files; `Unfit` if it is not whole."""
    settings = _yaml(folder / "task.yaml")
    try:
        instruction = str(settings["instruction"]).strip()
        dockerfile = read_text(folder / "Dockerfile")
        tests = read_tree(folder / "tests") if (folder / "tests").is_dir() else {}
        tests["run-tests.sh"] = read_text(folder / "run-tests.sh").encode()
        solve = folder / "solution.sh"
        solution = read_text(solve) if solve.is_file() else None
        seconds, test_seconds = (
            float(settings.get(name) or otherwise)
            for name, otherwise in (("max_agent_timeout_sec", 600.0), ("max_test_timeout_sec", 60.0))
        )
    except KeyError as error:
        raise Unfit(Reason("it is not whole", f"task.yaml has no {error}")) from None
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise Unfit(Reason("it is not whole", str(error))) from None
    reasons = list[Reason]()
    if (parser := settings.get("parser_name", "pytest")) != "pytest":
        reasons.append(Reason(f"its tests are read by {parser!r}, and not by pytest"))
    for name in _COMPOSE:
        services = _yaml(folder / name).get("services") or {} if (folder / name).is_file() else {}
        if len(services) > 1:
            reasons.append(Reason(f"it needs several containers ({name})"))
    tests["test.sh"] = _SCRIPT.encode()
    own = {"TEST_DIR": "/tests"}
    return Parts(
        instruction, dockerfile, folder, tests, "test.sh", solution, {}, seconds, test_seconds, own, tuple(reasons)
    )


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            "tasks of Terminal-Bench 1 have a task.yaml, and PyYAML is missing: pip install pyyaml"
        ) from error
    try:
        found = yaml.safe_load(read_text(path))
        check_depth(found)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise Unfit(Reason("it is not whole", f"{path.name}: {error}")) from None
    if not isinstance(found, dict):
        raise Unfit(Reason("it is not whole", f"{path.name} is not a mapping"))
    return found
