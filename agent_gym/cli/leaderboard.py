"""`agent-gym leaderboard`: rollout cards in tables, one for each set that is comparable, as text and as a page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.cli.parser import Parser, check_output
from agent_gym.errors import ConfigError, writing
from agent_gym.evaluate.cards import read_cards, terms
from agent_gym.evaluate.report import align, interval, number
from agent_gym.evaluate.statistics import Measure
from agent_gym.viewer.page import plain_page

Cards = Sequence[Mapping[str, Any]]
HEADER = ["policy", "success", "95% interval", "failed", "skipped", "read", "sampled", "CPU s", "GPU s", "cost"]
_ENDING = (
    "Only rows of one table are comparable. A bar is the success with its 95% interval over tasks. What failed by a "
    "fault of the machinery is counted, and in no estimate."
)


def leaderboard(argv: Sequence[str]) -> int:
    """Build a page from the cards of evaluations and runs, with a table for each set of them that is comparable."""
    parser = Parser("leaderboard", leaderboard.__doc__, config=False)
    parser.flag("folder DIR", "folder with X.card.json of evaluations and card.json of runs, however deep")
    parser.flag("--output FILE", "the page; default: DIR/leaderboard.html")
    parser.flag("--title", "heading of the page", default="Leaderboard")
    arguments = parser.parse(argv)
    folder = Path(arguments.folder)
    files = sorted({*folder.rglob("*.card.json"), *folder.rglob("card.json")})
    if not files:
        raise ConfigError(f"{folder} holds no cards; agent-gym eval --output and training runs write them")
    output = Path(arguments.output or folder / "leaderboard.html")
    check_output(str(output))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        name = str(file.relative_to(folder)).removesuffix(".card.json")
        for card in read_cards(file):
            key = json.dumps(terms(card), sort_keys=True)
            model, policy = card.get("model") or {}, card["policy"]
            if model.get("sha256"):  # a folder: where it was is nothing to others
                policy = re.sub(rf"\S*/{re.escape(model['name'])}", model["name"], policy)
            groups.setdefault(key, []).append({**card, "policy": f"{policy} ({name})"})
    panels = [_panel(group) for group in groups.values()]
    newest = dict(sorted((panel["name"], panel["version"]) for panel in panels))  # the last one of a name stays
    tables = sorted((_heading(group, newest), _rows(group)) for group in groups.values())
    sections = [_section(heading, rows) for (_, *heading), rows in tables]
    with writing(output, "name another file with --output"):
        output.write_text(plain_page(arguments.title, sections, _ENDING), encoding="utf-8")
    for (_, *heading), rows in tables:
        print("\n".join([*filter(None, heading), align([HEADER, *(cells for _, cells in rows)]), ""]))
    print(output)
    return 0


def _panel(cards: Cards) -> Mapping[str, Any]:
    return max((card["panel"] for card in cards), key=lambda panel: str(panel["name"]))  # one with a name, if any


def _heading(cards: Cards, newest: Mapping[str, int]) -> tuple[Any, ...]:
    """Return where a table stands, its title, its grade ("" if there is no newer panel), and what its cards share."""
    panel, common = _panel(cards), terms(cards[0])
    name, now, last = panel["name"], panel["version"], newest[panel["name"]]
    what = f"panel {name}, version {now}" if name else f"no panel, split {panel['split']}"
    grade = f"not comparable with version {last} of this panel" if name and now < last else ""
    hashes = f"openings {panel['prompts_sha256'][:16]}, gold answers {panel['golds_sha256'][:16]}"
    facts = [f"{key}: {json.dumps(common[key])}" for key in ("protocol", "reward weights", "arguments", "limits")]
    place = panel["env_id"], not name, name, -now
    return place, f"{panel['env_id']}, {what}", grade, f"{panel['tasks']} tasks, {hashes}", *facts


def _rows(cards: Cards) -> list[tuple[Measure, list[str]]]:
    """Return a row per card, the best first, each with its success."""
    rows, name = [], "episode/success"
    for card in cards:
        success = Measure(**card["measures"].get(name, {"value": 0.0, "low": 0.0, "high": 1.0}))
        counts = [card["counts"][key] for key in ("failed", "skipped")]
        spent = [f"{n:,}" for n in card["tokens"].values()] + [f"{card['seconds'][key]:,.1f}" for key in ("cpu", "gpu")]
        cost = "-" if card["cost"] is None else f"{card['cost']:.4g}"
        shown = [number(name, success.value), interval(name, success), *map(str, counts)]
        rows.append((success, [card["policy"], *shown, *spent, cost]))
    return sorted(rows, key=lambda row: -row[0].value)


def _section(heading: Sequence[str], rows: Sequence[tuple[Measure, Sequence[str]]]) -> str:
    title, grade, *facts = map(html.escape, heading)
    lines = [f"<section><h2>{title}</h2>", f'<p class="grade">{grade}</p>', *(f"<p>{fact}</p>" for fact in facts)]
    lines.append("<table><thead><tr>" + "".join(f"<th>{name}</th>" for name in HEADER) + "</tr></thead><tbody>")
    for success, (policy, *cells) in rows:
        places = {"low": success.low, "value": success.value, "high": success.high}
        style = ";".join(f"--{k}:{success.value if v is None else v:.3%}" for k, v in places.items())
        first = f'<td>{html.escape(policy)}<i style="{style}"></i></td>'
        others = (f'<td title="{name}">{html.escape(cell)}</td>' for name, cell in zip(HEADER[1:], cells, strict=True))
        lines.append(f"<tr>{first}{''.join(others)}</tr>")
    return "\n".join([*lines, "</tbody></table></section>"])
