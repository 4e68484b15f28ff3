"""What a rank does between a rollout and its update, while all GPUs wait: per token of its own, per episode of all.

    python benchmarks/exchange.py                    # one rank of many, about two minutes
    python benchmarks/exchange.py --processes 4      # and a real exchange between so many processes, by gloo

A rank sends each of its episodes to the rank that trains on it, lays what it gets out as tensors, and gives credit
(GRPO, and GAE with values), for which it learns a number per step of every episode. Measured is one rank, with
`--episodes` episodes of `--tokens` tokens in `--steps` steps, half of them sampled; the other ranks' numbers are its
own, under other groups. `ns per token` are of the rank's own tokens; `s of all` is what grows with the number of ranks,
`MB of all` what it receives for it, `s per step` everything together, and `of a step` its share of a step of 0.2 s per
thousand tokens of the rank, that is, what all GPUs wait. So long takes 7B on an H100: 8 x 7e9 FLOP per token for
scoring and the update, at 40% of 989 TFLOP/s, are 0.14 s, and sampling is the rest.
"""

from __future__ import annotations

import functools
import os
import pickle
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

HEAD = ["estimator", "ranks", "tokens of all", "s of all", "MB of all", "s per step", "of a step"]
RANKS = (1, 8, 64)
STEP_S_PER_TOKEN = 0.2e-3


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--episodes", type=int, default=64, metavar="N", help="of a rank, measured")
    parser.add_argument("--count", type=int, default=512, metavar="N", help="of a rank, in the table")
    parser.add_argument("--tokens", type=int, default=24_000, metavar="N", help="of an episode")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="of an episode")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of the real exchange")
    options = parser.parse_args()
    if options.quick:
        options.episodes, options.count, options.tokens, options.steps = 4, 8, 200, 4
    facts = _common.provenance(("agent-gym", "torch", "numpy"))
    _common.print_provenance(facts)
    own = own_share(options.episodes, options.tokens, options.steps)
    _common.print_table(["part", "ns per token"], [[name, value] for name, value in own.items() if name != "bytes"])
    print(f"on the wire {own['bytes']:.1f} bytes per token\n")
    per_token = sum(value for name, value in own.items() if name != "bytes")
    rows, results = [], []
    for ranks in RANKS[:2] if options.quick else RANKS:
        for name in ("grpo", "gae"):
            seconds, received = of_all(options.count, ranks, options.steps, name)
            tokens = options.count * options.tokens
            whole = seconds + per_token * tokens / 1e9
            share = whole / (tokens * STEP_S_PER_TOKEN)
            rows.append([name, str(ranks), f"{ranks * tokens / 1e6:,.0f}M", seconds, received / 1e6, whole, share])
            results.append(dict(zip(HEAD, rows[-1], strict=True)))
    _common.print_table(HEAD, rows)
    real = between(options.processes, options.episodes, options.tokens, options.steps)
    sent = f"{real['tokens'] / 1e6:.1f}M tokens of all in {real['seconds']:.2f} s"
    grown = f"memory of a process {real['before'] / 2**20:.0f} MiB before, at most {real['peak'] / 2**20:.0f}"
    print(f"between {options.processes} processes, by gloo: {sent}; {grown}")
    facts["load_after"] = _common.load()
    print(f"load after  {facts['load_after']}")
    _common.write_json(options.json, facts=facts, own=own, results=results, real=real)


