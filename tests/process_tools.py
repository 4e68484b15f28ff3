"""What tests ask about processes."""

from __future__ import annotations

from pathlib import Path


def alive(pid: str) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
