"""The parts of a speedrun: a task, a model, phases of imitation, GRPO, controls. presets.toml has the presets."""

from __future__ import annotations

import json
import math
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from agent_gym.chat import text_of as text_of_message
from agent_gym.errors import ConfigError
from agent_gym.evaluate.panels import opened_env
from agent_gym.models import model_source
from agent_gym.speedrun import text_of

ATTEMPTS = 8
"""Of a start at each test task, where a preset has controls: there may be few, and pass@8 is the headroom."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """One phase of supervised fine-tuning on episodes of the environment's expert."""

    name: str  # the name of the policy after it in the results table
    episodes: int
    steps: int  # optimizer steps, at most
    batch: int  # episodes per step
    settings: Mapping[str, Any]  # further fields of `trl.SFTConfig`
    styles: Mapping[str, float] = field(default_factory=lambda: {"default": 1.0})  # expert style to share of episodes
    # The phase is repeated while few sampled dev episodes succeed, up to so many steps; 0 for one phase.
    longest: int = 0


@dataclass(frozen=True, slots=True)
class Controls:
    """The comparisons of RL, at equal seconds and from the same start (controls.py)."""

    more_sft_rate: float  # peak learning rate of more SFT on the demonstrations of the start
    self_imitation_rate: float  # peak learning rate of SFT on the policy's own successes, in each round
    rounds: int = 4  # of sampling and imitation
    best_of: int = 8  # attempts at a training task, of which the best is imitated
    playing: float = 0.4  # share of a round's seconds that goes into sampling
    raft: bool = False  # whether RAFT++ is trained, too, for as many steps as RL (raft.py)


