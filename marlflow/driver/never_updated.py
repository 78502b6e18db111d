"""Explains why a learner was never updated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from marlflow.config.checked import CheckedExperiment
from marlflow.config.plans import drawn_plan
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.flow.plan import agent_steps_of_first_update


def why_never_updated(checked: CheckedExperiment, name: str, totals: LearnerTotals, agent_steps_sampled: int) -> str:
    """Return one sentence on a learner whose `totals` have no update.

    `agent_steps_sampled` are those of all policies that it learns from.
    """
    learner = checked.spec.learners[name]
    learner_text = f"policy {name}" if learner.members == (name,) else f"learner {name}"
    who = " and ".join(learner.others) or "it"
    sampled = f"{learner_text} was never updated: {who} sampled {agent_steps_sampled:,} agent steps"
    needed = _needed(checked, name, learner.algorithm)
    if agent_steps_sampled >= needed:
        counts = {"updates_skipped": totals.updates_skipped, "stale_rows_dropped": totals.stale_rows_dropped}
        known = [f"{key} {count:,}" for key, count in counts.items() if count]
        return ", and ".join([sampled, *([f"its reports have {', '.join(known)}"] if known else [])])
    settings = ", ".join(_settings(checked, name, needed))
    return f"{sampled}, and its first update needs at least {needed:,}{f' ({settings})' if settings else ''}"


def _needed(checked: CheckedExperiment, name: str, algorithm: Any) -> int:
    learners = {**checked.spec.learners, name: replace(checked.spec.learners[name], algorithm=algorithm)}
    plans = drawn_plan(checked.experiment, replace(checked.spec, learners=learners)).plans
    return next(agent_steps_of_first_update(plan) for plan in plans if plan.name == name)


def _settings(checked: CheckedExperiment, name: str, needed: int) -> Iterator[str]:
    algorithm: Any = checked.spec.learners[name].algorithm
    where = checked.experiment.path_of_learner(name)
    for field in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        # Dependence is found by experiment: change one integer setting, and see whether the plan needs another number.
        if field.init and type(value) is int:
            try:
                depends = _needed(checked, name, replace(algorithm, **{field.name: 2 * value + 1})) != needed
            except Exception:  # noqa: BLE001  an algorithm of the user's may refuse the value with any error
                continue
            if depends:
                yield f"{where}.algorithm.{field.name}"