def episode_of(number: int, tokens: int, steps: int) -> Any:
    """A finished episode of one row: of each step half is sampled."""
    from agent_gym.rollout import Episode, EpisodeSpec, Row, Step
    from agent_gym.transcript import Span

    rng, length = random.Random(number), tokens // steps // 2
    row, made = Row(), Episode(EpisodeSpec("Bench/None-v0", group=number // 8, member=number % 8), terminated=True)
    for k in range(steps):
        spans = [Span(0, length, "user" if k == 0 else "env", k), Span(length, 2 * length, "agent", k)]
        start = len(row.token_ids) + length
        ids = [rng.randrange(3, 150_000) for _ in range(2 * length)]
        row.extend(ids, spans, [0.0] * length + [-rng.random()] * length)
        made.steps.append(Step(0, start, start + length, "", observation=f"{rng.random()}", reward=rng.random()))
    made.rows.append(row)
    return made


def own_share(episodes: int, tokens: int, steps: int) -> dict[str, float]:
    """Nanoseconds per token of what a rank does with its own episodes, and bytes per token on the wire."""

    from agent_gym.trainers.batch import collate, training_episode
    from agent_gym.trainers.credit import Timeline

    finished = [episode_of(number, tokens, steps) for number in range(episodes)]
    total, found = sum(len(e.rows[0].token_ids) for e in finished), {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = function()
        found[name] = (time.process_time() - began) / total * 1e9
        return result

    kept = timed("take what training needs", lambda: [training_episode(e, i) for i, e in enumerate(finished)])
    packed = timed("pack", lambda: pickle.dumps(kept, pickle.HIGHEST_PROTOCOL))
    come = timed("unpack", lambda: pickle.loads(packed))
    batch = timed("lay out", lambda: collate(come, episodes + 1, 0))
    timed("order by step", lambda: Timeline(batch, episodes))
    return found | {"bytes": len(packed) / total}


def of_all(episodes: int, ranks: int, steps: int, name: str) -> tuple[float, int]:
    """CPU seconds of a rank for the credit among the episodes of all, and the bytes it receives; 64 tokens a step."""
    import torch

    from agent_gym.trainers.batch import balance
    from agent_gym.trainers.credit import Experience
    from agent_gym.trainers.estimators import Credit, assign, get_estimator

    generator, length = torch.Generator().manual_seed(0), steps * 64
    shape = (episodes, steps)
    step_of = torch.arange(length).div(64, rounding_mode="floor").expand(episodes, length)
    local = Experience(
        outcome=torch.rand(shape, generator=generator), process=torch.zeros(shape),
        penalty=torch.zeros(episodes, length),
        step_mask=torch.ones(shape, dtype=torch.bool), token_mask=torch.ones(episodes, length, dtype=torch.bool),
        step_of=step_of, terminated=torch.ones(episodes, dtype=torch.bool), groups=torch.arange(episodes) // 8,
        anchors=torch.randint(2**50, shape, generator=generator), sources=torch.zeros(episodes, dtype=torch.long),
        values=torch.rand(episodes, length, generator=generator),
    )  # fmt: skip
    received = 0

    def gather(mine: Any) -> list[Any]:
        nonlocal received
        parts = [mine]
        for rank in range(1, ranks):
            packed = pickle.dumps(renumbered(mine, rank * episodes), pickle.HIGHEST_PROTOCOL)
            received += len(packed)
            parts.append(pickle.loads(packed))
        return parts

    # What one rank spends for making up the others is no part of it, and is measured apart.
    made = functools.partial(assign, get_estimator(name), Credit(), local, list(range(episodes)))
    began = time.process_time()
    balance({number: 24_000 + number % 97 for number in range(episodes * ranks)}, ranks)
    made(gather=gather)
    return time.process_time() - began, received


def renumbered(mine: Any, by: int) -> Any:
    from dataclasses import replace

    if not isinstance(mine, tuple):
        return mine
    numbers, steps = mine
    return [number + by for number in numbers], replace(steps, groups=steps.groups + by)


def between(processes: int, episodes: int, tokens: int, steps: int) -> dict[str, float]:
    """Exchange the episodes of so many real processes; return seconds, tokens and memory of the first."""
    import torch.multiprocessing as multiprocessing

    results = multiprocessing.get_context("spawn").SimpleQueue()
    spawned = multiprocessing.spawn(_exchange, (processes, episodes, tokens, steps, results), processes, join=False)
    found = results.get()
    spawned.join()
    return found


def _exchange(rank: int, processes: int, episodes: int, tokens: int, steps: int, results: Any) -> None:
    import tempfile

    from torch import distributed

    from agent_gym.distributed import exchange, gather_items
    from agent_gym.trainers.batch import balance, training_episode

    store = Path(tempfile.gettempdir(), f"agent-gym-exchange-{os.getppid()}")
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=processes)
    mine = range(rank * episodes, (rank + 1) * episodes)
    kept = [training_episode(episode_of(number, tokens, steps), number) for number in mine]
    gather_items([0])
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, time.perf_counter()
    lengths = dict(gather_items([(e.number, e.n_tokens) for e in kept]))
    held = {episode.number: episode for episode in kept}
    parcels = exchange([[held[n] for n in share if n in held] for share in balance(lengths, processes)])
    seconds = time.perf_counter() - began
    assert sum(map(len, parcels)) == episodes
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        results.put({"seconds": seconds, "tokens": sum(lengths.values()), "peak": peak, "before": before})
    gather_items([0])
    distributed.destroy_process_group()
    store.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
