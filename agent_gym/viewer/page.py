"""Trajectories as one HTML page that needs nothing else: no server, no network, no second file.

The page is viewer.html with viewer.css, the scripts and the data put in. A model's text is untrusted. It gets into the
page in one place only, a JSON block in which every `<` is escaped, and onto the screen only as text nodes; a content
security policy that allows this one script, by its hash, and no connection at all is the second lock.

In the page's JSON (`compact`, read by data.js alone) tokens and texts are written once and then named by number,
logprobs are kept for sampled tokens only, and values that are mostly constant over a turn (advantages, values) as runs.
So 100 short episodes stay well below a megabyte.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import count, groupby, takewhile
from pathlib import Path
from typing import Any

from agent_gym.chat import text_of
from agent_gym.errors import write_whole
from agent_gym.transcript import KINDS, kind_of

# The page's script in the order in which it runs; the last one starts it.
SCRIPTS = ("data.js", "list.js", "tokens.js", "diff.js", "chat.js", "shop.js", "timeline.js", "episode.js", "keys.js")
_ENDED = ("success", "terminated", "truncated", "truncation", "failure", "failure_details")
_KEPT = ("task_id", "reward", "reward_terms", *_ENDED, "seconds")
_KEPT_OF_STEPS = ("row", "reward", "reward_terms", "tool_calls", "error", "finish_reason", "env_seconds")
_RECORDED = {*_KEPT, "version", "spec", "messages", "opened", "tools", "steps", "rows", "images"}
_PER_TOKEN = ("advantages", "values")

_RELOAD_SECONDS = 10

Records = Iterable[Mapping[str, Any]]


def render_html(records: Records | Mapping[str, Records], title: str = "Trajectories") -> str:
    """Return the page for some trajectory records.

    Args:
        records: the records of `agent_gym.rollout.read_trajectories`, or of several runs by name, which the page then
            compares: the attempts of each run at a task are shown in columns.
        title: heading and window title.
    """
    script = "\n".join(map(_asset, SCRIPTS))
    # Escaping "<" inside JSON strings keeps the JSON equal and makes "</script>" and "<!--" impossible.
    data = json.dumps(compact(records, title), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "title": html.escape(title),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": _asset("viewer.css"),
        "data": data.replace("<", "\\u003c"),
        "script": script,
    }
    return _fill("viewer.html", parts)


def plain_page(
    title: str, panels: Iterable[str], ending: str = "", *, heading: str | None = None, running: bool = False
) -> str:
    """Return a page without a script, in the frame of curve.html; `panels` are HTML, all else is text.

    While a run continues, the page loads itself anew every few seconds, and says so at its end.
    """
    if running:
        ending = f"The run goes on; this page is loaded again every {_RELOAD_SECONDS} seconds."
    parts = {
        "reload": f'<meta http-equiv="refresh" content="{_RELOAD_SECONDS}">' if running else "",
        "title": html.escape(title),
        "heading": html.escape(heading or title),
        "panels": "\n".join(panels),
        "ending": html.escape(ending),
    }
    return _fill("curve.html", parts)


def _fill(name: str, parts: Mapping[str, str]) -> str:
    """Put parts into a template of this package, each once, at its mark `{{name}}`, in the order of the marks."""
    # One split, so that a part that happens to contain another part's mark is left alone.
    page, rest = "", _asset(name)
    for mark, part in parts.items():
        head, _, rest = rest.partition("{{" + mark + "}}")
        page += head + part
    return page + rest


def write_html(path: str | Path, records: Records | Mapping[str, Records], title: str = "Trajectories") -> Path:
    """Write the page, making the folder if needed, and return its path."""
    write_whole(path, render_html(records, title))
    return Path(path)


def _asset(name: str) -> str:
    return resources.files("agent_gym.viewer").joinpath(name).read_text(encoding="utf-8")


_Table = defaultdict[Any, int]  # distinct values to their numbers, in the order of their first use


def compact(records: Records | Mapping[str, Records], title: str) -> dict[str, Any]:
    """Condense the records of one run, or of several by name, to JSON without NaN or infinity (null instead)."""
    runs: Mapping[str, Records] = records if isinstance(records, Mapping) else {"": records}
    tokens, texts, images = (_Table(count().__next__) for _ in range(3))
    episodes = [
        {"run": number, **_episode(record, tokens, texts, images)}
        for number, played in enumerate(runs.values())
        for record in played
    ]
    data = {"title": title, "runs": list(runs), "tokens": list(tokens), "texts": list(texts), "episodes": episodes}
    return _clean({**data, "images": list(images)} if images else data)


def _episode(record: Mapping[str, Any], tokens: _Table, texts: _Table, images: _Table) -> dict[str, Any]:
    opening = []
    shown = [images[url] for url in record.get("images", ())]
    for message in opening_of(record):
        content = message["content"]
        entry = [message["role"], texts[text_of(content)]]
        parts = content if isinstance(content, list) else []
        seen = [shown[part["image"]] for part in parts if isinstance(part.get("image"), int)]
        opening.append([*entry, seen] if seen else entry)
    return {
        **{key: record.get(key) for key in _KEPT},
        "spec": record["spec"],
        "extra": {key: value for key, value in record.items() if key not in _RECORDED and value != {}},
        "opening": opening,
        "tools": [tool["function"]["name"] for tool in record["tools"]],
        "steps": [_step(k, step, record["rows"][step["row"]], texts, shown) for k, step in enumerate(record["steps"])],
        "rows": [
            _row(row, [step for step in record["steps"] if step["row"] == i], tokens)
            for i, row in enumerate(record["rows"])
        ],
    }


def opening_of(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages before the policy's first turn."""
    if (opened := record.get("opened")) is not None:
        return iter(record["messages"][:opened])
    return takewhile(lambda message: message["role"] != "assistant", record["messages"])


