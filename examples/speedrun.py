"""The speedrun: from nothing to a measurably better policy, in one call.

    model -> expert imitation -> evaluation -> GRPO -> evaluation -> table, curve.png, trajectories.html, results.json

Everything in it is the library used as a user would use it; the numbers of a run are in presets.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError
from agent_gym.evaluate import EvalResult, make_specs, summarize
from agent_gym.examples.dashboard import tool_calls, watch
from agent_gym.examples.presets import PRESETS, Imitation, Preset
from agent_gym.examples.tiny import make_tiny_model, make_tiny_vision_model
from agent_gym.policies.processors import load_encoder, model_class
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.rollout import Runner, read_trajectories
from agent_gym.rollout.env_threads import shows_images
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.engine import build_policy, named_weights
from agent_gym.trainers.grpo import AgentGRPOTrainer
from agent_gym.trainers.sft import expert_episodes, train_sft
from agent_gym.trainers.tasks import task_dataset
from agent_gym.viewer import write_html

QUIET = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
"""Settings of a run that prints its own lines."""

_WINDOW = 25  # steps between two looks at the loss, in a phase that ends by it


def run_speedrun(
    preset: str | Preset = "cpu", seed: int = 0, output_dir: str | Path = "runs/speedrun", *, engine: str = "auto"
) -> dict[str, Any]:
    """Run a preset and leave its results in a folder.

    Args:
        preset: a name of `presets.PRESETS`, or a preset.
        seed: of weights, data order and sampling.
        output_dir: where models, results.json, curve.png and trajectories.html go.
        engine: "vllm", "transformers", or "auto" for vLLM where it is installed.

    Returns:
        What results.json holds: one entry per policy and way of decoding, and the seconds of each stage.

    Raises:
        ConfigError: for an unknown preset or engine, a missing GPU, or a model or data set that cannot be loaded.
    """
    if isinstance(preset, str) and preset not in PRESETS:
        raise ConfigError(f"preset is {preset!r}; allowed: {', '.join(PRESETS)}")
    chosen = PRESETS[preset] if isinstance(preset, str) else preset
    if engine not in ("auto", "vllm", "transformers"):
        raise ConfigError(f"engine is {engine!r}; allowed: auto, vllm, transformers")
    if chosen.needs_gpu and not torch.cuda.is_available():
        raise ConfigError("this preset needs an NVIDIA GPU and torch sees none here; --preset cpu runs anywhere")
    use_vllm = None if engine == "auto" else engine == "vllm"
    return _Speedrun(chosen, seed, Path(output_dir), use_vllm).run()


def imitation_settings(phase: Imitation, folder: Path, seed: int, args: Any) -> SFTConfig:
    """Make TRL's settings of one phase; context length and precision are those of the `AgentGRPOConfig` in `args`."""
    return SFTConfig(
        str(folder),
        seed=seed,
        max_steps=phase.steps,
        per_device_train_batch_size=phase.batch,
        max_length=args.max_episode_tokens,
        bf16=args.bf16,
        use_cpu=args.use_cpu,
        gradient_checkpointing=args.gradient_checkpointing,
        **{**QUIET, "logging_steps": _WINDOW if phase.until_loss else max(1, phase.steps // 4), **phase.settings},
    )


def imitate(
    preset: Preset, phase: Imitation, model: Any, tokenizer: Any, settings: SFTConfig, callbacks: list[Any]
) -> None:
    """Let the expert play and train the model on its episodes."""
    options: dict[str, Any] = {"episodes": phase.episodes, "seed": settings.seed, "styles": phase.styles}
    episodes = expert_episodes(preset.env_id, preset.env_kwargs, tokenizer, **options)
    rows = [row for episode in episodes for row in episode.rows]
    # All tokens are trained on in this phase, the environment's included: a model that starts from random weights
    # learns to copy numbers from them. RL afterwards trains on the policy's tokens only. An environment that shows
    # images writes little text besides them, and always the same.
    train_on = "policy" if any(row.images for row in rows) else "all"
    if phase.until_loss is not None:
        callbacks = [*callbacks, _Until(phase.until_loss)]
    train_sft(model, tokenizer, rows, settings, train_on=train_on, callbacks=callbacks)


class _Until(TrainerCallback):
    """Ends a phase whose mean loss since the last log, `_WINDOW` steps ago, is low enough."""

    def __init__(self, loss: float) -> None:
        self._loss = loss

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if float((logs or {}).get("loss", float("inf"))) < self._loss:
            control.should_training_stop = True


class _Progress(TrainerCallback):
    """One line per logged step instead of TRL's table."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        logs, step = logs or {}, f"step {state.global_step:3d}  "
        if not state.is_world_process_zero:
            return
        if "eval_success" in logs:
            low, high = logs["eval_success_low"], logs["eval_success_high"]
            self._log(f"{step}dev success {logs['eval_success']:.1%} [{low:.1%}, {high:.1%}]")
        elif "reward" in logs:
            times = f"rollout {logs['time/rollout']:.1f} s  update {logs['time/update']:.1f} s"
            self._log(f"{step}reward {logs['reward']:.3f}  turns {logs['episode/turns']:.2f}  {times}")
        elif "loss" in logs:
            self._log(f"{step}loss {float(logs['loss']):.3f}")


class _Speedrun:
    """One run and its results so far."""

    def __init__(self, preset: Preset, seed: int, folder: Path, use_vllm: bool | None) -> None:
        self.preset, self.seed, self.folder, self.use_vllm = preset, seed, folder, use_vllm
        self.seconds: dict[str, float] = {}
        self.rows: list[tuple[str, str, EvalResult]] = []
        self.begin = time.perf_counter()

    def log(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.begin:6.1f}s] {text}", flush=True)

    def run(self) -> dict[str, Any]:
        preset = self.preset
        self.log(f"{preset.env_id}, seed {self.seed}")
        source = preset.model
        if source is None:
            make = make_tiny_vision_model if shows_images(preset.env_id, preset.env_kwargs) else make_tiny_model
            options = {"seed": self.seed, **preset.tiny}
            where = (self.folder / "tiny", preset.env_id, preset.env_kwargs)
            source = str(self._timed("model", make, *where, **options))
        self.args = AgentGRPOConfig(
            str(self.folder / "grpo"),
            seed=self.seed,
            use_vllm=self.use_vllm,
            eval_strategy="steps",
            eval_on_start=True,
            **{**QUIET, **preset.grpo},
        )
        init = cast(dict[str, Any], self.args.model_init_kwargs or {})
        try:
            self.tokenizer = load_encoder(source)
            self.model = model_class(source).from_pretrained(source, **init)
        except OSError as error:
            raise ConfigError(f"cannot load the model {source!r}; is the hub within reach?") from error
        size = sum(parameter.numel() for parameter in self.model.parameters())
        self.log(f"model: {source}, {size / 1e6:.2f}M parameters")
        # Before the engine, whose process group transformers would take for a distributed run.
        sft = [imitation_settings(phase, self.folder / "sft_run", self.seed, self.args) for phase in preset.imitation]
        renderer = ChatRenderer.of(self.tokenizer)
        renderer.also_ends_at(self.model.generation_config.eos_token_id)
        self.policy = self._timed("engine start", build_policy, self.model, renderer, self.args)
        self.args.use_vllm = not isinstance(self.policy, TransformersPolicy)
        self.engine = "vllm" if self.args.use_vllm else "transformers"
        self.log(f"Going on with the {self.engine} engine")
        for phase, settings in zip(preset.imitation, sft, strict=True):
            self.log(f"{phase.name}: the expert plays {phase.episodes} episodes, then {phase.steps} steps of SFT")
            progress = [_Progress(self.log)]
            self._timed("imitation", imitate, preset, phase, self.model, self.tokenizer, settings, progress)
            self._evaluate(phase.name)
        if preset.imitation:
            self.model.save_pretrained(self.folder / "sft")
            self.tokenizer.save_pretrained(self.folder / "sft")
        else:
            self._evaluate("before RL")
        self._timed("GRPO", self._train)
        self._evaluate("GRPO policy")
        self.policy.close()  # so that the next run in this process has the memory
        return self._report()

    def _timed(self, stage: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        return result

    def _evaluate(self, name: str) -> None:
        """Play the test tasks, greedily and sampled, with the engine that also trains."""
        self.policy.sync(named_weights(self.model))
        training = self.model.training
        runner = Runner(self.policy, self.tokenizer, self.args.budget, workers=self.args.env_workers)
        preset, split = self.preset, self.preset.test_split
        specs = make_specs(preset.env_id, preset.env_kwargs, split=split, episodes=preset.test_tasks, seed=self.seed)
        for decoding, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            result = summarize(self._timed("evaluation", runner.run, specs, temperature=temperature))
            self.rows.append((name, decoding, result))
            calls = tool_calls(result.metrics)
            self.log(f"{name}, {decoding}: success {result} test tasks, {calls:.2f} tool calls per episode")
        runner.close()
        self.model.train(training)

    def _train(self) -> None:
        preset = self.preset
        train, dev = (
            task_dataset(preset.env_id, preset.env_kwargs, split=split, tasks=count, seed=self.seed)
            for split, count in (("train", preset.train_tasks), (preset.dev_split, preset.dev_tasks))
        )
        trainer = AgentGRPOTrainer(
            self.model,
            args=self.args,
            train_dataset=train,
            eval_dataset=dev,
            policy=self.policy,
            processing_class=self.tokenizer,
            callbacks=[_Progress(self.log)],
        )
        trainer.remove_callback(PrinterCallback)
        title = f"{preset.env_id}: GRPO, {preset.dev_split} tasks, seed {self.seed}"
        with watch(trainer, folder=self.folder, title=title, show=True):
            trainer.train()
        trainer.save_model()

    def _report(self) -> dict[str, Any]:
        page = write_html(self.folder / "trajectories.html", self._trajectories(), "Speedrun trajectories")
        results = {
            "preset": self.preset.env_id,
            "seed": self.seed,
            "engine": self.engine,
            "results": [
                {"policy": name, "decoding": decoding, "success": r.success, "low": r.low, "high": r.high}
                | {"episodes": r.episodes, "failed": r.failed, "reward": r.reward, "metrics": r.metrics}
                for name, decoding, r in self.rows
            ],
            "seconds": {**self.seconds, "total": time.perf_counter() - self.begin},
        }
        (self.folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        print(self._table())
        print(f"\nmodel         {self.folder / 'grpo'}\ncurve         {self.folder / 'curve.png'}, curve.html")
        print(f"trajectories  {page}\nnumbers       {self.folder / 'results.json'}")
        return results

    def _trajectories(self) -> Any:
        """Yield the evaluation before RL, the first and the last training rollout, and the last evaluation."""
        files = sorted((self.folder / "grpo" / "trajectories").glob("*.jsonl"))
        for mode in ("eval", "train"):
            found = [file for file in files if file.name.startswith(mode)]
            for file in dict.fromkeys(found[:1] + found[-1:]):
                for _, record in zip(range(48), read_trajectories(file), strict=False):
                    yield record

    def _table(self) -> str:
        lines = [
            f"\n{self.preset.env_id}, split {self.preset.test_split}, seed {self.seed}. "
            "Success with 95% Wilson intervals.\n",
            f"| {'policy':<32} | {'decoding':<8} | {'success':<24} | calls | turns |",
            f"|{'-' * 34}|{'-' * 10}|{'-' * 26}|{'-' * 7}|{'-' * 7}|",
        ]
        for name, decoding, result in self.rows:
            share = f"{result.success:6.1%} [{result.low:5.1%}, {result.high:5.1%}]"
            calls, turns = tool_calls(result.metrics), result.metrics["episode/turns"]
            lines.append(f"| {name:<32} | {decoding:<8} | {share:<24} | {calls:5.2f} | {turns:5.2f} |")
        total = time.perf_counter() - self.begin
        split = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in self.seconds.items())
        return "\n".join([*lines, f"\n{self.rows[0][2].episodes} tasks. {total:.0f} s in all: {split}."])
