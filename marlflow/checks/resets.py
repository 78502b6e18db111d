"""Check the policies that a matchmaker may reset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from marlflow.base.sentences import meant
from marlflow.config.experiment import Experiment, LearnerConfig, PolicyStop
from marlflow.env.episode_location import raised
from marlflow.league.alphastar import AlphaStar
from marlflow.matchmaking.matchmakers import Matchmaker, matchmaker_name
from marlflow.runtime.spec import RunSpec

_RESET_TO: Final = "league.matchmaker.reset_to"
_SNAPSHOT: Final = re.compile(r"(.+)@([1-9]\d*)")


def reset_problems(matchmaker: object, spec: RunSpec, learners: Mapping[str, LearnerConfig]) -> Iterator[str]:
    """Yield why policies of a matchmaker's `reset_policies` cannot be reset; nothing for other matchmakers."""
    if not isinstance(matchmaker, Matchmaker):
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


def reset_target_problems(experiment: Experiment, spec: RunSpec) -> Iterator[str]:
    """Yield why exploiters of AlphaStar's league cannot begin again from its `reset_to`."""
    if experiment.league is None or not isinstance(mode := experiment.league.matchmaker, AlphaStar):
        return
    if mode.reset_to in ("initial", "fresh"):
        return
    subject = f"{_RESET_TO} is {mode.reset_to!r}"
    if (named := _SNAPSHOT.fullmatch(mode.reset_to)) is None:
        yield f"{subject}; set it to initial, fresh, or the first snapshot of a policy, such as {spec.learning[0]}@1"
        return
    source, number = named.groups()
    missing = f"{subject}, which may not exist when an exploiter begins again"
    if source not in spec.learning:
        known = meant(source, spec.learning, "those that learn are")
        yield f"{subject}, and there is no policy {source!r} that learns{known}"
    elif number != "1":
        yield f"{missing}; set it to the first snapshot, {source}@1"
    elif not experiment.league.snapshots.at_start:
        yield f"{missing}; set league.snapshots.at_start=true"
    else:
        for policy in filter(mode.may_reset, spec.learning):
            if not spec.policies[policy].has_network_of(spec.policies[source]):
                yield (
                    f"{subject}, and policy {source!r} has another network than {policy!r}, which begins again from "
                    f"it; give both the same algorithm, model and spaces, or set {_RESET_TO}=initial"
                )


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
