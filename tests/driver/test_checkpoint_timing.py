"""Tests of when a run takes checkpoints, and of checkpoints that cannot be written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marlflow.base.errors import ActorLost, CheckpointFailed, MarlflowError
from marlflow.config.experiment import CheckpointConfig, Faults
from marlflow.driver.checkpointing import CheckpointTiming
from marlflow.driver.faults import FaultBudget
from marlflow.driver.run_metrics import RunMetrics
from marlflow.sampling.receipts import Fault


class Saves:
    """Saves, or raises the next of `raises`."""

    def __init__(self, tally: RunMetrics, raises: list[MarlflowError]) -> None:
        self._tally, self._raises, self.saved_at = tally, raises, None

    def __call__(self) -> Path:
        if self._raises:
            raise self._raises.pop(0)
        self.saved_at: int | None = self._tally.env_steps
        return Path("there")


def timing(
    every: int | None, *raises: MarlflowError, best: str | None = None
) -> tuple[RunMetrics, CheckpointTiming, list[Fault]]:
    tally, faults = RunMetrics(["prey"], {"prey": ["prey"]}, []), list[Fault]()
    saves: Any = Saves(tally, list(raises))
    budget = FaultBudget(Faults(), tally, lambda text: None)
    settings = CheckpointConfig(every_env_steps=every, best=best)
    budget.observe = lambda fault, _count: faults.append(fault)
    return tally, CheckpointTiming(settings, tally, saves, saves, budget, lambda: None), faults


def test_a_checkpoint_is_due_after_the_first_round_and_then_every_so_many_env_steps() -> None:
    tally, checkpoints, _ = timing(100)
    due_at = []
    for env_steps in range(30, 400, 30):
        tally.env_steps = env_steps
        if checkpoints.is_due:
            due_at.append(env_steps)
            checkpoints.take()
    assert due_at == [30, 120, 210, 300]
    tally.env_steps = 450
    nothing: Any = None
    checkpoints.resumed(nothing, nothing)
    tally.env_steps = 549
    assert not checkpoints.is_due
    tally.env_steps = 550
    assert checkpoints.is_due


def test_without_an_interval_none_is_due_and_there_still_is_news() -> None:
    tally, checkpoints, _ = timing(None)
    assert not checkpoints.has_news
    tally.env_steps = 100
    assert (checkpoints.is_due, checkpoints.has_news) == (False, True)
    checkpoints.take()
    assert not checkpoints.has_news


def test_a_checkpoint_follows_an_evaluation_whose_figure_it_has_and_is_not_tried_again_at_once_if_it_fails() -> None:
    evaluation: Any = SimpleNamespace(env_steps=100)
    for raises in ((), (CheckpointFailed("the disk is full"),)):
        tally, checkpoints, faults = timing(1_000, *raises, best="policies.prey.eval_return_mean")
        tally.env_steps = 50
        assert checkpoints.is_due
        if not raises:
            checkpoints.take()
        tally.policies["prey"].evaluation = evaluation
        due_at = []
        for env_steps in range(100, 1_000, 100):
            tally.env_steps = env_steps
            if checkpoints.is_due:
                assert checkpoints.is_rated
                due_at.append(env_steps)
                checkpoints.take()
        assert due_at == [100]
        assert len(faults) == len(raises)
        assert checkpoints.is_rated == bool(raises)
    assert timing(1_000, best="policies.prey.return_mean")[1].is_rated


def test_updates_that_are_made_while_plans_end_are_news_only_if_the_run_was_not_stopped() -> None:
    for stops in (True, False):
        tally, checkpoints, _ = timing(100)
        tally.env_steps = 100
        checkpoints.take()
        if stops:
            checkpoints.stopped()
        tally.learners["prey"].updates += 1
        assert checkpoints.has_news
        checkpoints.after_training()
        assert checkpoints.has_news == stops
    # The checkpoint before the stop had failed.
    tally, checkpoints, _ = timing(100)
    tally.env_steps = 100
    checkpoints.stopped()
    checkpoints.after_training()
    assert not checkpoints.has_news


def test_a_lost_process_is_asked_once_more_and_a_full_disk_is_a_fault() -> None:
    tally, checkpoints, faults = timing(100, ActorLost("learner prey died"))
    tally.env_steps = 100
    checkpoints.take()
    assert (checkpoints.has_news, checkpoints.failure, faults) == (False, None, [])
    full = CheckpointFailed("the disk is full")
    tally, checkpoints, faults = timing(100, full)
    tally.env_steps = 100
    checkpoints.take()
    assert checkpoints.failure is full
    assert [(fault.kind, fault.where) for fault in faults] == [("checkpoints_failed", "checkpoint at 100 env steps")]
    checkpoints.take()
    assert checkpoints.failure is None
