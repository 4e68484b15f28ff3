"""What the tests of retrieval share: the real sample, and engines whose behaviour is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def hotpotqa_sample() -> Path:
    """The file with real HotpotQA questions and their ten paragraphs each; skips where there is none."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AGENT_GYM_DATA", beside)) / "hotpotqa"
    found = sorted(folder.glob("distractor_sample*.json"))
    if not found:
        pytest.skip(f"no real HotpotQA questions: {folder}/distractor_sample*.json does not exist (set AGENT_GYM_DATA)")
    return found[0]
