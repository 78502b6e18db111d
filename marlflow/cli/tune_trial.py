"""A trial of `marlflow tune`: an ordinary run in its actor's process, whose reports are judged."""

from __future__ import annotations

import math
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig

from marlflow.base.errors import InvalidInput, MarlflowError
from marlflow.cli.arguments import Words
from marlflow.cli.failures import failure
from marlflow.cli.job import prepared, recorded
from marlflow.cli.sweep_jobs import STOP
from marlflow.cli.sweep_records import JobRecord, read_records, settings_of
from marlflow.config.compose import run_job
from marlflow.driver.graceful_shutdown import REASON_OF
from marlflow.driver.train import Result, resume, train
from marlflow.observe.callback import Callback, RoundEvent, StopRun
from marlflow.observe.report import Report, metric
from marlflow.runs.run_state import write_state

PAUSED = "paused"
"""How a trial has ended that continues later."""


class _JudgedReports(Callback):
    """Gives each report's objective to the scheduler, and stops the run if the scheduler says so, or to pause it.

    The scheduler gets no objective before the first update. Until then, trials with the same initial policy have the
    same episodes: a comparison would find them equal and stop none, and the next comparison comes many env steps later.
    """

    def __init__(
        self,
        objective: str,
        reported: Callable[[int, float | None], bool],
        why_ended: Callable[[], str | None],
        pauses_at: int | None,
    ) -> None:
        self._objective, self._reported, self._why_ended = objective, reported, why_ended
        self._pauses_at = pauses_at

    def played(self, round: RoundEvent) -> StopRun | None:
        # Not by stop.env_steps, of which settings such as a league's intervals may be a share.
        return StopRun(PAUSED) if self._pauses_at is not None and round.env_steps >= self._pauses_at else None

    def reported(self, record: Report) -> StopRun | None:
        value = metric(record, self._objective)
        has_learned = any(learner["updates"] > 0 for learner in record["learners"].values())
        known = None if value is None or not math.isfinite(value) or not has_learned else float(value)
        if self._reported(int(record["env_steps"]), known):
            return None
        return StopRun(self._why_ended() or "others are better")


@dataclass(frozen=True, slots=True)
class TuneTrial:
    """The trials that an actor runs: `jobs` are the overrides of all trials; `fixed` keys are the same in each.

    `folder` is the sweep's folder, `records` is where each trial writes its record, `cwd` the command's folder. If
    `is_resumed`, trials continue in their folders; they pause after the round that reaches the env steps `pauses_at`,
    and play final evaluations then only if `evaluates_pauses`.
    """

    jobs: tuple[tuple[str, ...], ...]
    fixed: frozenset[str]
    config_dirs: tuple[str, ...]
    folder: Path
    records: Path
    cwd: str
    objective: str
    is_resumed: bool = False
    pauses_at: int | None = None
    evaluates_pauses: bool = True

    def end_soon(self, number: int) -> None:
        """Let all trials end after their round because of a signal of this number."""
        (self.records / STOP).write_text(REASON_OF[signal.Signals(number)], encoding="utf-8")
        print("the running trials end after their next report; interrupt again to stop at once", file=sys.stderr)

    @property
    def ended_by(self) -> str | None:
        """How a signal ended the command; None without one."""
        stop = self.records / STOP
        return stop.read_text(encoding="utf-8") if stop.exists() else None

    def __call__(self, number: int, reported: Callable[[int, float | None], bool]) -> None:
        """Run the trial of a number; its error, if any, is in its record."""
        os.chdir(self.cwd)
        if self.cwd not in sys.path:
            sys.path.insert(0, self.cwd)
        folder = self.folder / str(number)
        before = [one for one in read_records(self.records) if one.number == number]
        if self.is_resumed and any(one.ended_by != PAUSED for one in before):
            return  # it failed, or has ended by itself
        record = JobRecord(number, settings_of(self.jobs[number], self.fixed), str(folder), os.getpid())
        record.write(self.records)
        try:
            record.end(self._train(number, folder, reported))
            if record.ended_by.startswith("callbacks.tune:"):
                is_paused = record.ended_by == f"callbacks.tune: {PAUSED}"
                if (signaled := self.ended_by) is not None:
                    write_state(folder, "interrupted", signaled)
                record.ended_by = signaled or (PAUSED if is_paused else record.ended_by)
        except MarlflowError as error:
            record.fail(failure(error).removeprefix("error: "), isinstance(error, InvalidInput))
        except Exception:  # noqa: BLE001  the command shows it
            record.fail(traceback.format_exc(), is_refused=False)
        finally:
            record.write(self.records)

    def _train(self, number: int, folder: Path, reported: Callable[[int, float | None], bool]) -> Result:
        from marlflow.checks.validation import from_config

        ready = prepared(Words(overrides=list(self.jobs[number]), config_dirs=list(self.config_dirs)))
        results: list[Result] = []

        def run(job: DictConfig) -> None:
            experiment = from_config(job, ready.problems)
            callbacks = {
                **experiment.callbacks,
                "tune": _JudgedReports(self.objective, reported, lambda: self.ended_by, self.pauses_at),
            }
            # Trials share the terminal, so they do not write to it.
            quiet = replace(experiment, callbacks=callbacks, log=replace(experiment.log, console="none"))
            if self.pauses_at is not None and not self.evaluates_pauses:
                quiet = replace(quiet, evaluation=replace(experiment.evaluation, final_episodes=0))
            results.append((resume if self.is_resumed else train)(quiet, folder, files=recorded(job)))

        # Hydra would resolve an interpolation in the path.
        run_job(ready.config, str(folder).replace("${", "\\${"), run)
        return results[0]
