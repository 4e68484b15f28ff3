"""What becomes of a run's folder when its process is killed, or its disk fails, at random moments.

    python benchmarks/checkpoint_kills.py --kills 50       # of each trainer, by SIGKILL and SIGTERM in turn
    python benchmarks/checkpoint_kills.py --faults 50      # of each: EIO, a full disk, a refused name, little memory

grpo, ppo and sft train a tiny model on a CPU with a checkpoint at each step, of which two are kept. A trial ends a run
at a moment that is drawn from a seed, between its first and its last step; or lets the operating system refuse the N-th
of its writes, renames or synchronisations, or all memory beyond a bound. Then each file is read, and the run is taken
up.

    ended       trials whose run was ended by the kill or the fault; the others had come to their end
    whole       trials after which every folder called checkpoint-N could be read: weights, optimizer, state, tokenizer
    ever        trials that had finished a checkpoint
    there       trials with a checkpoint at the end, of those that ever had one
    error       trials of a fault whose run ended with one line that says what to do, or came to its end
    resumed     trials whose run went on to its end, with a whole model and nothing unfinished left

What is torn is printed, with the folder, which is then kept.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common
import _faults

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "safetensors")
ENV = "AgentR1/GSM8K-v0"
STEPS = 5
TRAINERS = ("grpo", "ppo", "sft")
FAULTS = ("eio", "full", "rename", "memory")
PATIENCE_S = 600.0
REFUSED: list[str] = []  # in a process that trains
spawner = multiprocessing.get_context("forkserver")


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="trials of each trainer")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="trials of each trainer")
    parser.add_argument("--trainers", default=",".join(TRAINERS), metavar="LIST")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="of each run")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    spawner.set_forkserver_preload(["agent_gym.trainers.ppo", "agent_gym.trainers.sft"])
    rng, rows, trials = random.Random(options.seed), list[list[str]](), list[dict[str, Any]]()
    kills, faults = (1 if options.quick else options.kills), (1 if options.quick else options.faults)
    place = Path(tempfile.mkdtemp(prefix="agent-gym-kills-"))
    make_model(place / "model")
    for name in options.trainers.split(","):
        for kind, count in (("kill", kills), ("fault", faults)):
            found = [trial(place, name, kind, number, rng, options.steps) for number in range(count)]
            trials += found
            if found:
                totals = sum((Counter({key: int(value) for key, value in one.items()}) for one in found), Counter())
                columns = ("ended", "whole", "ever", "there", "error", "resumed")
                rows.append([name, kind, str(count), *(str(totals[column]) for column in columns)])
    head = ["trainer", "by", "trials", "ended", "whole", "ever", "there", "error", "resumed"]
    _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows, trials=trials)
    if all(one["whole"] and one["resumed"] for one in trials):
        shutil.rmtree(place)


def make_model(folder: Path) -> None:
    from agent_gym.speedrun.tiny import make_tiny_model

    make_tiny_model(folder, ENV, {}, width=64)


def trial(place: Path, trainer: str, kind: str, number: int, rng: random.Random, steps: int) -> dict[str, bool]:
    """End one run, read what it left, and take it up."""
    folder = place / f"{trainer}-{kind}-{number}"
    fault = (FAULTS[number % len(FAULTS)], rng.randrange(10**9)) if kind == "fault" else None
    process = start(place, trainer, folder, steps=steps, fault=fault)
    ever = False
    if kind == "kill":
        ever = wait(folder, process, f"step-{rng.randrange(steps)}")
        # Up to the length of a step with its checkpoint, so that the moment falls into any part of it.
        time.sleep(rng.uniform(0.0, 0.5))
        ended = process.is_alive()
        with suppress(ProcessLookupError):  # it has come to its end before
            os.kill(process.pid or 0, signal.SIGKILL if number % 2 else signal.SIGTERM)
    process.join(PATIENCE_S)
    if kind == "fault":
        ended = process.exitcode != 0
    process.kill()
    process.join()
    hits = (folder / "refused").read_text().splitlines() if (folder / "refused").exists() else []
    said = (folder / "end").read_text() if (folder / "end").exists() else ""
    ever = any((folder / f"saved-{step}").exists() for step in range(steps + 1))
    torn = unreadable(folder)
    there = any(folder.glob("checkpoint-*"))
    process = start(place, trainer, folder, steps=steps, resume=True)
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    after = [*unreadable(folder), *unreadable_model(folder / "model")]
    last = (folder / "end").read_text() if (folder / "end").exists() else "no end"
    left = [path.name for path in folder.iterdir() if path.name.startswith(("unfinished", ".part", "run.lock"))]
    result = {
        "ended": ended,
        "whole": not torn,
        "ever": ever,
        "there": there and ever,
        "error": kind == "fault" and (said == "done" or "Traceback" not in said),
        "resumed": last == "done" and not after and not left,
    }
    print(
        f"{trainer} {kind} {number} {fault or ''}: {result} {torn} {after} {left} {hits[:1]} {said[:300]!r}", flush=True
    )
    if result["resumed"] and result["whole"]:
        shutil.rmtree(folder)
    else:
        print(f"  kept: {folder}: {last[-1500:]}", flush=True)
    return result


def start(place: Path, trainer: str, folder: Path, **more: Any) -> Any:
    process = spawner.Process(target=train, args=(str(place), trainer, str(folder), more))
    process.start()
    return process


def wait(folder: Path, process: Any, name: str) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while process.is_alive() and not (folder / name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return (folder / name).exists()


# What is read.


def unreadable(folder: Path) -> list[str]:
    """Name the files of checkpoints that cannot be read, and what they lack."""
    return [problem for one in sorted(folder.glob("checkpoint-*")) for problem in unreadable_model(one, resumed=True)]


def unreadable_model(folder: Path, *, resumed: bool = False) -> list[str]:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer

    needed = ["model.safetensors", "config.json", "tokenizer.json"]
    needed += ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"] if resumed else []
    problems = [f"{folder.name} lacks {name}" for name in needed if not (folder / name).is_file()]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".safetensors":
                load_file(path)
            elif path.suffix in (".pt", ".pth", ".bin"):
                torch.load(path, weights_only=False)
        except Exception as error:
            problems.append(f"{path.relative_to(folder.parent)}: {error!r}"[:200])
    if not problems:
        try:
            AutoConfig.from_pretrained(folder)
            AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            problems.append(f"{folder.name}: {error!r}"[:200])
    return problems


# What runs.


def train(place: str, name: str, folder: str, more: dict[str, Any]) -> None:
    """Train in a process of its own, leave a mark at each step and checkpoint, and write down how it ended."""
    out = Path(folder)
    out.mkdir(exist_ok=True)
    (out / "end").unlink(missing_ok=True)
    log = os.open(out / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("always")
    from agent_gym.cli.main import of_the_machine
    from agent_gym.errors import AgentGymError

    words, code = "done", 0
    try:
        if more.get("fault"):
            inject(*more["fault"], out)
        run(Path(place), name, out, more["steps"], bool(more.get("resume")))
    except AgentGymError as error:
        words, code = f"{type(error).__name__}: {error}", 1
    except Exception as error:
        words, code = of_the_machine(error) or traceback.format_exc(), 1
    (out / "refused").write_text("\n".join(REFUSED))
    (out / "end").write_text(words)
    os._exit(code)


def run(place: Path, name: str, out: Path, steps: int, resume: bool) -> None:
    from transformers import AutoTokenizer, TrainerCallback

    class Marks(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            (out / f"step-{state.global_step}").touch()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            (out / f"saved-{state.global_step}").touch()

    values: dict[str, Any] = {
        "max_steps": steps, "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "report_to": "none",
        "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "disable_tqdm": True, "logging_steps": 1,
    }  # fmt: skip
    last = any(out.glob("checkpoint-*")) or None
    if name == "sft":
        from trl import SFTConfig

        from agent_gym.trainers.sft import expert_episodes, train_sft

        tokenizer = AutoTokenizer.from_pretrained(place / "model")
        rows = [row for episode in expert_episodes(ENV, {}, tokenizer, episodes=4) for row in episode.rows]
        args: Any = SFTConfig(str(out), per_device_train_batch_size=2, max_length=None, **values)
        trainer = train_sft(str(place / "model"), tokenizer, rows, args, resume=resume and last, callbacks=[Marks()])
    else:
        from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, AgentPPOConfig, AgentPPOTrainer, task_dataset

        values |= {"per_device_train_batch_size": 4, "max_turn_tokens": 8, "max_episode_tokens": 1024, "max_turns": 1}
        values |= {"use_vllm": False, "echo_trap": "off"}
        kinds: Any = {"grpo": (AgentGRPOConfig, AgentGRPOTrainer), "ppo": (AgentPPOConfig, AgentPPOTrainer)}
        config, kind = kinds[name]
        values |= {"num_generations": 2} if name == "grpo" else {}
        args = config(str(out), **values)
        data = task_dataset(ENV, {}, tasks=8)
        trainer = kind(str(place / "model"), args=args, train_dataset=data, callbacks=[Marks()])
        trainer.train(resume_from_checkpoint=resume and last)
    trainer.save_model(str(out / "model"))


def inject(kind: str, seed: int, out: Path) -> None:
    """Let the operating system refuse something in the run's folder, or the process more memory."""
    import safetensors.torch
    import torch

    def spared(path: Path) -> bool:
        return path.name in ("end", "refused", "log.txt") or path.name.startswith(("step-", "saved-"))

    if kind == "memory":
        return _faults.bound_memory(random.Random(seed).randrange(1 << 30))
    save: tuple[Any, ...] = ((safetensors.torch, "save_file", 1),)
    if kind == "full":
        save += ((torch, "save", 1),)
    global REFUSED
    REFUSED = _faults.inject(kind, seed, str(out), spared=spared, writers=save)


if __name__ == "__main__":
    main()
