"""`agent-gym doctor`: whether this machine can train, as a table and as a report for an issue."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from agent_gym.cli.parser import Parser, check_output, nearest, positive
from agent_gym.doctor import STAGES, Setting, run_stage, write_report
from agent_gym.errors import ConfigError, require


def doctor(argv: Sequence[str]) -> int:
    """Try all that training needs of this machine, with random weights; exit status 1 if a stage failed."""
    parser = Parser("doctor", doctor.__doc__, config=False)
    parser.flag("--gpus N", "how many GPUs to try; default: all that torch sees", type=positive)
    parser.flag("--cpu", "everything but the device: tiny shapes, two processes, no GPU", action="store_true")
    parser.flag("--only STAGES", f"some of {','.join(STAGES)}", type=_stages)
    parser.flag("--output_dir DIR", "where report.md, report.json and logs go", default="doctor")
    arguments = parser.parse(argv)
    if arguments.cpu and arguments.gpus:
        raise ConfigError(f"doctor: --cpu tries no GPU, and --gpus is {arguments.gpus}; leave one of them out")
    seen = 0 if arguments.cpu else require("torch", "train").cuda.device_count()
    gpus = arguments.gpus or seen
    if not arguments.cpu and (gpus > seen or not gpus):
        asked = f"--gpus is {gpus}, and " if arguments.gpus else ""
        cure = "ask for fewer" if seen else "--cpu tries everything but the device"
        raise ConfigError(
            f"doctor: {asked}torch sees {seen} GPUs here: look at nvidia-smi and CUDA_VISIBLE_DEVICES; {cure}"
        )
    folder = Path(arguments.output_dir)
    check_output(str(folder / "report.md"))
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpus else []
    setting = Setting((names if names != [""] else [str(i) for i in range(gpus)])[:gpus], str(folder.resolve()))
    results = []
    for stage in arguments.only or STAGES:
        results.append(result := run_stage(setting, stage))
        print(f"{stage:<8} {result.status:<8} {result.seconds:>6.1f} s  {result.line}", flush=True)
        write_report(setting, results)
    failed = [result.stage for result in results if result.status == "failed"]
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'nothing failed'}; see {folder / 'report.md'}")
    return int(bool(failed))


def _stages(text: str) -> list[str]:
    for stage in text.split(","):
        if stage not in STAGES:
            raise ArgumentTypeError(f"no stage {stage!r}; {nearest(stage, STAGES)}")
    return [stage for stage in STAGES if stage in text.split(",")]
