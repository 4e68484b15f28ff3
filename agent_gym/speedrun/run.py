"""The speedrun: from nothing to a measurably better policy, in one call.

    model -> expert imitation -> evaluation -> GRPO -> evaluation -> table, curve.png, trajectories.html, results.json

A preset with controls also shows that its start is honest, and gives as many CPU seconds as GRPO used to more SFT and
to best-of-n self-imitation, from the same start (controls.py). Everything in it is the library used as a user would use
it; the numbers of a run are in presets.toml, the output at the end is in tables.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model
from trl import SFTConfig

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError, one_of, write_whole
from agent_gym.evaluate import EvalResult, make_specs, summarize
from agent_gym.evaluate.compare import Run
from agent_gym.evaluate.prompts import count_of
from agent_gym.models import model_source
from agent_gym.policies.processors import load_encoder, model_class
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.rollout import Episode, EpisodeSpec, Row, Runner
from agent_gym.rollout.env_threads import shows_images
from agent_gym.speedrun import tables, text_of
from agent_gym.speedrun.controls import Round, StepClock, UntilUsedUp, endless, imitate_itself, prove_start
from agent_gym.speedrun.dashboard import StepLines, evaluations, watch
from agent_gym.speedrun.figure import draw, over_runs
from agent_gym.speedrun.imitation import QUIET, PhaseResult, imitate, imitation_settings
from agent_gym.speedrun.presets import ALGORITHMS, ATTEMPTS, PRESETS, Controls, Imitation, Preset, trained_by
from agent_gym.speedrun.raft import RAFT, imitate_successes
from agent_gym.speedrun.report import report, table
from agent_gym.speedrun.tiny import make_tiny_model, make_tiny_vision_model
from agent_gym.trainers.checkpoints import refuse_used
from agent_gym.trainers.config import AgentGRPOConfig, AgentPPOConfig
from agent_gym.trainers.engine import build_policy, named_weights
from agent_gym.trainers.grpo import AgentGRPOTrainer
from agent_gym.trainers.patience import Patience
from agent_gym.trainers.ppo import AgentPPOTrainer
from agent_gym.trainers.run_file import FILE, LOG, add, read, recorded
from agent_gym.trainers.run_record import RunNumbers
from agent_gym.trainers.sft import expert_episodes, train_sft
from agent_gym.trainers.tasks import task_dataset
from agent_gym.untrusted import read_json
from agent_gym.viewer.curve import trajectory_files

EXPERT, MORE_SFT = "expert", "more SFT"


def run_speedrun(
    preset: str | Preset = "bisect", seed: int = 0, output_dir: str | Path = "runs/speedrun", *, engine: str = "auto"
) -> dict[str, Any]:
    """Run a preset and leave its results in a folder.

    Args:
        preset: a name of `presets.PRESETS`, or a preset.
        seed: of weights, data order and sampling.
        output_dir: where models, results.json, curve.png and trajectories.html go.
        engine: "vllm", "transformers", or "auto" for vLLM where it is installed.

    Returns:
        The content of results.json: one entry per policy and way of decoding, and the seconds of each stage.

    Raises:
        ConfigError: for an unknown preset or engine, a missing GPU, a model or data set that cannot be loaded, or a
            folder whose grpo/ is the run of another command.
    """
    chosen = PRESETS[one_of("preset", preset, PRESETS)] if isinstance(preset, str) else preset
    one_of("engine", engine, ("auto", "vllm", "transformers"))
    if chosen.needs_gpu and not torch.cuda.is_available():
        raise ConfigError("this preset needs an NVIDIA GPU and torch sees none here; --preset bisect runs anywhere")
    if chosen.controls and not chosen.imitation:
        raise ConfigError("this preset has controls and no phase of imitation: both start from imitation's weights")
    if chosen.lora and chosen.imitation:
        raise ConfigError("this preset has a LoRA and phases of imitation, which train whole weights: drop one")
    return Speedrun(chosen, seed, Path(output_dir), None if engine == "auto" else engine == "vllm").run()


def run_seeds(
    preset: str | Preset, seeds: Sequence[int], output_dir: str | Path = "runs/speedrun", *, engine: str = "auto"
) -> dict[str, Any]:
    """Run a preset with several seeds, one after the other, each in a folder `seed_N`; arguments as `run_speedrun`'s.

    A seed that has its results there, with the same settings, is not run again (`finished`).

    Returns:
        The content of seeds.json: means over seeds with intervals, and the values of each seed (`tables.over_seeds`).
        Next to it are figure.png and figure.svg (`figure.draw`).
    """
    folder, results = Path(output_dir), []
    chosen = PRESETS[one_of("preset", preset, PRESETS)] if isinstance(preset, str) else preset
    for seed in seeds:
        place = folder / f"seed_{seed}"
        if done := finished(chosen, place, engine):
            print(f"seed {seed} is finished: {place / 'results.json'} (remove it to run the seed again)", flush=True)
        results.append(done or run_speedrun(chosen, seed, place, engine=engine))
    found = tables.over_seeds(results, chosen.chosen_on)
    write_whole(folder / "seeds.json", json.dumps(found, indent=2) + "\n")
    picture, vectors = draw(over_runs(results), folder / "figure.png")
    print(f"\n{tables.seeds_table(found)}\n\nnumbers       {folder / 'seeds.json'}")
    print(f"figure        {picture}, {vectors.name}")
    return found


def finished(preset: Preset, folder: Path, engine: str) -> dict[str, Any] | None:
    """Return the results in a folder if they are of these settings, so that a series is resumed where it was stopped.

    Results of an environment that is not the library's never are: its code may have changed since.
    """
    file = folder / "results.json"
    if not file.is_file() or not preset.env_id.startswith("AgentR1/"):
        return None
    try:
        found = dict(read_json(file, {"settings": dict, "engine": str}))
    except ValueError:  # it was being written when the series was stopped
        return None
    return found if found["settings"] == settings_of(preset) and engine in ("auto", found["engine"]) else None


def settings_of(preset: Preset) -> dict[str, Any]:
    """Return a preset's settings as results.json holds them; defaults that old ones lack are left out."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(preset), default=str))
    return {name: kept for name, kept in found.items() if (name, kept) not in (("algorithm", "grpo"), ("lora", None))}


