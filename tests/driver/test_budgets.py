"""Faults of the run's own parts: counted, said, and beyond `faults.*` the end of the run, in order."""

from __future__ import annotations

import builtins
import errno
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.base.errors import FaultKind
from marlflow.driver.faults import FaultBudget
from marlflow.driver.run_metrics import RunMetrics
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runs import checkpoints
from marlflow.runs.saved_runs import newest
from marlflow.sampling.receipts import Fault
from tests.driver.watching import reports
from tests.runtime.small_runs import small_run

KINDS = ("workers_lost", "learners_lost", "replays_lost", "updates_skipped", "checkpoints_failed")
METRICS = RunMetrics([], {}, [])


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_are_allowed_end_the_run_and_say_what_happened_how_often(kind: str) -> None:
    told: list[str] = []
    budget = FaultBudget(mf.Faults(**{kind: 2}), METRICS, told.append)
    for number in range(1, 4):
        assert budget.failure is None
        budget.spend(Fault(FaultKind(kind), f"part {number}", "it died", "", 7))
    assert isinstance(budget.failure, mf.BudgetExceeded)
    first, last = str(budget.failure).splitlines()
    assert first == "part 3: it died"
    assert last.endswith(f"that was {kind} 3, and faults.{kind} allows 2")
    assert [text.partition("; ")[2] for text in told] == [f"{kind} {n}, and faults.{kind} allows 2" for n in (1, 2, 3)]
    first_failure = budget.failure
    budget.spend(Fault(FaultKind(kind), "part 4", "it died", "", 0))
    assert budget.failure is first_failure
    assert budget.spent[kind] == 4
    assert sum(budget.spent.values()) == 4


def test_one_alone_may_be_too_many_and_several_at_once() -> None:
    budget = FaultBudget(mf.Faults(updates_skipped=0), METRICS, lambda text: None)
    budget.spend(Fault(FaultKind.UPDATES_SKIPPED, "learner prey", "its gradient was not finite", "", 0), 5)
    assert str(budget.failure).endswith("that was updates_skipped 5, and faults.updates_skipped allows 0")
    budget = FaultBudget(mf.Faults(workers_lost=0), METRICS, lambda text: None)
    budget.spend(Fault(FaultKind.WORKERS_LOST, "rollout worker 1", "it died", "", 0))
    assert str(budget.failure).endswith("that was workers_lost 1, and faults.workers_lost allows 0")


# -- a full disk ----------------------------------------------------------------------------------------------------


class Disk:
    """Refuses, in `call`, checkpoints of the env steps that it is `full` between, as the operating system would."""

    def __init__(self, call: str, patch: pytest.MonkeyPatch) -> None:
        self.full, self._refuses, self.refused = range(0), False, 0
        owner: Any = checkpoints if call == "open" else os
        real, write = builtins.open if call == "open" else getattr(os, call), checkpoints.CheckpointStore.write

        def watched(store: checkpoints.CheckpointStore, env_steps: int, *given: Any) -> Path:
            self._refuses = env_steps in self.full
            try:
                return write(store, env_steps, *given)
            finally:
                self._refuses = False

        patch.setattr(owner, call, partial(self._call, real), raising=False)
        patch.setattr(checkpoints.CheckpointStore, "write", watched)

    def _call(self, real: Callable[..., Any], *given: Any, **options: Any) -> Any:
        if self._refuses:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(given[0]))
        return real(*given, **options)


@pytest.fixture(params=["open", "fsync"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(request.param, monkeypatch)


def kept_often(env_steps: int, **changes: Any) -> mf.Experiment:
    return small_run(env_steps=env_steps, checkpoint=mf.CheckpointConfig(every_env_steps=160), **changes)


def test_a_disk_that_is_full_for_a_while_costs_only_checkpoints(
    disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.full = range(300, 500)
    result = mf.train(kept_often(800, log=mf.Log(400, "plain", tensorboard=False)), tmp_path)
    assert disk.refused >= 2
    assert result.metrics["faults"]["checkpoints_failed"] == 2
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["640", "800"]
    assert "checkpoints_failed 2, and faults.checkpoints_failed allows 3" in capsys.readouterr().out


def test_the_one_before_stands_and_the_run_can_go_on_from_it(
    disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.full = range(400, 10_000)
    experiment = kept_often(560, log=mf.Log(400, "plain", tensorboard=False))
    with pytest.raises(mf.CheckpointFailed) as caught:
        mf.train(experiment, tmp_path)
    assert "No space left on device" in str(caught.value)
    assert f"the last whole one is {tmp_path / 'checkpoints' / '320'}" in str(caught.value)
    assert f"to resume from 320 env steps: mf.resume(experiment, {str(tmp_path)!r})" in capsys.readouterr().out
    assert reports(tmp_path)[-1]["env_steps"] == 560
    disk.full = range(0)
    mf.resume(experiment, tmp_path)
    assert newest(tmp_path).env_steps == 560


def test_a_disk_that_stays_full_ends_the_run(disk: Disk, tmp_path: Path) -> None:
    disk.full = range(10**9)
    with pytest.raises(mf.BudgetExceeded) as caught:
        mf.train(kept_often(100_000), tmp_path)
    assert "that was checkpoints_failed 4, and faults.checkpoints_failed allows 3" in str(caught.value)
    assert reports(tmp_path)[-1]["env_steps"] == 480, "no round after the fourth"


# -- a loss that is not finite --------------------------------------------------------------------------------------


class Jackpot(CartPoleTeam):
    """Pays more than a float32 can say the square of, now and then."""

    def step(self, actions: dict[str, int]) -> Any:
        observations, rewards, *others = super().step(actions)
        if self._cycles == 9:
            rewards = dict.fromkeys(rewards, 1e38)
        return observations, rewards, *others


def jackpot(**changes: Any) -> mf.Experiment:
    return small_run(env=mf.Env(Jackpot, {"max_cycles": 50}, num_envs=4), **changes)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "marlflow"):
        yield caplog


def test_steps_that_would_not_be_finite_are_skipped_and_counted(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    result = mf.train(jackpot(faults=mf.Faults(updates_skipped=10_000)), tmp_path)
    skipped = result.metrics["faults"]["updates_skipped"]
    assert skipped > 0
    assert "learner hunters: its gradient was not finite, so there was no step" in said.text
    mf.resume(jackpot(env_steps=1_400, faults=mf.Faults(updates_skipped=10_000)), tmp_path)
    assert reports(tmp_path)[-1]["faults"]["updates_skipped"] >= skipped


def test_too_many_of_them_end_the_run_which_is_kept(tmp_path: Path) -> None:
    with pytest.raises(mf.BudgetExceeded) as caught:
        mf.train(jackpot(faults=mf.Faults(updates_skipped=1), env_steps=100_000), tmp_path)
    assert "its gradient was not finite" in str(caught.value)
    assert "faults.updates_skipped allows 1" in str(caught.value)
    assert newest(tmp_path).env_steps == reports(tmp_path)[-1]["env_steps"] < 100_000
