"""Draw docs/masks.svg: an episode of GSM8K token by token, who wrote each token, and what the loss sees of it.

    python docs/generator/masks.py

Nothing in it is drawn by hand: the ids and spans are those that the environment reports to a trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import gymnasium

import agent_gym  # noqa: F401 (registers the ids)
from agent_gym.chat import ChatRenderer
from agent_gym.transcript import Span

PICTURE = Path(__file__).resolve().parents[1] / "masks.svg"
ENV_ID = "AgentR1/GSM8K-v0"
TASK = {"question": "Ann has 3 boxes of 4 pens. How many pens?", "answer": "3*4 = <<3*4=12>>12\n#### 12"}

# Pixels. A letter of a monospaced font is 0.6 of its size wide.
SIZE, LEFT, WIDTH, TOP, LINE, BOX, GAP = 13, 96, 900, 62, 50, 22, 3
LETTER = SIZE * 0.6
NAMES = {"user": "opening", "agent": "policy", "env": "world"}
# Fill and edge. The three differ in lightness, too, for those who do not tell the colours apart.
COLOURS = {"user": ("#eceff1", "#90a4ae"), "agent": ("#a5d6a7", "#2e7d32"), "env": ("#ffe0b2", "#ef6c00")}


def transcript() -> tuple[list[str], list[Span]]:
    """Play one task by the expert and return the text of each token, and the token spans."""
    from agent_gym.speedrun.tiny import demonstration_texts, make_tiny_tokenizer

    texts = demonstration_texts(ENV_ID, {"system_prompt": ""}, episodes=300)
    renderer = ChatRenderer.of(make_tiny_tokenizer([*texts, *[TASK["question"]] * 300]))
    env: Any = gymnasium.make(ENV_ID, tokenizer=renderer, system_prompt="").unwrapped
    env.reset(options={"task": TASK})
    terminated = False
    while not terminated:
        _, _, terminated, _, _ = env.step(env.expert_action())
    return [renderer.tokenizer.decode([i]) for i in env.transcript.token_ids], list(env.transcript.token_spans)


def draw(tokens: list[str], spans: list[Span]) -> str:
    """Return the picture as SVG."""
    body: list[str] = []
    y = TOP
    for start, stop, source, step in spans:
        label = NAMES[source] + (f" {step}" if step >= 0 else "")
        body.append(_text(8, y + 15, label, weight="bold"))
        x: float = LEFT
        for token in tokens[start:stop]:
            shown = token.replace("\n", "\u21b5").replace(" ", "\u00b7")
            width = LETTER * len(shown) + 8
            if x > LEFT and x + width > WIDTH:
                x, y = LEFT, y + LINE
            body += _token(x, y, width, shown, source)
            x += width + GAP
        y += LINE
    sampled = sum(stop - start for start, stop, source, _ in spans if source == "agent")
    body.append(
        _text(8, y + 10, f"{len(tokens)} tokens, of which the policy sampled {sampled}: action_mask is 1 there.")
    )
    height = y + 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 8} {height}" font-size="{SIZE}"'
    style = 'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" role="img"'
    title = f"<title>{escape(f'An episode of {ENV_ID}, token by token')}</title>"
    return "\n".join(
        [
            f"{head} {style}>",
            title,
            f'<rect width="100%" height="{height}" fill="white"/>',
            *_legend(),
            *body,
            "</svg>\n",
        ]
    )


def _token(x: float, y: float, width: float, shown: str, source: str) -> Iterator[str]:
    """Yield a token in the colour of its author and, below it, its place in the mask."""
    fill, edge = COLOURS[source]
    yield _box(x, y, width, BOX, fill, edge)
    # The width is given, so that the picture is the same whichever monospaced font there is.
    yield _text(x + 4, y + 15, shown, length=LETTER * len(shown))
    sampled = source == "agent"
    yield _box(x, y + BOX + 2, width, 14, edge if sampled else "white", edge)
    digit, colour = ("1", "white") if sampled else ("0", edge)
    middle = f'x="{x + width / 2:.1f}" y="{y + BOX + 13}" text-anchor="middle"'
    yield f'<text {middle} fill="{colour}" font-size="11">{digit}</text>'


def _legend() -> Iterator[str]:
    words = {
        "user": "the opening (environment and template)",
        "agent": "sampled by the policy",
        "env": "the world and the template",
    }
    x = 8.0
    for source, meaning in words.items():
        yield _box(x, 14, 18, 18, *COLOURS[source])
        yield _text(x + 24, 28, meaning)
        x += 24 + LETTER * len(meaning) + 24
    yield _text(8, 50, "upper box: the token; lower box: action_mask")


def _box(x: float, y: float, width: float, height: float, fill: str, edge: str) -> str:
    place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"'
    return f'<rect {place} rx="3" fill="{fill}" stroke="{edge}"/>'


def _text(x: float, y: float, text: str, *, weight: str = "normal", length: float | None = None) -> str:
    fit = f' textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"' if length else ""
    return f'<text x="{x:.1f}" y="{y}" font-weight="{weight}" fill="#212121"{fit}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(*transcript()), encoding="utf-8")
