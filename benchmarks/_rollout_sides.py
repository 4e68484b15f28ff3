"""The two sides of the rollout benchmark, over one workload: `Ours` (Runner, VLLMPolicy) and `Stock` (TRL).

Everything that both sides do comes from here once: the environment, the tool the policy is shown, the lengths of the
turns and the latencies of the steps. See rollout.py for what is compared and why that is fair.
"""

from __future__ import annotations

import functools
import gc
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

from agent_gym import Reply, TextEnv
from agent_gym.policies import Request
from agent_gym.policies.vllm import engine_arguments
from agent_gym.policies.vllm.engine import VLLMPolicy
from agent_gym.rollout import Budget, EpisodeSpec, Runner

ENV_ID = "Benchmark/Latency-v0"
STEPS = 3
SHORTEST, LONGEST = 8, 56
CONTEXT = 1024
KV_CACHE_GIB = 1.0

ACT = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Act on the world.",
        "parameters": {
            "type": "object",
            "properties": {"action": {"type": "string", "description": "what to do"}},
            "required": ["action"],
        },
        "return": {"type": "string"},
    },
}


class LatencyEnv(TextEnv):
    """Answers every action after a sleep drawn from U(0, `latency`) seconds; the third answer ends the episode."""

    default_system_prompt: ClassVar[str] = ""
    reward_weights: ClassVar[dict[str, float]] = {"step": 1.0}
    slept: ClassVar[list[float]] = []

    def __init__(self, latency: float = 0.0, **kwargs: Any) -> None:
        super().__init__({"train": range(1 << 20)}, max_turns=STEPS, **kwargs)
        self.latency = latency
        self.tool_schemas = [ACT]

    def begin(self, task: Any) -> str:
        return f"This is world {task}. Act on it {STEPS} times."

    def respond(self, action: str) -> Reply:
        if self.latency:
            seconds = float(self.np_random.uniform(0.0, self.latency))
            time.sleep(seconds)
            self.slept.append(seconds)
        return Reply(f"Step {self.turn + 1} is done.", terms={"step": 1.0}, terminated=self.turn + 1 == STEPS)


gymnasium.register(ENV_ID, entry_point=LatencyEnv)


@dataclass(frozen=True)
class Workload:
    """One rollout to do: which worlds, how slow they are, how long each turn is."""

    episodes: int
    latency: float
    repetition: int

    @property
    def seeds(self) -> list[int]:
        return [1000 * self.repetition + i for i in range(self.episodes)]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """(episodes, STEPS + 1) tokens of each turn, uniform on {8, ..., 56}."""
        rng = np.random.default_rng([self.episodes, self.repetition])
        return rng.integers(SHORTEST, LONGEST + 1, size=(self.episodes, STEPS + 1))


@dataclass
class Measurement:
    """One rollout of one side.

    `wall`, `engine` and `waiting` are seconds of the thread that drives it, `cpu` is of the whole process, `worker_cpu`
    of all other threads, and `slept` is what the environments slept, one after the other or at the same time.
    """

    side: str
    episodes: int
    latency: float
    wall: float
    engine: float
    waiting: float
    generations: int
    tokens: int
    env_steps: int
    slept: float
    cpu: float
    worker_cpu: float

    @property
    def python(self) -> float:
        """Seconds of the driving thread that are neither engine nor waiting for environments."""
        return self.wall - self.engine - self.waiting


class FixedLengths(VLLMPolicy):
    """Samples turns of the lengths that the workload prescribes."""

    lengths: np.ndarray

    def __init__(self, model: Path, tokenizer: Any, max_episodes: int) -> None:
        super().__init__(
            model, [tokenizer.eos_token_id], context=CONTEXT, max_num_seqs=max_episodes, kv_cache_gib=KV_CACHE_GIB
        )
        # A random model ends a turn whenever it happens to draw the token for it; here only lengths may.
        self._eos_token_ids = []

    def submit(self, request: Request) -> None:
        episode: Any = request.episode
        length = int(self.lengths[episode.spec.member, len(episode.steps)])
        super().submit(replace(request, params=replace(request.params, max_tokens=length)))


class Ours:
    """agent_gym: each episode on its own, environments in 32 worker threads (the default)."""

    name = "agent_gym"

    def __init__(self, model: Path, tokenizer: Any, max_episodes: int) -> None:
        self.policy = FixedLengths(model, tokenizer, max_episodes)
        self.runner = Runner(self.policy, tokenizer, Budget(max_turn_tokens=LONGEST, max_tokens=CONTEXT))
        self.first_prompt: list[int] = []

    def run(self, workload: Workload) -> Measurement:
        self.policy.lengths = workload.lengths
        kwargs = {"latency": workload.latency}
        specs = [EpisodeSpec(ENV_ID, kwargs, seed, index=seed, member=i) for i, seed in enumerate(workload.seeds)]
        LatencyEnv.slept.clear()
        self.policy._engine.reset_prefix_cache()
        gc.collect()
        cpu, own = time.process_time(), time.thread_time()
        episodes = self.runner.run(specs)
        cpu, own = time.process_time() - cpu, time.thread_time() - own
        stats = self.runner.stats
        assert not any(episode.failure for episode in episodes)
        self.first_prompt = episodes[0].rows[0].token_ids[: episodes[0].rows[0].prompt_length]
        return Measurement(
            side=self.name,
            episodes=workload.episodes,
            latency=workload.latency,
            wall=stats.wall_seconds,
            engine=stats.engine_seconds,
            waiting=stats.wait_seconds,
            generations=sum(len(episode.steps) for episode in episodes),
            tokens=stats.sampled_tokens,
            env_steps=sum(len(episode.steps) for episode in episodes),
            slept=sum(LatencyEnv.slept),
            cpu=cpu,
            worker_cpu=cpu - own,
        )


