"""The papers stay short: caps for README, CHANGELOG, docs and RESULTS. A cap may fall, and never rises."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE_LINES = 60
RESULTS_BYTES = 21_500
README_LINES = 180
WORDS = 38_245
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


def words(text: str) -> int:
    """Count the words: a sign that stands alone, such as the bar of a table, is not one."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_the_readme_and_the_docs_stay_short() -> None:
    readme = text_of("README.md")
    assert len(readme.splitlines()) <= README_LINES
    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    counted = {name: words(text) for name, text in {"README.md": readme, **pages}.items()}
    assert sum(counted.values()) <= WORDS, counted


def test_the_pages_tell_how_things_are_and_not_how_they_became() -> None:
    """Dates of work and former states belong to RESULTS.md, CHANGELOG.md and the history."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        if page.name == "comparison.md":  # it dates the versions of others
            continue
        former = re.findall(r".*(?:20\d\d-\d\d-\d\d|\d\d:\d\d UTC|\btried and dropped\b|\bused to be\b).*", prose)
        assert former == [], page


def test_the_readme_begins_with_a_number_a_picture_and_the_commands_of_a_clone() -> None:
    screen = text_of("README.md").split("\n## ")[0]
    title, sentence, picture, commands, *_ = re.split(r"\n\n", screen)
    assert title == "# agent_gym" and re.search(r"\d+%", sentence) and "command" in sentence
    files = re.findall(r'(?:src|srcset)="([^"]+)"', picture)
    assert "prefers-color-scheme: dark" in picture and len(files) == 2
    assert all((ROOT / file).is_file() for file in files)
    scripts = re.findall(r"^    \./(\w+\.sh)", commands, flags=re.M)
    assert scripts == ["setup.sh", "speedrun.sh"] and all((ROOT / script).is_file() for script in scripts)
    first_row = re.search(r"^\| everything \| `\./(\S+?)`", text_of("README.md").split("## Install")[1], flags=re.M)
    assert first_row and (ROOT / first_row[1]).is_file(), "the first row of Install works in a clone"
