"""Check what can be compiled: learners with compile=true, and rollouts."""

from __future__ import annotations

from collections.abc import Iterator

from marlflow.base.errors import NotCompiled, Problem
from marlflow.config.checked import CheckedExperiment
from marlflow.config.environment import environment_name
from marlflow.config.learners import subject_of
from marlflow.env.batched.protocol import FUNCTIONAL_ENVIRONMENTS, is_functional
from marlflow.env.batched.versions import makes_batches
from marlflow.env.make import EnvMaker
from marlflow.flow import Together
from marlflow.runtime.spec import RunSpec


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
    make = spec.make_env.make_batched if isinstance(spec.make_env, EnvMaker) else None
    if spec.compiled_rollouts is False or spec.offline or spec.step_timeout_s is not None or make is None:
        return False
    env = make(1)
    try:
        if spec.inference is not None or not is_functional(env):
            return False
    finally:
        env.close()
    # Imports JAX, as the environment has.
    from marlflow.policy.compiled_actor import CompiledActor

    try:
        for policy in spec.policies.values():
            CompiledActor(policy.actor(), policy.spaces.observation)
    except NotCompiled:
        return False
    return True


def _rollout_problems(checked: CheckedExperiment) -> Iterator[Problem]:
    experiment, reason = checked.experiment, ""
    if experiment.rollouts.compiled is not True:
        return
    if not makes_batches(experiment.env.factory):
        reason = f"is no functional environment ({FUNCTIONAL_ENVIRONMENTS})"
        reason = f"{environment_name(experiment.env)} {reason}"
    elif experiment.env.step_timeout_s is not None:
        reason = "env.step_timeout_s is set, and in a compiled call there are no single steps to time"
    elif experiment.placement.inference is not None:
        reason = "placement.inference acts for all workers"
    if reason:
        yield Problem("cannot be compiled", "rollouts", reason, "set rollouts.compiled=auto")