def own_name(controls: Controls) -> str:
    """The name of self-imitation in the results."""
    return f"best-of-{controls.best_of} self-imitation"


ENOUGH = 0.5  # of the expert's success, in sampled dev episodes: names are copied by then, also names of other splits
RARE = 0.02  # of the episodes; where fewer succeed, rare.txt is the advice


class Speedrun:
    """One run and its results so far."""

    def __init__(self, preset: Preset, seed: int, folder: Path, use_vllm: bool | None) -> None:
        self.preset, self.seed, self.folder, self.use_vllm = preset, seed, folder, use_vllm
        self.seconds: dict[str, float] = {}
        self.rows: list[tuple[str, str, EvalResult]] = []
        self.runs: dict[tuple[str, str], Run] = {}
        self.shown: list[PhaseResult] = []
        self.more: dict[str, Any] = {}  # of results.json, for a preset with controls
        self.dev: dict[str, Any] = {"split": preset.dev_split, "tasks": preset.dev_tasks}  # of results.json
        self.settings, self.part = settings_of(preset), folder / preset.algorithm
        self.label = str(ALGORITHMS[preset.algorithm]["label"])
        self.trained = f"{self.label} policy"  # its name in tables and results
        self.begin = time.perf_counter()

    def log(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.begin:6.1f}s] {text}", flush=True)

    def run(self) -> dict[str, Any]:
        commands = [read(place / FILE).get("command") for place in (self.folder, self.part)]
        if commands != ["speedrun", "python"]:  # an earlier speedrun here is replaced, and no other run
            refuse_used(self.part, marks=(FILE,))
        with recorded("speedrun", self._words(), self.folder):
            about = {"env": self.preset.env_id, "model": self.preset.model or "a tiny model"}
            add(self.folder, {**about, "part": self.preset.algorithm})
            return self._run()

    def _words(self) -> list[str]:
        """Return the words of the command that repeats this speedrun; a preset made in Python is named as one."""
        preset, how = self.preset, self.preset.algorithm
        name = next((name for name, known in PRESETS.items() if trained_by(known, how) == preset), None)
        env = ["--env", preset.env_id, "--env_kwargs", json.dumps(dict(preset.env_kwargs), default=str)]
        if preset.stop_if_hopeless:  # `own_preset` has made it
            env += ["--model", preset.model or "tiny"]
            env += [] if preset.imitation[0].longest else ["--imitation_steps", str(preset.imitation[0].steps)]
        elif name is None:
            name = "made in Python"
        engine = [] if self.use_vllm is None else ["--engine", "vllm" if self.use_vllm else "transformers"]
        where = ["--seed", str(self.seed), "--output_dir", str(self.folder)]
        return [*([] if how == "grpo" else [how]), *(env if name is None else ["--preset", name]), *where, *engine]

    def _run(self) -> dict[str, Any]:
        preset = self.preset
        self.log(f"{preset.env_id}, seed {self.seed}")
        source = None if preset.model is None else model_source(preset.model)
        if source is None:
            make = make_tiny_vision_model if shows_images(preset.env_id, preset.env_kwargs) else make_tiny_model
            options = {"seed": self.seed, **preset.tiny}
            with self._timed("model"):
                source = str(make(self.folder / "tiny", preset.env_id, preset.env_kwargs, **options))
        sft = self.open(source)
        if preset.imitation and not preset.controls:
            self._evaluate_expert()
        for phase, settings in zip(preset.imitation, sft, strict=True):
            self._imitate(phase, settings)
            self._evaluate(phase.name, self.model, ATTEMPTS)
        if preset.imitation:
            self._save(self.model, "sft")
            if self.rows[-1][-1].success < RARE:
                self.log(text_of("rare.txt").format(env_id=preset.env_id, env_kwargs=dict(preset.env_kwargs)))
                self._stop_if_hopeless()
        else:
            self._evaluate("before RL", self.model)
        if preset.controls:
            self.more["start"], lines = prove_start(preset, self.seed, self.shown[-1].played, self.rows[-1][-1])
            for line in lines:
                self.log(line)
        self.dev |= {"decoding": "sampled" if self.args.eval_temperature else "greedy", "start": self.rows[-1][0]}
        used = self.train()
        if preset.controls:
            self._control(preset.controls, used)
        else:
            self.more["differences"] = tables.differences(self.runs, [(self.trained, self.dev["start"])])
        self.policy.close()  # so that the next run in this process has the memory
        return report(self)

    def _imitate(self, phase: Imitation, settings: SFTConfig) -> None:
        """Imitate the expert; repeat the phase while few sampled dev episodes succeed, up to `phase.longest`."""
        self.log(f"{phase.name}: the expert plays {phase.episodes} episodes, then {phase.steps} steps of SFT")
        where, shown, done = (self.preset, phase, self.model, self.tokenizer, settings), None, 0
        while True:
            with self._timed("imitation"):
                shown = imitate(*where, [StepLines(self.log)], shown)
            done += phase.steps
            if done + phase.steps > phase.longest:
                break
            specs = self._specs(self.preset.dev_split, min(64, self.preset.dev_tasks))
            with self._runner() as runner, self._timed("evaluation"):
                found = summarize(self._play(runner, self.model, specs))
            enough = ENOUGH * self.rows[0][-1].success  # the expert's
            if found.success >= enough:
                break
            self.log(
                f"after {done} steps {found.success:.1%} of {found.episodes} sampled dev episodes succeed; imitation "
                f"continues until {enough:.1%} do, or to {phase.longest} steps (--imitation_steps)"
            )
        self.shown.append(shown)

    def _stop_if_hopeless(self) -> None:
        """End a run in which no sampled episode succeeds, since each group of RL would have equal rewards."""
        last = self.rows[-1][-1]
        if self.preset.stop_if_hopeless and not last.success:
            print(table(self))
            raise ConfigError(
                f"speedrun: none of {last.episodes} sampled episodes succeeds after the imitation, and RL learns "
                "nothing from equal rewards, so that it stops here. A longer imitation: --imitation_steps N; a model "
                "that can copy names: --model smollm2 (agent-gym prepare smollm2). The imitated model is "
                f"{self.folder / 'sft'}"
            )

    def open(self, source: str) -> list[SFTConfig]:
        """Load a model and start its engine; return the settings of each phase of imitation."""
        preset = self.preset
        # A model that was not made on the spot is trained on the GPU where there is one.
        device = {"use_cpu": False, "bf16": True} if preset.model and torch.cuda.is_available() else {}
        config: Any = AgentPPOConfig if preset.algorithm == "ppo" else AgentGRPOConfig
        self.args = config(
            str(self.part),
            seed=self.seed,
            use_vllm=self.use_vllm,
            eval_strategy="steps",
            eval_on_start=True,
            **{**QUIET, **preset.grpo, **device},
        )
        self.clock = time.process_time if self.args.use_cpu else time.perf_counter
        try:
            self.tokenizer, self.model = load_encoder(source), self._load(source)
        except OSError as error:
            raise ConfigError(f"cannot load the model {source!r}; is the hub within reach?") from error
        self.log(f"model: {source}, {sum(weight.numel() for weight in self.model.parameters()) / 1e6:.2f}M parameters")
        # Before the engine, whose process group transformers would take for a distributed run.
        where = (self.folder / "sft_run", self.seed, self.args)
        settings = [imitation_settings(phase, *where) for phase in preset.imitation]
        if preset.controls:
            self.endless = imitation_settings(endless(preset.imitation[-1]), *where)
        renderer = ChatRenderer.of(self.tokenizer)
        renderer.also_ends_at(self.model.generation_config.eos_token_id)
        with self._timed("engine start"):
            self.policy: Any = build_policy(self.model, renderer, self.args)
        self.args.use_vllm = not isinstance(self.policy, TransformersPolicy)
        self.engine = "vllm" if self.args.use_vllm else "transformers"
        self.log(f"engine: {self.engine}, {'bf16' if self.args.bf16 else 'fp32'}, threads: {torch.get_num_threads()}")
        return settings

    @contextlib.contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def _load(self, source: str) -> Any:
        model = model_class(source).from_pretrained(source, **cast(dict[str, Any], self.args.model_init_kwargs or {}))
        model.to(self.args.device)  # the first that is asked of it may be to play, by the engine of transformers
        if self.preset.lora:
            torch.manual_seed(self.seed)  # of the adapter's weights
            return get_peft_model(model, LoraConfig(**self.preset.lora))
        if self.preset.train_layers is not None:
            model.requires_grad_(False)
            for part in (*model.base_model.layers[-self.preset.train_layers :], model.base_model.norm):
                part.requires_grad_(True)
        return model

    def _save(self, model: Any, name: str) -> None:
        model.save_pretrained(self.folder / name)
        self.tokenizer.save_pretrained(self.folder / name)

    def _runner(self) -> contextlib.closing[Runner]:
        """Make a runner of the engine that also trains, to be closed after use."""
        return contextlib.closing(Runner(self.policy, self.tokenizer, self.args.budget, workers=self.args.env_workers))

    def _specs(self, split: str, tasks: int | None, attempts: int = 1) -> list[EpisodeSpec]:
        where = (self.preset.env_id, self.preset.env_kwargs)
        return make_specs(*where, split=split, episodes=tasks, seed=self.seed, group_size=attempts)

    def _play(self, runner: Runner, model: Any, specs: list[EpisodeSpec], temperature: float = 1.0) -> list[Episode]:
        """Play with the weights of any model of the policy's shape."""
        if isinstance(self.policy, TransformersPolicy):
            self.policy.model = model  # it samples from the model itself, and `sync` does nothing
        self.policy.sync(named_weights(model))
        training = model.training
        episodes = runner.run(specs, temperature=temperature)
        model.train(training)
        return episodes

    def _evaluate(self, name: str, model: Any, attempts: int | None = None) -> None:
        """Play the test tasks, greedily and sampled, several times where there are controls to compare with."""
        attempts = (attempts or self.preset.attempts) if self.preset.controls else 1
        with self._runner() as runner:
            for decoding, temperature, size in (("greedy", 0.0, 1), ("sampled", 1.0, attempts)):
                specs = self._specs(self.preset.test_split, self.preset.test_tasks, size)
                with self._timed("evaluation"):
                    episodes = self._play(runner, model, specs, temperature)
                result = summarize(episodes)
                self.rows.append((name, decoding, result))
                self.runs[name, decoding] = tables.run_of(name, episodes)
                tests = f"test tasks, {count_of(result.prompts)}"
                played = f"success {result} {tests}, {tables.tool_calls(result.metrics):.2f} tool calls per episode"
                self.log(f"{name}, {decoding}: {played}")

    def _evaluate_expert(self) -> None:
        """Let the environment's expert play the test tasks: the level that imitation can reach."""
        played: list[Episode] = []
        where = (self.preset.env_id, self.preset.env_kwargs, self.tokenizer)
        tasks: dict[str, Any] = {"split": self.preset.test_split, "episodes": self.preset.test_tasks}
        with self._timed("evaluation"):
            expert_episodes(*where, **tasks, seed=self.seed, on_end=played.append)
        self.rows.append((EXPERT, "-", summarize(played)))
        self.log(f"{EXPERT}: success {self.rows[-1][-1]} test tasks")

    def _evaluate_control(self, name: str, model: Any) -> None:
        """Play the test tasks, and the dev tasks as the evaluations during RL do."""
        self._evaluate(name, model)
        specs = self._specs(self.preset.dev_split, self.preset.dev_tasks)
        with self._runner() as runner, self._timed("evaluation"):
            found = summarize(self._play(runner, model, specs, self.args.eval_temperature))
        record = {"policy": name, "success": found.success, "low": found.low, "high": found.high}
        self.dev.setdefault("controls", []).append(record)

    def train(self) -> float:
        """Train the policy by GRPO, evaluate it, and return the seconds of the steps."""
        preset, clock = self.preset, StepClock(self.clock)
        # An earlier speedrun here, perhaps of another preset and of more steps, would be taken for a part of this one.
        earlier = itertools.chain.from_iterable(trajectory_files(self.part).values())
        for file in [self.folder / LOG, self.part / LOG, *earlier]:
            file.unlink(missing_ok=True)
        train, dev = (
            task_dataset(preset.env_id, preset.env_kwargs, split=split, tasks=count, seed=self.seed)
            for split, count in (("train", preset.train_tasks), (preset.dev_split, preset.dev_tasks))
        )
        patience = [] if preset.patience is None else [Patience(preset.patience)]
        kind: Any = AgentPPOTrainer if preset.algorithm == "ppo" else AgentGRPOTrainer
        trainer = kind(
            self.model,
            args=self.args,
            train_dataset=train,
            eval_dataset=dev,
            policy=self.policy,
            processing_class=self.tokenizer,
            callbacks=[StepLines(self.log), RunNumbers(self.folder), clock, *patience],
        )
        title = f"{preset.env_id}: {self.label}, {preset.dev_split} tasks, seed {self.seed}"
        with self._timed(self.label), watch(trainer, folder=self.folder, title=title, show=True):
            trainer.train()
        self.dev["evaluations"], self.rl_steps = evaluations(trainer.state.log_history), trainer.state.global_step
        for ended in patience:
            self.dev["flat_at"] = ended.stopped_at  # None where `max_steps` came first
            end = "max_steps, before a flat curve" if ended.stopped_at is None else "a flat curve on the dev tasks"
            self.log(f"RL ended after step {self.rl_steps}, at {end}")
        trainer.save_model()
        trainer.runner.close()  # a thread and an environment for each episode in flight
        self._evaluate(self.trained, self.model)
        return clock.seconds

    def _control(self, controls: Controls, budget: float) -> None:
        """Train the controls from the saved start, with the seconds of RL, RAFT++ with its steps; evaluate them."""
        more_sft = self.more_sft(controls, budget)
        rounds = self.imitate_itself(controls, budget)
        itself, start, rl = own_name(controls), self.preset.imitation[-1].name, self.trained
        used = sum(one.playing_seconds + one.training_seconds for one in rounds)
        self.more["used_seconds"] = {rl: budget, MORE_SFT: more_sft.seconds, itself: used}
        self.more |= {"more_sft_steps": more_sft.steps, "rounds": [asdict(one) for one in rounds]}
        pairs = [(rl, start), (rl, MORE_SFT), (rl, itself), (MORE_SFT, start)]
        if controls.raft:
            raft = self.raft()
            self.more["used_seconds"][RAFT], self.more["raft_steps"] = raft.seconds, raft.steps
            pairs.insert(3, (rl, RAFT))
        self.more["differences"] = tables.differences(self.runs, pairs)

    def raft(self) -> StepClock:
        """Train the saved start by RAFT++ for as many steps as RL made, and evaluate it."""
        self.log(f"{RAFT}: {self.rl_steps} steps, as many as RL made")
        model = self._load(str(self.folder / "sft"))
        with self._timed(RAFT):
            clock = imitate_successes(self, model, self.rl_steps)
        self._evaluate_control(RAFT, model)
        return clock

    def more_sft(self, controls: Controls, budget: float) -> StepClock:
        """Train the saved start further on its demonstrations, and evaluate it."""
        shown = [row for phase in self.shown for row in phase.rows]
        self.log(f"{MORE_SFT}: {budget:.1f} seconds, {len(shown)} demonstrations")
        model, clock = self._load(str(self.folder / "sft")), UntilUsedUp(budget, controls.more_sft_rate, self.clock)
        with self._timed(MORE_SFT):
            self._sft(model, self.shown[-1].train_on, shown, clock)
        self._save(model, "more_sft")
        self._evaluate_control(MORE_SFT, model)
        return clock

    def imitate_itself(self, controls: Controls, budget: float) -> list[Round]:
        """Train the saved start on its own successes, and evaluate it."""
        self.log(f"{own_name(controls)}: {budget:.1f} seconds, {controls.rounds} rounds")
        model, tasks = self._load(str(self.folder / "sft")), self._specs("train", self.preset.train_tasks)
        with self._runner() as runner, self._timed("self-imitation"):
            play, learn = partial(self._play, runner, model), partial(self._sft, model, "policy")
            batch = self.args.batch_tasks
            rounds = imitate_itself(controls, budget, tasks, batch, play, learn, self.seed, self.clock)
        for number, one in enumerate(rounds, 1):
            played = f"{one.succeeded} of {one.played} episodes succeeded"
            self.log(f"round {number}: {played}, {one.kept} tasks imitated in {one.steps} steps")
        self._save(model, "self_imitation")
        self._evaluate_control(own_name(controls), model)
        return rounds

    def _sft(self, model: Any, train_on: str, rows: list[Row], clock: UntilUsedUp) -> None:
        callbacks = [StepLines(self.log), clock]
        train_sft(model, self.tokenizer, rows, self.endless, train_on=train_on, callbacks=callbacks)
