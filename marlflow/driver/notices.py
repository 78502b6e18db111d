"""Notices of a run: the header of run.log, messages of learners, where it resumes, and learners without an update."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import metadata
from typing import Any

import yaml

from marlflow.batches.items import Update, Weights
from marlflow.config.checked import CheckedExperiment
from marlflow.config.description import describe
from marlflow.config.experiment import Experiment
from marlflow.config.plans import drawn_plan
from marlflow.driver.episode_metrics import WINDOW_EPISODES
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.flow.plan import agent_steps_of_first_update
from marlflow.observe.console import RunConsole
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runtime.spec import LearnerSpec
from marlflow.sampling.protocol import Round
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")


class Notices(Service):
    """Writes notices to the console and the log."""

    def __init__(
        self,
        checked: CheckedExperiment,
        metrics: RunMetrics,
        console: RunConsole,
        published: Callable[[], Mapping[str, Weights]],
    ) -> None:
        self._checked, self._metrics, self._console, self._published = checked, metrics, console, published
        # Learners with an update that was ended early, each of which is reported once.
        self._cut: set[str] = set()
        self._has_looked_for_infos, self._episodes_before = False, 0

    def notify(self, text: str) -> None:
        """Write a notice."""
        log.info(text)
        self._console.notice(text)

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        self.notify(f"resuming from {checkpoint.path}, {self._metrics.env_steps:,} env steps")
        # Metrics may have been added since, which none of the earlier episodes can have.
        self._episodes_before = self._metrics.episodes
        if report.episodes_abandoned:
            self.notify(
                f"{report.episodes_abandoned} running episodes differed when they were replayed and were discarded"
            )
        if report.episodes_restarted:
            self.notify(f"{report.episodes_restarted} running episodes were too long to be replayed and start again")

    async def after_round(self, round: Round) -> None:
        for note in {receipt.compiled.note for receipt in round.receipts} - {""}:
            self.notify(note)
        if self._metrics.episodes - self._episodes_before >= WINDOW_EPISODES:
            self._look_for_infos()

    def _look_for_infos(self) -> None:
        """Once, say which of the `metrics` that were asked for no episode has had."""
        if self._has_looked_for_infos or not (episodes := self._metrics.episodes - self._episodes_before):
            return
        self._has_looked_for_infos = True
        seen = {name for totals in self._metrics.policies.values() for name in totals.played.infos}
        for name, metric in self._checked.experiment.metrics.items():
            if name not in seen:
                when = "at an agent's end" if metric.at == "end" else "at any env step"
                missed = f"no info had a number {metric.info!r} {when}"
                self.notify(f"metrics.{name} has no value: in {episodes:,} episodes, {missed}")

    def updated(self, learner: str, update: Update) -> None:
        if update.note:
            self.notify(f"learner {learner}: {update.note}")
        if update.minibatches_left and learner not in self._cut:
            self._cut.add(learner)
            self.notify(
                f"an update of learner {learner} was ended after {update.updates:,} optimizer steps, since the run "
                f"ends: the rest of its rows, {update.minibatches_left:,} minibatches, is not learned from"
            )

    def close(self) -> None:
        self._look_for_infos()
        published = self._published()
        for name, totals in self._metrics.learners.items():
            learner = self._checked.spec.learners[name]
            if totals.updates and all(published[policy].version == 0 for policy in learner.members):
                every = f"{self._checked.experiment.path_of_learner(name)}.algorithm.publish_every_updates"
                setting = f" ({every})" if hasattr(learner.algorithm, "publish_every_updates") else ""
                self.notify(
                    f"{_learner_text(name, learner)} acts and is saved as it began: none of its {totals.updates:,} "
                    f"updates was published{setting}"
                )
            if totals.updates == 0:
                sampled = self._metrics.agent_steps_sampled
                count = sum(sampled[policy] for policy in self._checked.spec.learners[name].learns_from)
                self.notify(why_never_updated(self._checked, name, totals, count))


def why_never_updated(checked: CheckedExperiment, name: str, totals: LearnerTotals, agent_steps_sampled: int) -> str:
    """Return one sentence on a learner whose `totals` have no update.

    `agent_steps_sampled` counts the agent steps of all policies that it learns from.
    """
    learner = checked.spec.learners[name]
    who = " and ".join(learner.others) or "it"
    sampled = f"{_learner_text(name, learner)} was never updated: {who} sampled {agent_steps_sampled:,} agent steps"
    needed = _needed(checked, name, learner.algorithm)
    if agent_steps_sampled >= needed:
        counts = {"updates_skipped": totals.updates_skipped, "stale_rows_dropped": totals.stale_rows_dropped}
        known = [f"{key} {count:,}" for key, count in counts.items() if count]
        return ", and ".join([sampled, *([f"its reports have {', '.join(known)}"] if known else [])])
    settings = ", ".join(_settings(checked, name, needed))
    return f"{sampled}, and its first update needs at least {needed:,}{f' ({settings})' if settings else ''}"


def _learner_text(name: str, learner: LearnerSpec) -> str:
    return f"policy {name}" if learner.members == (name,) else f"learner {name}"


def _needed(checked: CheckedExperiment, name: str, algorithm: Any) -> int:
    learners = {**checked.spec.learners, name: replace(checked.spec.learners[name], algorithm=algorithm)}
    plans = drawn_plan(checked.experiment, replace(checked.spec, learners=learners)).plans
    return next(agent_steps_of_first_update(plan) for plan in plans if plan.name == name)


def _settings(checked: CheckedExperiment, name: str, needed: int) -> Iterator[str]:
    algorithm: Any = checked.spec.learners[name].algorithm
    where = checked.experiment.path_of_learner(name)
    for field in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        # Found by trial: change one integer setting, and see whether the plan needs another number.
        if field.init and type(value) is int:
            try:
                depends = _needed(checked, name, replace(algorithm, **{field.name: 2 * value + 1})) != needed
            except Exception:  # noqa: BLE001 a user's algorithm may refuse the value with any error
                continue
            if depends:
                yield f"{where}.algorithm.{field.name}"


_PACKAGES = (
    "ray",
    "torch",
    "numpy",
    "gymnasium",
    "pettingzoo",
    "supersuit",
    "hydra-core",
    "mpe2",
    "open_spiel",
)


def preamble(experiment: Experiment) -> list[str]:
    """Return the header's messages."""
    return [
        f"versions: {_versions()}; {platform.platform()}, {os.cpu_count()} CPUs",
        f"command: {shlex.join(sys.orig_argv)}, in {os.getcwd()}",
        f"configuration:\n{as_yaml(experiment).rstrip()}",
    ]


@cache
def _versions() -> str:
    versions = [f"marlflow {metadata.version('marlflow')}", f"python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)


def as_yaml(experiment: Experiment) -> str:
    """Return an experiment as a configuration file, with all defaults.

    A value that no configuration can express, such as a nested function, is shown by its name.
    """
    return yaml.safe_dump(describe(experiment).values, sort_keys=False, allow_unicode=True, width=120)
