"""The side of verifiers in benchmarks/rollout_async.py, in a Python in which verifiers is installed.

    PYTHON _verifiers_side.py WORKLOAD PORT

`WORKLOAD` is JSON, with the folder of the tokenizer and the texts in it. The last line printed is the measurement.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import time
from typing import Any

IN_FLIGHT = 64


async def play(workload: dict[str, Any], url: str) -> dict[str, Any]:
    """Play all episodes by `ToolEnv` and the client that renders only new messages; all in one event loop."""
    import verifiers.legacy as vf
    from datasets import Dataset
    from renderers import Qwen3RendererConfig
    from verifiers.legacy.clients import resolve_client
    from verifiers.legacy.types import ClientConfig

    latency, answer = workload["latency"], workload["answer"]

    async def act(action: str) -> str:
        """Act on the world.

        Args:
            action: what to do
        """
        if latency:
            await asyncio.sleep(random.uniform(0, latency))
        return answer

    def reward(completion: Any) -> float:
        return 1.0

    rows = [{"prompt": [{"role": "user", "content": text}], "answer": ""} for text in workload["questions"]]
    env = vf.ToolEnv(
        dataset=Dataset.from_list(rows), tools=[act], max_turns=workload["turns"], rubric=vf.Rubric(funcs=[reward])
    )
    config = ClientConfig(
        client_type="renderer", renderer_config=Qwen3RendererConfig(), renderer_model_name=workload["folder"],
        api_key_var="NO_KEY", api_base_url=f"{url}/v1",
    )  # fmt: skip
    client, places = resolve_client(config), asyncio.Semaphore(IN_FLIGHT)
    inputs = list(env.get_dataset())

    async def one(row: Any) -> Any:
        async with places:
            limits = {"max_tokens": workload["sampled"] + 8, "temperature": 1.0}
            return await env.run_rollout(row, client, "m", limits, state_columns=["trajectory"])

    await one(inputs[0])  # what the first episode compiles and imports is no cost of a rollout
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    played = await asyncio.gather(*(one(inputs[n // 8]) for n in range(workload["episodes"])))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    turns = [len(one["trajectory"]) for one in played]
    assert set(turns) == {workload["turns"]}, (turns[:4], played[0].get("error"))
    tokens = played[0]["trajectory"][-1]["tokens"]
    assert len(tokens["completion_ids"]) == len(tokens["completion_logprobs"]) == workload["sampled"]
    context = len(tokens["prompt_ids"]) + len(tokens["completion_ids"])
    return {"cpu_ms": 1e3 * cpu / sum(turns), "wall": wall, "generations": sum(turns), "context": context}


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "NO_KEY": "none"}
    found = asyncio.run(play(json.loads(sys.argv[1]), f"http://127.0.0.1:{sys.argv[2]}"))
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
