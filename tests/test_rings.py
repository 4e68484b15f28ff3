"""The size of the package is held by rings: the nearer to the core, the more a line has to be worth.

Ring 0, the path of one training step, is held by tests/test_reading_list.py. A cap may only fall.

`python tests/test_rings.py` prints the table, as `./test.sh --lint` does.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ("*.py", "formats", "rollout", "policies", "trainers", "evaluate", "registry")
TOOLS = (
    "cli", "viewer", "serve", "gateway", "judges", "certify", "doctor", "plan", "prepare", "search", "sandbox",
    "contrib", "speedrun",
)  # fmt: skip
RINGS = {"1 library": LIBRARY, "2 worlds": ("envs",), "3 tools": TOOLS}
AIM = {"1 library": 18_500, "2 worlds": 8_000, "3 tools": 19_000}
CAPS = {"1 library": 30_514, "2 worlds": 15_417, "3 tools": 26_559}


def files(name: str) -> list[Path]:
    """The modules of a room, or those that lie in the package itself; generators of rows are data, and left out."""
    room = ROOT / "agent_gym"
    if name == "*.py":
        return sorted(room.glob("*.py"))
    return [file for file in sorted((room / name).resolve().rglob("*.py")) if "embedded" not in file.parts]


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def measured() -> dict[str, int]:
    return {ring: sum(lines(file) for name in names for file in files(name)) for ring, names in RINGS.items()}


def test_each_ring_is_under_its_cap() -> None:
    found = measured()
    over = {ring: f"{found[ring]} lines, cap {CAPS[ring]}" for ring in RINGS if found[ring] > CAPS[ring]}
    assert not over, "take something out of the ring; a cap is not raised"
    loose = {ring: found[ring] for ring in RINGS if found[ring] < CAPS[ring] - 1000}
    assert not loose, f"lower the caps: {loose}"


def test_every_room_belongs_to_a_ring() -> None:
    rooms = {path.name for path in (ROOT / "agent_gym").iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    assert rooms == {name for names in RINGS.values() for name in names} - {"*.py"}


if __name__ == "__main__":
    for ring, count in measured().items():
        print(f"ring {ring:10} {count:7,} lines, cap {CAPS[ring]:6,}, aim {AIM[ring]:6,}")
