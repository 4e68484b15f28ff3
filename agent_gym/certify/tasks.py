"""How hard its tasks are: for its own expert, for a model that has not learned them, and for one that learns.

For how a model fares, `agent-gym`'s own commands run in a separate process: a user gets the same output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent_gym.certify.record import LEARNED, SOLVED, Record, SkippedCheck, Subject, judged
from agent_gym.certify.rollouts import expert_rollouts, faults, unused_tools
from agent_gym.rollout import Episode


def solvable(subject: Subject) -> Record:
    """The environment's own expert solves the tasks of every split, in one of 8 attempts if it plays by chance.

    It plays as in training: by the `Runner`, each environment in a thread that is not the one of its import.
    """
    if not subject.has_expert:
        raise SkippedCheck("it has no expert")
    problems, numbers, played = list[str](), dict[str, float](), list[Episode]()
    with expert_rollouts(subject) as rollouts:
        for split in subject.splits:
            tasks = subject.some(split, 100, 20)
            lost = [*tasks]
            for seed in range(8):
                episodes = rollouts.run([(split, index, seed) for index in lost])
                lost = [index for index, one in zip(lost, episodes, strict=True) if one.failure or not one.success]
                played += episodes
                if not seed:
                    numbers[f"solved at once in {split}"] = 1 - len(lost) / len(tasks)
                if not lost or all(one.failure for one in episodes):  # another seed mends no machinery
                    break
            numbers[f"solved in {split}"] = share = 1 - len(lost) / len(tasks)
            problems += [f"the expert does not solve {split}/{index}" for index in lost] if share < SOLVED else []
    note = unused_tools(subject, played)
    problems = [*faults(subject, played), *problems]
    return judged("solvable", f"the expert solves the tasks of every split{note}", problems, numbers)


def model(subject: Subject) -> Record:
    """The success of a model that was not trained for the task, greedy, on held-out tasks."""
    if subject.model is None:
        raise SkippedCheck("no model was named: --model smollm2, after agent-gym prepare smollm2, or any other")
    split = subject.held_out
    number = len(subject.some(split, 100, 20))
    arguments = ["--model", subject.model, "--episodes", str(number), "--split", split, "--json"]
    (found,) = json.loads(_agent_gym(subject, ["eval", subject.env_id, *arguments]))["results"]
    numbers = {name: found["measures"][name]["value"] for name in ("episode/success", "reward")}
    text = f"{subject.model} solves {numbers['episode/success']:.0%} of {number} tasks of {split}, untrained"
    return judged("model", text, [], {**numbers, "tasks": float(number)})


def learnable(subject: Subject) -> Record:
    """Imitation and GRPO with the tiny model of `agent-gym speedrun --env`: success before and after RL."""
    if not subject.learn:
        raise SkippedCheck("it was not asked for: --learn, some minutes of training")
    with tempfile.TemporaryDirectory() as folder:
        _agent_gym(subject, ["speedrun", "--env", subject.env_id, "--output_dir", folder])
        rows = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))["results"]
    greedy = [row for row in rows if row["decoding"] == "greedy"]
    before, after = greedy[-2]["success"], greedy[-1]["success"]
    text = f"GRPO leads the tiny model from {before:.0%} to {after:.0%}"
    flat = after < min(before + LEARNED, 1 - LEARNED)
    return judged("learnable", text, [text] if flat else [], {"before": before, "after": after})


def _agent_gym(subject: Subject, arguments: Sequence[str]) -> str:
    command = [sys.executable, "-m", "agent_gym", *arguments, "--env_kwargs", json.dumps(subject.env_kwargs)]
    subject.beat(" ".join(command[2:]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout
