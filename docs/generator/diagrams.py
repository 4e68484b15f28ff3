"""Draw the diagrams of the pages: boxes, arrows and strips of tokens, in the colours of masks.svg.

    python docs/generator/diagrams.py

White ground, so that they are readable on light and on dark pages alike.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parents[1]
WIDTH, SIZE = 880, 14
# Fill and edge: a plain box, and what the opening, the policy and the world have written.
COLOURS = {
    "": ("#ffffff", "#546e7a"),
    "user": ("#eceff1", "#90a4ae"),
    "agent": ("#a5d6a7", "#2e7d32"),
    "env": ("#ffe0b2", "#ef6c00"),
}
_HEAD = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'


class Drawing:
    """A picture under way; all methods return it, so that calls can be chained."""

    def __init__(self, title: str, height: int) -> None:
        self.title, self.height, self.parts = title, height, list[str]()

    def box(self, x: int, y: int, width: int, text: str, kind: str = "", height: int = 46) -> Drawing:
        """A box with a text of one or more lines in its middle."""
        fill, edge = COLOURS[kind]
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        self.parts.append(f'<rect {place} rx="5" fill="{fill}" stroke="{edge}"/>')
        lines = text.split("\n")
        for i, line in enumerate(lines):
            self.note(x + width // 2, y + height // 2 + 5 + 17 * i - 17 * (len(lines) - 1) // 2, line, "middle")
        return self

    def row(self, y: int, boxes: list[tuple[str, str]], labels: list[str] | None = None, x: int = 10) -> Drawing:
        """Boxes of one width beside each other, an arrow from each to the next."""
        gap = 60 if labels else 26
        width = (WIDTH - 10 - x - gap * (len(boxes) - 1)) // len(boxes)
        for i, (text, kind) in enumerate(boxes):
            left = x + i * (width + gap)
            self.box(left, y, width, text, kind)
            if i:
                self.arrow(left - gap, y + 23, left, y + 23, labels[i - 1] if labels else "")
        return self

    def strip(self, x: int, y: int, pieces: list[tuple[str, str, int]], label: str = "") -> Drawing:
        """Pieces of a row of tokens: text, author, width."""
        if label:
            self.note(x, y + 19, label)
            x += 110
        for text, kind, width in pieces:
            self.box(x, y, width, text, kind, 28)
            x += width + 3
        return self

    def arrow(self, x: int, y: int, to_x: int, to_y: int, label: str = "") -> Drawing:
        """An arrow with a label above its middle."""
        line = f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="#546e7a" marker-end="url(#head)"/>'
        self.parts.append(line)
        return self.note((x + to_x) // 2, (y + to_y) // 2 - 6, label, "middle", 12) if label else self

    def note(self, x: int, y: int, text: str, anchor: str = "start", size: int = SIZE) -> Drawing:
        """A line of text."""
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>')
        return self

    def svg(self) -> str:
        """The picture as a file."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" font-size="{SIZE}"'
        style = 'font-family="DejaVu Sans, Verdana, Arial, sans-serif" fill="#212121" role="img"'
        ground = f'<rect width="{WIDTH}" height="{self.height}" fill="white"/>'
        marker = f'<defs>{_HEAD}<path d="M0 0 8 4 0 8z" fill="#546e7a"/></marker></defs>'
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([f"{head} {style}>", title, marker, ground, *self.parts, "</svg>\n"])