@dataclass(frozen=True, slots=True)
class Preset:
    """A complete run."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    grpo: Mapping[str, Any]  # fields of `AgentGRPOConfig`
    model: str | None = None  # a model id; None for a tiny model made on the spot
    tiny: Mapping[str, Any] = field(default_factory=dict)  # arguments of `make_tiny_model`
    train_layers: int | None = None  # train the last layers and the last norm only; None for all weights
    lora: Mapping[str, Any] | None = None  # fields of `peft.LoraConfig`, without imitation; None for whole weights
    imitation: tuple[Imitation, ...] = ()  # phases before RL
    train_tasks: int | None = 4000  # tasks RL trains on; None for all
    dev_split: str = "validation"  # of the learning curve
    dev_tasks: int = 200
    test_split: str = "test"  # of the results table
    test_tasks: int | None = 500
    attempts: int = ATTEMPTS  # at each test task where sampled, if there are controls; the start has `ATTEMPTS`
    needs_gpu: bool = False
    seconds: tuple[float, ...] = ()  # of a run with its controls on two cores of the reference machine: least and most
    stop_if_hopeless: bool = False  # end before RL if no sampled episode succeeds
    # Evaluations in a row on the dev tasks, without a rise from one half of them to the other, after which RL ends
    # (`trainers.patience`); None for an end at `max_steps` alone.
    patience: int | None = None
    chosen_on: tuple[int, ...] = ()  # seeds on which settings were chosen: they are in no mean over seeds
    # Of each side that is compared, the settings that were tried on `chosen_on`; all sides have equally many.
    trials: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    controls: Controls | None = None  # None for a run without; they need at least one phase of imitation
    algorithm: str = "grpo"  # a name of `ALGORITHMS`; `trained_by` sets it


_TABLES: dict[str, Any] = tomllib.loads(text_of("presets.toml"))
TINY_GRPO: Mapping[str, Any] = _TABLES["tiny_grpo"]
"""Fields of `AgentGRPOConfig` for a tiny model on two CPU cores."""

PRETRAINED_GRPO: Mapping[str, Any] = {**TINY_GRPO, **_TABLES["pretrained_grpo"]}
"""The same for a pre-trained model of 100 to 200 million parameters, of which some layers are trained."""


def _presets() -> dict[str, Preset]:
    frames: Mapping[str, list[str]] = json.loads(text_of("frames.json"))
    ranges = {"00 to 99": [f"{number:02}" for number in range(100)]}
    ranges["1 to 512"] = [str(number) for number in range(1, 513)]
    for name, preset in _TABLES["presets"].items():
        # TOML has no null.
        preset |= {key: None for key in ("train_tasks", "test_tasks") if preset.get(key) == "all"}
        if name in frames:
            texts = [text for frame in frames[name] for text in ranges.get(frame, [frame])]
            preset["tiny"] = {**preset["tiny"], "frames": texts}
        if not preset.get("needs_gpu"):
            preset["grpo"] = {**TINY_GRPO, **_TABLES["preset_grpo"], **preset["grpo"]}
    return TypeAdapter(dict[str, Preset]).validate_python(_TABLES["presets"])


PRESETS = _presets()

ALGORITHMS: Mapping[str, Mapping[str, Any]] = _TABLES["algorithms"]
_OF_GROUPS = ("keep_groups", "keep_variance", "max_refills")


def trained_by(preset: Preset, name: str) -> Preset:
    """Return the preset with another algorithm and as many episodes in each rollout; RAFT++ is a control of GRPO."""
    if name == preset.algorithm:
        return preset
    settings = {key: value for key, value in preset.grpo.items() if key not in _OF_GROUPS}
    settings |= ALGORITHMS[name]["settings"]
    if name == "ppo" and preset.model is None:
        settings["critic_learning_rate"] = settings["learning_rate"]
    controls = preset.controls and replace(preset.controls, raft=False)
    return replace(preset, algorithm=name, grpo=settings, controls=controls)


def plan_of(preset: Preset, seeds: Sequence[int], folder: str) -> str:
    """Return the plan of speedruns of a preset, in lines."""
    sizes, label, controls = preset.grpo, ALGORITHMS[preset.algorithm]["label"], preset.controls
    rollout = sizes["per_device_train_batch_size"] * sizes.get("steps_per_generation", 1)
    lines = [("environment", f"{preset.env_id} {json.dumps(dict(preset.env_kwargs))}, seeds {list(seeds)}")]
    lora = f", LoRA {json.dumps(dict(preset.lora))}" if preset.lora else ""
    lines += [("model", f"{preset.model or 'a tiny one, made on the spot'}{lora}")]
    lines += [(one.name, f"{one.episodes:,} episodes of the expert, {one.steps:,} steps") for one in preset.imitation]
    lines += [(label, f"{sizes['max_steps']:,} steps, {rollout} episodes a rollout; {json.dumps(dict(sizes))}")]
    lines += [("controls", json.dumps(asdict(controls))), ("writes", folder)] if controls else [("writes", folder)]
    return "".join(f"{name:<18}{text}\n" for name, text in lines)


def expert_lengths(env: Any, episodes: int = 64) -> tuple[int, int]:
    """Return the characters of the longest episode and of the longest turn of an environment's expert.

    Raises:
        ConfigError: if the environment has no expert.
    """
    longest, turn = 0, 0
    for seed in range(episodes):
        _, info = env.reset(seed=seed)
        length, over = sum(len(text_of_message(message["content"])) for message in info["messages"]), False
        while not over:
            action = env.unwrapped.expert_action()
            observation, _, terminated, truncated, _ = env.step(action)
            length, turn = length + len(action) + len(observation), max(turn, len(action))
            over = terminated or truncated
        longest = max(longest, length)
    return longest, turn


def is_prepared(model: str) -> bool:
    """Return whether a model of `agent-gym prepare` is there; others are not looked for."""
    try:
        return bool(model_source(model))
    except ConfigError:
        return False


LONG, FOR_LONG = 6000, "smollm2"
"""Characters of an expert's episode over which a tiny model hardly learns to copy, and the model for them."""


