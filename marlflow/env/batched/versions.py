"""The batched version of an environment, if there is one: made from the same arguments, with the same numbers.

A factory of your own has it as its attribute `batched`, a function of `num_envs` and the same arguments:

    parallel_env.batched = batched_env

A version that makes functional environments takes wrappers, if it says so: `batched_env.takes_wrappers = True`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from marlflow.base.errors import ConfigInvalid
from marlflow.env.batched.protocol import BatchedEnv, info_keys, is_functional
from marlflow.env.factories import import_factory
from marlflow.env.simulators import pettingzoo_registry

Batched: TypeAlias = bool | Literal["auto"]
"""`env.batched`: whether environments are stepped by one call; `auto`: if a version gives the same numbers."""

_NUM_ENVS = "num_envs"
_HERE = "marlflow.env.batched"
# The batched versions of environments that come with marlflow or with other packages, by their factory.
_SHIPPED = {
    "marlflow.env.games.cartpole_team.parallel_env": f"{_HERE}.cartpole_team.BatchedCartPoleTeam",
    "marlflow.env.simulators.lbf.parallel_env": "marlflow.env.functional.lbf.batched_env",
    "marlflow.env.games.matrix_games.parallel_env": f"{_HERE}.matrix_games.BatchedMatrixGame",
    "marlflow.env.games.pendulum_team.parallel_env": f"{_HERE}.pendulum_team.BatchedPendulumTeam",
    "marlflow.env.simulators.rware.parallel_env": "marlflow.env.functional.rware.batched_env",
    "marlflow.env.games.toll.parallel_env": f"{_HERE}.toll.BatchedToll",
    "mpe2.simple_adversary_v3.parallel_env": f"{_HERE}.particle_scenarios.SimpleAdversary",
    "mpe2.simple_reference_v3.parallel_env": f"{_HERE}.particle_scenarios.SimpleReference",
    "mpe2.simple_speaker_listener_v4.parallel_env": f"{_HERE}.particle_scenarios.SimpleSpeakerListener",
    "mpe2.simple_spread_v3.parallel_env": f"{_HERE}.particle_scenarios.SimpleSpread",
    "mpe2.simple_tag_v3.parallel_env": f"{_HERE}.particle_scenarios.SimpleTag",
    "pettingzoo.classic.connect_four_v3.env": f"{_HERE}.board_games.ConnectFour",
    "pettingzoo.classic.rps_v2.parallel_env": f"{_HERE}.matrix_games.RockPaperScissors",
    "pettingzoo.classic.tictactoe_v3.env": f"{_HERE}.board_games.TicTacToe",
}
# Other initial states of the same distribution, or rewards that differ by a rounding error: for `true` only.
_OTHER_NUMBERS = frozenset(
    f"marlflow.env.{name}.parallel_env" for name in ("games.pendulum_team", "simulators.lbf", "simulators.rware")
)


@dataclass(frozen=True, slots=True)
class BatchedMaker:
    """Makes environments that are stepped by one call; picklable."""

    factory: Callable[..., Any] | str
    arguments: Mapping[str, Any]
    wrappers: Sequence[Any] = ()

    def __call__(self, num_envs: int) -> BatchedEnv:
        env = imported(self.factory)(num_envs, **self.arguments)
        name = getattr(self.factory, "__qualname__", str(self.factory))
        if not isinstance(env, BatchedEnv):
            raise ConfigInvalid([f"{name} makes a {type(env).__name__}, not a marlflow.env.BatchedEnv"])
        return batch_wrapped(env, self.wrappers, name)

    def info_keys(self) -> tuple[str, ...]:
        """Return the names in the infos of every step; makes an environment to find out."""
        env = self(1)
        try:
            return info_keys(env)
        finally:
            env.close()


def batch_wrapped(env: BatchedEnv, wrappers: Sequence[Any], name: str) -> BatchedEnv:
    """Return a batch of functional environments with `wrappers`; raises ConfigInvalid for other batches."""
    if not wrappers:
        return env
    if not is_functional(env):
        problem = f"wrappers are for PettingZoo environments, and {name} makes a BatchedEnv: remove env.wrappers"
        raise ConfigInvalid([problem])
    wrapped: BatchedEnv = env.with_wrappers(wrappers)  # type: ignore[attr-defined]
    return wrapped


def imported(factory: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return the function at an import path, or the function itself; raises ConfigInvalid."""
    return import_factory(factory) if isinstance(factory, str) else factory


def makes_batches(factory: Callable[..., Any] | str) -> bool:
    """Return whether a factory makes a BatchedEnv: its first parameter is `num_envs`. Raises ConfigInvalid."""
    try:
        return next(iter(inspect.signature(imported(factory)).parameters), None) == _NUM_ENVS
    except (TypeError, ValueError):  # a builtin without a signature
        return False


def batched_maker(
    factory: Callable[..., Any] | str,
    arguments: Mapping[str, Any],
    wrappers: Sequence[Any],
    batched: Batched,
) -> BatchedMaker | None:
    """Return the maker of the batched version; None if there is none, or `batched` says no.

    Raises ConfigInvalid if `batched` is True and there is none.
    """
    if batched is False:
        return None
    if batched == "auto" and _shipped_name(factory, arguments) in _OTHER_NUMBERS:
        return None
    reason, found = _find(factory, arguments, wrappers)
    if found is None and batched is True:
        raise ConfigInvalid([f"env.batched=true: {reason}; set env.batched=auto"])
    return found


def _find(
    factory: Callable[..., Any] | str, arguments: Mapping[str, Any], wrappers: Sequence[Any]
) -> tuple[str, BatchedMaker | None]:
    if makes_batches(factory):
        return "", BatchedMaker(factory, arguments, tuple(wrappers))
    name = _shipped_name(factory, arguments)
    # Only the class's own attribute counts: a subclass of an environment with a batched version is another environment.
    version = _SHIPPED.get(name) or getattr(imported(factory), "__dict__", {}).get("batched")
    if not (isinstance(version, str) or callable(version)):
        return f"{name} has no batched version", None
    if wrappers and not getattr(imported(version), "takes_wrappers", False):
        return "wrappers are for PettingZoo environments that are stepped one by one (env.wrappers)", None
    own = _own_arguments(factory, arguments)
    taken = inspect.signature(imported(version)).parameters
    defaults = inspect.signature(imported(factory)).parameters
    # An argument that the version does not have must be switched off, as it is by default.
    others = [key for key, value in own.items() if key not in taken and not _is_off(value, defaults.get(key))]
    if others:
        return f"the batched version of {name} has no argument {others[0]!r}", None
    return "", BatchedMaker(version, {key: value for key, value in own.items() if key in taken}, tuple(wrappers))


def _is_off(value: Any, parameter: inspect.Parameter | None) -> bool:
    if value is not None and value is not False:
        return False
    return parameter is None or parameter.default is parameter.empty or parameter.default is value


def _is_registered(factory: Callable[..., Any] | str) -> bool:
    return factory in (pettingzoo_registry.TARGET, pettingzoo_registry.make)


def _shipped_name(factory: Callable[..., Any] | str, arguments: Mapping[str, Any]) -> str:
    if _is_registered(factory):
        return pettingzoo_registry.stable_name(arguments)
    if isinstance(factory, str):
        return factory
    return f"{getattr(factory, '__module__', '')}.{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def _own_arguments(factory: Callable[..., Any] | str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    left_out = pettingzoo_registry.OWN_ARGUMENTS if _is_registered(factory) else ()
    return {key: value for key, value in arguments.items() if key not in left_out}
