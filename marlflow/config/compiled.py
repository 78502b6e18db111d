"""Check that learners with compile=true, and rollouts with compiled=true, can be compiled."""

from __future__ import annotations

from collections.abc import Iterator

from marlflow.base.problems import Problem
from marlflow.config.environment import environment_name
from marlflow.config.learners import subject_of
from marlflow.config.validation import CheckedExperiment
from marlflow.env.batched.versions import makes_batches
from marlflow.flow import Together


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


def _rollout_problems(checked: CheckedExperiment) -> Iterator[Problem]:
    experiment, reason = checked.experiment, ""
    if experiment.rollouts.compiled is not True:
        return
    if not makes_batches(experiment.env.factory):
        reason = "is no functional environment (env=functional, jaxmarl, jumanji or pgx)"
        reason = f"{environment_name(experiment.env)} {reason}"
    elif experiment.env.step_timeout_s is not None:
        reason = "env.step_timeout_s is set, and in a compiled call there are no single steps to time"
    elif experiment.placement.inference is not None:
        reason = "placement.inference acts for all workers"
    if reason:
        yield Problem("cannot be compiled", "rollouts", reason, "set rollouts.compiled=auto")
