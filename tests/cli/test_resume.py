"""`marlflow resume`: a run goes on in its own directory, as it was started, but for what is said anew."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlflow.base.errors import ConfigInvalid
from marlflow.config import recorded
from marlflow.config.recorded import check_modules
from marlflow.runs.saved_runs import newest
from tests.cli.conftest import Marlflow, content, trained_in
from tests.cli.spoiled import Spoilt, assert_refused_untouched, cut_off, nothing, without_checkpoints
from tests.cli.test_train import SHORT

WORDS = (*SHORT, "rollouts.fragment_env_steps=100", "hydra.run.dir=run")
OWN = "# @package _global_\ndefaults:\n  - /policy@policies.cart: dqn\n  - _self_\nname: mine\n"


def env_steps(run: Path) -> list[int]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["env_steps"] for line in lines]


def overrides(run: Path) -> list[str]:
    lines = (run / ".hydra" / "overrides.yaml").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("- ").strip("'") for line in lines]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 400 env steps that has ended."""
    return trained_in(tmp_path_factory.mktemp("trained"), ["train", *WORDS]) / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_it_goes_on_in_its_own_directory_and_files_with_what_it_was_started_with(marlflow: Marlflow, run: Path) -> None:
    log = (run / "run.log").read_text(encoding="utf-8")
    said = marlflow("resume", "run", "stop.env_steps=800", "log.console=plain")
    assert (said.code, said.err) == (0, "")
    assert f"resuming from {run / 'checkpoints' / '400'}, 400 env steps" in said.out.splitlines()
    assert env_steps(run) == [200, 400, 600, 800, 800]
    goes_on = (run / "run.log").read_text(encoding="utf-8")
    assert goes_on.startswith(log)
    assert "stopped by stop.env_steps=800" in goes_on[len(log) :]
    assert newest(run).env_steps == 800
    assert not list(run.parent.glob("runs")), "no directory of its own"


