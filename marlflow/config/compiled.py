"""Check that the learners with compile=true can be compiled."""

from __future__ import annotations

from collections.abc import Iterator

from marlflow.base.problems import Problem
from marlflow.config.learners import subject_of
from marlflow.config.validation import CheckedExperiment
from marlflow.flow import Together


def compile_problems(checked: CheckedExperiment, plan: Together) -> Iterator[Problem]:
    """Yield a problem for each learner with compile=true whose plan or placement prevents it."""
    for of_learner in plan.plans:
        learner = checked.spec.learners[of_learner.name]
        # An algorithm of a user's own may lack the setting.
        if getattr(learner.algorithm, "compile", None) is not True:
            continue
        of_stages = (stage.traits.not_compiled for stage in of_learner.stages())
        if reason := next(filter(None, of_stages), learner.compute.not_compiled):
            remedy = f"set {checked.experiment.path_of_learner(learner.name)}.algorithm.compile=auto"
            yield Problem("cannot have compile=true", subject_of(learner), reason, remedy)
