"""Trials of `marlflow tune`: each in an actor with one CPU, and stopped early where others of its age are better.

ASHA: Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020, https://arxiv.org/abs/1810.05934
"""

from __future__ import annotations

import logging
import math
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from marlflow.base.signals import handled
from marlflow.runtime.ray.local_ray import start_local
from marlflow.runtime.ray.private_api import without_signal_handlers

Reported: TypeAlias = Callable[[int, float | None], bool]
"""Takes the env steps and the objective of a report, and returns whether the trial shall continue."""
TrialRun: TypeAlias = Callable[[int, Reported], None]
"""Runs the trial of a number; called in the trial's own process."""

_ENV_STEPS, _OBJECTIVE = "env_steps", "objective"
_SETTINGS = {
    # Ray's own tables and TensorBoard files would repeat each run's own files.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True, slots=True)
class Asha:
    """Compare trials at `grace_env_steps`, and at each `reduction_factor` times that, up to `max_env_steps`.

    At each of these, a trial continues if it is among the best 1 / reduction_factor of all trials that reached it.
    """

    grace_env_steps: int
    max_env_steps: int
    reduction_factor: float


def run_trials(
    runs: Iterable[TrialRun],
    count: int,
    asha: Asha | None,
    direction: Literal["maximize", "minimize"],
    parallel: int,
    folder: Path,
    on_signal: Callable[[int], None],
) -> int | None:
    """Run trials 0, ..., count - 1, `parallel` at a time; return the number of the signal that ended them, or None.

    Each of `runs` runs all trials, one after the other. Without `asha`, all trials run to their end. Ray's own files
    are written in `folder`. A first signal is passed to `on_signal` before trials are told to stop.
    """
    os.environ.update(_SETTINGS)
    mode = "max" if direction == "maximize" else "min"
    scheduler = None if asha is None else _scheduler(asha)
    with _ray(parallel):
        for turn, run in enumerate(runs):
            trainable = tune.with_resources(tune.with_parameters(_Trial, run=run), {"CPU": 1})
            tuner = tune.Tuner(
                trainable,
                param_space={"number": tune.grid_search(list(range(count)))},
                tune_config=tune.TuneConfig(
                    metric=_OBJECTIVE, mode=mode, scheduler=scheduler, max_concurrent_trials=parallel
                ),
                run_config=tune.RunConfig(name=f"trials {turn}", storage_path=str(folder), verbose=0),
            )
            with _stopped_by_signals(on_signal) as signals:
                tuner.fit()
            if signals:
                return signals[0]
    return None


def _scheduler(asha: Asha) -> ASHAScheduler:
    # A trial that reaches its last env step ends by itself, as every run does.
    return ASHAScheduler(
        time_attr=_ENV_STEPS,
        max_t=asha.max_env_steps,
        grace_period=asha.grace_env_steps,
        reduction_factor=asha.reduction_factor,
        stop_last_trials=False,
    )


class _Trial(tune.Trainable):
    """A run in a thread, which waits after each report until Tune has decided."""

    def setup(self, config: dict[str, Any], run: TrialRun) -> None:  # type: ignore[override]  # with_parameters gives it
        self._run, self._number = run, int(config["number"])
        self._results: queue.Queue[dict[str, float] | None] = queue.Queue()
        self._continues: queue.Queue[bool] = queue.Queue()
        self._is_stopping = False
        self._last: dict[str, float] = {_OBJECTIVE: math.nan}
        self._thread = threading.Thread(target=self._train, daemon=True)

    def _train(self) -> None:
        try:
            self._run(self._number, self._report)
        finally:
            self._results.put(None)

    def _report(self, env_steps: int, objective: float | None) -> bool:
        if self._is_stopping:
            return False
        # Without env steps, the scheduler decides nothing: there is no objective yet.
        result = {_OBJECTIVE: math.nan} if objective is None else {_ENV_STEPS: env_steps, _OBJECTIVE: objective}
        self._results.put(result)
        return self._continues.get()

    def step(self) -> dict[str, Any]:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._continues.put(True)
        result = self._results.get()
        if result is None:
            # The last report was judged already, and must not count twice.
            return {_OBJECTIVE: self._last[_OBJECTIVE], "done": True}
        self._last = result
        return result

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        # Tune asks at the end; the run writes its own.
        return {}

    def cleanup(self) -> None:
        # The run ends in order: it evaluates once more and takes a checkpoint.
        self._is_stopping = True
        self._continues.put(False)
        if self._thread.ident is not None:
            self._thread.join()


@contextmanager
def _ray(num_cpus: int) -> Iterator[None]:
    """Use the Ray that this process is connected to, or start a private one."""
    if ray.is_initialized():
        yield
        return
    with without_signal_handlers():
        local = start_local(num_cpus=num_cpus, num_gpus=0, include_dashboard=False)
    try:
        yield
    finally:
        local.close()


@contextmanager
def _stopped_by_signals(on_signal: Callable[[int], None]) -> Iterator[list[int]]:
    """Let a first signal end all trials in order, and a second one raise KeyboardInterrupt; yields the signals."""
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt
        on_signal(number)
        os.kill(os.getpid(), signal.SIGUSR1)  # Tune's, which stops trials

    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    user_signal = signal.getsignal(signal.SIGUSR1)
    try:
        with handled(stop):
            yield came
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL if user_signal is None else user_signal)
