"""RAGEN's format (arXiv:2504.20073, arXiv:2604.06268): `<think>...</think><answer>search[red dress]</answer>`.

The rules are the ones of `ctx_manager.py` and `es_manager.py` of RAGEN-2, with its full context, one action per turn,
and tasks that pay nothing before their end. Each turn is answered by a message that has the reward of the turn, the
state, and how many actions are left. A turn without the form, or with an empty answer, does nothing and costs no
action.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PERSONA = "You're a helpful assistant. "
PENALTY = 0.1
"""The penalty of a turn without an action."""
_SEPARATOR = "||"
_TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")
_ANSWER = re.compile(r"</think>\s*<answer>")
_REFUSED = "No valid action provided previously. Environment state remains the same. Please try again.\n"
_RULES = (
    "Always output: <think>...</think><answer>...</answer> with no extra text. Strictly follow this format. "
    "Max response length: {words} words (tokens).\n"
)


def action_of(turn: str) -> str:
    """Return the first action of a turn, "" if it has none. RAGEN writes the first `<think>` itself."""
    opened = _ANSWER.search(turn)
    stop = turn.find("</answer>", opened.end()) if opened else -1
    if opened is None or stop < 0:
        return ""
    text = turn[opened.end() : stop]
    for tag in _TAGS:
        text = text.replace(tag, "").strip()
    return next(filter(None, map(str.strip, text.split(_SEPARATOR))), "")


def acts(turn: str) -> bool:
    """Whether a turn has an action, possible or not."""
    return bool(action_of(turn))


def message(turns: Sequence[str], state: str, *, actions: int, words: int) -> str:
    """Return the policy's prompt after these turns, none of which ended the task.

    Args:
        turns: whole texts.
        state: the task's present view.
        actions: how many an episode has.
        words: how long RAGEN says that a turn may be; nothing counts them.
    """
    acted = [acts(turn) for turn in turns]
    # RAGEN marks the state that follows a turn without an action, so that the penalty is shown a turn late.
    reward = f"Reward:\n{-PENALTY if acted[-2:-1] == [False] else 0.0}\n" if turns else ""
    refused = _REFUSED if acted[-1:] == [False] else ""
    left = max(0, actions - sum(acted))
    rules = _RULES.replace("{words}", str(words))
    return f"{reward}\nTurn {len(turns) + 1}:\nState:\n{state}\n{refused}You have {left} actions left. {rules}"
