"""Draw docs/pictures/*.svg: how the expert's episode begins in each environment, but for one that wants a corpus.

    python docs/generator/pictures.py

The words are those of real episodes, the colours those of masks.svg: the task, the policy on the right, the world. The
ground is white, so that a picture is readable on light and on dark pages.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from xml.sax.saxutils import escape

import cards
from diagrams import COLOURS

from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.registry import make
from agent_gym.testing import expert_episode
from agent_gym.tool_env import ToolEnv
from agent_gym.transcript import kind_of

# Pixels; a letter of a monospaced font is 0.6 of its size wide.
WIDTH, HEIGHT, SIZE, LINE, PAD, GAP, IMAGE = 360, 240, 11, 14, 6, 6, 60
LETTER = SIZE * 0.6
LETTERS = 47  # of a line
GIVEN = {"reasoninggym": {"dataset": "knights_knaves"}}  # what an id needs
FETCHED = ("functioncalls", "tau2", "swe", "miniwob")  # their data is no part of the package
MOST = {"user": 6, "agent": 4, "env": 4}  # lines of one text


def pictures() -> Iterator[tuple[str, str]]:
    """Yield name and picture of each page of cards that can be drawn here: the packages of its extra are installed."""
    pages = [(page, entries) for page, entries in cards.by_page().items() if page not in FETCHED]
    for seed, (page, entries) in enumerate(pages):
        if entries[0].needs is None or page in GIVEN:
            try:
                yield page, draw(make(entries[0].id, **GIVEN.get(page, {})), entries[0].id, seed)
            except ConfigError as error:
                print(f"{page}: {error}")


def draw(env: TextEnv, name: str, seed: int) -> str:
    """Play the expert's episode and return the picture as SVG."""
    log = expert_episode(env, seed=seed)
    messages = [message["content"] for *_, info in log for message in info["messages"]]
    images = [part["image"] for content in messages if isinstance(content, list) for part in content if "image" in part]
    body, y = list[str](), float(GAP)
    for segment in env.transcript.segments:
        kind = kind_of(segment.source)
        if kind == "system" or not segment.text.strip():
            continue
        image = images.pop(0) if "<image>" in segment.text else None
        room = HEIGHT - LINE - GAP - y - 2 * PAD - (IMAGE if image else 0)
        lines = _lines(_words(env, segment.text.replace("<image>", ""), kind), min(MOST[kind], int(room // LINE)))
        if room < 0 or lines[:1] == ["..."]:
            body.append(f'<text x="{GAP}" y="{HEIGHT - GAP}">...</text>')
            break
        height = 2 * PAD + LINE * len(lines) + (IMAGE if image else 0)
        width = max([IMAGE if image else 0, *(LETTER * len(line) for line in lines)]) + 2 * PAD
        x = WIDTH - GAP - width if kind == "agent" else GAP
        fill, edge = COLOURS[kind]
        place = f'x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height}"'
        body.append(f'<rect {place} rx="5" fill="{fill}" stroke="{edge}"/>')
        for i, line in enumerate(lines):
            # The width is given, so that the picture is the same whichever monospaced font there is.
            fit = f'textLength="{LETTER * len(line):.1f}" lengthAdjust="spacingAndGlyphs"'
            body.append(f'<text x="{x + PAD:.1f}" y="{y + PAD + LINE * i + SIZE:g}" {fit}>{escape(line)}</text>')
        if image:
            place = f'x="{x + PAD:.1f}" y="{y + PAD + LINE * len(lines):g}" width="{IMAGE}" height="{IMAGE}"'
            body.append(f'<image {place} href="{image.url()}"/>')
        y += height + GAP
    turns, reward = len(log) - 1, sum(entry[1] for entry in log[1:])  # type: ignore[misc]
    end = f"{turns} turn{'s' if turns > 1 else ''}, reward {reward:+.3g}"
    body.append(f'<text x="{WIDTH - GAP}" y="{HEIGHT - GAP}" text-anchor="end" fill="#546e7a">{end}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="{SIZE}"'
    style = 'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" fill="#212121" role="img" xml:space="preserve"'
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([f"{head} {style}>", f"<title>An episode of {name}</title>", ground, *body, "</svg>\n"])


def _words(env: TextEnv, text: str, kind: str) -> str:
    """Return a text as it is best read: calls without their tags, WebShop's pages without what stands on each."""
    calls = env.parser.parse(text) if kind == "agent" and isinstance(env, ToolEnv) else []
    shown = [f"{call.name}({', '.join(map(str, call.arguments.values()))})" for call in calls]
    return "\n".join(shown) or text.split("Back to Search [SEP] ")[-1].replace(" [SEP] ", "\n")


def _lines(text: str, most: int) -> list[str]:
    """Wrap a text; of one that is too long the end is kept where there is room, since a task is often named there."""
    lines = [line for part in text.strip().splitlines() for line in textwrap.wrap(part, LETTERS)]
    end = lines[-2:] if most > 4 else []
    return lines if len(lines) <= most else [*lines[: max(0, most - 1 - len(end))], "...", *end]


if __name__ == "__main__":
    cards.PICTURES.mkdir(exist_ok=True)
    for name, picture in pictures():
        (cards.PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")
