"""The end of a speedrun: results.json, the table, the curve, and the page of episodes before and after."""

from __future__ import annotations

import json
import random
import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_gym.errors import write_whole
from agent_gym.rollout import read_trajectories
from agent_gym.speedrun import tables
from agent_gym.speedrun.figure import draw, over_runs
from agent_gym.viewer import write_html
from agent_gym.viewer.curve import trajectory_files

if TYPE_CHECKING:
    from agent_gym.speedrun.run import Speedrun

SHOWN = 100  # tasks on the page of trajectories, at most


def task_of(record: Mapping[str, Any]) -> str:
    """Return the task of a trajectory record, by which evaluations are paired."""
    spec = record["spec"]
    return json.dumps([record.get("task_id"), spec.get("split"), spec.get("index"), spec.get("member")], default=str)


def report(run: Speedrun) -> dict[str, Any]:
    """Write and print the results, and return the content of results.json."""
    page = write_html(run.folder / "trajectories.html", *side_by_side(run))
    results = {
        "preset": run.preset.env_id,
        "algorithm": run.label,
        "seed": run.seed,
        "engine": run.engine,
        "results": [
            {"policy": name, "decoding": decoding, "success": r.success, "low": r.low, "high": r.high}
            | {"prompts": r.prompts, "episodes": r.episodes, "failed": r.failed}
            | {"reward": r.reward, "metrics": r.metrics}
            for name, decoding, r in run.rows
        ],
        "dev": run.dev,
        **run.more,
        "seconds": {**run.seconds, "total": time.perf_counter() - run.begin},
        "settings": run.settings,
    }
    write_whole(run.folder / "results.json", json.dumps(results, indent=2) + "\n")
    print(table(run))
    picture, _ = draw(over_runs([results]), run.folder / "curve.png")
    print(f"\nmodel         {run.part}\ncurve         {picture}, curve.html")
    print(f"trajectories  {page}\nnumbers       {run.folder / 'results.json'}")
    # A model that has learned without the system prompt plays badly with it.
    given = ("--model", str(run.part), "--env_kwargs", json.dumps(dict(run.preset.env_kwargs)))
    for name, command in (("measure it", "eval"), ("talk to it", "chat")):
        print(f"{name:<14}{shlex.join(['agent-gym', command, run.preset.env_id, *given])}")
    print(f"see the run   {shlex.join(['agent-gym', 'view', str(run.folder)])}")
    return results


def side_by_side(run: Speedrun) -> tuple[dict[str, Any], str]:
    """Return the evaluations before RL and after it, which the page shows side by side, and the page's title.

    Of more than `SHOWN` tasks a sample is drawn: the first tasks of an environment may be its easiest.
    """
    found = trajectory_files(run.part)
    steps = [step for mode, step in found if mode == "eval"]
    ends = {"before RL": steps[:1], "after RL": steps[-1:]}
    records = {
        name: [one for file in found["eval", at[0]] for one in read_trajectories(file)]
        for name, at in ends.items()
        if at
    }
    tasks = list(dict.fromkeys(map(task_of, records.get("before RL", ()))))
    chosen = set(random.Random(run.seed).sample(tasks, min(SHOWN, len(tasks))))
    records = {name: [one for one in some if task_of(one) in chosen] for name, some in records.items()}
    which = f"all {len(tasks)}" if len(chosen) == len(tasks) else f"{len(chosen)} of {len(tasks)}, drawn by chance,"
    return records, f"{run.preset.env_id}: {which} {run.dev['split']} tasks. {headline(run)}"


def headline(run: Speedrun) -> str:
    """Say in one line how often the first and the last policy solve all tasks of the two splits."""
    first, last = run.dev["evaluations"][0], run.dev["evaluations"][-1]
    found = {(name, decoding): result.success for name, decoding, result in run.rows}
    start, decoding = run.dev["start"], run.dev["decoding"]
    ends = {
        run.dev["split"]: (first["success"], last["success"]),
        run.preset.test_split: (found[start, decoding], found[run.trained, decoding]),
    }
    parts = [f"{split} {before:.1%} to {after:.1%}" for split, (before, after) in ends.items()]
    return f"Solved, {decoding}: {', '.join(parts)}"


def table(run: Speedrun) -> str:
    """Return the table of policies, the paired differences, and the seconds of each stage."""
    title = f"{run.preset.env_id}, split {run.preset.test_split}, seed {run.seed}."
    parts = [f"\n{title} Success with 95% Wilson intervals over distinct prompts."]
    parts.append(tables.policies(run.rows, rewards=run.preset.controls is not None))
    if run.preset.controls:
        used = (f"{name} {seconds:.1f}" for name, seconds in run.more["used_seconds"].items())
        parts.append(f"Seconds of training: {', '.join(used)}.")
    if "differences" in run.more:
        parts.insert(2, tables.differences_table(run.more["differences"]))
    total = time.perf_counter() - run.begin
    split = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in run.seconds.items())
    return "\n\n".join([*parts, f"{run.rows[0][2].episodes} tasks. {total:.0f} s in all: {split}."])
