"""RAGEN's format (arXiv:2504.20073, arXiv:2604.06268): `<think>...</think><answer>search[red dress]</answer>`.

The rules are the ones of `ctx_manager.py` and `es_manager.py` of RAGEN-2, with its full context. Each turn is answered
by a message that has the reward of the turn, the state, and how many actions are left. A turn without the form, or with
an empty answer, does nothing and costs no action.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PERSONA = "You're a helpful assistant. "
PENALTY = 0.1
"""The penalty of a turn without an action."""
SEPARATOR = "||"
_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")
_ANSWER = re.compile(r"</think>\s*<answer>")
_REFUSED = "No valid action provided previously. Environment state remains the same. Please try again.\n"
_RULES = (
    "Always output: <think>...</think><answer>...</answer> with no extra text. Strictly follow this format. "
    "Max response length: {words} words (tokens).\n"
)


def actions_of(turn: str) -> list[str]:
    """Return the actions of a turn in order, none without the form. RAGEN writes the first `<think>` itself."""
    opened = _ANSWER.search(turn)
    stop = turn.find("</answer>", opened.end()) if opened else -1
    if opened is None or stop < 0:
        return []
    text = turn[opened.end() : stop]
    for tag in _TAGS:
        text = text.replace(tag, "").strip()
    return [*filter(None, map(str.strip, text.split(SEPARATOR)))]


def action_of(turn: str) -> str:
    """Return the first action of a turn, "" if it has none."""
    return next(iter(actions_of(turn)), "")


def acts(turn: str) -> bool:
    """Whether a turn has an action, possible or not."""
    return bool(actions_of(turn))


def message(turns: Sequence[str], state: str, *, actions: int, words: int) -> str:
    """Return the policy's prompt after these whole turns, each of one action, in a task that pays at its end alone."""
    acted = [acts(turn) for turn in turns]
    return state_message(acted, state, left=actions - sum(acted), words=words)


def state_message(acted: Sequence[bool], state: str, *, left: int, words: int, reward: float = 0.0) -> str:
    """Return the prompt after turns that `acted` or not, the last for a `reward`; RAGEN counts no `words`."""
    # RAGEN marks the state that follows a turn without an action, so that the penalty is shown a turn late.
    paid = f"Reward:\n{reward - PENALTY * (acted[-2:-1] == [False])}\n" if acted else ""
    refused = _REFUSED if acted[-1:] == [False] else ""
    rules = _RULES.replace("{words}", str(words))
    return f"{paid}\nTurn {len(acted) + 1}:\nState:\n{state}\n{refused}You have {max(0, left)} actions left. {rules}"
