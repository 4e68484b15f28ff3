"""The notebooks as pages, with the outputs that are stored in them: texts, tables, coloured spans, pictures."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MARK = "<!-- output {} -->"

outputs: dict[str, str] = {}
"""The HTML of each output, by its mark: markdown would read it as text, so that it is put in after markdown."""


def files(root: Path) -> list[Path]:
    """Return the notebooks of the repository in their order."""
    return sorted((root / "notebooks").glob("*.ipynb"))


def pages(root: Path) -> dict[str, str]:
    """Return page to markdown."""
    return {f"notebooks/{file.stem}.md": _page(file) for file in files(root)}


def with_outputs(page: str) -> str:
    """Put the outputs into the HTML of a page."""
    return re.sub(MARK.format(r"[\w/-]+"), lambda mark: outputs[mark[0]], page)


def _page(file: Path) -> str:
    parts = []
    for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        if shown := "\n".join(_outputs(cell.get("outputs", ()))):
            mark = MARK.format(f"{file.stem}-{number}")
            outputs[mark] = f'<div class="cell-output">{shown}</div>'
            parts.append(mark)
    parts.insert(1, f"*This is `notebooks/{file.name}`, with the outputs of its last run.*")
    return "\n\n".join(parts) + "\n"


def _outputs(stored: Any) -> Iterator[str]:
    """Yield the HTML of a cell's outputs; of an output in several forms the richest is shown."""
    printed = ""
    for output in stored:
        if output["output_type"] == "stream":
            printed += "".join(output["text"])  # pieces of one text
            continue
        if printed:
            yield _text(printed)
            printed = ""
        yield _rich(output.get("data", {}))
    if printed:
        yield _text(printed)


def _rich(data: Mapping[str, Any]) -> str:
    if "image/png" in data:
        picture = "".join(data["image/png"]).strip()
        return f'<img alt="output of the cell" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    return _text("".join(data.get("text/plain", "")))


def _text(text: str) -> str:
    return f"<pre>{html.escape(_COLOURS.sub('', text).rstrip())}</pre>"
