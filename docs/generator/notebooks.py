"""The notebooks as pages, with their pictures: the other outputs are there for those who run them."""

from __future__ import annotations

import json
from pathlib import Path


def files(root: Path) -> list[Path]:
    """Return the notebooks of the repository in their order."""
    return sorted((root / "notebooks").glob("*.ipynb"))


def pages(root: Path) -> dict[str, str]:
    """Return page to markdown."""
    return {f"notebooks/{file.stem}.md": _page(file) for file in files(root)}


def _page(file: Path) -> str:
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            if picture := "".join(output.get("data", {}).get("image/png", "")).strip():
                parts.append(f"![what the cell shows](data:image/png;base64,{picture})")
    parts.insert(1, f"*This is `notebooks/{file.name}`, which runs as it stands.*")
    return "\n\n".join(parts) + "\n"
