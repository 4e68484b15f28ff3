"""Go by a shortest way around the holes, one move a turn, as if no move slipped."""

from collections.abc import Generator

ENV_ID = "AgentR1/FrozenLake-v0"
REACHES = 0.28


def attack(opening: str) -> Generator[str, str, None]:
    seen = opening
    while True:
        rows = [line for line in seen.splitlines() if line and not set(line) - set("P_OG")]
        cells = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row)}
        here = next(cell for cell, sign in cells.items() if sign == "P")
        queue, known, first = [(here, "")], {here}, "Up"
        for (row, column), begun in queue:
            if cells[row, column] == "G":
                first = begun
                break
            for name, down, right in (("Left", 0, -1), ("Down", 1, 0), ("Right", 0, 1), ("Up", -1, 0)):
                to = row + down, column + right
                if cells.get(to, "O") != "O" and to not in known:
                    known.add(to)
                    queue.append((to, begun or name))
        seen = yield f"<answer>{first}</answer>"
