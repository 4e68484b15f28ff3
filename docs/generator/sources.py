"""Files of the repository as pages of the site: source code with numbered lines, which links can point at."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PAGES = {"CONTRIBUTING.md": "contributing.md", "benchmarks/RESULTS.md": "results.md"}
"""Markdown outside of docs/ that is a page of the site."""

LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml"}


def is_source(name: str) -> bool:
    """Tell whether a file is shown as code."""
    return Path(name).suffix in LANGUAGES


def place(name: str) -> str | None:
    """Return the page of the site that shows a file of the repository, or None if none does."""
    if name in PAGES:
        return PAGES[name]
    path = Path(name)
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    if path.parts[0] == "notebooks" and path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    return f"source/{name}.md" if is_source(name) else None


def page(file: Path, name: str) -> str:
    """Write the page of a source file. Search leaves it out: the words of the code would bury those of the docs."""
    head = "---\nhide: [navigation, toc]\nsearch: {exclude: true}\n---\n"
    # Longer than any fence that a docstring may contain.
    fence = "`" * 6
    text = file.read_text(encoding="utf-8")
    return f'{head}# {name}\n\n{fence}{LANGUAGES[file.suffix]} linenums="1"\n{text}{fence}\n'


def anchor(line: int) -> str:
    """Return the link to a line, counted from 1, within its page; the page's only block is block 0."""
    return f"#__codelineno-0-{line}"


def line_of(file: Path, symbol: str) -> int | None:
    """Return the line on which a module defines a function, class, method, field or variable, or None."""
    return _definitions(file).get(symbol) if file.suffix == ".py" else None


@functools.cache
def _definitions(file: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    tree = ast.parse(file.read_text(encoding="utf-8"))
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(node.name, node.lineno)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, node.lineno)
    return found
