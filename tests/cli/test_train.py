"""`marlflow train`: one job and several, from the command line to the files of a run."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from marlflow.base.errors import EnvironmentFailed, InvalidInput, MarlflowError, StageFailed
from marlflow.cli.failures import failure
from marlflow.cli.main import main
from marlflow.config import environment, schema
from tests.cli.conftest import Marlflow

SHORT = (
    "runtime=inline",
    "stop.env_steps=400",
    "log.every_env_steps=200",
    "log.console=none",
    "log.tensorboard=false",
    "evaluation.episodes=0",
    "env.num_envs=2",
    "default_policy.algorithm.batch_agent_steps=300",
    "default_policy.algorithm.epochs=1",
)
FAILING = "env._target_=tests.cli.broken_environments.WheelComesOff"


def _last_report(run: Path) -> dict[str, float]:
    report: dict[str, float] = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return report


def test_a_run_leaves_its_files_in_a_folder_of_its_name(marlflow: Marlflow, tmp_path: Path) -> None:
    assert marlflow("train", *SHORT).code == 0
    (run,) = (tmp_path / "runs" / "cartpole_team").iterdir()
    assert {"run.log", "metrics.jsonl", "plan.mmd", ".hydra", "checkpoints"} <= {path.name for path in run.iterdir()}
    assert _last_report(run)["env_steps"] >= 400
    overrides = (run / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
    assert overrides.splitlines() == [f"- {override}" for override in SHORT]


def test_an_experiment_names_the_folder(marlflow: Marlflow, tmp_path: Path) -> None:
    assert marlflow("train", *SHORT, "experiment=simple_tag_ppo_dqn").code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["simple_tag_ppo_dqn"]


def test_one_run_for_each_of_several_values(marlflow: Marlflow, tmp_path: Path) -> None:
    objective = ("objective=policies.cart.return_mean", "policy@policies.cart=dqn")
    assert marlflow("train", "-m", *SHORT, *objective, "seed=1,2").code == 0
    (several,) = (tmp_path / "runs" / "cartpole_team").iterdir()
    runs = sorted(path for path in several.iterdir() if path.is_dir())
    assert [path.name for path in runs] == ["0", "1"]
    for seed, run in enumerate(runs, 1):
        assert f"seed: {seed}\n" in (run / ".hydra" / "config.yaml").read_text(encoding="utf-8")
        assert _last_report(run)["env_steps"] >= 400


def test_a_folder_of_the_users_own_adds_options(marlflow: Marlflow, tmp_path: Path) -> None:
    own = tmp_path / "own" / "experiment"
    own.mkdir(parents=True)
    text = "# @package _global_\ndefaults:\n  - /policy@policies.cart: dqn\n  - _self_\nname: mine\n"
    (own / "mine.yaml").write_text(text, encoding="utf-8")
    assert marlflow("train", "--config-dir", "own", "experiment=mine", *SHORT).code == 0
    assert marlflow("train", f"hydra.searchpath=[file://{own.parent}]", "experiment=mine", *SHORT).code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mine"]
    assert marlflow("plan", "-cd", "own", "experiment=mien").err == (
        "error: there is no experiment 'mien'; did you mean 'mine'?\n"
    )


def test_hydra_shows_the_configuration(marlflow: Marlflow, tmp_path: Path) -> None:
    said = marlflow("train", "--cfg", "job", "policy@policies.cart=dqn", "policies.cart.algorithm.n_step=7")
    assert said.code == 0
    (n_step,) = [line for line in said.out.splitlines() if "n_step" in line]
    assert n_step == f"{'      n_step: 7':<47} # decisions whose rewards are summed before the bootstrap"
    assert "# the first condition that holds ends the run; null: never" in said.out
    assert not list(tmp_path.iterdir())


def test_a_failing_environment_ends_the_run_with_its_own_traceback_above_the_error(marlflow: Marlflow) -> None:
    said = marlflow("train", *SHORT, FAILING)
    assert said.code == 1
    lines = said.err.splitlines()
    while lines[0].startswith("WARNING: environment cartpole_team_v0, env "):
        del lines[0]  # each episode that broke
    assert lines[0] == "Traceback (most recent call last):"
    assert "broken_environments.py" in lines[1]
    assert lines[-1].startswith("error: environment cartpole_team_v0, env ")
    assert lines[-1].endswith("env step 6: step() raised RuntimeError: the wheel came off")
    assert len([line for line in lines if line.startswith("  File ")]) == 1


def test_resources_that_the_machine_does_not_have_are_said_with_all_else(marlflow: Marlflow, tmp_path: Path) -> None:
    said = marlflow(
        "train",
        "policy@policies.cart=ppo",
        "policies.cart.placement.num_gpus=99",
        "rollouts.num_wrokers=3",
        "env.num_envs=0",
    )
    assert said.code == 2
    first, *problems = said.err.splitlines()
    assert first == "error: 3 problems in this configuration:"
    assert "99 GPU" in problems[2]
    assert not list(tmp_path.iterdir())


def test_a_run_is_composed_once_and_its_environment_opened_once_for_all_checks(
    marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counter[str]()

    def counted(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    counted(ConfigLoaderImpl, "load_configuration")
    counted(environment, "open_adapter")
    counted(schema, "read_values")
    policy = ("env=simple_tag", "policy@policies.agent=dqn", "policies.agent.algorithm.learning_rate=1e-3")
    said = marlflow("train", *SHORT, *policy, "hydra.run.dir=run")
    assert (said.code, counts) == (0, dict.fromkeys(("load_configuration", "open_adapter", "read_values"), 1))
    counts.clear()
    said = marlflow("resume", "run", "stop.env_steps=800")
    assert (said.code, counts) == (0, dict.fromkeys(("load_configuration", "open_adapter", "read_values"), 1))


def test_an_interrupted_command_ends_with_130(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **files: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("marlflow.driver.train.train_checked", interrupted)
    said = marlflow("train", *SHORT)
    assert (said.code, said.err) == (130, "interrupted\n")


def test_an_operators_own_traceback_comes_before_the_stage_it_happened_in() -> None:
    error = StageFailed("Learn", "prey", "Concat -> Learn", "ZeroDivisionError: division by zero")
    error.__cause__ = ZeroDivisionError("division by zero")
    lines = failure(error).splitlines()
    assert lines[0] == "ZeroDivisionError: division by zero"
    assert lines[2] == "error: in stage 'Learn' of plan 'prey': Concat -> Learn"


def test_a_setting_that_a_stage_cannot_meet_is_said_without_a_traceback() -> None:
    error = StageFailed("Learn", "prey", "Concat -> Learn", "compile=true, and item() asks for a tensor's numbers")
    error.__cause__ = InvalidInput(["compile=true, and item() asks for a tensor's numbers"])
    assert failure(error) == f"error: {error}"


def test_an_environments_error_is_found_behind_the_stage_that_it_stopped() -> None:
    error = StageFailed("Collect", "rollouts", "Collect", "")
    error.__cause__ = EnvironmentFailed("environment e, env 3", "step() raised X", "Traceback: theirs")
    assert failure(error) == "Traceback: theirs\n\nerror: environment e, env 3: step() raised X"
    assert failure(MarlflowError("plain")) == "error: plain"


def test_the_process_that_asks_is_left_as_it_was(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pytest"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    import os
    import sys

    assert main(["train", "--cfg", "job"]) == 0
    assert sys.argv == ["pytest"]
    assert "HYDRA_FULL_ERROR" not in os.environ
