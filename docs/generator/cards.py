"""The cards of the environments on the site, one page per class, since several ids share one and differ in arguments.

What a card says is agent_gym/viewer/card.py.
"""

from __future__ import annotations

import functools
import re
from importlib import import_module
from pathlib import Path

import agent_gym  # noqa: F401 (registers the ids)
from agent_gym.registry import ENVS, EnvEntry
from agent_gym.viewer.card import card

PICTURES = Path(__file__).resolve().parents[1] / "pictures"


@functools.cache
def by_page() -> dict[str, list[EnvEntry]]:
    """Return name of a page to the ids it shows, in the order of the registry."""
    found: dict[str, list[EnvEntry]] = {}
    for entry in ENVS:
        found.setdefault(entry.entry_point.rpartition(":")[2].removesuffix("Env").lower(), []).append(entry)
    return found


def pages() -> dict[str, str]:
    """Return page of the site to markdown: the list of all ids, and the cards."""
    rows = [
        f"| [`{entry.id}`]({page}.md) | {entry.summary} | {', '.join(f'`{tool}`' for tool in entry.tools) or 'none'} |"
        for page, entries in by_page().items()
        for entry in entries
    ]
    listed = "\n".join(["# Environments", "", "| id | task | tools |", "|---|---|---|", *rows]) + "\n"
    return {"cards/index.md": listed} | {f"cards/{page}.md": _page(entries) for page, entries in by_page().items()}


def gallery() -> str:
    """Return the pictures of the environments (pictures.py) as HTML, each a link to its card."""
    shown = []
    for page, entries in by_page().items():
        if (PICTURES / f"{page}.svg").is_file():
            name = entries[0].id.rpartition("/")[2].rpartition("-v")[0]
            picture = f'<img src="pictures/{page}.svg" alt="How an episode of {name} begins" width="360" height="240">'
            shown.append(f'<a href="cards/{page}.html">{picture}<b>{name}</b><span>{entries[0].summary}</span></a>')
    return "\n".join(['<div class="gallery">', *shown, "</div>"])


def _page(entries: list[EnvEntry]) -> str:
    module, _, name = entries[0].entry_point.partition(":")
    head, rule, rest = card(entries, getattr(import_module(module), name)).partition("## Registered ids")
    return _escape(head) + rule + rest


def _escape(docstring: str) -> str:
    """Keep tags that stand outside of code from becoming HTML."""
    parts = re.split(r"(`[^`]*`)", docstring)
    return "".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))
