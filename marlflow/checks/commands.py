"""Run the checks that all commands share which run or show an experiment, and check what can be compiled."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from marlflow.base.errors import ConfigInvalid, NotCompiled, Problem, Problems
from marlflow.checks.rehearsal import rehearsal_problems
from marlflow.checks.validation import problems_of
from marlflow.config.checked import CheckedExperiment
from marlflow.config.environment import environment_name
from marlflow.config.experiment import Experiment, RuntimeConfig
from marlflow.config.placement import cluster_address
from marlflow.config.plans import drawn_plan
from marlflow.config.policy_assignment import subject_of
from marlflow.env.batched.protocol import FUNCTIONAL_ENVIRONMENTS, is_functional
from marlflow.env.make import EnvMaker
from marlflow.flow import Together
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.resources import Machines, local_resources, without_cuda
from marlflow.runtime.spec import RunSpec


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
    # No rehearsal then: it trains, and would fail again for the same reason.
    if not problems:
        problems += rehearsal_problems(checked.spec, checked.state_space)
    if problems:
        raise ConfigInvalid(problems)
    return checked


def refuse_others(experiment: object) -> None:
    """Raise ConfigInvalid for what is no experiment."""
    if not isinstance(experiment, Experiment):
        raise ConfigInvalid([f"{experiment!r} is not an Experiment; write Experiment(env=Env(...), ...)"])


def machines_of(experiment: Experiment | None) -> Machines | None:
    """Return the hardware of this machine or of the Ray cluster joined; None if not known yet.

    Raises ConfigInvalid for what is no experiment.
    """
    return None if experiment is None or _runtime(experiment) is None else runtime_of(experiment).machines()


def _runtime(experiment: Experiment) -> RuntimeConfig | None:
    refuse_others(experiment)
    runtime: object = experiment.runtime
    # One of another type is refused by its check.
    return runtime if isinstance(runtime, RuntimeConfig) else None


def machines_to_plan_for(experiment: Experiment | None) -> Machines | None:
    """Return `machines_of`, but connect briefly to the cluster that it joins; imports Ray only for that."""
    if experiment is None or (runtime := _runtime(experiment)) is None:
        return None
    if (address := cluster_address(runtime)) is None:
        # A process that is connected to Ray has imported it.
        if runtime.name == "inline" or "ray" in sys.modules:
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


def compile_problems(checked: CheckedExperiment, plan: Together) -> Iterator[Problem]:
    """Yield a problem for each learner with compile=true whose plan or placement prevents it, and one of rollouts."""
    yield from _rollout_problems(checked)
    for of_learner in plan.plans:
        learner = checked.spec.learners[of_learner.name]
        # An algorithm of a user's own may lack the setting.
        if getattr(learner.algorithm, "compile", None) is not True:
            continue
        of_stages = (stage.traits.not_compiled for stage in of_learner.stages())
        if reason := next(filter(None, of_stages), learner.compute.not_compiled):
            remedy = f"set {checked.experiment.path_of_learner(learner.name)}.algorithm.compile=auto"
            yield Problem("cannot have compile=true", subject_of(learner), reason, remedy)


def compiles_rollouts(spec: RunSpec) -> bool:
    """Return whether workers collect by compiled calls; makes an environment, and traces the actors, to find out."""
    if spec.compiled_rollouts is False or spec.step_timeout_s is not None or spec.inference is not None:
        return False
    if not _plays_functional(spec):
        return False
    # Imports JAX, as the environment has.
    from marlflow.policy.compiled_actor import CompiledActor

    try:
        for policy in spec.policies.values():
            CompiledActor(policy.actor(), policy.spaces.observation)
    except NotCompiled:
        return False
    return True


def _plays_functional(spec: RunSpec) -> bool:
    make = spec.make_env.make_batched if isinstance(spec.make_env, EnvMaker) else None
    # An offline run plays nothing, whatever environment was recorded.
    if make is None or spec.offline:
        return False
    env = make(1)
    try:
        return is_functional(env)
    finally:
        env.close()


def _rollout_problems(checked: CheckedExperiment) -> Iterator[Problem]:
    experiment, reason = checked.experiment, ""
    if experiment.rollouts.compiled is not True:
        return
    if experiment.env.batched is False:
        reason = "env.batched=false steps environments one by one"
    elif not _plays_functional(checked.spec):
        reason = f"is no functional environment ({FUNCTIONAL_ENVIRONMENTS})"
        reason = f"{environment_name(experiment.env)} {reason}"
    elif experiment.env.step_timeout_s is not None:
        reason = "env.step_timeout_s is set, and in a compiled call there are no single steps to time"
    elif experiment.placement.inference is not None:
        reason = "placement.inference acts for all workers"
    if reason:
        yield Problem("cannot be compiled", "rollouts", reason, "set rollouts.compiled=auto")
