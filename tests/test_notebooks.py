"""The notebooks run from top to bottom, and the outputs that are stored in them are what they print.

A cell with the tag `varies` shows what another processor or another version of torch may compute otherwise, after many
steps of training for example. It has to run and to show as many outputs, which may be others.

`python tests/test_notebooks.py` executes them all and stores the outputs; with names, such as `02 05`, only those.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("trl")

from jupyter_client import AsyncKernelManager  # noqa: E402
from jupyter_client.kernelspec import KernelSpecManager  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
SLOW = ("03", "04", "06", "07", "08", "09", "10")  # they train, or take as long


def executed(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder of its own, with the Python that runs the tests."""
    notebook = nbformat.read(path, as_version=4)
    # No folder to look for kernels in: what remains is the kernel of this environment, whatever else is installed.
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    resources = {"metadata": {"path": str(folder)}}
    # Where a stream is cut into outputs depends on the clock, so they are put together.
    client = NotebookClient(notebook, km=manager, timeout=300, coalesce_streams=True, resources=resources)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    client.execute(env=environment)
    return notebook


def outputs_of(notebook: Any) -> list[Any]:
    """What each code cell shows, of one that varies only what kinds of things; not the warnings of other packages."""
    return [
        [
            output.output_type
            if "varies" in cell.metadata.get("tags", ())
            else output.get("text") or dict(output.get("data", {}))
            for output in cell.outputs
            if output.get("name") != "stderr"
        ]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


CASES = [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem[:2] in SLOW)) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", CASES)
def test_notebook_runs_and_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert "You will learn" in notebook.cells[0].source and "## Something to try" in notebook.cells[-1].source
    found, stored = outputs_of(executed(path, tmp_path)), outputs_of(notebook)
    for number, (now, then) in enumerate(zip(found, stored, strict=True), 1):
        assert now == then, f"{path.name}: code cell {number} shows something else; python tests/test_notebooks.py"


if __name__ == "__main__":
    for notebook_path in NOTEBOOKS:
        if sys.argv[1:] and not notebook_path.name.startswith(tuple(sys.argv[1:])):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            result = executed(notebook_path, Path(scratch))
        for cell in result.cells:
            cell.metadata.pop("execution", None)  # times of day
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(result, notebook_path)
        print(notebook_path)