class StockEnvironment:
    """The same environment behind the interface of TRL's `environment_factory`: `reset`, and one method as the tool."""

    seconds: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self._env: Any = gymnasium.make(ENV_ID)

    def reset(self, seed: int, latency: float, **row: Any) -> str:
        self._env.unwrapped.latency = latency
        self._reward = 0.0
        return self._env.reset(seed=seed, options={"index": seed})[0]

    def act(self, action: str) -> str:
        """Act on the world.

        Args:
            action: what to do
        """
        begin = time.perf_counter()
        answer, reward, *_ = self._env.step(action)
        self._reward += reward
        self.seconds.append(time.perf_counter() - begin)
        return answer

    def get_reward(self) -> float:
        return self._reward


class Stock:
    """TRL's GRPOTrainer with `environment_factory` and a colocated vLLM; only `_generate` is timed."""

    def __init__(self, model: Path, tokenizer: Any, max_episodes: int, folder: Path) -> None:
        import trl.generation.vllm_generation as generation
        import trl.trainer.grpo_trainer as grpo_trainer
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        # TRL passes a fixed set of arguments to vLLM, with which its CPU build does not start: the rest is added here,
        # the same as our policy passes.
        arguments = {"dtype": "float32", "generation_config": "vllm", "use_tqdm_on_load": False}
        arguments |= engine_arguments(CONTEXT, KV_CACHE_GIB)
        hard_wired = generation.LLM
        generation.LLM = lambda **given: hard_wired(**{**given, **arguments})
        args = GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=max_episodes,
            num_generations=8 if max_episodes % 8 == 0 else max_episodes,
            # The whole context, so that no turn is cut and no answer dropped.
            max_completion_length=CONTEXT - 256,
            use_cpu=True,
            bf16=False,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=CONTEXT,
            # It would score the rollout once more after `_generate`, which is training and not rollout.
            vllm_importance_sampling_correction=False,
            model_init_kwargs={"dtype": "float32"},
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        row = {"prompt": [{"role": "user", "content": ""}], "seed": 0, "latency": 0.0}
        try:
            self.trainer: Any = GRPOTrainer(
                str(model),
                args=args,
                environment_factory=StockEnvironment,
                processing_class=tokenizer,
                train_dataset=Dataset.from_list([row]),
            )
        finally:
            generation.LLM = hard_wired
        self.tokenizer = tokenizer
        self.first_prompt: list[int] = []
        self._row = row
        self._llm_generate = self.trainer.vllm_generation.llm.generate
        self.trainer.vllm_generation.llm.generate = self._generate_with_lengths
        self._trl_generate = self.trainer._generate
        self.trainer._generate = self._timed_generate
        # The engine has read the weights from the same folder; there is nothing to sync before the first step.
        self.trainer._last_loaded_step = self.trainer.state.global_step
        self._parse = grpo_trainer.parse_response
        grpo_trainer.parse_response = self._parse_as_call

    def run(self, workload: Workload, generations: int) -> Measurement:
        """Roll out with so many generations per episode, and one environment step less."""
        self.trainer.max_tool_calling_iterations = generations - 1
        self._workload, self._turn, self._engine, self._tokens, self._requests = workload, 0, 0.0, 0, 0
        rows = [{**self._row, "seed": seed, "latency": workload.latency} for seed in workload.seeds]
        LatencyEnv.slept.clear()
        StockEnvironment.seconds.clear()
        self.trainer.vllm_generation.llm.reset_prefix_cache()
        gc.collect()
        self.trainer.model.train()
        self.trainer._generate_and_score_completions(rows)
        return Measurement(
            side=f"TRL, {generations} generations",
            episodes=workload.episodes,
            latency=workload.latency,
            wall=self._wall,
            engine=self._engine,
            waiting=sum(StockEnvironment.seconds),
            generations=self._requests,
            tokens=self._tokens,
            env_steps=len(StockEnvironment.seconds),
            slept=sum(LatencyEnv.slept),
            cpu=self._cpu,
            worker_cpu=self._cpu - self._own,
        )

    def _timed_generate(self, prompts: list[Any]) -> Any:
        wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
        output = self._trl_generate(prompts)
        self._own, self._cpu = time.thread_time() - own, time.process_time() - cpu
        self._wall = time.perf_counter() - wall
        self.first_prompt = output[0][0]
        return output

    def _generate_with_lengths(self, prompts: Any, sampling_params: Any, **kwargs: Any) -> Any:
        # Every episode is in every call, in order, since each of them calls a tool in each turn.
        column = self._workload.lengths[:, self._turn]
        self._turn += 1
        begin = time.perf_counter()
        params = []
        for length in column:
            params.append(sampling_params.clone())
            params[-1].max_tokens, params[-1].ignore_eos = int(length), True
        outputs = self._llm_generate(prompts, params, **kwargs)
        self._engine += time.perf_counter() - begin
        self._requests += len(outputs)
        self._tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
        return outputs

    def _parse_as_call(self, tokenizer: Any, ids: list[int], **kwargs: Any) -> dict[str, Any]:
        # The model is random and calls no tool, so that its text is made the argument of a call after TRL's own parse.
        message = self._parse(tokenizer, ids, **kwargs)
        call = {"name": "act", "arguments": {"action": message["content"]}}
        return {**message, "tool_calls": [{"type": "function", "function": call}]}
