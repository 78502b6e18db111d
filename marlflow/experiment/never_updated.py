"""Why a policy was never updated: what its first update needs, by its plan, and which of its settings say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from marlflow.experiment.plans import drawn_plan
from marlflow.experiment.ready import CheckedExperiment
from marlflow.experiment.tally import PolicyTally
from marlflow.flow.needs import agent_steps_of_first_update


def why_never_updated(made: CheckedExperiment, name: str, tally: PolicyTally) -> str:
    """One sentence on the policy `name`, whose `tally` has no update."""
    sampled = f"policy {name} was never updated: it sampled {tally.agent_steps_sampled:,} agent steps"
    needed = _needed(made, name, made.spec.policies[name].algorithm)
    if tally.agent_steps_sampled >= needed:
        counts = {"updates_skipped": tally.updates_skipped, "stale_rows_dropped": tally.stale_rows_dropped}
        known = [f"{key} {count:,}" for key, count in counts.items() if count]
        return ", and ".join([sampled, *([f"its reports have {', '.join(known)}"] if known else [])])
    settings = ", ".join(_settings(made, name, needed))
    return f"{sampled}, and its first update needs at least {needed:,}{f' ({settings})' if settings else ''}"


def _needed(made: CheckedExperiment, name: str, algorithm: Any) -> int:
    """The agent steps that the first update needs with the settings of `algorithm`, as far as its plan says."""
    policies = {**made.spec.policies, name: replace(made.spec.policies[name], algorithm=algorithm)}
    plans = drawn_plan(made.experiment, replace(made.spec, policies=policies)).plans
    return next(agent_steps_of_first_update(plan) for plan in plans if plan.name == name)


def _settings(made: CheckedExperiment, name: str, needed: int) -> Iterator[str]:
    """The keys of the settings on which `needed` depends: the plan is drawn with each of them changed."""
    algorithm: Any = made.spec.policies[name].algorithm
    where = f"policies.{name}" if name in made.experiment.policies else "default_policy"
    for field in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, field.name)
        if field.init and type(value) is int:
            try:
                depends = _needed(made, name, replace(algorithm, **{field.name: 2 * value + 1})) != needed
            except Exception:  # noqa: BLE001  an algorithm of the user's may refuse the value with any error
                continue
            if depends:
                yield f"{where}.algorithm.{field.name}"
