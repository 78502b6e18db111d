"""Check whether the NashConv of a league can be computed: small games of OpenSpiel, and policies without memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid
from marlflow.config.experiment import Env
from marlflow.env.episode_location import raised
from marlflow.league.sides import Role, Sides
from marlflow.policy.actor import DistributionActor, RecurrentActor
from marlflow.runtime.spec import PolicySpec

if TYPE_CHECKING:
    from marlflow.league.exploitability import InformationStates

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
