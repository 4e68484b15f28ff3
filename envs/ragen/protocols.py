"""RAGEN-2's form of its own worlds: prompts, turns, actions and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.formats import ragen
from agent_gym.protocols import PaperPreset, prompt_file

BANDIT_STATE = prompt_file(__file__, "bandit-ragen.txt")
"""What the bandit shows, around {name_a} and {name_b}."""
_INVALID = {"invalid": ragen.PENALTY}
_TURNS = {"max_turns": 5, "actions_per_turn": 2, "max_actions": 10}


def _protocol(name: str, files: str, budgets: Mapping[str, Any], prompt: str = "") -> Mapping[str, PaperPreset]:
    source = f"RAGEN-2 (arXiv:2604.06268; mll-lab-nu/RAGEN of 2026: envs.yaml, {files}, ctx_manager.py)"
    return {
        "ragen": PaperPreset(
            source=source,
            ids=(f"AgentR1/{name}-v0",),
            fixed={"system_prompt": ragen.PERSONA + (prompt_file(__file__, prompt) if prompt else "")},
            budgets=budgets,
            rollout={"max_turn_tokens": 400, "max_tokens": 3600},
            split="validation",
            turn="<think>I go on step by step.</think>{}",
        )
    }


_PAID = {"solved": 10.0, "pushed": 1.0, "moves": 0.1, **_INVALID}
SOKOBAN = _protocol("Sokoban", "sokoban/env.py", {**_TURNS, "reward_weights": _PAID}, "sokoban-ragen.txt")
_SLIPPERY = {**_TURNS, "success_rate": 0.8, "reward_weights": _INVALID}
FROZENLAKE = _protocol("FrozenLake", "frozen_lake/env.py", _SLIPPERY, "frozenlake-ragen.txt")
BANDIT = _protocol("Bandit", "bandit/env.py", {"reward_weights": _INVALID})
_SCORES = {"numbers": 0.1, **_INVALID}
COUNTDOWN = _protocol("Countdown", "countdown/env.py", {"reward_weights": _SCORES}, "countdown-ragen.txt")
