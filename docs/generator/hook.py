"""What `mkdocs build` does beside rendering docs/*.md: it adds generated pages and makes links into the code.

A page of docs/ is written for GitHub: a link like `../trainers/losses.py` leads to the file there. The site has
no files beside itself, so each file that a page names becomes a page, too, with a number at every line, and the links
are turned to those. Nothing here is imported by the package.

mkdocs calls the functions `on_...`: https://www.mkdocs.org/dev-guide/plugins/#events
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path

import api
import cards
import settings
import sources
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

import notebooks

# Below mkdocs' own logger, so that --strict fails on a warning.
log = logging.getLogger("mkdocs.hooks.agent_gym")
ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"

LINK = re.compile(r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
FIRST_LINE = re.compile(r"\A( *(?:```+|~~~+)\w*)[^\n]*")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
NAMED_FILE = re.compile(
    r'(?<!">)<code>((?:agent_gym|envs|trainers|registry|examples|tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?</code>'
)

origins: dict[str, str] = {}
"""Page of the site to the file of the repository whose text it shows, for pages that are no files of docs/."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation, where mkdocs.yml holds their places."""
    for chapter in config.nav or []:
        for entry in next(iter(chapter.values())) if isinstance(chapter, dict) else []:
            if isinstance(entry, dict) and entry.get("Cards") == "cards/":
                entry["Cards"] = ["cards/index.md", *(f"cards/{card}.md" for card in cards.by_page())]
            if isinstance(entry, dict) and entry.get("Notebooks") == "notebooks/":
                entry["Notebooks"] = [f"notebooks/{file.stem}.md" for file in notebooks.files(ROOT)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for each file of the repository that the others name."""
    texts = {file.src_uri: file.content_string for file in files.documentation_pages() if file.inclusion.is_included()}
    made = {**cards.pages(), "settings.md": settings.page(), "api.md": api.page(), **notebooks.pages(ROOT)}
    origins.update({uri: f"notebooks/{Path(uri).stem}.ipynb" for uri in made if uri.startswith("notebooks/")})
    for name, uri in sources.PAGES.items():
        made[uri] = (ROOT / name).read_text(encoding="utf-8")
        origins[uri] = name
    named = {name for uri, text in {**texts, **made}.items() for name in named_files(uri, text)}
    made |= {sources.place(name): sources.page(ROOT / name, name) for name in sorted(named)}
    for uri, text in made.items():
        level = InclusionLevel.NOT_IN_NAV if uri.startswith("source/") else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, content=text, inclusion=level))
    return files


def repository_path(uri: str, target: str) -> str:
    """Return the file of the repository to which a link on a page of the site leads on GitHub."""
    origin = origins.get(uri, posixpath.join(DOCS, uri))
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def named_files(uri: str, text: str) -> set[str]:
    """Return the files that a page links or names as code and that need a page of the site."""
    prose = FENCE.sub("", text)
    linked = {repository_path(uri, match["target"]) for match in LINK.finditer(prose) if ":" not in match["target"]}
    coded = {name for name, _ in NAMED_FILE.findall(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", prose))}
    return {name for name in linked | coded if sources.is_source(name) and (ROOT / name).is_file()}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to pages of the site, and to the line where a name is meant."""
    uri = page.file.src_uri
    if uri.startswith(("source/", "cards/")):
        return markdown
    markdown = markdown.replace("<!-- gallery -->", cards.gallery())

    def turn(match: re.Match[str]) -> str:
        target = match["target"]
        if ":" in target:
            return match[0]
        name = repository_path(uri, target)
        place = sources.place(name)
        if place is None or not (ROOT / name).exists():
            log.warning("%s: the link to %s leads to no page of the site", uri, target)
            return match[0]
        anchor = match["anchor"] or ""
        if sources.is_source(name) and (symbol := re.fullmatch(r"\[`(\w+)`\]", match["text"])):
            line = sources.line_of(ROOT / name, symbol[1])
            if line is None:
                log.warning("%s: %s defines no %s", uri, name, symbol[1])
            anchor = sources.anchor(line or 1)
        return f"{match['text']}({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor})"

    return outside_of_fences(markdown, lambda prose: LINK.sub(turn, prose))


def outside_of_fences(markdown: str, change: object) -> str:
    """Apply a function to what stands between the fenced blocks, and leave of their first lines the language.

    A word behind it, as in "python run", is for the tests; to the renderer of the site such a block is none.
    """
    parts, last = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[last : fence.start()]), FIRST_LINE.sub(r"\1", fence[0])]  # type: ignore[operator]
        last = fence.end()
    return "".join([*parts, change(markdown[last:])])  # type: ignore[operator]


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make `trainers/rows.py` and `tests/test_x.py::test_y` links to the source."""

    def turn(match: re.Match[str]) -> str:
        name, symbol = match.groups()
        file = files.get_file_from_path(sources.place(name) or "")
        if file is None:
            return match[0]
        line = sources.line_of(ROOT / name, symbol) if symbol else None
        return f'<a href="{get_relative_url(file.url, page.url)}{sources.anchor(line) if line else ""}">{match[0]}</a>'

    if page.file.src_uri.startswith("source/"):
        return html
    return notebooks.with_outputs(NAMED_FILE.sub(turn, html))
