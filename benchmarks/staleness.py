"""What training without rounds is worth (`--max_staleness`): simulated engine, slow tools, real updates.

    python benchmarks/staleness.py                  # 5 to 15 minutes
    python benchmarks/staleness.py --server         # vLLM behind a server on this machine, which shares its cores
    python benchmarks/staleness.py --soak 10000     # does a long run grow? memory, threads and descriptors

The updates are real (tiny model, 64 episodes of the embedded GSM8K, float32). The engine is a script, as one on another
GPU would be: it writes 16 turns at a time, others wait, and each takes a while, as does the calculator: log-normal
times with a long tail (sigma 1). Their mean is set so that a synchronous rollout takes 0.5, 1 and 2 times as long as an
update, measured before; and last so that engine and trainer have equal work, which means that an engine whose places
are always taken would need as long for a step as the trainer. All runs of a block train the same tasks with the same
answers.

    rollout / update    of the synchronous run
    staleness           `max_staleness`
    step                seconds of a whole step, from the end of one to the end of the next, mean
    speed-up            of the steps
    engine idle         share of the engine's places in which no turn was written; of a server, share of the time in
                        which it had nothing to sample (1 - perf/engine_busy)
    trainer idle        share of the time in which the trainer waited for episodes (1 - perf/trainer_busy)

Means over all steps but the first `staleness + 1`, in which the episodes in play become as many as they may be, and the
last as many, in which none begin.
"""

from __future__ import annotations

