"""Stored episodes played again: the recorded actions in a fresh environment, without a model.

The world must give the same answers again; if it does, the scores of the replay are the ones that the environment gives
today, with the reward weights that it has today.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from agent_gym.chat import described
from agent_gym.errors import ConfigError
from agent_gym.images import Image, images_of
from agent_gym.registry.from_data import env_from_data
from agent_gym.reply import sum_by_name
from agent_gym.rewards import JUDGE_STEPS_TERM, JUDGE_TERMS
from agent_gym.rollout.env_threads import close_env, make_env
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.trajectories import recorded_messages


@dataclass(slots=True)
class Replay:
    """The record with the scores of today, and where the world answered or scored otherwise than then."""

    record: dict[str, Any]
    world: list[str] = field(default_factory=list)
    scores: list[str] = field(default_factory=list)


def replay(record: Mapping[str, Any], *, trusted: bool = False) -> list[str]:
    """Play the recorded actions again and list every difference; an empty list means that the world agrees.

    Raises:
        ConfigError: if the record names an environment that only the caller may name (`registry.from_data`), unless the
            record is `trusted`.
    """
    env_id, env_kwargs = record["spec"]["env_id"], record["spec"]["env_kwargs"]
    if not trusted:
        cure = "give trusted=True if you know who made the record"
        env_id, env_kwargs = env_from_data(env_id, env_kwargs, f"the record of {record['task_id']}", cure=cure)
    env = make_env(env_id, env_kwargs)
    again = play_again(record, env)
    close_env(env)
    return [*again.world, *again.scores]


def play_again(record: Mapping[str, Any], env: gymnasium.Env[str, str]) -> Replay:
    """Play the recorded actions in an environment and collect its answers and scores.

    Summaries that the policy wrote for itself are not actions and stay as they are, as do rewards that a judge has
    paid. The environment is of the record's id and is reset; its arguments may be others.
    """
    spec = record["spec"]
    if spec.get("role"):
        raise ConfigError(
            f"this is what the role {spec['role']!r} lived through; only whole episodes can be played again"
        )
    _, info = env.reset(seed=spec["seed"], options=EpisodeSpec(**spec).options)
    steps = [dict(step) for step in record["steps"]]
    again = Replay({**record, "steps": steps})

    def compare(found: list[str], what: str, now: Any, then: Any) -> None:
        if now != then:
            found.append(f"{what} {now!r} instead of {then!r}")

    compare(again.world, "task", info["task_id"], record["task_id"])
    # Not the system prompt, which may describe tools where the recording model's template did not.
    messages = recorded_messages(record)
    then = Episode(EpisodeSpec(**spec), messages=messages, opened=record.get("opened")).initial_messages
    asked = [described(one for one in some if one["role"] != "system") for some in (info["messages"], then)]
    compare(again.world, "opening", *asked)
    shown = _answered_images(messages)
    total, ended, truncated, success = 0.0, False, False, False
    acts = [step for step in steps if step.get("kind", "act") == "act"]
    for n, step in enumerate(acts):
        observation, paid, ended, truncated, info = env.step(step["action"])
        own, then = info["reward_terms"], step["reward_terms"]
        judged = {name: then[name] for name in JUDGE_TERMS if name in then and name not in own}
        reward = float(paid) + sum(judged.values())
        compare(again.world, f"step {n}: observation", observation, step["observation"])
        compare(again.world, f"step {n}: images", images_of(info["messages"]), shown[n] if n < len(shown) else [])
        compare(again.scores, f"step {n}: reward", round(reward, 9), round(step["reward"], 9))
        step.update(observation=observation, reward=reward, reward_terms={**own, **judged})
        step |= {key: info[key] for key in ("tool_calls", "metrics", "error")}
        step["process_reward"] = info["process_reward"] + judged.get(JUDGE_STEPS_TERM, 0.0)
        total += reward
        success = bool(info.get("is_success", False))
        if (ended or truncated) and n + 1 < len(acts):
            again.world.append(f"step {n}: the episode ended {len(acts) - n - 1} steps early")
            # The later steps do not exist in the replay.
            del steps[steps.index(step) + 1 :]
            break
    if record["failure"] is None:  # a failed episode broke off, and its reward is not a number
        compare(again.scores, "reward", round(total, 9), round(record["reward"], 9))
        compare(again.world, "terminated", ended, record["terminated"])
        compare(again.scores, "success", success, record["success"])
        terms = sum_by_name(step["reward_terms"] for step in steps)
        again.record |= {"reward": total, "reward_terms": terms, "success": success, "terminated": ended}
        if ended or truncated:  # else the episode has the end that it had: a limit of the rollout, or of more turns
            again.record |= {"truncated": not ended, "truncation": None if ended else "turns"}
    return again


def _answered_images(messages: Sequence[Mapping[str, Any]]) -> list[list[Image]]:
    # The images that the world showed after each turn of the policy.
    shown: list[list[Image]] = []
    for message in messages:
        if message["role"] == "assistant":
            shown.append([])
        elif shown:
            shown[-1] += images_of([message])
    return shown
