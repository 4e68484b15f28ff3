"""A whole lesson in three lines, for notebooks and first tries: warm_start, evaluate, plot.

    learner = warm_start("AgentR1/GSM8K-v0")  # a tiny model that has imitated the expert
    before = evaluate(learner)                # before.result, before.records
    plot(trainer)                             # the curve of a trainer that has trained `learner.model`

The parts are the ones of a speedrun: the model of tiny.py, the settings of presets.py, the imitation of imitation.py.
`plot_tokens` draws the records of episodes token by token: their authors, or their credit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from agent_gym.errors import ConfigError, require
from agent_gym.evaluate import EvalResult, make_specs, summarize
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.registry import EnvLike, resolve_env
from agent_gym.rollout import Runner, to_record
from agent_gym.speedrun.figure import POLICY
from agent_gym.speedrun.imitation import QUIET, imitate, imitation_settings
from agent_gym.speedrun.presets import TINY_GRPO, Preset, own_preset
from agent_gym.speedrun.tiny import make_tiny_model
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.transcript import kind_of
from agent_gym.viewer.curve import curve_of

SETTINGS: Mapping[str, Any] = {**TINY_GRPO, **QUIET, "use_vllm": False, "model_init_kwargs": None}
"""Fields of `AgentGRPOConfig` for the model of a `Learner`, which is sampled from itself, on a CPU."""

# The colours of docs/masks.svg, so that an author looks the same everywhere.
_AUTHORS = {"system": "#90a4ae", "user": "#90a4ae", "agent": "#2e7d32", "env": "#ef6c00"}
_WORLD = "#e3e6e8"  # without an advantage


@dataclass(frozen=True, slots=True)
class Learner:
    """A policy and the task it learns."""

    preset: Preset  # the environment, its arguments and splits
    model: Any
    tokenizer: Any


@dataclass(frozen=True, slots=True)
class Played:
    """The result of an evaluation."""

    result: EvalResult
    records: list[dict[str, Any]]  # of the episodes, as in files of trajectories


def warm_start(
    env: EnvLike,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    steps: int = 160,
    styles: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Learner:
    """Make a tiny model for an environment and let it imitate the expert.

    Args:
        env: an environment that has an expert and a split "train": its id, or anything that `registry.resolve_env`
            takes.
        env_kwargs: its arguments; the system prompt is left out unless they have one.
        steps: of SFT, 24 episodes each.
        styles: style of the expert to its share of the episodes; the default style alone by default.
        seed: of weights, tasks and the order of the data.

    Raises:
        ConfigError: as `own_preset`.
    """
    preset = own_preset(*resolve_env(env, env_kwargs))
    phase = preset.imitation[0]
    phase = replace(phase, steps=steps, styles=styles or phase.styles)
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_tiny_model(
            Path(scratch) / "tiny", preset.env_id, preset.env_kwargs, demonstrations=300, seed=seed
        )
        learner = Learner(preset, AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
        settings = imitation_settings(phase, Path(scratch) / "sft", seed, AgentGRPOConfig(scratch, **SETTINGS))
        silent = TrainerCallback()  # replaces transformers' printed logs
        imitate(preset, phase, learner.model, learner.tokenizer, settings, [silent])
    return learner


def evaluate(learner: Learner, *, episodes: int = 100, temperature: float = 0.0, seed: int = 0) -> Played:
    """Let a policy play the first test tasks, at most as many as there are; greedily at a temperature of 0."""
    preset, tokenizer = learner.preset, learner.tokenizer
    count = min(episodes, preset.test_tasks or episodes)
    specs = make_specs(preset.env_id, preset.env_kwargs, split=preset.test_split, episodes=count, seed=seed)
    policy = TransformersPolicy(learner.model.eval(), {tokenizer.eos_token_id}, tokenizer.pad_token_id)
    with closing(Runner(policy, tokenizer, AgentGRPOConfig("unused", **SETTINGS).budget)) as runner:
        played = runner.run(specs, temperature=temperature)
    return Played(summarize(played), [to_record(episode, tokenizer) for episode in played])


def plot(trainer: Any, *names: str) -> Any:
    """Draw a trainer's log over its steps and return the matplotlib figure.

    Args:
        trainer: that has trained.
        names: of metrics to draw; without any, success of evaluations with its 95% interval, and that of rollouts.

    Raises:
        ConfigError: for a name that was not logged, or without matplotlib.
    """
    history = trainer.state.log_history
    points, below = curve_of(history)
    if names:
        points, below = [], {name: [(log["step"], log[name]) for log in history if name in log] for name in names}
        if missing := [name for name, values in below.items() if not values]:
            logged = ", ".join(sorted({key for log in history for key in log}))
            raise ConfigError(f"the trainer has not logged {', '.join(missing)}; it has: {logged}")
    count = len(below) + bool(points)
    columns = 2 if count == 4 else min(count, 3)
    lines = -(-count // columns)
    figure = _figure(9.0, 2.3 * lines)
    axes = [figure.add_subplot(lines, columns, i + 1) for i in range(count)]
    if points:
        steps = [point.step for point in points]
        axes[0].fill_between(steps, [p.low for p in points], [p.high for p in points], color=POLICY, alpha=0.2)
        axes[0].plot(steps, [point.success for point in points], color=POLICY, marker="o", markersize=3)
        axes[0].set(ylim=(0, 1), title="success on held-out tasks")
    for axis, (name, values) in zip(axes[bool(points) :], below.items(), strict=True):
        axis.plot(*zip(*values, strict=True), color=POLICY)
        axis.set_title(name)
    for axis in axes:
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def plot_tokens(records: Sequence[Mapping[str, Any]]) -> Any:
    """Draw the rows of episodes as strips, a cell for each token, and return the matplotlib figure.

    Records of a trainer have advantages: they are a heat map over the policy's tokens, and the world's are grey. Others
    are coloured by author: grey the opening, green the policy, orange the world.
    """
    rows = [row for record in records for row in record["rows"]]
    credited = any("advantages" in row for row in rows)
    most = max((abs(value) for row in rows for value in row.get("advantages", ())), default=0.0) or 1.0
    figure = _figure(9.0, 0.7 + 0.22 * len(rows))
    axis = figure.add_subplot()
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_rgb

    scale = ScalarMappable(Normalize(-most, most), colormaps["PuOr"])
    strips = []
    for row in rows:
        kinds = [kind_of(source) for start, stop, source, _ in row["spans"] for _ in range(start, stop)]
        if credited:
            pairs = zip(kinds, row.get("advantages", [0.0] * len(kinds)), strict=True)  # none: it left the update
            strips.append([scale.to_rgba(a)[:3] if kind == "agent" else to_rgb(_WORLD) for kind, a in pairs])
        else:
            strips.append([to_rgb(_AUTHORS[kind]) for kind in kinds])
    image = list(zip(*zip_longest(*strips, fillvalue=(1.0, 1.0, 1.0)), strict=True))
    axis.imshow(image, aspect="auto", interpolation="nearest")
    axis.set(xlabel="token", ylabel="row", yticks=range(len(rows)))
    axis.locator_params(axis="x", integer=True)
    if credited:
        figure.colorbar(scale, ax=axis, label="advantage")
    return figure


def _figure(width: float, height: float) -> Any:
    require("matplotlib", "train")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, layout="constrained")
