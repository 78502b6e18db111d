"""The notebook of the first run is executed whole, and is stored without outputs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.examples.test_examples import EXAMPLES

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
# Fewer env steps than a reader's, enough for updates of both policies.
SHORT = {"10_000": "3_000"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
        assert cell.metadata == {}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outputs of each cell by its id, after all were executed in a folder of their own."""
    folder = tmp_path_factory.mktemp("notebook")
    text = (EXAMPLES / "first_run.ipynb").read_text(encoding="utf-8")
    for long, short in SHORT.items():
        assert long in text
        text = text.replace(long, short)
    notebook = nbformat.reads(text, as_version=4)
    # `!marlflow` is the command of this interpreter's environment.
    changed = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        # With the backend of these tests it would show no pictures.
        patch.delenv("MPLBACKEND", raising=False)
        for name, value in changed.items():
            patch.setenv(name, value)
        assert shutil.which("marlflow", path=changed["PATH"])
        # Outputs arrive on a channel of their own, late on a slow machine.
        waits = {"timeout": 600, "iopub_timeout": 60, "startup_timeout": 120}
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **waits).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def printed(outputs: Any) -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_it_plans_trains_and_shows_a_curve(cells: dict[str, Any]) -> None:
    assert "dqn_team: dqn" in printed(cells["experiment"])
    assert "policies.ppo_team.return_mean" in cells["run"][-1]["data"]["text/html"]
    assert "image/png" in cells["curve"][-1]["data"]


def test_it_acts_and_shows_a_video(cells: dict[str, Any]) -> None:
    returns = cells["act"][-1]["data"]["text/plain"]
    assert all(f"cart_{number}" in returns for number in range(4))
    assert "wrote runs/notebook/carts.mp4" in printed(cells["video"])
    assert "data:video/mp4;base64," in cells["video"][-1]["data"]["text/html"]


def test_it_evaluates_and_compares(cells: dict[str, Any]) -> None:
    assert printed(cells["evaluate"]).count("beside random: return") == 2
    said = printed(cells["compare"])
    assert "index.html: 2 runs in 2 groups" in said
    assert "learning_rate=0.0003" in said
    assert "report/index.html" in cells["compare"][-1]["data"]["text/html"]