def diagrams() -> dict[str, Drawing]:
    """Return the name of a page to its picture."""
    opening, world = ("task", "user", 110), ("result", "env", 90)
    evening = Drawing("From an episode to an update", 132)
    evening.row(
        14,
        [("1 episode\ntext", ""), ("2 spans\nwho wrote", ""), ("3 tokens\nand mask", ""), ("4 group\nof attempts", "")],
    )
    evening.row(
        74,
        [
            ("5 batch\n(B, T)", ""),
            ("6 credit\nadvantages", ""),
            ("7 loss\nof a token", ""),
            ("8 update\nof weights", ""),
        ],
    )
    run = Drawing("A first run", 74)
    run.row(
        14,
        [
            ("choose\nmodel, batch", ""),
            ("plan\nmemory", ""),
            ("try\n20 steps", ""),
            ("watch\nsix numbers", ""),
            ("change\none thing", ""),
        ],
    )
    gateway = Drawing("An agent behind the gateway", 212)
    gateway.row(
        14,
        [("agent\n(yours)", "env"), ("gateway", ""), ("policy", "agent"), ("trainer", "")],
        ["request", "ids", "rows"],
    )
    gateway.note(10, 92, "What the requests of an episode become:")
    gateway.strip(
        10,
        104,
        [("first request", "user", 150), ("answer", "agent", 90), ("tool result", "env", 120), ("answer", "agent", 90)],
        "row 0",
    )
    gateway.strip(10, 138, [("a summary instead", "user", 190), ("answer", "agent", 90)], "row 1")
    gateway.note(
        10, 194, "A request that begins with a row so far extends it; any other begins a row. Green is trained."
    )
    terminal = Drawing("A terminal task", 160)
    terminal.row(
        14,
        [
            ("task in\na sentence", "user"),
            ("commands\nof the policy", "agent"),
            ("session ends:\nno process left", ""),
            ("tests, in a tree\nof their own", "env"),
            ("reward", ""),
        ],
    )
    terminal.strip(10, 80, [("files of the session", "agent", 240)], "writes")
    terminal.strip(
        10,
        114,
        [("system, read-only", "user", 240), ("tests and rewards: not in the session", "env", 330)],
        "cannot write",
    )
    judges = Drawing("A judge's score becomes a reward", 164)
    judges.row(
        14,
        [
            ("episode\nends", "agent"),
            ("questions,\neach with a code", ""),
            ("judge", "env"),
            ("scores\nin [0, 1]", ""),
            ("a term of\nthe reward", ""),
        ],
    )
    judges.note(10, 96, "Meanwhile other episodes go on. Equal questions are asked once: the cache answers.")
    judges.note(10, 122, "No verdict (the judge is down, or answers nonsense): the episode fails, and is never paid 0.")
    judges.note(10, 148, "The episode cannot write the code, a hash of its own text, and so can state no verdict.")
    teachers = Drawing("A teacher scores the policy's own tokens", 172)
    pieces = [opening, ("call", "agent", 90), world, ("call", "agent", 90), world, ("answer", "agent", 90)]
    teachers.strip(10, 14, pieces, "policy reads")
    teachers.strip(10, 54, [("task + hint", "user", 110), *pieces[1:]], "teacher reads")
    teachers.note(10, 112, "advantage")
    x = 120
    for _, kind, width in pieces:
        if kind == "agent":
            teachers.box(x, 94, width, "q - p", "agent", 28)
        x += width + 3
    teachers.note(
        10,
        154,
        "q - p: the teacher's logprob of a sampled token minus the policy's. The world's tokens are not scored.",
    )
    players = Drawing("Two roles in one game, with a row for each", 184)
    players.strip(
        10,
        14,
        [
            ("secret of first", "user", 150),
            ("offer", "agent", 90),
            ("counteroffer", "env", 120),
            ("accept", "agent", 90),
        ],
        "row of first",
    )
    players.strip(
        10,
        84,
        [
            ("secret of second", "user", 150),
            ("offer", "env", 90),
            ("counteroffer", "agent", 120),
            ("accept", "env", 90),
        ],
        "row of second",
    )
    players.arrow(318, 44, 318, 82).arrow(426, 82, 426, 44).arrow(534, 44, 534, 82)
    players.note(
        10, 144, "What one role says is a word of the world in the row of the other. Each token is trained once,"
    )
    players.note(10, 164, "in the row of the role that wrote it, with the reward of that role.")
    adapters = Drawing("Environments in other trainers, and other worlds here", 186)
    adapters.box(330, 60, 220, "agent_gym\ntext, spans, masks", "agent", 60)
    for i, name in enumerate(("TRL, SkyRL, verl", "verifiers, OpenEnv", "NeMo Gym, GEM")):
        adapters.box(650, 10 + 58 * i, 220, name).arrow(552, 90, 648, 33 + 58 * i)
    for i, name in enumerate(("reasoning-gym", "TextArena, GEM, MCP", "any text gymnasium.Env")):
        adapters.box(10, 10 + 58 * i, 220, name, "env").arrow(232, 33 + 58 * i, 328, 90)
    names = ("evening", "run", "gateway", "terminal", "judges", "teachers", "players", "adapters")
    return dict(zip(names, (evening, run, gateway, terminal, judges, teachers, players, adapters), strict=True))


if __name__ == "__main__":
    for name, drawing in diagrams().items():
        (DOCS / f"{name}.svg").write_text(drawing.svg(), encoding="utf-8")
