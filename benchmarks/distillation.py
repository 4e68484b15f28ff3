"""On-policy distillation against SFT on the teacher's episodes, at equal CPU seconds, over several turns.

    python benchmarks/distillation.py          # three seeds, about 12 CPU minutes

The task is Bisect (17 to 32 commits, 5 tests). The teacher is the preset's tiny model (width 64), trained on the
expert's episodes, one for all seeds. The student of each seed is a model of width 32, which has imitated the expert
for a third of the steps. With `--start newest` it has imitated the poor player of the preset, who tests other commits
than the teacher: what the student never samples, the teacher cannot praise. From there two ways are given the same CPU
seconds of one thread, and the same schedule of the rate over these seconds:

    distillation    the student plays, the teacher scores its tokens (teacher_coef 1, reward_coef 0, four updates on
                    each rollout); the seconds have the rollouts and the teacher's forward passes in them
    SFT             the teacher plays training tasks, sampled, and the student imitates its tokens; the seconds have
                    the teacher's play in them. At two peak rates, so that it is not held back by one

Test tasks are played greedily, and twice sampled. "KL" is the reverse KL to the teacher in nats per token of the
student's own episodes of training tasks, as the trainer logs it (teacher/kl). The intervals of the tables are Student's
over seeds; differences are paired by task and seed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _bisect24
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "gymnasium")
START, DISTILLED = "student's start", "distillation"
SFT_RATES = (1e-3, 4e-3)


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=40.0, help="CPU seconds of each way, after the start")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate of distillation")
    parser.add_argument("--start", choices=("default", "newest"), default="default", help="whom the student imitated")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    import torch

    from agent_gym.speedrun.tables import over_seeds, seeds_table

    torch.set_num_threads(1)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds[:1] if options.quick else options.seeds:
            runs.append(Seed(Path(folder), seed, 2.0 if options.quick else options.seconds, options).run())
            _common.write_json(options.json, facts=facts, runs=runs)
    print(seeds_table(over_seeds(runs)), end="\n\n")
    names = [row["policy"] for row in runs[0]["kl"]]
    rows = [[name, *(run["kl"][i]["kl"] for run in runs)] for i, name in enumerate(names)]
    _common.print_table(["KL to the teacher", *(f"seed {run['seed']}" for run in runs)], rows)
    print(f"KL of distillation, seed {runs[0]['seed']}, by rollout: ", end="")
    curve = runs[0]["curve"]
    print(", ".join(f"{i}: {curve[i]:.3f}" for i in range(0, len(curve), max(1, len(curve) // 12))))


class Seed:
    """All runs of one seed."""

    def __init__(self, folder: Path, seed: int, seconds: float, options: Any) -> None:
        self.folder, self.seed, self.seconds, self.options = folder, seed, seconds, options
        self.preset = _bisect24.preset()
        self.quick = options.quick
        self.rows: list[tuple[str, str, Any]] = []
        self.played: dict[tuple[str, str], Any] = {}
        self.kl: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        from transformers import AutoTokenizer

        from agent_gym.speedrun.tables import differences
        from agent_gym.speedrun.tiny import make_tiny_model

        where = (self.preset.env_id, self.preset.env_kwargs)
        (phase,) = self.preset.imitation
        steps = 12 if self.quick else phase.steps
        phase = replace(phase, steps=steps, episodes=600)
        new = not (self.folder / "teacher").exists()
        for name, width in (("teacher", 64), ("student", 32))[not new :]:
            make_tiny_model(self.folder / name, *where, seed=self.seed, **{**self.preset.tiny, "width": width})
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder / "teacher")
        if new:
            self.imitate("teacher", replace(phase, styles={"default": 1.0}))
        scheduler = {**phase.settings["lr_scheduler_kwargs"], "num_decay_steps": steps // 6}
        brief = {**phase.settings, "lr_scheduler_kwargs": scheduler}
        styles = {self.options.start: 1.0}
        self.imitate("student", replace(phase, steps=steps // 3, settings=brief, styles=styles))
        self.evaluate("teacher", self.load("teacher"))
        self.evaluate(START, self.load("student"))
        student = self.load("student")
        trainer = self.distil(student)
        self.evaluate(DISTILLED, student)
        curve = [log["teacher/kl"] for log in trainer.state.log_history if "teacher/kl" in log]
        for rate in SFT_RATES:
            self.evaluate(f"SFT, rate {rate:g}", self.imitate_teacher(rate))
        pairs = [(DISTILLED, name) for name in (START, *(f"SFT, rate {rate:g}" for rate in SFT_RATES), "teacher")]
        return {
            "preset": self.preset.env_id,
            "seed": self.seed,
            "results": [
                {"policy": name, "decoding": decoding, "success": result.success, "reward": result.reward}
                for name, decoding, result in self.rows
            ],
            "differences": differences(self.played, pairs),
            "kl": self.kl,
            "curve": curve,
        }

    def log(self, text: str) -> None:
        print(f"[seed {self.seed}, {time.process_time():6.0f} CPU s] {text}", flush=True)

    def load(self, name: str) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder / name, dtype="float32")

    def imitate(self, name: str, phase: Any) -> None:
        """Let a model imitate the environment's expert, or its poor player, and keep it."""
        from agent_gym.speedrun.dashboard import StepLines
        from agent_gym.speedrun.imitation import imitate, imitation_settings

        model, settings = self.load(name), imitation_settings(phase, self.folder / "sft", self.seed, self.args())
        imitate(self.preset, phase, model, self.tokenizer, settings, [StepLines(self.log)])
        model.save_pretrained(self.folder / name)

    def args(self, **changes: Any) -> Any:
        from agent_gym.speedrun.imitation import QUIET
        from agent_gym.trainers import AgentGRPOConfig

        size = 32 if self.quick else 128
        given = {
            "per_device_train_batch_size": size,
            "micro_batch_size": size,
            "num_generations": 1,
            "keep_variance": None,
        }
        settings = {**self.preset.grpo, **QUIET, **given, "eval_strategy": "no", "trajectories_per_step": 0}
        settings |= {"use_vllm": False, "advantage_estimator": "reinforce_pp", "echo_trap": "off", "seed": self.seed}
        return AgentGRPOConfig(str(self.folder / "run"), **{**settings, **changes})

    def distil(self, model: Any, clock: Any = None, **changes: Any) -> Any:
        """Train a model on the teacher's logprobs alone, until the CPU seconds are used up."""
        from transformers import PrinterCallback

        from agent_gym.speedrun.controls import UntilUsedUp
        from agent_gym.trainers import AgentGRPOTrainer, task_dataset

        clock = clock or UntilUsedUp(self.seconds, self.options.rate, time.process_time)
        where = (self.preset.env_id, self.preset.env_kwargs)
        settings = {"teacher": str(self.folder / "teacher"), "reward_coef": 0.0, "max_steps": 10**6}
        trainer = AgentGRPOTrainer(
            model,
            args=self.args(**{**settings, **changes}),
            train_dataset=task_dataset(*where, tasks=4000, seed=self.seed),
            processing_class=self.tokenizer,
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        trainer.runner.close()
        self.log(f"{clock.steps} steps of distillation in {clock.seconds:.1f} CPU seconds")
        return trainer

    def imitate_teacher(self, rate: float) -> Any:
        """Let the student imitate episodes that the teacher has sampled, in the same CPU seconds."""
        from agent_gym.speedrun.controls import UntilUsedUp, endless
        from agent_gym.speedrun.imitation import imitation_settings
        from agent_gym.trainers.sft import train_sft

        (phase,) = self.preset.imitation
        rows, playing = self.demonstrations
        student, clock = self.load("student"), UntilUsedUp(self.seconds - playing, rate, time.process_time)
        settings = imitation_settings(endless(phase), self.folder / "sft", self.seed, self.args())
        train_sft(student, self.tokenizer, rows, settings, callbacks=[clock])
        self.log(f"{clock.steps} steps of SFT in {clock.seconds:.1f} CPU seconds after {playing:.1f} of play")
        return student

    @functools.cached_property
    def demonstrations(self) -> tuple[list[Any], float]:
        """The rows of the teacher's episodes, and the CPU seconds in which they were played."""
        from agent_gym.evaluate import make_specs

        where: Any = {"split": "train", "episodes": 64 if self.quick else 1000, "seed": self.seed}
        specs = make_specs(self.preset.env_id, self.preset.env_kwargs, **where)
        begin = time.process_time()
        episodes = self.play(self.load("teacher"), specs, 1.0)
        return [row for episode in episodes for row in episode.rows], time.process_time() - begin

    def play(self, model: Any, specs: list[Any], temperature: float) -> list[Any]:
        from agent_gym.chat import ChatRenderer
        from agent_gym.rollout import Runner
        from agent_gym.trainers.engine import build_policy

        args, renderer = self.args(), ChatRenderer.of(self.tokenizer)
        model.eval()
        with contextlib.closing(Runner(build_policy(model, renderer, args), renderer, args.budget)) as runner:
            return runner.run(specs, temperature=temperature)

    def evaluate(self, name: str, model: Any) -> None:
        """Play the test tasks, and measure how far the model is from the teacher on its own episodes."""
        from agent_gym.evaluate import make_specs, summarize
        from agent_gym.speedrun.controls import StepClock
        from agent_gym.speedrun.tables import run_of

        preset = self.preset
        for decoding, temperature, size in (("greedy", 0.0, 1), ("sampled", 1.0, 2)):
            tasks: Any = {"split": preset.test_split, "episodes": 8 if self.quick else None, "group_size": size}
            specs = make_specs(preset.env_id, preset.env_kwargs, **tasks, seed=self.seed)
            episodes = self.play(model, specs, temperature)
            result = summarize(episodes)
            self.rows.append((name, decoding, result))
            self.played[name, decoding] = run_of(name, episodes)
            self.log(f"{name}, {decoding}: success {result}, reward {result.reward:.3f}")
        if name != "teacher":
            still = {"learning_rate": 0.0, "max_steps": 1, "num_iterations": 1}
            found = self.distil(model, StepClock(time.process_time), **still).state.log_history[0]["teacher/kl"]
            self.kl.append({"policy": name, "kl": found})
            self.log(f"{name}: KL to the teacher {found:.3f} nats per token")


if __name__ == "__main__":
    main()
