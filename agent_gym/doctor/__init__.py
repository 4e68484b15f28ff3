"""Whether this machine can train: each part of a run is tried on random weights, and measured. `agent-gym doctor`.

    __init__.py   each stage in a separate process, and the report
    stages.py     the stages
    ranks.py      training on random weights, in one process or in several

The stages run the code of a real run: trainer, engine, server, launcher. Nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_gym.errors import require, write_whole
from agent_gym.renamed import renamed

STAGES = ("machine", "engine", "sleep", "ddp", "zero2", "zero3", "fsdp2", "server", "kill", "speed", "memory")
LIMIT_S = 600.0  # for each; most take one minute, and more where others use the machine


@dataclasses.dataclass(frozen=True)
class StageSettings:
    """The settings that all stages share."""

    gpus: Sequence[str]  # as CUDA_VISIBLE_DEVICES names them; none: everything on the CPU, with tiny shapes
    folder: str  # for models, logs and results

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return len(self.gpus) or 2


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a stage."""

    stage: str
    status: str  # ok, failed or skipped
    seconds: float
    numbers: Mapping[str, Any]
    why: str = ""

    @property
    def line(self) -> str:
        """The reason of a failure or skip, and the measurements; tables are left out."""
        shown = [f"{name} {value}" for name, value in self.numbers.items() if "\n" not in str(value)]
        return "; ".join(filter(None, [" ".join(self.why.split()), *shown]))  # errors have several lines


class SkippedStage(Exception):
    """Raised by a stage that cannot be tried here; the text gives the reason."""


def run_stage(setting: StageSettings, stage: str) -> Result:
    """Try one stage in a separate process; all that it has started is gone afterwards."""
    answer, log = Path(setting.folder, f"{stage}.json"), Path(setting.folder, f"{stage}.log")
    answer.unlink(missing_ok=True)
    words = [sys.executable, "-m", "agent_gym.doctor.stages", stage, json.dumps(dataclasses.asdict(setting))]
    began, why = time.perf_counter(), ""
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            why = f"not done within {LIMIT_S:g} s"
        finally:
            end(process)
    seconds = round(time.perf_counter() - began, 1)
    if answer.is_file() and not why:
        return Result(stage, seconds=seconds, **json.loads(answer.read_text(encoding="utf-8")))
    return Result(stage, "failed", seconds, {}, why or f"its process ended with {process.returncode}")


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all below it, also in separate sessions."""
    psutil: Any = require("psutil", "train")
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait()


def write_report(setting: StageSettings, results: Sequence[Result]) -> None:
    """Write report.md, to paste into an issue, and report.json."""
    text = [f"# agent-gym doctor: {f'{len(setting.gpus)} GPUs' if setting.gpus else 'a CPU, tiny shapes'}", ""]
    text += ["| stage | | seconds | |", "|---|---|---|---|"]
    text += [f"| {r.stage} | {r.status} | {r.seconds} | {r.line.replace('|', '/')} |" for r in results]
    for result in results:
        blocks = {name: str(value) for name, value in result.numbers.items() if "\n" in str(value)}
        if result.status == "failed":
            log = Path(setting.folder, f"{result.stage}.log").read_text(encoding="utf-8", errors="replace")
            blocks["the end of its log"] = "\n".join(log.splitlines()[-60:])
        for name, block in blocks.items():
            text += ["", f"{result.stage}, {name}:", "", "```", block.rstrip(), "```"]
    write_whole(Path(setting.folder, "report.md"), "\n".join(text) + "\n")
    content = {"gpus": len(setting.gpus), "stages": [dataclasses.asdict(result) for result in results]}
    write_whole(Path(setting.folder, "report.json"), json.dumps(content, indent=2) + "\n")


__getattr__ = renamed(__name__, {"Setting": "StageSettings"})
