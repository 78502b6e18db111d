"""Short runs of which stages are placed, and what their learners are in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import marlflow as mf
from marlflow.base.serialization import Tree, from_bytes
from marlflow.checks.validation import ready
from marlflow.config.plans import RoundHooks, build_plan
from marlflow.flow import Executor
from marlflow.flow.relocate import Where
from marlflow.runtime.protocol import Runtime
from marlflow.sampling.protocol import Request
from tests.runtime.small_runs import SMALL, small_run


class Ran(NamedTuple):
    """The results of a run: each saved file, each report, each stage's meter, and the printed plan."""

    kept: dict[str, Tree]
    reports: list[Any]
    meters: dict[str, dict[str, Any]]
    plan: str


def placed(algorithm: mf.Algorithm, stages: Mapping[str, Where], **changes: Any) -> mf.Experiment:
    """One policy with stages here and there."""
    return placed_together({"hunters": (algorithm, stages)}, (mf.Rule("*", "hunters"),), **changes)


def placed_together(
    policies: Mapping[str, tuple[mf.Algorithm, Mapping[str, Where]]], mapping: Sequence[mf.Rule], **changes: Any
) -> mf.Experiment:
    """Policies with stages here and there."""
    made = {
        name: mf.Policy(algorithm, SMALL, placement=mf.PlacementOverrides(stages=dict(stages)))
        for name, (algorithm, stages) in policies.items()
    }
    given = {"rollouts": mf.Rollouts(num_workers=2, fragment_env_steps=40), **changes}
    return small_run(policies=made, mapping=mapping, **given)


def run(experiment: mf.Experiment, runtime: Runtime, rounds: int) -> Ran:
    """So many rounds, and all that came of them."""
    spec = ready(experiment).spec
    reports: list[Any] = []
    try:
        parts = runtime.start(spec)
        numbers = iter(range(rounds))

        def request() -> Request | None:
            number = next(numbers, None)
            weights = parts.published()
            return None if number is None else Request(number, weights, {key: {"epsilon": 0.5} for key in weights})

        plan = build_plan(experiment, spec, parts, RoundHooks(request, lambda made: made))
        plan.check()
        executor = Executor(plan, on_output=lambda _, report: reports.append(report))
        executor.run_sync()
        kept = {name: from_bytes(data) for name, data in runtime.save({}).files.items()}
        return Ran(kept, reports, executor.meters(), str(plan))
    finally:
        runtime.close()


def assert_same(one: Tree, other: Tree) -> None:
    """Equal bit for bit; of published parameters the common ones."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if name == "published":
                acting = min(len(value), len(other[name]))
                assert_same(value[:acting], other[name][:acting])
            else:
                assert_same(value, other[name])
    else:
        np.testing.assert_array_equal(one, other)
