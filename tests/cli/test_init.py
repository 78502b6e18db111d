"""`marlflow init` writes a folder in which everything works as it is, and never over anything."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Marlflow

FILES = {
    *("README.md", "ring_walk.py", "test_ring_walk.py", "ring_walk.ipynb"),
    *("conf/env/ring_walk.yaml", "conf/experiment/ring_walk.yaml"),
}


# A game with other agents, arguments and spaces than those of init.
OTHER_GAME = """
from marlflow.env.games.toll import Toll

class RingWalk(Toll):
    def __init__(self, roads: int = 3, render_mode: str | None = None) -> None:
        super().__init__(num_agents=roads)

    metadata = {"name": "roads_v0", "render_modes": []}
    render_mode = None
"""


@pytest.fixture(params=["parallel", "aec"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of environment."""
    return str(request.param)


@pytest.fixture
def folder(marlflow: Marlflow, tmp_path: Path, kind: str) -> Path:
    """What init has written."""
    said = marlflow("init", "ring_walk", f"kind={kind}")
    assert (said.code, said.err) == (0, "")
    return tmp_path / "ring_walk"


def test_each_file_is_written_with_the_name(folder: Path) -> None:
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == FILES
    for path in FILES:
        text = (folder / path).read_text(encoding="utf-8")
        assert "{{" not in text
        assert "ring_walk" in text or path == "README.md"


def test_its_experiment_can_be_trained(
    folder: Path, kind: str, marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    said = marlflow("train", "--config-dir", "conf", "experiment=ring_walk", "runtime=inline", "stop.env_steps=800")
    del sys.modules["ring_walk"]  # of the other kind there is another
    assert said.code == 0, said.err
    assert {"parallel": "walker", "aec": "player"}[kind] in said.out


def run_tests(folder: Path) -> None:
    # Without the settings of these tests, as in a folder of the user's.
    pytest_words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    ran = subprocess.run(
        [sys.executable, *pytest_words], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["aec"], indirect=True)
def test_readme_and_tests_stay_when_the_game_is_replaced(folder: Path) -> None:
    for path in ("README.md", "test_ring_walk.py", "conf/experiment/ring_walk.yaml", "ring_walk.ipynb"):
        text = (folder / path).read_text(encoding="utf-8")
        assert not re.search(r"walkers?\b|player|stones|max_cycles", text), path
    (folder / "ring_walk.py").write_text(OTHER_GAME, encoding="utf-8")
    run_tests(folder)


@pytest.mark.slow
def test_its_tests_pass_and_it_learns(folder: Path, kind: str) -> None:
    run_tests(folder)
    words = ["train", "--config-dir", "conf", "experiment=ring_walk", "hydra.run.dir=run", "stop.env_steps=6000"]
    program = "import sys; from marlflow.cli.main import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    reports = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    group, more = {"parallel": ("walker", 2.0), "aec": ("player", 0.5)}[kind]
    first, last = (reports[at]["policies"][group]["return_mean"] for at in (0, -1))
    # Random walkers come to about 1.5, and good ones to 25; random players to 1.6, and good ones to 3.2.
    assert last > first + more


@pytest.mark.slow
def test_its_notebook_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    text = (folder / "ring_walk.ipynb").read_text(encoding="utf-8").replace("20_000", "1_600")
    notebook = nbformat.reads(text, as_version=4)
    # With the backend of these tests it would show no pictures.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    # Outputs arrive on a channel of their own, late on a slow machine.
    waits = {"timeout": 300, "iopub_timeout": 60, "startup_timeout": 120}
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **waits).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert "return_mean" not in outputs[0][-1]["data"]["text/plain"]
    (mean,) = ast.literal_eval(outputs[0][-1]["data"]["text/plain"]).values()
    assert 0 < mean < 40
    assert all("image/png" in shown[-1]["data"] for shown in outputs[1:])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "init needs NAME: marlflow init NAME [name=value ...]"),
        (["Walk-Er"], "'Walk-Er' cannot be the name of a module; take small letters, digits and _"),
        (["class"], "'class' cannot be the name of a module"),
        (["simple_tag"], "marlflow has 'simple_tag' already, so env=simple_tag would mean two things"),
        (["json"], "there is a module 'json' already, which the environment would hide"),
        (["ring_walk", "folder=full"], "there is something in full already; choose another with folder=<folder>"),
        (["ring_walk", "foldr=x"], "marlflow init has no option 'foldr'; did you mean 'folder'?"),
        (["ring_walk", "kind=turns"], "kind must be "),
        (["ring_walk", "folder=file/below"], "file/below cannot be written: "),
    ],
)
def test_what_cannot_be_written_is_refused(words: list[str], expected: str, marlflow: Marlflow, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    marlflow("init", *words).assert_refused(begins=expected)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["file", "full", "full/mine"]
