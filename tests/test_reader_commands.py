"""Each command that reads files of others, against files that break it: a line or a result, and no steered terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from reader_commands import READERS, SHAPES, make_base

pytest.importorskip("trl")


@pytest.fixture(scope="module")
def place(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    make_base(folder / "base", Path(tiny_model))
    return folder


def fallen(what: str, place: Path, rounds: int) -> tuple[int, list[str]]:
    script = Path(__file__).with_name("reader_commands.py")
    words = [sys.executable, str(script), what, "0", str(rounds), str(place)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    *found, last = [json.loads(line) for line in done.stdout.splitlines()]
    return last["tried"], [f"{one['case']}: {' '.join(one['words'])}: {one['why']}" for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("what", READERS)
def test_no_broken_file_is_a_raw_error(what: str, place: Path) -> None:
    tried, found = fallen(what, place, 12)
    assert not found, "\n".join(found)
    assert tried == (len(SHAPES) + 12) * len(READERS[what][2])