def _step(
    number: int, step: Mapping[str, Any], row: Mapping[str, Any], texts: _Table, images: Sequence[int]
) -> dict[str, Any]:
    # Files written before there were summaries or process rewards do not hold them.
    entry = {key: step[key] for key in _KEPT_OF_STEPS} | {"kind": step.get("kind", "act")}
    if step.get("process_reward"):
        entry["process_reward"] = step["process_reward"]
    answers = [(a, b) for a, b, source, k in row["spans"] if k == number and kind_of(source) != "agent"]
    shown = [images[i] for i, start, _ in row.get("images", ()) if any(a <= start < b for a, b in answers)]
    if shown:
        entry["images"] = shown
    for name in ("action", "observation"):
        entry[name] = texts[step[name]]
    return entry


def _row(row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], tokens: _Table) -> dict[str, Any]:
    names = row.get("tokens") or [None] * len(row["token_ids"])
    sampled = [i for start, stop, source, _ in row["spans"] if kind_of(source) == "agent" for i in range(start, stop)]
    entry: dict[str, Any] = {
        "tokens": [tokens[pair] for pair in zip(row["token_ids"], names, strict=True)],
        "spans": [[stop - start, KINDS.index(kind_of(source)), step] for start, stop, source, step in row["spans"]],
        "logprobs": [_short(row["logprobs"][i]) for i in sampled],
    }
    for name in _PER_TOKEN:
        if name in row:
            entry[name] = [[value, len(list(run))] for value, run in groupby(_short(row[name][i]) for i in sampled)]
    versions = [list(run) for step in steps for run in step.get("versions", ())]
    if any(version for version, _ in versions):
        entry["versions"] = versions
    return entry


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _clean(value: Any) -> Any:
    """Replace values that JSON or UTF-8 cannot hold: numbers that are not finite, and lone surrogates."""
    if isinstance(value, float):
        # A whole number is written without ".0": there are thousands of them.
        return None if not math.isfinite(value) else int(value) if value.is_integer() else value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value
