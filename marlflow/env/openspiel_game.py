"""Loads a game of OpenSpiel by name, or says why it cannot be played as an environment."""

from __future__ import annotations

import difflib
import functools
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyspiel
from open_spiel.python.observation import make_observation

from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid

Tensor: TypeAlias = Literal["information_state", "observation"]
View: TypeAlias = Callable[[Any, int], Array]

# By this parameter a game that draws chance events itself is told how.
RNG_SEED = "rng_seed"

_TENSORS: tuple[Tensor, ...] = ("information_state", "observation")
# Games written in Python are registered as this module is imported.
_PYTHON_GAMES, _PYTHON_PREFIX = "open_spiel.python.games", "python_"


def game_parameters(game: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that `game` ("goofspiel(num_cards=4)") and `parameters` give together, its `name` among them.

    Raises ConfigInvalid with every name that OpenSpiel does not know, and with what was given twice.
    """
    if not isinstance(game, str):
        raise ConfigInvalid([f"game must be the name of a game of OpenSpiel, such as 'kuhn_poker', not {game!r}"])
    if not isinstance(parameters, Mapping):
        raise ConfigInvalid([f"parameters must be {{name: value, ...}} or null, not {parameters!r}"])
    try:
        written = pyspiel.game_parameters_from_string(game)
    except pyspiel.SpielError as error:
        raise ConfigInvalid([f"game {game!r} cannot be read: {_reason(error)}; write name(key=value,...)"]) from error
    name, known = written.get("name", ""), _registered()
    if name not in known or _PYTHON_PREFIX in f"{game} {parameters}":
        importlib.import_module(_PYTHON_GAMES)
        known = _registered()
    if name not in known:
        raise ConfigInvalid([f"OpenSpiel has no game {name!r}{_near(name, list(known))}"])
    specification = known[name].parameter_specification
    problems = [
        f"game {name!r} has no parameter {key!r}{_near(key, list(specification))}"
        for key in [*written, *parameters]
        if key not in specification and key != "name"
    ]
    problems += [
        f"parameter {key!r} is given twice: in game {game!r} and beside it" for key in parameters if key in written
    ]
    if RNG_SEED in written or RNG_SEED in parameters:
        problems.append(f"parameter {RNG_SEED!r} of game {name!r} is set by the seed of each reset; leave it out")
    if problems:
        raise ConfigInvalid(problems)
    return {key: _fitted(value, specification.get(key)) for key, value in {**written, **parameters}.items()}


def load_game(parameters: Mapping[str, Any]) -> Any:
    """The `pyspiel.Game` of these parameters, its `name` among them; raises ConfigInvalid."""
    rest = {key: value for key, value in parameters.items() if key != "name"}
    name = parameters["name"]
    try:
        return pyspiel.load_game(name, rest)
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in rest.items()) or "no parameters"
        raise ConfigInvalid([f"game {name!r} cannot be loaded with {given}: {_reason(error)}"]) from error


def tensor_of(game: Any, asked: str | None) -> Tensor:
    """Which tensor players of `game` observe; raises ConfigInvalid if the game cannot be played as an environment."""
    kind, name = game.get_type(), game.get_type().short_name
    provided = [tensor for tensor in _TENSORS if getattr(kind, f"provides_{tensor}_tensor")]
    problems = [f"game {name!r} {reason}" for reason in _reasons(game, kind)]
    if asked is not None and asked not in _TENSORS:
        problems.append(f"observation must be one of {', '.join(_TENSORS)} or null, not {asked!r}")
    elif not provided:
        problems.append(
            f"game {name!r} describes its states to players in words only, and no policy here can read them"
        )
    elif asked is not None and asked not in provided:
        problems.append(f"game {name!r} provides no {asked} tensor; leave observation out, or set it to {provided[0]}")
    if problems:
        raise ConfigInvalid(problems)
    return asked or provided[0]  # type: ignore[return-value]


def view_of(game: Any, tensor: Tensor) -> tuple[View, int]:
    """A function of a state and a player that gives what the player sees as a new float32 [D], and D.

    Raises ConfigInvalid if there is nothing in that tensor.
    """
    size = getattr(game, f"{tensor}_tensor_size")()
    if not size:
        name = game.get_type().short_name
        raise ConfigInvalid([f"game {name!r} announces a tensor of what players see ({tensor}), but it is empty"])
    written = None
    if not hasattr(game, "make_py_observer"):  # of those written in Python, some never write into their tensor
        written = make_observation(game, pyspiel.IIGObservationType(perfect_recall=tensor == "information_state"))
    if written is None:
        return functools.partial(_listed, f"{tensor}_tensor"), size
    return functools.partial(_written, written.set_from, written.tensor), size


def _listed(method: str, state: Any, player: int) -> Array:
    return np.array(getattr(state, method)(player), np.float32)


def _written(set_from: Callable[[Any, int], None], tensor: Array, state: Any, player: int) -> Array:
    """Several times faster: the game writes into an array, and no list of numbers is made."""
    set_from(state, player)
    return tensor.copy()


def draws_chance_itself(game: Any) -> bool:
    """Whether chance events are drawn inside the game, by `rng_seed`, and not from outcomes that it lists."""
    return bool(game.get_type().chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC)


def _registered() -> dict[str, Any]:
    return {kind.short_name: kind for kind in pyspiel.registered_games()}


def _reasons(game: Any, kind: Any) -> list[str]:
    """Why `game` has no place in PettingZoo, or could not be repeated."""
    reasons = []
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        reasons.append("is a mean-field game: its players are distributions, not agents")
    if kind.action_structs_only:
        reasons.append("has actions that are structures, not numbers")
    # A game around another has the other's parameters in its own type, but does not take them.
    if draws_chance_itself(game) and RNG_SEED not in _registered()[kind.short_name].parameter_specification:
        reasons.append(
            f"draws its chance events itself and takes no {RNG_SEED}, so that no seed could repeat an episode"
        )
    return reasons


def _fitted(value: Any, default: Any) -> Any:
    """`value` as the type that the parameter's default has: OpenSpiel takes no 1 for 1.0 and no name for a game."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, dict) and isinstance(value, str):
        return pyspiel.game_parameters_from_string(value)
    return value


def _near(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; it has {', '.join(sorted(known)) or 'none'}"


def _reason(error: BaseException) -> str:
    """What OpenSpiel says, without the place in its sources."""
    return re.sub(r"^/\S+:\d+ ", "", "; ".join(str(error).split("\n")))
