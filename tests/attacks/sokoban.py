"""Search the board that is shown, breadth first, which is all that there is to this world."""

from collections.abc import Generator

ENV_ID = "AgentR1/Sokoban-v0"
REACHES = 1.0


def attack(opening: str) -> Generator[str, str, None]:
    rows = [line for line in opening.splitlines() if line.startswith("#") and line.endswith("#")]
    width, text = len(rows[0]), "".join(rows)
    targets, boxes = ({at for at, sign in enumerate(text) if sign in signs} for signs in ("O√S", "X√"))
    start = next(at for at, sign in enumerate(text) if sign in "PS"), frozenset(boxes)
    seen, queue, way = {start}, [(start, [])], []
    for (player, here), moves in queue:
        if here == targets:
            way = moves
            break
        for name, step in (("Up", -width), ("Down", width), ("Left", -1), ("Right", 1)):
            to, beyond, after = player + step, player + 2 * step, here
            if text[to] == "#" or (to in here and (text[beyond] == "#" or beyond in here)):
                continue
            if to in here:
                after = here - {to} | {beyond}
            if (to, after) not in seen:
                seen.add((to, after))
                queue.append(((to, after), [*moves, name]))
    while True:
        yield f"<answer>{' || '.join(way[:4])}</answer>"
        way = way[4:] or ["Up"]
