"""The notebooks run from top to bottom, and the outputs that are stored in them are what they print.

`python tests/test_notebooks.py` executes them all and stores the outputs.
"""

from __future__ import annotations

import os
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


def executed(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder of its own, with the Python that runs the tests."""
    notebook = nbformat.read(path, as_version=4)
    # No folder to look for kernels in: what remains is the kernel of this environment, whatever else is installed.
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    client = NotebookClient(notebook, km=manager, timeout=120, resources={"metadata": {"path": str(folder)}})
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    client.execute(env=environment)
    return notebook


def outputs_of(notebook: Any) -> list[Any]:
    """What each code cell shows; warnings of other packages are not looked at."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [[output for output in cell.outputs if output.get("name") != "stderr"] for cell in cells]
    return [[output.get("text") or dict(output.get("data", {})) for output in outputs] for outputs in shown]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_runs_and_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    stored = outputs_of(nbformat.read(path, as_version=4))
    for number, (now, then) in enumerate(zip(outputs_of(executed(path, tmp_path)), stored, strict=True), 1):
        assert now == then, f"{path.name}: code cell {number} shows something else; python tests/test_notebooks.py"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


if __name__ == "__main__":
    for notebook_path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as scratch:
            result = executed(notebook_path, Path(scratch))
        for cell in result.cells:
            cell.metadata.pop("execution", None)  # times of day
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(result, notebook_path)
        print(notebook_path)
