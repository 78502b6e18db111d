"""Ctrl-C and SIGTERM on the command line: the run ends in order, is kept, and leaves no process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from benchmarks.killed_drivers import SETTINGS, Command, reports, started
from marlflow.runs.run_state import run_state
from marlflow.runs.saved_runs import newest

ENDLESS = [*SETTINGS, "stop.env_steps=900000000", "hydra.run.dir=run", "checkpoint.every_env_steps=1000000"]
INLINE, RAY = [*ENDLESS, "runtime=inline"], [*ENDLESS, "runtime=ray"]


def assert_in_order(command: Command, run: Path, reason: str) -> None:
    """It has said that it finishes, why and how to go on, in this order, and has kept its last round."""
    last = reports(run)[-1]["env_steps"]
    expected = [
        "finishing this round; interrupt again to stop at once",
        f"stopping: {reason}",
        f"to resume from {last:,} env steps: marlflow resume {run}",
        reason,
    ]
    assert [line for line in command.said if line in expected] == expected, command.said
    assert newest(run).env_steps == last
    assert (run_state(run).name, run_state(run).reason) == ("interrupted", reason)
    assert not any("Traceback" in line for line in command.said)
    assert command.said[-2:] == expected[-2:], "the last that a person sees"
    assert command.left() == []


def assert_nothing_was_kept(command: Command) -> None:
    """It has said so, and nothing else that sounds as if something had been."""
    assert "there is no checkpoint to resume from" in command.said
    assert not any(word in line for line in command.said for word in ("kept", "Traceback")), command.said


def test_a_run_that_is_terminated_ends_in_order(tmp_path: Path) -> None:
    with started(["train", *INLINE], tmp_path) as command:
        command.wait_for("updates", 6)
        command.send(signal.SIGTERM)
        assert command.ends() == 143
        assert_in_order(command, tmp_path / "run", "terminated")


@pytest.mark.slow
def test_a_run_over_ray_ends_in_order_when_its_whole_group_gets_ctrl_c_and_is_terminated(tmp_path: Path) -> None:
    with started(["train", *RAY], tmp_path) as command:
        command.wait_for("updates", 6)
        assert {os.getsid(helper.pid) for helper in command.helpers()}.isdisjoint({command.pid}), "Ray's stand apart"
        command.send(signal.SIGINT, group=True)
        command.send(signal.SIGTERM, group=True)
        assert command.ends() == 130
        assert command.size > 5
        assert_in_order(command, tmp_path / "run", "interrupted")


@pytest.mark.slow
def test_a_run_over_ray_that_is_terminated_while_it_starts_leaves_no_process(tmp_path: Path) -> None:
    with started(["train", *RAY], tmp_path) as command:
        command.wait_for("starting ray")
        while not any(helper.name() == "gcs_server" for helper in command.helpers()):
            pass  # until it has begun to start Ray
        command.send(signal.SIGTERM)
        assert command.ends() == 143
        assert command.said[-1] == "terminated"
        assert_nothing_was_kept(command)
        assert command.left() == []


@pytest.mark.slow
def test_an_interrupted_sweep_starts_no_further_job(tmp_path: Path) -> None:
    words = [word for word in INLINE if not word.startswith("hydra.run.dir")]
    with started(["train", *words, "-m", "seed=1,2"], tmp_path) as command:
        command.wait_for("updates", 6)
        command.send(signal.SIGINT)
        assert command.ends() == 130
        assert command.said.count("stopping: interrupted") == 1
    (several,) = tmp_path.glob("runs/cartpole_team_ppo_dqn/*")
    assert [folder.name for folder in several.iterdir() if folder.is_dir()] == ["0"]
    assert newest(several / "0").env_steps > 0


# -- at once --------------------------------------------------------------------------------------------------------

STUCK = "env._target_=tests.cli.broken_environments.Stuck"


@pytest.mark.slow
def test_past_the_grace_the_last_whole_checkpoint_stands(tmp_path: Path) -> None:
    with started(
        ["train", *INLINE, "checkpoint.every_env_steps=400", "stop.grace_period_s=0.2", STUCK], tmp_path
    ) as command:
        command.wait_for("stuck")
        command.send(signal.SIGTERM)
        assert command.ends() == 143
        assert command.said[-1] == "terminated"
        assert not any("Traceback" in line for line in command.said)
    assert newest(tmp_path / "run").env_steps == 800
    assert f"to resume from 800 env steps: marlflow resume {tmp_path / 'run'}" in command.said


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    with started(["train", *INLINE, "checkpoint.every_env_steps=null", STUCK], tmp_path) as command:
        command.wait_for("stuck")
        command.send(signal.SIGINT)
        command.wait_for("finishing this round")
        command.send(signal.SIGINT)
        assert command.ends() == 130
        assert command.said[-1] == "interrupted"
        assert_nothing_was_kept(command)
