"""Draw docs/before_after.svg and its dark twin: one task of AgentR1/Bisect-v0 before and after training.

    python docs/generator/before_after.py

The actions are those of `agent-gym speedrun --seed 40` on a task of validation, in the evaluations of step 0 and step
60; the environment plays them again, so that answers and results are its own. The ground is transparent.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from agent_gym.registry import make

DOCS = Path(__file__).resolve().parents[1]
ENV, SPLIT, INDEX = "AgentR1/Bisect-v0", "validation", 71
KWARGS = {"size": 512, "bad_commits": 3}
PLAYED = {"before": (190, 7, 7, 7, 7, 7, 7, 7, 7), "after": (196, 64, 34, 13, 7, 4, 2, 2, 1)}
# Text, faint text, commits that are left, commits that are ruled out, the tested commit.
PALETTES = {
    "": ("#1f2328", "#59636e", "#9db8d2", "#e4e9ee", "#1a7f37"),
    "_dark": ("#f0f6fc", "#9198a1", "#4d6f94", "#262c36", "#3fb950"),
}
WIDTH, PANEL, ROW, TOP = 420, 204, 18, 50  # pixels; a panel is as wide as all commits
COMMITS = 352


def episode(tests: tuple[int, ...]) -> tuple[list[tuple[int, int, int]], bool, int]:
    """Play the tests, and return (first commit left, last one, tested one) of each turn, success, and what is left."""
    env = make(ENV, **KWARGS)
    opening, _ = env.reset(seed=0, options={"split": SPLIT, "index": INDEX})
    first, last = 1, int(opening.splitlines()[-1].split()[0])
    turns = []
    for test in tests:
        tested = first + test - 1
        turns.append((first, last, tested))
        observation, _, _, _, info = env.step(str(test))
        if observation:
            bad, left = observation.startswith("bad"), int(observation.split()[1])
            first, last = (first, tested) if bad else (tested + 1, last)
            assert last - first + 1 == left
        else:
            first = last
    return turns, info["is_success"], last - first + 1


def draw(palette: tuple[str, ...]) -> str:
    """Return the picture as SVG."""
    text, faint, left, out, tested = palette
    body = [
        f'<text x="0" y="13" fill="{text}" font-weight="bold">One task: the bad commit of {COMMITS}, in 9 tests</text>',
    ]
    for panel, (name, tests) in enumerate(PLAYED.items()):
        turns, won, remaining = episode(tests)
        x = panel * (WIDTH - PANEL)
        end = "found" if won else f"{remaining} commits left"
        body.append(f'<text x="{x}" y="38" fill="{faint}">{name}: <tspan fill="{text}">{escape(end)}</tspan></text>')
        for i, (first, last, test) in enumerate(turns):
            y = TOP + ROW * i
            for begin, end, height, colour in ((1, COMMITS, 8, out), (first, last, 8, left), (test, test, 16, tested)):
                begin, end = (PANEL * one / COMMITS for one in (begin - 1, end))
                place = f'x="{x + begin:.1f}" y="{y + (16 - height) // 2}" width="{max(end - begin, 2.5):.1f}"'
                body.append(f'<rect {place} height="{height}" rx="1" fill="{colour}"/>')
    y = TOP + ROW * len(turns) + 16
    for x, colour, words in ((0, tested, "tested"), (82, left, "still possible"), (206, out, "ruled out")):
        body.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" rx="1.5" fill="{colour}"/>')
        body.append(f'<text x="{x + 15}" y="{y}" fill="{faint}">{words}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 6}" font-size="15"'
    style = 'font-family="-apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif" role="img"'
    title = "<title>One task before and after training: halving instead of one small step after the other</title>"
    return "\n".join([f"{head} {style}>", title, *body, "</svg>\n"])


def pictures() -> dict[Path, str]:
    """Return the pictures by file."""
    return {DOCS / f"before_after{name}.svg": draw(palette) for name, palette in PALETTES.items()}


if __name__ == "__main__":
    for file, picture in pictures().items():
        file.write_text(picture, encoding="utf-8")
