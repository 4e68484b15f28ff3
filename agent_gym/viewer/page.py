"""Trajectories as one HTML page that needs nothing else: no server, no network, no second file.

The page is viewer.html with viewer.css, the scripts and the data put in. Whatever a model wrote is untrusted text. It
gets into the page in one place only, a JSON block in which every `<` is escaped, and onto the screen only as text
nodes; a content security policy that allows this one script, by its hash, and no connection at all is the second lock.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from agent_gym.viewer.compact import Records, compact

SCRIPTS = ("data.js", "list.js", "tokens.js", "chat.js", "timeline.js", "episode.js", "keys.js")
"""The page's script in the order in which it runs; the last one starts it."""


def render_html(records: Records | Mapping[str, Records], title: str = "Trajectories") -> str:
    """Return the page for some trajectory records.

    Args:
        records: what `agent_gym.rollout.read_trajectories` yields, or that of several runs by name, which the page
            then compares: the attempts of each run at a task stand side by side.
        title: heading and window title.
    """
    script = "\n".join(map(_asset, SCRIPTS))
    # Escaping "<" inside JSON strings keeps the JSON equal and makes "</script>" and "<!--" impossible.
    data = json.dumps(compact(records, title), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(title),
        "script_hash": digest,
        "style": _asset("viewer.css"),
        "data": data.replace("<", "\\u003c"),
        "script": script,
    }
    return fill("viewer.html", parts)


def fill(name: str, parts: Mapping[str, str]) -> str:
    """Put parts into a template of this package, each once, at its mark `{{name}}`, in the order of the marks."""
    # One split, so that a part that happens to contain another part's mark is left alone.
    page, rest = "", _asset(name)
    for mark, part in parts.items():
        head, _, rest = rest.partition("{{" + mark + "}}")
        page += head + part
    return page + rest


def write_html(path: str | Path, records: Records | Mapping[str, Records], title: str = "Trajectories") -> Path:
    """Write the page, making the folder if needed, and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_html(records, title), encoding="utf-8")
    return path


def _asset(name: str) -> str:
    return resources.files("agent_gym.viewer").joinpath(name).read_text(encoding="utf-8")
