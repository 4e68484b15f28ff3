"""What a policy reads of the documents that were found."""

from __future__ import annotations

from collections.abc import Iterable

from agent_gym.retrieval import Document
from agent_gym.token_limit import TokenLimit


def render(documents: Iterable[Document], limit: TokenLimit, max_tokens: int) -> str:
    """Write documents as numbered lines, `[1] Title: text`, each of at most `max_tokens` tokens."""
    lines = [f"[{n}] {heading(d.title)}{' '.join(d.text.split())}" for n, d in enumerate(documents, 1)]
    return "\n".join(limit.cut(line, max_tokens) for line in lines)


def heading(title: str) -> str:
    """Return how a passage begins that has this title."""
    title = " ".join(title.split())
    return f"{title}: " if title else ""


def shown(text: str, title: str, sentence: str = "") -> bool:
    """Whether an observation shows a paragraph with this title, and in it this sentence."""
    begin, wanted = heading(title), " ".join(sentence.split())
    lines = (line.partition("] ")[2] for line in text.split("\n"))
    return any(line.startswith(begin) and wanted in line for line in lines)
