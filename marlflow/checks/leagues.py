"""Check what a league or a matchmaker may do in a run: reset policies, and compute the NashConv of its solution."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.config.experiment import Env, Experiment, LearnerConfig, PolicyStop
from marlflow.env.episode_location import raised
from marlflow.league.alphastar import AlphaStar
from marlflow.league.sides import Role, Sides
from marlflow.matchmaking.matchmakers import Matchmaker, matchmaker_name
from marlflow.policy.actor import DistributionActor, RecurrentActor
from marlflow.runtime.spec import PolicySpec, RunSpec

if TYPE_CHECKING:
    from marlflow.league.exploitability import InformationStates


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
        elif problem := why_no_successor(policy, spec, learners):
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
        known = meant(source, spec.learning, "the policies that learn are")
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


def why_no_successor(policy: str, spec: RunSpec, learners: Mapping[str, LearnerConfig]) -> str | None:
    """Return why no other learner can take the place of a policy's; None if one can."""
    learner = spec.learner_of(policy)
    if learner is None:
        return "it does not learn; give it an algorithm that does"
    if learner.on_workers or learner.algorithm.capabilities.tasks:
        return "it learns on the workers, each of which has a copy of it; use ppo"
    if len(learner.members) > 1:
        others = ", ".join(name for name in learner.members if name != policy)
        return f"learner {learner.name!r} trains it together with {others}; give it a learner of its own"
    if policy in spec.records:
        return "it learns from recorded experience, which stays the same; let it learn from its own games"
    if learners[learner.name].stop != PolicyStop():
        return "its own stop ends its learning for good; leave out its stop, and end the run by stop.env_steps"
    return None


OPENSPIEL = "marlflow.env.simulators.openspiel.env"
_AGENT = "player_"


def information_states(env: Env) -> InformationStates:
    """Return the information states of the game that `env` plays; raises ConfigInvalid as InformationStates does."""
    # OpenSpiel is an extra.
    from marlflow.league.exploitability import InformationStates

    arguments = {name: env.arguments[name] for name in ("game", "parameters", "observation") if name in env.arguments}
    return InformationStates(**arguments)


def player_of(role: Role) -> int:
    """Return the number of the player of an OpenSpiel game that a role plays."""
    return int(role.agents[0].removeprefix(_AGENT))


def nash_conv_problems(env: Env, sides: Sides, policies: Mapping[str, PolicySpec]) -> Iterator[str]:
    """Yield why the NashConv of policies cannot be computed."""
    if (reason := _reason(env)) is not None:
        yield f"{reason}; NashConv is for OpenSpiel's games as they are: choose env=openspiel"
        return
    if several := [role.name for role in sides.roles if len(role.agents) > 1]:
        yield f"role {several[0]!r} has several players, and NashConv needs a role for each; change league.sides"
        return
    for name, policy in policies.items():
        actor = policy.actor()
        if isinstance(actor, RecurrentActor) or not isinstance(actor, DistributionActor):
            yield (
                f"policy {name!r} ({policy.algorithm.name}) has a memory, or no probabilities of its actions, which "
                "NashConv needs in each information state; choose another algorithm, or a model without memory"
            )
    try:
        information_states(env)
    except ConfigInvalid as error:
        yield from map(str, error.found)
    except Exception as error:  # noqa: BLE001  (OpenSpiel's own words)
        yield f"the game cannot be walked through: {raised(error)}"


def _reason(env: Env) -> str | None:
    factory = env.factory if isinstance(env.factory, str) else f"{env.factory.__module__}.{env.factory.__qualname__}"
    if factory != OPENSPIEL:
        return f"the environment is {factory}, which is no game of OpenSpiel"
    if env.wrappers:
        return "env.wrappers change what policies observe or do"
    if env.arguments.get("max_env_steps") is not None:
        return "env.max_env_steps changes how the game ends"
    return None