def test_values_are_replaced_by_key_and_kept_over_further_resumes(marlflow: Marlflow, run: Path) -> None:
    assert marlflow("resume", str(run), "stop.env_steps=600", "checkpoint.keep=1", "+env.step_timeout_s=30").code == 0
    given = [word for word in WORDS if not word.startswith(("stop.env_steps", "hydra"))]
    assert overrides(run) == [*given, "stop.env_steps=600", "checkpoint.keep=1", "env.step_timeout_s=30"]
    assert marlflow("resume", str(run), "stop.env_steps=1000").code == 0
    assert overrides(run) == [*given, "checkpoint.keep=1", "env.step_timeout_s=30", "stop.env_steps=1000"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["1000"]
    assert env_steps(run) == [200, 400, 600, 800, 1000, 1000]


def test_changed_settings_are_said_with_both_values(marlflow: Marlflow, run: Path) -> None:
    rate = "default_policy.algorithm.learning_rate=1e-4"
    said = marlflow("resume", "run", "stop.env_steps=600", rate, "log.console=plain", "+env.step_timeout_s=30")
    assert [line.removeprefix("changed: ") for line in said.out.splitlines() if line.startswith("changed: ")] == [
        "env.step_timeout_s null → 30",
        "default_policy.algorithm.learning_rate 0.0003 → 0.0001",
        "stop.env_steps 400 → 600",
        "log.console none → plain",
    ]
    (run / "experiment.json").write_text("{")
    said = marlflow("resume", "run", "stop.env_steps=800")
    assert "experiment.json cannot be read (" in said.out
    assert "so it is not known which settings have changed" in said.out
    said = marlflow("resume", "run", "stop.env_steps=800")
    assert said.code == 0
    assert "changed: " not in said.out


def test_a_run_that_has_reached_its_stop_ends_again_at_once(marlflow: Marlflow, run: Path) -> None:
    before = env_steps(run)
    assert marlflow("resume", "run").code == 0
    assert env_steps(run) == before
    assert newest(run).env_steps == 400


def test_one_job_of_several_goes_on_by_itself(marlflow: Marlflow, tmp_path: Path) -> None:
    words = [word for word in WORDS if not word.startswith("hydra")]
    assert marlflow("train", "-m", *words, "seed=1,2", "hydra.sweep.dir=several").code == 0
    first, second = tmp_path / "several" / "0", tmp_path / "several" / "1"
    untouched = content(first)
    assert marlflow("resume", "several/1", "stop.env_steps=600").code == 0
    assert env_steps(second) == [200, 400, 600, 600]
    assert "seed: 2\n" in (second / ".hydra" / "config.yaml").read_text(encoding="utf-8")
    assert content(first) == untouched


def test_the_folder_of_the_users_own_options_is_remembered(marlflow: Marlflow, tmp_path: Path) -> None:
    own = tmp_path / "own" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(OWN, encoding="utf-8")
    assert marlflow("train", "--config-dir", "own", "experiment=mine", *WORDS).code == 0
    for stop in (600, 800):
        assert marlflow("resume", "run", f"stop.env_steps={stop}").code == 0
        assert newest(tmp_path / "run").env_steps == stop


def test_a_run_that_was_moved_goes_on_where_it_is(marlflow: Marlflow, run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "a folder, with = and 'quotes'"
    shutil.move(run, moved)
    said = marlflow("resume", moved.name, "stop.env_steps=600")
    assert (said.code, said.err) == (0, "")
    assert env_steps(moved) == [200, 400, 600, 600]


# -- bad input ------------------------------------------------------------------------------------------------------


def without_hydra(run: Path) -> None:
    shutil.rmtree(run / ".hydra")


def of_another_format(run: Path) -> None:
    for path in (run / "checkpoints").glob("*/checkpoint.json"):
        path.write_text(re.sub('"format": \\d+', '"format": 7', path.read_text(encoding="utf-8")), encoding="utf-8")


def of_no_run(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()
    (run / "notes.txt").write_text("of something else", encoding="utf-8")


def overrides_that_are_no_list(run: Path) -> None:
    (run / ".hydra" / "overrides.yaml").write_text("a: [", encoding="utf-8")


CASES: dict[str, Spoilt] = {
    "no directory": (nothing, [], ["resume needs the directory of a run first: marlflow resume <run directory>"]),
    "an override first": (nothing, ["seed=1"], ["resume needs the directory of a run first"]),
    "not there": (nothing, ["nowhere"], ["there is no directory nowhere; resume needs that of a run"]),
    "no run's": (of_no_run, ["run"], ["run is not the directory of a run: it has none of run.json, "]),
    "two directories": (nothing, ["run", "other"], ["'other' is not of the form key=value"]),
    "no .hydra": (without_hydra, ["run"], ["run has no .hydra/overrides.yaml, which `marlflow train` leaves"]),
    "a checkpoint of it": (nothing, ["run/checkpoints/400"], [" (did you mean ", "/run?)"]),
    "what it is in": (nothing, ["."], [" (did you mean ", "/run?)"]),
    "damaged .hydra": (overrides_that_are_no_list, ["run"], [".hydra/overrides.yaml cannot be read: "]),
    "no checkpoint": (without_checkpoints, ["run"], ["there is no checkpoint in ", "start a new run"]),
    "truncated": (
        cut_off("learner.cart.safetensors"),
        ["run"],
        ["learner.cart.safetensors has", "none in ", " is whole"],
    ),
    "another format": (of_another_format, ["run"], ["400 cannot be used: its format is 7, written by marlflow "]),
    "misspelt key": (
        nothing,
        ["run", "stop.env_stps=3"],
        ["there is no stop.env_stps; did you mean 'stop.env_steps'?"],
    ),
    "flag": (nothing, ["run", "--multirun"], ["marlflow resume has no flag --multirun"]),
    "another run": (
        nothing,
        ["run", "seed=3", "env.num_envs=4", "policy@policies.cart=ppo", "policies.cart.model.hidden_sizes=[8]"],
        [
            "3 problems in this checkpoint:",
            "seed was 0 when it was kept, and is 3 now",
            "env.num_envs was 2 when it was kept, and is 4 now",
            "policies.cart.model was ",
        ],
    ),
    "another argument of the environment": (
        nothing,
        ["run", "env.max_cycles=50"],
        ["env.max_cycles was ", " when it was kept, and is 50 now"],
    ),
    "other agents": (nothing, ["run", "env.num_agents=2"], ["env.agents was ['cart_0', 'cart_1', 'cart_2', 'cart_3']"]),
    "what no run could have": (nothing, ["run", "env.num_envs=0"], ["env.num_envs must be at least 1, not 0"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_one_clear_error_and_touches_nothing(case: Spoilt, marlflow: Marlflow, run: Path) -> None:
    assert_refused_untouched(marlflow, "resume", case, run)


# -- from another folder ----------------------------------------------------------------------------------------------

MODULE = """from marlflow.env.games.cartpole_team import parallel_env

def own_env():
    return parallel_env(num_agents=2)
"""
OWN_ENV = ("env=python", "env._target_=resumed_module.own_env", "record={folder: rows}")


@pytest.fixture
def project(marlflow: Marlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of the user's and a run of it; this process is elsewhere, and knows nothing of it."""
    (folder := tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / "resumed_module.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert marlflow("train", *OWN_ENV, *WORDS).code == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])
    del sys.modules["resumed_module"]
    yield folder
    sys.modules.pop("resumed_module", None)
    importlib.invalidate_caches()


def test_it_goes_on_from_any_folder_with_the_users_modules_and_paths(marlflow: Marlflow, project: Path) -> None:
    for stop in (600, 800):
        said = marlflow("resume", "../project/run", f"stop.env_steps={stop}")
        assert (said.code, said.err) == (0, "")
        assert newest(project / "run").env_steps == stop
        assert Path.cwd() == project.parent / "elsewhere"
        sys.path.remove(str(project))
        del sys.modules["resumed_module"]
    assert list((project / "rows").rglob("*.parquet"))
    assert not list((project.parent / "elsewhere").iterdir())


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_module_that_is_not_found_names_the_folder_to_start_from(
    marlflow: Marlflow, project: Path, is_gone: bool
) -> None:
    if is_gone:
        project.rename(project.parent / "moved")
    else:
        (project / "resumed_module.py").unlink()
        shutil.rmtree(project / "__pycache__", ignore_errors=True)
    run = project.parent / ("moved" if is_gone else "project") / "run"
    before = content(run)
    said = marlflow("resume", str(run))
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        f"error: this run needs module resumed_module, which cannot be found; it was started in {project}"
        f"{', which is not there any more' if is_gone else ''}: work in the folder that has it, or set PYTHONPATH as "
        "then\n"
    )
    assert content(run) == before


def test_a_package_that_an_extra_brings_is_left_to_the_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recorded, "find_spec", lambda _: None)
    check_modules({"env": {"_target_": "mpe2.simple_tag_v3.parallel_env"}}, tmp_path)
    with pytest.raises(ConfigInvalid, match=f"needs module mine, .* it was started in {tmp_path}: work in the folder"):
        check_modules({"mapping": [{"_target_": "mine.seats"}]}, tmp_path)
