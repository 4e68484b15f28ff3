"""`agent-gym rescore FILE.jsonl`: what the environment says and pays today for the actions of stored episodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from agent_gym.cli.parser import Parser, check_output, json_object
from agent_gym.cli.reading import reading
from agent_gym.errors import writing
from agent_gym.evaluate import EvalResult, summarize
from agent_gym.evaluate.report import align, number
from agent_gym.rollout import Episode, Replay, from_record, make_env, play_again, write_trajectories
from agent_gym.rollout.envs import close_env

_SHOWN = 10


def main(argv: Sequence[str]) -> int:
    """Play again, report, and tell by the exit code whether anything unasked for has changed."""
    summary = (
        "Play the actions of stored episodes again, without a model, and score them. Exit code 1 if the world answers "
        "otherwise than then or, where no other rewards were asked for, scores otherwise."
    )
    parser = Parser("rescore", summary)
    parser.add_argument("file", metavar="FILE.jsonl", help="trajectories of `eval`, `rollout` or a training run")
    help_text = "other weights of the reward's terms"
    parser.add_argument("--reward_weights", type=json_object, default={}, metavar="JSON", help=help_text)
    help_text = "other arguments of the environments, over those of the episodes"
    parser.add_argument("--env_kwargs", type=json_object, default={}, metavar="JSON", help=help_text)
    parser.add_argument("--output", metavar="FILE.jsonl", help="write the episodes with their new scores")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    arguments = parser.parse(argv)
    if arguments.output:
        check_output(arguments.output)
    changes = {**arguments.env_kwargs}
    if arguments.reward_weights:
        changes["reward_weights"] = arguments.reward_weights
    records = list(reading([arguments.file]))
    before = [from_record({**record, "rows": []}) for record in records]
    again = list(_replay(records, changes))
    after = [from_record({**replay.record, "rows": []}) for replay in again]
    if arguments.output:
        with writing(arguments.output):
            write_trajectories(arguments.output, (replay.record for replay in again))
    if arguments.json:
        print(json.dumps(_as_json(before, after, again), indent=2))
    else:
        print("\n".join(_text(before, after, again)))
    unasked = any(replay.world or replay.scores and not changes for replay in again)
    return 1 if unasked else 0


def _replay(records: Sequence[Mapping[str, Any]], changes: Mapping[str, Any]) -> Iterator[Replay]:
    """Play the records again, in one environment per id and arguments."""
    envs: dict[str, Any] = {}
    try:
        for record in tqdm(records, desc="episodes", leave=False, file=sys.stderr):
            if record["failure"] is not None:  # it broke off, and there is nothing to hold it to
                yield Replay(dict(record))
                continue
            spec = record["spec"]
            kwargs = _merged(spec["env_kwargs"], changes)
            key = json.dumps([spec["env_id"], kwargs], sort_keys=True)
            if key not in envs:
                envs[key] = make_env(spec["env_id"], kwargs)
            replay = play_again(record, envs[key])
            replay.record["spec"] = {**spec, "env_kwargs": kwargs}
            yield replay
    finally:
        for env in envs.values():
            close_env(env)


def _merged(kwargs: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**kwargs, **changes}
    if "reward_weights" in changes:
        merged["reward_weights"] = {**(kwargs.get("reward_weights") or {}), **changes["reward_weights"]}
    return merged


def _text(before: Sequence[Episode], after: Sequence[Episode], again: Sequence[Replay]) -> list[str]:
    then, now = summarize(before), summarize(after)
    world, scores = _count(again)
    lines = [f"{then.episodes} episodes played again, {then.failed} failed ones left as they are"]
    lines.append(f"the world answers otherwise in {world} of them, the score is another in {scores}")
    for episode, replay in zip(before, again, strict=True):
        found = replay.world or replay.scores
        if found and len(lines) < 2 + _SHOWN:
            lines.append(f"  {episode.task_id}: {found[0][:200]}")
    names = [name for name in _names(then, now) if _value(then, name) != _value(now, name)]
    if names:
        rows = [["measure", "stored", "now"]]
        lines += [align(rows + [[n, number(n, _value(then, n)), number(n, _value(now, n))] for n in names])]
    return lines


def _as_json(before: Sequence[Episode], after: Sequence[Episode], again: Sequence[Replay]) -> dict[str, Any]:
    world, scores = _count(again)
    differing = [
        {
            "task_id": replay.record["task_id"],
            "spec": replay.record["spec"],
            "world": replay.world,
            "scores": replay.scores,
        }
        for replay in again
        if replay.world or replay.scores
    ]
    return {
        "episodes": len(again),
        "world_differs": world,
        "scores_differ": scores,
        "stored": summarize(before).metrics,
        "now": summarize(after).metrics,
        "differences": differing,
    }


def _count(again: Sequence[Replay]) -> tuple[int, int]:
    return sum(bool(replay.world) for replay in again), sum(bool(replay.scores) for replay in again)


def _names(then: EvalResult, now: EvalResult) -> list[str]:
    # How long a tool takes is no score.
    return [name for name in {**then.measures, **now.measures} if not name.endswith("/latency")]


def _value(result: EvalResult, name: str) -> float:
    return result.measures[name].value if name in result.measures else 0.0
