"""The parts of benchmarks/rollout_async.py, a process each.

    python _async_sides.py server WORKLOAD
    python _async_sides.py tokenizer WORKLOAD FOLDER
    python _async_sides.py SIDE WORKLOAD PORT

`SIDE` is "agent_gym" or "TRL, async". `WORKLOAD` is JSON. The server prints its port; a side prints its measurement,
as JSON, on the last line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import random
import sys
import threading
import time
import warnings
from typing import Any

ANSWER_S = 0.02  # after which the server answers
IN_FLIGHT = 64  # episodes at once
WARM_UP = 10**6  # number of the world that warms a side up


def tokenizer(workload: dict[str, Any]) -> Any:
    """Load the tokenizer, and give it Qwen3's template and the tokens that Qwen3 has for it."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_chat_template

    from agent_gym.models import model_source

    made = AutoTokenizer.from_pretrained(model_source(workload["tokenizer"]))
    made.chat_template = qwen3_chat_template
    made.add_tokens([f"<{end}{tag}>" for tag in ("tool_call", "tool_response", "think") for end in ("", "/")])
    return made


def save(workload: dict[str, Any], folder: str) -> None:
    """Save the tokenizer for a side that imports nothing of this project, and print the texts that it needs."""
    made = tokenizer(workload)
    made.unk_token = None  # verifiers' renderer refuses a text that is the unknown token, too, which Qwen3 has none of
    made.save_pretrained(folder)
    answer, count = text_of(workload["observed"], made.encode), -(-workload["episodes"] // 8)
    print(json.dumps({"folder": folder, "answer": answer, "questions": [question(n) for n in range(count)]}))


def text_of(tokens: int, encode: Any, frame: str = "{}") -> str:
    """Fill a frame with words until it has so many tokens."""
    words: list[str] = []
    while len(encode(frame.format(" ".join(words)))) < tokens:
        words.append(("alpha", "beta", "gamma", "delta")[len(words) % 4])
    return frame.format(" ".join(words))


def call_of(workload: dict[str, Any], encode: Any) -> str:
    """Write the turn that the server gives: one call, in Qwen3's form."""
    frame = '<tool_call>\n{{"name": "act", "arguments": {{"action": "{}"}}}}\n</tool_call>'
    return text_of(workload["sampled"] - 1, encode, frame)


def question(number: int) -> str:
    return f"This is world {number}. Act on it."


def serve(workload: dict[str, Any]) -> None:
    """Answer as vLLM's two endpoints would, after a fixed time, always with the same turn."""
    from aiohttp import web

    made = tokenizer(workload)
    ids = [*made.encode(call_of(workload, made.encode), add_special_tokens=False), made.eos_token_id]
    text, n = made.decode(ids), len(ids)
    scored = [{"token": f"token_id:{i}", "logprob": -0.5, "bytes": [120], "top_logprobs": []} for i in ids]
    completed = {"token_logprobs": [-0.5] * n, "tokens": ["x"] * n}
    choices = {
        "/inference/v1/generate": {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": scored}},
        "/v1/completions": {"token_ids": ids, "finish_reason": "stop", "text": text, "logprobs": completed},
    }
    plain = {
        "/v1/models": {"data": [{"id": "m", "object": "model", "max_model_len": 1 << 20}]},
        "/get_world_size": {"world_size": 1},
        "/health": {},
    }

    def handler(content: Any, wait: float = 0.0) -> Any:
        body = json.dumps(content).encode()

        async def handle(request: web.Request) -> web.Response:
            await request.read()
            await asyncio.sleep(wait)
            return web.Response(body=body, content_type="application/json")

        return handle

    async def run() -> None:
        app = web.Application(client_max_size=1 << 28)
        for path, choice in choices.items():
            app.router.add_post(path, handler({"choices": [choice]}, ANSWER_S))
        for path, content in plain.items():
            app.router.add_get(path, handler(content))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[union-attr]
        await asyncio.Event().wait()

    asyncio.run(run())


class Clock:
    """CPU and wall seconds since it was made."""

    def __init__(self) -> None:
        gc.collect()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self, generations: int, context: int) -> None:
        """Print the measurement and end the process at once: threads of a side may still wait."""
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        found = {"cpu_ms": 1e3 * cpu / generations, "wall": wall, "generations": generations, "context": context}
        print(json.dumps(found), flush=True)
        os._exit(0)


def play_ours(workload: dict[str, Any], url: str) -> None:
    """Play with `Runner` and `VLLMServerPolicy`."""
    import gymnasium

    from agent_gym import ToolEnv, tool
    from agent_gym.policies import VLLMServerPolicy
    from agent_gym.rollout import Budget, EpisodeSpec, Runner

    made, turns, latency = tokenizer(workload), workload["turns"], workload["latency"]
    answer = text_of(workload["observed"], made.encode)

    def act(action: str) -> str:
        """Act on the world.

        Args:
            action: what to do
        """
        if latency:
            time.sleep(random.uniform(0, latency))
        return answer

    class World(ToolEnv):
        default_system_prompt = ""
        reward_weights = {"step": 1.0}  # noqa: RUF012 - a benchmark

        def __init__(self, **kwargs: Any) -> None:
            super().__init__({"train": range(WARM_UP + 1)}, tools=[tool(act)], max_turns=turns, **kwargs)

        def begin(self, task: Any) -> str:
            return question(task)

        def score_calls(self, calls: Any, results: Any) -> dict[str, float]:
            return {"step": 1.0}

        def answer(self, text: str) -> Any:
            raise AssertionError("a turn without a call")

    gymnasium.register("Benchmark/Async-v0", entry_point=World)
    policy = VLLMServerPolicy([url], [made.eos_token_id], context=1 << 19)
    budget = Budget(max_turn_tokens=workload["sampled"] + 8, max_tokens=1 << 18)
    runner = Runner(policy, made, budget, max_live=IN_FLIGHT)
    runner.run([EpisodeSpec("Benchmark/Async-v0", seed=0, index=WARM_UP)])
    specs = [EpisodeSpec("Benchmark/Async-v0", seed=n, index=n // 8, group=n // 8, member=n % 8)
             for n in range(workload["episodes"])]  # fmt: skip
    clock = Clock()
    episodes = runner.run(specs)
    assert not any(episode.failure for episode in episodes), episodes[0].failure
    assert {len(episode.steps) for episode in episodes} == {turns}
    assert not any(call["error"] for episode in episodes for step in episode.steps for call in step.tool_calls)
    clock.stop(sum(len(episode.steps) for episode in episodes), len(episodes[0].rows[0].token_ids))


class TRLEnvironment:
    """The same world in the form of TRL's `environment_factory`."""

    latency, text = 0.0, ""

    def reset(self, **row: Any) -> None:
        self.reward = 0.0

    def act(self, action: str) -> str:
        """Act on the world.

        Args:
            action: what to do
        """
        if self.latency:
            time.sleep(random.uniform(0, self.latency))
        self.reward += 1.0
        return self.text

    def get_reward(self) -> float:
        return self.reward


def play_theirs(workload: dict[str, Any], url: str) -> None:
    """Play with the loop that runs in the worker's process of `AsyncGRPOTrainer`."""
    import multiprocessing

    import aiohttp  # noqa: F401 - TRL imports it at the first request
    from accelerate import PartialState
    from datasets import Dataset
    from trl.chat_template_utils import parse_response
    from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

    PartialState(cpu=True)
    made, episodes, context = tokenizer(workload), workload["episodes"], multiprocessing.get_context("spawn")
    TRLEnvironment.latency, TRLEnvironment.text = workload["latency"], text_of(workload["observed"], made.encode)
    rows = [{"prompt": [{"role": "user", "content": question(n)}]} for n in range(max(2, episodes // 8 * 2))]
    finished: queue.Queue[Any] = queue.Queue()
    loop = _AsyncRolloutLoop(
        model_name="m", dataset=Dataset.from_list(rows), reward_funcs=[], processing_class=made,
        eos_token_ids=[made.eos_token_id], rollout_buffer=finished, model_version_value=context.Value("i", 0),
        heartbeat_value=context.Value("d", 0.0), failed_event=context.Event(), exception_info_queue=queue.Queue(1),
        metrics_queue=queue.Queue(4096), environment_factory=TRLEnvironment, num_generations=8,
        max_inflight_tasks=IN_FLIGHT, vllm_server_url=url, max_tokens=workload["sampled"] + 8,
        max_tool_calling_iterations=workload["turns"], score_queue_maxsize=4096,
    )  # fmt: skip
    # What the first turn compiles and imports is no cost of a rollout.
    messages, tools = [{"role": "user", "content": question(WARM_UP)}], [TRLEnvironment().act]
    opening = made.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    turn = made.encode(call_of(workload, made.encode), add_special_tokens=False)
    assert parse_response(loop.tokenizer, turn, prefix=opening, tools=tools)["tool_calls"]
    clock = Clock()
    threading.Thread(target=loop.run, daemon=True).start()
    done: list[Any] = []
    while len(done) < episodes:
        sample = finished.get(timeout=600)
        done += sample if isinstance(sample, list | tuple) else [sample]
    clock.stop(episodes * (workload["turns"] + 1), len(done[0].input_ids))


def main() -> None:
    side, workload = sys.argv[1], json.loads(sys.argv[2])
    warnings.filterwarnings("ignore")
    os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if side == "server":
        serve(workload)
    if side == "tokenizer":
        return save(workload, sys.argv[3])
    play = play_ours if side == "agent_gym" else play_theirs
    play(workload, f"http://127.0.0.1:{sys.argv[3]}")


if __name__ == "__main__":
    main()
