"""Nothing of a run is read, written or removed through a link that leads out of its folder, by any command."""

from __future__ import annotations

import shutil
from base64 import b64encode
from importlib import import_module
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.base.links import FILES, FOLDERS, OUTER
from tests.cli.conftest import Marlflow, content, trained_in
from tests.cli.test_league import TRAINED

COMMANDS: dict[str, tuple[str, ...]] = {
    "resume": ("resume", "run", "stop.env_steps=2200"),
    "evaluate": ("evaluate", "run", "episodes=2"),
    "play": ("play", "run", "episodes=1", "view=terminal"),
    "export": ("export", "run", "format=pt2"),
    "report": ("report", "run"),
    "league": ("league", "run"),
    "opponent": ("evaluate", "good", "against=run:player", "episodes=2"),
    "warm start": (
        "plan",
        "env=connect_four",
        "model@default_policy.model=mlp",
        "default_policy.model.hidden_sizes=[8]",
        "+default_policy.init._target_=marlflow.FromRun",
        "+default_policy.init.run=run",
    ),
}
LINKS = (
    *FILES,
    *FOLDERS,
    *OUTER,
    "league/members",
    "league/payoffs.parquet",
    ".hydra/config.yaml",
    ".hydra/signature",
    "record/manifest.json",
    "evaluations/1.json",
    "events.out.tfevents.1.host",
    ".state.json.part",
    ".matrix.csv.part",
    ".learning_curves.png.part",
    ".jobs-1",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has a league."""
    return trained_in(tmp_path_factory.mktemp("trained"), ["train", *TRAINED]) / "trained"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "good")
    shutil.copytree(trained, tmp_path / "run")
    outside = tmp_path / "outside"
    for name in ("members/precious", "manifest.json", "file", "config.yaml"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("mine\n", encoding="utf-8")
    return tmp_path / "run"


def linked(run: Path, name: str, to: Path) -> Path:
    """Put a link at `name` in the run in place of what is there."""
    link = run / name
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(to)
    return link


def target_of(run: Path, name: str) -> Path:
    """What a link of that name is put to: a folder for a folder."""
    is_folder = name in (*FOLDERS, *OUTER) or (run / name).is_dir()
    return run.parent / "outside" / ("" if is_folder else "file")


@pytest.mark.parametrize("every_command", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LINKS)
def test_no_command_follows_a_link_out_of_the_folder(
    name: str, every_command: bool, marlflow: Marlflow, run: Path
) -> None:
    link = linked(run, name, target_of(run, name))
    before, inside = content(run.parent / "outside"), content(run)
    # In turn, so that each link is met by two commands and each command meets links of all kinds.
    two = [list(COMMANDS)[(LINKS.index(name) + offset) % len(COMMANDS)] for offset in (0, 3)]
    for command in COMMANDS if every_command else two:
        said = marlflow(*COMMANDS[command])
        assert said.code == 2, command
        assert "Traceback" not in said.err
        assert f"{link.relative_to(run.parent)} leads out of " in said.err.replace(f"{run.parent}/", ""), command
        assert content(run.parent / "outside") == before, command
        assert content(run) == inside, command
    with pytest.raises(mf.InvalidInput, match=r"leads out of .*, to "):
        mf.load(run)


@pytest.mark.parametrize("name", ["league", "metrics.jsonl", ".hydra", "run.log", "state.json", "checkpoints"])
@pytest.mark.parametrize("of", ["nothing", "a sweep"])
def test_no_run_begins_where_a_link_leads_out(name: str, of: str, marlflow: Marlflow, tmp_path: Path) -> None:
    (outside := tmp_path / "outside").mkdir()
    folder = tmp_path / "run" / ("0" if of == "a sweep" else "")
    folder.mkdir(parents=True)
    # To nothing, where a file would be made.
    (folder / name).symlink_to(outside / "new")
    words = [word for word in TRAINED if not word.startswith("hydra")]
    where = ["-m", "hydra.sweep.dir=run", "seed=1,2"] if of == "a sweep" else ["hydra.run.dir=run"]
    said = marlflow("train", *words, *where)
    assert said.code == 2
    assert "leads out of" in said.err
    assert not list(outside.iterdir())
    with pytest.raises(mf.InvalidInput, match="leads out of"):
        mf.train(mf.Experiment(mf.Env("cartpole_team")), folder)


def test_a_link_that_leads_in_a_circle_is_one_sentence(marlflow: Marlflow, run: Path) -> None:
    linked(run, "league", run / "other")
    (run / "other").symlink_to(run / "league")
    for words in COMMANDS.values():
        said = marlflow(*words)
        assert said.code == 2
        assert "league is a link that cannot be followed: Too many levels of symbolic links; remove it" in said.err


def test_many_links_are_one_short_message(marlflow: Marlflow, run: Path) -> None:
    for number in range(300):
        linked(run, f"league/members/{number}.safetensors", run.parent / "outside" / "file")
    said = marlflow("league", "run")
    assert said.code == 2
    assert "and 296 more such links in run" in said.err
    assert len(said.err) < 2_000


def test_a_linked_folder_that_an_inner_link_leads_to_is_checked_too(marlflow: Marlflow, run: Path) -> None:
    shutil.rmtree(run / "league")
    (run / "mine").mkdir()
    (run / "league").symlink_to("mine")
    (run / "mine" / "members").symlink_to(run.parent / "outside" / "members")
    said = marlflow(*COMMANDS["resume"])
    assert said.code == 2
    assert "mine/members leads out of" in said.err
    assert (run.parent / "outside" / "members" / "precious").exists()


def test_a_link_to_the_folder_and_links_that_stay_in_it_work(marlflow: Marlflow, run: Path) -> None:
    (run.parent / "latest").symlink_to("run")
    shutil.move(run / "league", run / "inner")
    (run / "league").symlink_to("inner")
    (run / "notes").symlink_to(run.parent / "outside")
    for command, words in COMMANDS.items():
        said = marlflow(*("latest" if word == "run" else word.replace("=run", "=latest") for word in words))
        assert said.code == 0, (command, said.err)
    assert list((run / "inner" / "members").iterdir())
    assert mf.load(run.parent / "latest").policies


@pytest.mark.parametrize(
    ("command", "place", "name"),
    [
        ("train", "marlflow.driver.services.StoredMembers", "league"),
        ("resume", "marlflow.driver.services.StoredMembers", "league"),
        ("evaluate", "marlflow.driver.evaluation_files.write_evaluation", "evaluations"),
        ("evaluate", "marlflow.driver.evaluation_files.write_evaluation", "matrix.csv"),
    ],
)
def test_a_link_that_comes_later_is_not_followed(
    command: str, place: str, name: str, marlflow: Marlflow, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, attribute = place.rpartition(".")
    called = getattr(import_module(module), attribute)
    folder = run if command != "train" else run.parent / "new"

    def planted(*arguments: object) -> object:
        linked(folder, name, target_of(run, name))
        return called(*arguments)

    monkeypatch.setattr(place, planted)
    before = content(run.parent / "outside")
    new = [word for word in TRAINED if not word.startswith("hydra")]
    said = marlflow(*(COMMANDS[command] if command != "train" else ("train", *new, "hydra.run.dir=new")))
    assert said.code == 2
    assert f"/{name} leads out of" in said.err
    assert content(run.parent / "outside") == before


def test_a_report_leaves_out_a_video_that_a_link_leads_to(marlflow: Marlflow, run: Path) -> None:
    (run.parent / "outside" / "other.gif").write_bytes(b"secret")
    for name, to in {"out.gif": run.parent / "outside" / "other.gif", "in.gif": run / "run.log"}.items():
        (run / name).symlink_to(to)
    said = marlflow("report", "run")
    assert said.code == 0
    assert "run/out.gif leads out of run, to " in said.out
    page = (run.parent / "report" / "index.html").read_text(encoding="utf-8")
    assert b64encode(b"secret").decode() not in page
    assert b64encode((run / "run.log").read_bytes()).decode() in page


def test_every_file_of_a_run_is_known(run: Path, marlflow: Marlflow) -> None:
    """So that a file that is new one day is checked too."""
    for words in (COMMANDS["evaluate"], COMMANDS["export"], COMMANDS["league"]):
        assert marlflow(*words).code == 0
    known = (*FILES, *FOLDERS, *OUTER)
    assert [path.name for path in run.iterdir() if not path.name.startswith(known)] == []
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf-8")
    assert [name for name in known if name not in page] == []
