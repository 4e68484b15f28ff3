"""Thoughts of a turn, in the marks that families of models have for them.

A call drafted in a thought never runs, and an answer in one does not count. A thought is opened and closed by marks.
The prompt may have opened it, so that only the closing mark is in the turn: then everything before that is thought.
Marks in the arguments of a call are text; whoever reads calls says where they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

# From the chat templates of these families.
_PAIRS = (
    ("<think>", "</think>"),  # Qwen, DeepSeek, GLM, Kimi, MiniMax, Nemotron, ...
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax-M3
    ("<longcat_think>", "</longcat_think>"),
    ("<think:opensource>", "</think:opensource>"),  # Hy3
    ("<|think:start|>", "<|think:end|>"),  # Solar Open
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # Kimi-K3
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
)
_CLOSING = dict(_PAIRS)
_OPENING = {closing: opening for opening, closing in _PAIRS}
_MARK = re.compile("|".join(re.escape(mark) for pair in _PAIRS for mark in pair))
# Nearly all turns without a thought have none of these; a search for a plain word is faster than for a pattern.
_WORDS = ("think", "THINK", "thought", "<|inner_", "FINAL RESPONSE]", "reasoning steps:")


class Thought(NamedTuple):
    """A turn without its thoughts, the thoughts, and the closing mark that the last of them lacks, if it does."""

    rest: str
    thought: str
    missing: str | None


def has_marks(text: str) -> bool:
    """Whether a text may hold a mark of a thought; quick."""
    return any(word in text for word in _WORDS)


def opened_by(prefill: str) -> str | None:
    """Return the mark that closes the thought which a prompt has opened at its end, or None."""
    found = list(_MARK.finditer(prefill))
    return _CLOSING.get(found[-1][0]) if found else None


def end_of_thought(prompt: str, text: str) -> str:
    """Return the end of the thought that a prompt has just opened, or nothing where the text of a script has it."""
    if not has_marks(prompt):
        return ""
    mark = next((closing for opening, closing in _PAIRS if prompt.rstrip().endswith(opening)), None)
    return f"\n{mark}\n\n" if mark and mark not in text else ""


def split_thought(text: str, prefill: str = "", is_text: Callable[[int], bool] | None = None) -> Thought:
    """Take the thoughts off a turn.

    Args:
        text: the turn as it was sampled.
        prefill: the end of the prompt, which may have opened the thought.
        is_text: whether the mark at an index is part of an argument of a call, and no mark then.
    """
    missing = opened_by(prefill) if prefill else None
    if missing is None and not has_marks(text):
        return Thought(text, "", None)
    rest: list[str] = []
    thoughts: list[str] = []
    start = 0
    for match in _MARK.finditer(text):
        mark = match[0]
        if missing is not None:
            if mark != missing:
                continue
            thoughts.append(text[start : match.start()])
        elif is_text is not None and is_text(match.start()):
            continue
        elif mark in _CLOSING:
            rest.append(text[start : match.start()])
        else:  # the prompt has opened it
            if mark == "<channel|>" or thoughts:
                continue  # Gemma closes its other channels with it, too; and a prompt opens one thought only
            thoughts.append("".join(rest) + text[start : match.start()])
            rest.clear()
        missing = None if missing is not None else _CLOSING.get(mark)
        start = match.end()
    (rest if missing is None else thoughts).append(text[start:])
    return Thought("".join(rest), "\n".join(filter(None, (one.strip() for one in thoughts))), missing)


def plain_rest(text: str) -> str | None:
    """Return the text after the one thought that a turn begins with, quickly; None for a turn of another form."""
    if not text.lstrip().startswith("<think>"):
        return text if not has_marks(text) else None
    _, closing, rest = text.partition("</think>")
    return rest if closing and not has_marks(rest) else None


def after_thought(text: str) -> str:
    """Return the text after the last closed thought of a turn: the whole turn if it has none."""
    if not has_marks(text):
        return text
    ends = [match.end() for match in _MARK.finditer(text) if match[0] in _OPENING and match[0] != "<channel|>"]
    return text[ends[-1] :] if ends else text
