"""Check the policies that a matchmaker may reset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from marlflow.base.near import meant
from marlflow.config.experiment import LearnerConfig, PolicyStop
from marlflow.env.frames import raised
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.matchmaker_failures import matchmaker_name
from marlflow.sampling.population import ResettingMatchmaker


def reset_problems(matchmaker: object, spec: RunSpec, learners: Mapping[str, LearnerConfig]) -> Iterator[str]:
    """Yield why policies of a matchmaker's `reset_policies` cannot be reset; nothing for other matchmakers."""
    if not isinstance(matchmaker, ResettingMatchmaker):
        return
    name = matchmaker_name(matchmaker)
    try:
        policies = list(matchmaker.reset_policies())
    except Exception as error:  # noqa: BLE001  a matchmaker of the user's own may raise anything
        yield f"mapping: {name}.reset_policies(): {raised(error)}"
        return
    for policy in policies:
        if policy not in spec.policies:
            yield f"mapping: {name} may reset policy {policy!r}, which does not exist" + meant(
                policy, spec.policies, "the policies are"
            )
        elif problem := _problem(policy, spec, learners):
            yield f"policy {policy!r} ({spec.policies[policy].algorithm.name}) cannot be reset by {name}: {problem}"


def _problem(policy: str, spec: RunSpec, learners: Mapping[str, LearnerConfig]) -> str | None:
    learner = spec.learner_of(policy)
    if learner is None:
        return "it does not learn; give it an algorithm that does"
    if learner.on_workers or learner.algorithm.capabilities.tasks:
        return "it learns on the workers, each of which has a copy of it; use ppo"
    if len(learner.members) > 1:
        others = ", ".join(name for name in learner.members if name != policy)
        return f"learner {learner.name!r} trains it together with {others}; give it a learner of its own"
    if policy in spec.records:
        return "it learns from recorded experience, which would not begin again; let it learn from its own games"
    if learners[learner.name].stop != PolicyStop():
        return "its own stop ends its learning for good; leave out its stop, and end the run by stop.env_steps"
    return None
