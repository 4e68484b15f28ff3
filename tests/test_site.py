"""The docs as a site: it builds without a warning, links lead to files and lines, what is generated is complete."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from agent_gym.registry import ENVS

ROOT = Path(__file__).resolve().parents[1]
GENERATOR = ROOT / "docs" / "generator"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="pip install 'agentic-gym[docs]'")
    pytest.importorskip("trl", reason="the settings of the trainers are part of it")
    folder = tmp_path_factory.mktemp("site")
    # Material announces its successor in the middle of the output otherwise.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield path and anchor of each link of a page that stays on the site."""
    for target in re.findall(r'<(?:a|link|img|script)\b[^>]*?\b(?:href|src)="?([^"\s>]+)', page.read_text()):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = unquote(html.unescape(target)).partition("#")
            yield path, anchor


@pytest.mark.slow  # the build takes a minute of CPU
def test_no_heading_is_lost_in_a_block_of_code(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        prose = re.sub(r"^```.*?^``` *$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        shown = (site / page.with_suffix(".html").name).read_text()
        assert len(re.findall("<h[123] ", shown)) == len(re.findall("^#{1,3} ", prose, re.MULTILINE)), page.name


@pytest.mark.slow  # the build takes a minute of CPU
def test_each_link_leads_to_a_file_and_to_a_place_in_it(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # its links begin at the server's root
    places = {page: set(re.findall(r'\b(?:id|name)="?([^"\s>]+)', page.read_text())) for page in pages}
    followed = set()
    for page in pages:
        for path, anchor in links(page):
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), f"{page.relative_to(site)}: {path} leads nowhere"
            if anchor and target in places:
                assert anchor in places[target], f"{page.relative_to(site)}: {target.name} has no #{anchor}"
            followed.add((target, anchor))
    assert len(followed) > 300


@pytest.mark.slow  # the build takes a minute of CPU
def test_a_formula_leads_to_the_line_of_its_function(site: Path) -> None:
    linked = re.findall(
        r'<a href="(source/trainers/[\w/]+\.py\.html)#(__codelineno-0-\d+)"><code>(\w+)</code>',
        (site / "algorithms.html").read_text(),
    )
    assert len(linked) >= 15
    for page, anchor, name in linked:
        line = re.search(rf'<a id="{anchor}"[^\n]*', (site / page).read_text())
        assert line, (page, anchor)
        assert re.search(rf"\b(def|class) {name}\b", html.unescape(re.sub(r"<[^>]+>", "", line[0]))), (name, line[0])


@pytest.mark.slow  # the build takes a minute of CPU
def test_each_environment_has_a_card_with_an_episode(site: Path) -> None:
    listed = (site / "cards" / "index.html").read_text()
    cards = {page.name: page.read_text() for page in (site / "cards").glob("*.html")}
    for entry in ENVS:
        page = re.search(rf'<a href="(\w+\.html)"><code>{entry.id}</code>', listed)
        assert page, entry.id
        card = cards[page[1]]
        assert entry.id in card and 'id="description"' in card and 'id="defaults"' in card, entry.id
        # Wikipedia in full is not made here.
        assert entry.needs or ">policy" in card, f"{entry.id}: no episode"
        assert all(tool in card for tool in entry.tools), entry.id


@pytest.mark.slow  # the build takes a minute of CPU
def test_each_setting_is_on_the_page_of_settings(site: Path) -> None:
    from agent_gym.trainers import AgentPPOConfig

    listed = re.findall(r"<tr>\s*<td><code>(\w+)</code></td>", (site / "settings.html").read_text())
    fields = {field.name for field in dataclasses.fields(AgentPPOConfig)}
    assert set(listed) == fields
    ours, _, theirs = (site / "settings.html").read_text().partition('id="from-trl-and-transformers"')
    assert "<code>max_turn_tokens</code>" in ours and "<code>learning_rate</code></td>" in theirs


def test_settings_read_the_same_whatever_machine_makes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.syspath_prepend(str(GENERATOR))
    import settings

    rows = settings.page().splitlines()
    assert not [row for row in rows if "%%" in row], "argparse's spelling"
    for start in ("| `gradient_checkpointing` | `True` |", "| `bf16` | `None` |"):
        assert [row.endswith("Without a GPU it is off. |") for row in rows if row.startswith(start)] == [True], start


def test_the_picture_of_the_masks_is_that_of_a_real_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    monkeypatch.syspath_prepend(str(GENERATOR))
    import masks

    assert masks.PICTURE.read_text() == masks.draw(*masks.transcript()), "run python docs/generator/masks.py"


def test_the_picture_of_the_readme_is_played_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATOR))
    import before_after

    for file, picture in before_after.pictures().items():
        assert file.read_text() == picture, f"{file.name}: run python docs/generator/before_after.py"
    (_, lost, left), (_, won, found) = map(before_after.episode, before_after.PLAYED.values())
    assert not lost and left > 1 and won and found == 1


def test_the_diagrams_are_those_of_their_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATOR))
    import diagrams

    for name, drawing in diagrams.diagrams().items():
        picture = GENERATOR.parent / f"{name}.svg"
        assert picture.read_text() == drawing.svg(), f"{picture.name}: run python docs/generator/diagrams.py"
        assert f"]({picture.name})" in picture.with_suffix(".md").read_text()


@pytest.mark.slow  # the build takes a minute of CPU
def test_the_start_page_has_a_picture_of_each_environment(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATOR))
    import cards
    import pictures

    drawn = dict(pictures.pictures())
    for page, picture in drawn.items():
        assert (cards.PICTURES / f"{page}.svg").read_text() == picture, f"{page}: run python docs/generator/pictures.py"
    assert len(drawn) >= 10
    there = {file.stem for file in cards.PICTURES.glob("*.svg")}
    card = r'<a href="cards/(\w+)\.html"><img src="pictures/(\w+)\.svg" alt="[^"]+"'
    shown = re.findall(card, (site / "index.html").read_text())
    assert {page for page, _ in shown} == {name for _, name in shown} == there
    # They want a corpus, data and a game.
    assert there >= drawn.keys() and cards.by_page().keys() - there == {
        "hotpotqafullwiki",
        "functioncalls",
        "tau2",
        "swe",
        "miniwob",
        "fromtextarena",
    }


@pytest.mark.slow  # the build takes a minute of CPU
def test_a_page_of_a_notebook_shows_what_its_cells_have_left(site: Path) -> None:
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        page = (site / "notebooks" / f"{file.stem}.html").read_text()
        cells = [cell.get("outputs") for cell in json.loads(file.read_text())["cells"]]
        assert page.count('class="cell-output"') + page.count("class=cell-output") == sum(map(bool, cells)), file.name
        assert "<!-- output" not in page
        printed = [text for some in cells if some for one in some for text in one.get("text", ()) if text.strip()]
        for line in printed[:20]:
            assert html.escape(re.sub(r"\x1b\[[0-9;]*m", "", line).strip()) in page, file.name
    tour = (site / "notebooks" / "01_tour.html").read_text()
    assert 'title="agent, step 0"' in tour, "spans are coloured"
