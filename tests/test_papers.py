"""The papers stay short: caps for README, CHANGELOG, docs and RESULTS. A cap may fall, and never rises."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE_LINES = 60
RESULTS_BYTES = 20_500
LINE = 140  # characters


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_changelog_has_few_lines_a_release() -> None:
    head, *releases = re.split(r"^## ", text_of("CHANGELOG.md"), flags=re.M)
    assert len(head.splitlines()) <= 6 and head.count(". ") <= 1
    assert releases and releases[0].startswith("[Unreleased]")
    lines = {release.partition("\n")[0]: len(release.splitlines()) for release in releases}
    assert {name: count for name, count in lines.items() if count > RELEASE_LINES} == {}
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", "".join(releases), flags=re.M)) <= kinds
    assert [line for line in text_of("CHANGELOG.md").splitlines() if len(line) > LINE] == []


def test_the_results_stay_a_page_and_name_their_commands() -> None:
    text = text_of("benchmarks/RESULTS.md")
    assert len(text.encode()) <= RESULTS_BYTES
    for name in re.findall(r"`(?:benchmarks/)?(\w+\.py)\b", text):
        assert (ROOT / "benchmarks" / name).is_file() or (ROOT / "tests" / name).is_file(), name
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        named = "`" in title or re.search(r"^\|.*`\w+\.py[` ]|^\|.*`tests/", body, flags=re.M)
        assert named, f"{title}: no command"
