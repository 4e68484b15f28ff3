"""What a person at a terminal is told while something takes more than a few seconds.

Only a terminal is told: in a log such lines would stand between results, and say what has long passed.
"""

from __future__ import annotations

import sys


def note(text: str) -> None:
    """Say what is going on, where somebody watches."""
    if sys.stderr.isatty():
        print(f"agent-gym: {text}", file=sys.stderr, flush=True)
