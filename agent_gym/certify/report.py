"""A certificate as text, as one HTML page, and as a badge."""

from __future__ import annotations

import html
from collections.abc import Sequence

from agent_gym.certify.attacks import CONSTANT, PLAYERS
from agent_gym.certify.record import Record
from agent_gym.evaluate.report import align
from agent_gym.viewer.page import plain_page

_COLORS = {"pass": "#1d7f45", "fail": "#c0392b"}


def verdict(records: Sequence[Record]) -> str:
    """Return the certificate in a line: the checks that passed, failed and were skipped."""
    count = [sum(record.verdict == name for record in records) for name in ("pass", "fail", "skipped")]
    return f"{count[0]} of {count[0] + count[1]} checks passed" + (f", {count[2]} skipped" if count[2] else "")


def baselines(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each player's mean reward and success, from the record of the attacks, for cards."""
    numbers = next((record.numbers for record in records if record.name == "attacks"), {})
    names = dict.fromkeys(name.rpartition(": ")[0] for name in numbers if ": " in name)
    cheap = [name for name in names if name not in PLAYERS and numbers[f"{name}: reward"] > 0]
    best = sorted(cheap, key=lambda name: (numbers[f"{name}: success"], numbers[f"{name}: reward"]))[-1:]
    chosen = [name for name in dict.fromkeys(("random", CONSTANT, *best, "script", "expert")) if name in names]
    return [(name, f"{numbers[f'{name}: reward']:.3f}", f"{numbers[f'{name}: success']:.1%}") for name in chosen]


def text(records: Sequence[Record]) -> str:
    """Return the baselines and the evidence of the failed checks; the checks themselves were printed as they ended."""
    parts = [_players(records)] if baselines(records) else []
    for record in records:
        if record.verdict == "fail":
            evidence = record.evidence[record.evidence[:1] == [record.text] :]
            parts.append("\n  ".join([f"{record.name}: {record.text}", *evidence]))
    return "\n\n".join([*parts, verdict(records)])


def page(env_id: str, records: Sequence[Record]) -> str:
    """Return the certificate as a page that needs nothing else."""
    parts = []
    for record in records:
        color = _COLORS.get(record.verdict, "inherit")
        numbers = [f"{name}: {value:.4g}" for name, value in record.numbers.items()]
        parts.append(f'<h2>{record.name} <small style="color: {color}">{record.verdict}</small></h2>')
        parts.append(f"<p>{html.escape(record.text)}</p>")
        parts += [
            _folded(name, lines) for name, lines in (("evidence", record.evidence), ("numbers", numbers)) if lines
        ]
    head = "<h2>Who plays</h2>\n<pre>{}</pre>"
    parts += [head.format(html.escape(_players(records)))] if baselines(records) else []
    ending = "Made by agent-gym certify. docs/certify.md says what each check means, and what none of them sees."
    return plain_page(f"Certificate of {env_id}", parts, ending, heading=f"{env_id}: {verdict(records)}")


def _folded(name: str, lines: Sequence[str]) -> str:
    text = html.escape("\n".join(lines))
    shown = "details open" if name == "evidence" else "details"
    return f'<{shown}><summary>{name}</summary><pre style="white-space: pre-wrap">{text}</pre></details>'


def _players(records: Sequence[Record]) -> str:
    return align([("who plays", "reward", "success"), *baselines(records)])


def badge(records: Sequence[Record]) -> str:
    """Return the verdict as a small SVG for a README or a card."""
    failed = any(record.verdict == "fail" for record in records)
    label, color = verdict(records).partition(",")[0], _COLORS["fail" if failed else "pass"]
    width = 130 + 7 * len(label)
    words = f'<text x="8" y="14">agent-gym certify</text><text x="130" y="14">{label}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}">'
        f'<rect width="{width}" height="20" rx="3" fill="{color}"/><rect width="122" height="20" rx="3" fill="#444"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="12">{words}</g></svg>\n'
    )