def own_preset(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    model: str | None = None,
    imitation_steps: int | None = None,
) -> Preset:
    """Make the preset of any environment that has an expert: `agent-gym speedrun --env ID`.

    A short imitation that leaves the model far from the expert, and as much RL as the calculator's speedrun has. While
    sampled episodes succeed less than half as often as the expert's, the imitation is repeated, up to eight times; if
    none succeeds then, the run stops before RL. The system prompt is left out unless `env_kwargs` have one.

    Args:
        env_id: the environment.
        env_kwargs: its arguments.
        model: a model to begin with; "tiny" for one made on the spot. None chooses: a tiny one, or SmolLM2 where the
            expert's episodes have more than `LONG` characters and it is prepared; a warning says so.
        imitation_steps: the steps of imitation, exactly; by default 160, or 40 of a given model, up to eight times.

    Raises:
        ConfigError: for an unknown id, arguments it does not take, or an environment without a split "train".
    """
    chooses, model = model is None, None if model == "tiny" else model
    settings = {**({"system_prompt": ""} if model is None else {}), **(env_kwargs or {})}
    with opened_env(env_id, settings) as env:
        sizes = {split: len(tasks) for split, tasks in env.get_wrapper_attr("tasks").items()}
        longest, turn = expert_lengths(env) if "train" in sizes else (0, 0)
    if "train" not in sizes:
        raise ConfigError(f"{env_id} has no split 'train' to learn from; it has: {', '.join(sizes)}")
    if chooses and longest > LONG:
        long = f"the expert's episodes have up to {longest:,} characters, over which a tiny model hardly learns to copy"
        if is_prepared(FOR_LONG):
            warnings.warn(f"{long}: the run begins with {FOR_LONG} (--model tiny for a tiny one)", stacklevel=2)
            return own_preset(env_id, env_kwargs, model=FOR_LONG, imitation_steps=imitation_steps)
        warnings.warn(f"{long}; `agent-gym prepare {FOR_LONG}` brings a model that can", stacklevel=2)
    # The best name for the learning curve and for the table first.
    dev = next((name for name in ("validation", "dev", "valid", "test") if name in sizes), "train")
    test = next((name for name in ("test", "validation", "dev", "valid") if name in sizes), "train")
    steps, batch = imitation_steps or (160 if model is None else 40), 24 if model is None else 4
    imitated: dict[str, Any] = {"learning_rate": 2e-3 if model is None else 2e-4, "lr_scheduler_type": "cosine"}
    imitated |= {"warmup_steps": min(10, steps // 4), "adam_beta2": 0.98, "weight_decay": 0.05}
    phase = Imitation("expert imitation", min(3000, sizes["train"]), steps, batch, imitated)
    return Preset(
        env_id=env_id,
        env_kwargs=settings,
        model=model,
        train_layers=None if model is None else 12,
        imitation=(replace(phase, longest=0 if imitation_steps else 8 * steps),),
        train_tasks=min(4000, sizes["train"]),
        dev_split=dev,
        dev_tasks=min(200 if model is None else 40, sizes[dev]),
        test_split=test,
        test_tasks=min(500 if model is None else 100, sizes[test]),
        grpo=_with_room(TINY_GRPO if model is None else PRETRAINED_GRPO, longest, turn),
        stop_if_hopeless=True,
    )


def _with_room(settings: Mapping[str, Any], longest: int, turn: int) -> dict[str, Any]:
    """Raise the limits of tokens to the lengths of the expert's episodes, in characters.

    A tokenizer that was trained on the episodes has more than two characters a token, and one of a pre-trained model
    more than three; the template adds some tokens a turn. A fifth of a limit is room for a policy that is no expert.
    """
    limits = {"max_turn_tokens": turn, "max_episode_tokens": longest}
    return {**settings, **{name: max(settings[name], math.ceil(0.6 * size)) for name, size in limits.items()}}
