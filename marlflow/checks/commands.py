"""Run the checks of every command that runs or shows an experiment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from marlflow.base.errors import ConfigInvalid, Problems
from marlflow.checks.compiled import compile_problems
from marlflow.checks.rehearsal import rehearsal_problems
from marlflow.checks.validation import problems_of
from marlflow.config.checked import CheckedExperiment
from marlflow.config.cluster_address import cluster_address
from marlflow.config.experiment import Experiment
from marlflow.config.plans import drawn_plan
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.resources import Machines, local_resources, without_cuda


def check(
    experiment: Experiment | None, earlier_problems: Sequence[str] = (), machines: Machines | None = None
) -> CheckedExperiment:
    """Run all checks on an experiment; raise InvalidInput with all problems.

    `earlier_problems` were found in its configuration; without an environment, `experiment` is None. `machines` is the
    available hardware; None skips that check.
    """
    checked: CheckedExperiment | None = None
    problems: Problems = list(earlier_problems)
    if experiment is not None:
        checked, more = problems_of(experiment, machines)
        problems += more
        if checked is not None and experiment.runtime.name == "inline":
            # The inline runtime ignores placement.inference, so an actor on cuda is no problem.
            problems += without_cuda(replace(checked.spec, inference=None))
    if checked is None or problems:
        raise ConfigInvalid(problems)
    # Type errors of the plan come first: rehearsing a wrong plan would fail in confusing ways.
    plan = drawn_plan(checked.experiment, checked.spec)
    plan.check()
    problems += compile_problems(checked, plan)
    # A rehearsal trains, which would fail again for what cannot be compiled.
    if not problems:
        problems += rehearsal_problems(checked.spec, checked.state_space)
    if problems:
        raise ConfigInvalid(problems)
    return checked


def machines_of(experiment: Experiment | None) -> Machines | None:
    """Return the hardware of this machine or of the Ray cluster joined; None if not known yet."""
    return None if experiment is None else runtime_of(experiment).machines()


def machines_to_plan_for(experiment: Experiment | None) -> Machines | None:
    """Return `machines_of`, but connect briefly to the cluster that it joins; imports Ray only for that."""
    if experiment is None or (address := cluster_address(experiment.runtime)) is None:
        # A process that is connected to Ray has imported it.
        if experiment is None or experiment.runtime.name == "inline" or "ray" in sys.modules:
            return machines_of(experiment)
        return Machines([local_resources()], here=True)
    from marlflow.runtime.ray.cluster import free_machines

    return free_machines(address)


def runtime_of(experiment: Experiment) -> Runtime:
    """Return the runtime of an experiment; imports Ray only for `ray`."""
    if experiment.runtime.name == "inline":
        from marlflow.runtime.inline import InlineRuntime

        return InlineRuntime()
    from marlflow.runtime.ray import RayRuntime

    runtime = experiment.runtime
    return RayRuntime(
        cluster_address(runtime),
        object_store_bytes=runtime.object_store_bytes,
        node_ip_address=runtime.node_ip_address,
        dashboard=runtime.dashboard,
    )
