"""Why a learner was never updated: what its first update needs, by its plan, and which of its settings say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from marlflow.config.plans import drawn_plan
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.flow.needs import agent_steps_of_first_update


def why_never_updated(made: CheckedExperiment, name: str, tally: LearnerTotals, agent_steps_sampled: int) -> str:
    """One sentence on the learner `name`, whose `tally` has no update; its policies have sampled so much."""
    learner = made.spec.learners[name]
    who = f"policy {name}" if learner.members == (name,) else f"learner {name}"
    sampled = f"{who} was never updated: it sampled {agent_steps_sampled:,} agent steps"
    needed = _needed(made, name, learner.algorithm)
    if agent_steps_sampled >= needed:
        counts = {"updates_skipped": tally.updates_skipped, "stale_rows_dropped": tally.stale_rows_dropped}
        known = [f"{key} {count:,}" for key, count in counts.items() if count]
        return ", and ".join([sampled, *([f"its reports have {', '.join(known)}"] if known else [])])
    settings = ", ".join(_settings(made, name, needed))
    return f"{sampled}, and its first update needs at least {needed:,}{f' ({settings})' if settings else ''}"


def _needed(made: CheckedExperiment, name: str, algorithm: Any) -> int:
    """The agent steps that the first update needs with the settings of `algorithm`, as far as its plan says."""
    learners = {**made.spec.learners, name: replace(made.spec.learners[name], algorithm=algorithm)}
    plans = drawn_plan(made.experiment, replace(made.spec, learners=learners)).plans
    return next(agent_steps_of_first_update(plan) for plan in plans if plan.name == name)


def _settings(made: CheckedExperiment, name: str, needed: int) -> Iterator[str]:
    """The keys of the settings on which `needed` depends: the plan is drawn with each of them changed."""
    algorithm: Any = made.spec.learners[name].algorithm
    where = made.experiment.path_of_learner(name)
    for field in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        if field.init and type(value) is int:
            try:
                depends = _needed(made, name, replace(algorithm, **{field.name: 2 * value + 1})) != needed
            except Exception:  # noqa: BLE001  an algorithm of the user's may refuse the value with any error
                continue
            if depends:
                yield f"{where}.algorithm.{field.name}"