import heapq
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "gymnasium")
ENV, BARE = "AgentR1/GSM8K-v0", {"system_prompt": ""}
SIGMA = 1.0
SHARES, EQUAL = (0.5, 1.0, 2.0), "equal work"
STALENESS = (0, 1, 2, 4, 8)


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="steps of each run; the first is left out")
    parser.add_argument("--server", action="store_true", help="sample from vLLM behind a server")
    parser.add_argument("--soak", type=int, metavar="N", help="train N steps of 8 episodes, and print what they hold")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    episodes, steps = (8, 3) if options.quick else (64, options.steps)
    rows, runs = [], []
    with tempfile.TemporaryDirectory() as name:
        from agent_gym.speedrun.tiny import make_tiny_model

        folder = Path(name)
        make_tiny_model(folder / "model", ENV, BARE, width=64 if options.soak else 384)
        if options.soak:
            train(folder, 8, options.soak, 0.001, 2, show=max(1, options.soak // 20))
            return
        if options.server:
            with served(folder) as url:
                for staleness in STALENESS[:2] if options.quick else STALENESS:
                    runs.append({"staleness": staleness, **train(folder, episodes, steps, 0.0, staleness, url=url)})
            for run in runs:
                times = [runs[0]["rollout"] / runs[0]["update"], str(run["staleness"])]
                rows.append(
                    [*times, run["step"], runs[0]["step"] / run["step"], run["engine_idle"], run["trainer_idle"]]
                )
            report(options, facts, rows, runs)
            return
        alone = train(folder, episodes, steps, 0.0, 0)
        # A turn and a call follow each other, and an episode has about three of each: a first guess at the mean.
        guess = train(folder, episodes, steps, 0.1, 0)
        per_second = (guess["rollout"] - alone["rollout"]) / 0.1
        shares = SHARES[2:] if options.quick else SHARES
        mean = 0.0
        for share in (*shares, EQUAL):
            if share == EQUAL:
                mean *= (1 - runs[-1]["trainer_idle"]) / (1 - runs[-1]["engine_idle"])
            else:
                mean = max(0.001, (share * alone["update"] - alone["rollout"]) / per_second)
            for staleness in STALENESS[:2] if options.quick else STALENESS:
                run = train(folder, episodes, steps, mean, staleness)
                runs.append({"share": share, "staleness": staleness, **run})
                first = runs[-1 - STALENESS.index(staleness)]
                times = [first["rollout"] / first["update"], str(staleness), run["step"], first["step"] / run["step"]]
                rows.append([*times, run["engine_idle"], run["trainer_idle"]])
    report(options, facts, rows, runs)


def report(options: Any, facts: Any, rows: list[Any], runs: list[Any]) -> None:
    head = ["rollout / update", "staleness", "step", "speed-up", "engine idle", "trainer idle"]
    _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows, runs=runs)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the model with vLLM at a free port."""
    from agent_gym.doctor.ranks import free_port
    from agent_gym.policies.vllm.launch import ENVIRONMENT, end_group, server_command

    port = free_port()
    sizes: dict[str, Any] = {"context": 512, "max_num_seqs": 64, "kv_cache_gib": 0.2}
    command = server_command(str(folder / "model"), host="127.0.0.1", port=int(port), **sizes)
    environment = {**os.environ, **ENVIRONMENT, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with (folder / "server.txt").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end_group(server)


def train(
    folder: Path, episodes: int, steps: int, mean: float, staleness: int, *, url: str = "", show: int = 0
) -> dict[str, float]:
    """Train and return mean seconds of a rollout, an update and a step, and idle shares.

    With a `url` the server there samples, and not the script. Every `show` steps, if that is not 0, a line says what
    the process holds.
    """
    import gymnasium
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback

    from agent_gym.chat import ChatRenderer
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset

    ends: list[tuple[float, float]] = []  # time, and what the engine has done

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append((time.perf_counter(), policy.worked))
            if show and len(ends) % show == 0:
                rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
                held = f"{threading.active_count()} threads, {len(os.listdir('/proc/self/fd'))} descriptors"
                print(f"step {len(ends)}: {rss} MiB, {held}, {ends[-1][0] - ends[0][0]:.0f} s", flush=True)

    if "Bench/Slow-v0" not in gymnasium.registry:
        gymnasium.register("Bench/Slow-v0", entry_point=make_slow)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    policy = LateScript(ChatRenderer.of(tokenizer).encode_action, mean, places=episodes // 4)
    steps += 2 * (staleness + 1)
    args = AgentGRPOConfig(
        str(folder / "run"), per_device_train_batch_size=episodes, num_generations=4, micro_batch_size=32,
        max_turn_tokens=64, max_episode_tokens=512, trajectories_per_step=0, bf16=False, use_cpu=True,
        gradient_checkpointing=False, report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=show or 1,
        model_init_kwargs={"dtype": "float32"}, max_steps=steps, env_workers=episodes, echo_trap="off",
        # As behind a server, which this engine stands for.
        max_staleness=staleness, layout="server", vllm_server_base_url=url or "http://simulated",
        vllm_server_timeout=1200,
    )  # fmt: skip
    trainer = AgentGRPOTrainer(
        str(folder / "model"), args=args, processing_class=tokenizer, callbacks=[Clock()],
        train_dataset=task_dataset("Bench/Slow-v0", {**BARE, "mean": mean}, tasks=min(1000, episodes // 4 * steps)),
        policy=None if url else policy,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.runner.close()
    trainer.runner.policy.close()
    if show:
        return {}
    middle = slice(staleness + 1, -staleness - 1)
    logs = [log for log in trainer.state.log_history if "time/rollout" in log][middle]
    (began, worked), (ended, done) = ends[staleness + 1], ends[-staleness - 2]

    def mean_of(name: str) -> float:
        return sum(log[name] for log in logs) / len(logs)

    return {
        "rollout": mean_of("time/rollout"),
        "update": mean_of("time/update"),
        "step": (ended - began) / (len(ends) - 2 * staleness - 3),
        "engine_idle": 1 - (mean_of("perf/engine_busy") if url else (done - worked) / (ended - began) / policy.places),
        "trainer_idle": 1 - mean_of("perf/trainer_busy"),
    }


def make_slow(mean: float, **kwargs: Any) -> Any:
    """GSM8K whose calculator is far away."""
    import gymnasium

    class Slow(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            time.sleep(delay(mean, str(action)))
            return self.env.step(action)

    return Slow(gymnasium.make(ENV, **kwargs))


def delay(mean: float, what: str) -> float:
    """Seconds, decided by what is waited for."""
    if mean == 0.0:
        return 0.0
    return random.Random(what).lognormvariate(0.0, SIGMA) * mean / 2.718281828 ** (SIGMA**2 / 2)


class Turn(NamedTuple):
    """A turn that is being written."""

    ends: float
    number: int
    begins: float
    ids: list[int]  # what is left of it


class LateScript:
    """The expert, who takes his time, and writes so many turns at once.

    All episodes earn the same, which costs an update as much as any reward.
    """

    continuous = True

    def __init__(self, encode: Any, mean: float, places: int) -> None:
        self._encode, self._mean, self.places = encode, mean, places
        self._waiting: deque[Any] = deque()
        self._turns: list[Turn] = []  # a heap
        self.worked = 0.0  # seconds of all places

    @property
    def pending(self) -> int:
        return len(self._turns) + len(self._waiting)

    def submit(self, request: Any) -> None:
        self._waiting.append(request)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._turns) < self.places:
            request = self._waiting.popleft()
            episode, now = request.episode, time.perf_counter()
            begun = len(request.prompt_ids) - len(episode.rows[-1].token_ids)  # before it was interrupted
            ids = list(self._encode(episode.env.unwrapped.expert_action()))
            takes = delay(self._mean, f"{episode.spec.sampling_seed}, {len(episode.steps)}") * (1 - begun / len(ids))
            self.worked += takes
            heapq.heappush(self._turns, Turn(now + takes, request.id, now, ids[begun:]))

    def poll(self) -> list[Any]:
        from agent_gym.policies import Generation

        if self._turns:
            time.sleep(min(0.002, max(0.0, self._turns[0].ends - time.perf_counter())))
        finished = []
        while self._turns and self._turns[0].ends <= time.perf_counter():
            turn = heapq.heappop(self._turns)
            finished.append(Generation(turn.number, turn.ids, [-1.0] * len(turn.ids), "stop"))
        self._begin()
        return finished

    def interrupt(self) -> list[Any]:
        from agent_gym.policies import Generation

        now, begun = time.perf_counter(), []
        for turn in self._turns:
            written = int(len(turn.ids) * min(1.0, (now - turn.begins) / max(1e-9, turn.ends - turn.begins)))
            written = min(written, len(turn.ids) - 1)  # the last token ends it
            self.worked -= (turn.ends - turn.begins) * (1 - written / len(turn.ids))
            if written:
                begun.append(Generation(turn.number, turn.ids[:written], [-1.0] * written, "abort"))
        self.close()
        return begun

    def abort(self, request_id: int) -> None:
        self._waiting = deque(request for request in self._waiting if request.id != request_id)
        self._turns = [turn for turn in self._turns if turn.number != request_id]
        heapq.heapify(self._turns)

    def close(self) -> None:
        self._turns.clear()
        self._waiting.clear()

    def sync(self, named_weights: Any) -> None:
        """Take weights in no time."""

    def wake(self) -> None: ...

    def sleep(self) -> None: ...


if __name__ == "__main__":
    main()
