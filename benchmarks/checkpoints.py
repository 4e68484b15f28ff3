"""For how long training stands still for a checkpoint in shares (FSDP2), written while it goes on or waited for.

    python benchmarks/checkpoints.py         # a few minutes

Two ranks on CPUs, by gloo, train a random model with a checkpoint at each step, first the one way and then the other.

    MiB             of a checkpoint, in the file system of temporary files
    stands still    seconds in which rank 0 saves: copies, and waits for the one before; median without the last
    step            seconds from one save to the next, mean

Updates and writes share the machine's cores, so that a step takes longer while a checkpoint is written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

STEPS = 5


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--rank", action="store_true", help="be a rank; for this program alone")
    parser.add_argument("--folder", default="", help="where to write; for this program alone")
    options = parser.parse_args()
    if options.rank:
        rank(Path(options.folder), quick=options.quick)
        return
    facts = _common.provenance(("agent-gym", "trl", "accelerate", "torch"))
    _common.print_provenance(facts)
    from agent_gym.doctor.ranks import free_port, model_folder

    with tempfile.TemporaryDirectory() as name:
        model_folder(*task(Path(name), quick=options.quick))  # for both ranks
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
        command += [__file__, "--rank", "--folder", name, *(["--quick"] if options.quick else [])]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
        rows = json.loads(Path(name, "rows.json").read_text())
    head = ["checkpoint", "MiB", "stands still", "step"]
    _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows)


def rank(folder: Path, *, quick: bool) -> None:
    from agent_gym.doctor.ranks import make_trainer, shard

    shard("fsdp2", folder, on_cpu=True)
    setting, shape = task(folder, quick=quick)
    rows = []
    for way in ("waited for", "in the background"):
        trainer = make_trainer(setting, shape, max_steps=STEPS, save_strategy="steps", save_steps=1)
        trainer.args.output_dir = str(folder / way)
        stood, ends = measure(trainer, wait=way == "waited for")
        trainer.train()
        files = (path for path in (folder / way / "checkpoint-1").rglob("*") if path.is_file())
        size = sum(path.stat().st_size for path in files)
        step = (ends[-1] - ends[0]) / (len(ends) - 1)
        rows.append([way, f"{size / 2**20:.0f}", median(stood[:-1]), step])
    if os.environ["RANK"] == "0":
        (folder / "rows.json").write_text(json.dumps(rows))


def task(folder: Path, *, quick: bool) -> tuple[Any, Any]:
    """Return where the run is, and the shape of its model."""
    from agent_gym.doctor import StageSettings
    from agent_gym.doctor.ranks import TINY
    from agent_gym.plan import ModelShape

    shape = TINY if quick else ModelShape(512, 2048, 8, 8, 8, 64, 1024, tied=True, qkv_bias=True)
    return StageSettings((), str(folder)), shape


def measure(trainer: Any, *, wait: bool) -> tuple[list[float], list[float]]:
    """Note how long each call that saves takes, and when it begins."""
    save, stood, ends = trainer._save_checkpoint, [], []

    def timed(*given: Any) -> None:
        ends.append(time.perf_counter())
        save(*given)
        if wait:
            trainer._finish_checkpoint()
        stood.append(time.perf_counter() - ends[-1])

    trainer._save_checkpoint = timed
    return stood, ends


if __name__ == "__main__":
    main()
