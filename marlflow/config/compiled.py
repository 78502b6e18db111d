"""Check that the learners with compile=true can be compiled."""

from __future__ import annotations

from collections.abc import Iterator

from marlflow.base.problems import Problem
from marlflow.config.learners import subject_of
from marlflow.config.validation import CheckedExperiment
from marlflow.flow import Plan, Together
from marlflow.learner.compiled_updates import GRADIENTS_EXCHANGED
from marlflow.runtime.spec import LearnerSpec


def compile_problems(checked: CheckedExperiment, plan: Together) -> Iterator[Problem]:
    """Yield a problem for each learner with compile=true whose plan or placement prevents it."""
    for of_learner in plan.plans:
        learner = checked.spec.learners[of_learner.name]
        # An algorithm of a user's own may lack the setting.
        if getattr(learner.algorithm, "compile", None) is not True:
            continue
        has_processes = checked.experiment.runtime.name != "inline"
        if reason := next(filter(None, _reasons(of_learner, learner, has_processes)), None):
            remedy = f"set {checked.experiment.path_of_learner(learner.name)}.algorithm.compile=auto"
            yield Problem("cannot have compile=true", subject_of(learner), reason, remedy)


def _reasons(plan: Plan, learner: LearnerSpec, has_processes: bool) -> Iterator[str]:
    yield from (stage.traits.not_compiled for stage in plan.stages())
    yield learner.compute.not_compiled
    if has_processes and learner.in_several_processes:
        yield GRADIENTS_EXCHANGED
