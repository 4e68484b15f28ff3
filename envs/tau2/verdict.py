"""The verdict on a conversation, by the rules of tau2-bench's evaluator, without its questions to a language model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_gym.envs.tau2.world import DomainWorld

_TERMS = {"DB": "db", "COMMUNICATE": "communicate", "ENV_ASSERTION": "assertions", "ACTION": "actions"}


class Verdict:
    """Collects the words of the policy in one episode, and judges it at the end."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._task = task
        self.said: list[str] = []  # by turn, without thoughts and calls

    def terms(self, folder: Path, world: DomainWorld) -> dict[str, float]:
        """Return each check, and as `solved` the product of those that the task counts."""
        task = self._task
        gold = DomainWorld(folder, task["domain"], task["setup"])
        for one in task["actions"]:
            gold.call(one["name"], one["arguments"], one["by"], synced=False)
        texts = [text.lower().replace(",", "") for text in self.said]
        checks = {
            "db": gold.changes() == world.changes(),
            "communicate": all(any(one.lower() in text for text in texts) for one in task["communicate"]),
            "assertions": all([world.holds(*one) for one in task["assertions"]]),
            "actions": all(any(_matches(one, *call) for call in world.calls) for one in task["actions"]),
        }
        solved = all(checks[_TERMS[one]] for one in task["basis"])
        return {"solved": float(solved)} | {name: float(holds) for name, holds in checks.items()}


def _matches(gold: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is a gold one: in the named arguments, or else in the ones that it has."""
    compared = arguments.keys() if gold["compare_args"] is None else gold["compare_args"]
    mine, wanted = ({key: some[key] for key in some if key in compared} for some in (arguments, gold["arguments"]))
    return bool(name == gold["name"] and (mine == wanted or not compared))
