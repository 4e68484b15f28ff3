"""`agent-gym calibrate`, and the file of a judge that other commands take by `--judge`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import Parser, check_output, read_yaml
from agent_gym.errors import ConfigError, writing
from agent_gym.evaluate.report import align
from agent_gym.judges import Judge


def read_judge(path: str) -> Judge:
    """Read the settings of a judge from a toml or yaml file (docs/judges.md)."""
    if not path.endswith(".toml"):
        return Judge.of(read_yaml(path))
    try:
        return Judge.of(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def calibrate(argv: Sequence[str]) -> int:
    """Hold a judge against known labels: agreement, position bias, length bias and cost."""
    from agent_gym.judges.calibrate import calibrate as measure
    from agent_gym.judges.calibrate import read_labels

    parser = Parser("calibrate", calibrate.__doc__, config=False)
    parser.flag("judge JUDGE", "a yaml or toml file with a judge, as for --judge of other commands")
    help_text = "episodes of `rollout` or `eval`, labelled by their success, or lines with messages and a label"
    parser.flag("labels LABELS.jsonl", help_text)
    parser.flag("--output FILE.json", "write the measures there, too")
    arguments = parser.parse(argv)
    if arguments.output:
        check_output(arguments.output)
    judge = read_judge(arguments.judge)
    try:
        lines = Path(arguments.labels).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {arguments.labels}: {error}") from error
    labelled = read_labels(lines, arguments.labels)
    found = measure(judge.connect(), labelled)
    judge.close()
    print(
        f"{found.judge['kind']} by {found.judge['model']}: {found.labelled} episodes, {found.failed} without a verdict"
    )
    for reason in found.failures:
        print(f"  {reason}")
    print(align(found.rows()))
    print("spent: " + ", ".join(f"{name} {value:g}" for name, value in found.spent.items()))
    if arguments.output:
        with writing(arguments.output):
            Path(arguments.output).write_text(json.dumps(found.to_record(), indent=1) + "\n", encoding="utf-8")
    return 0
