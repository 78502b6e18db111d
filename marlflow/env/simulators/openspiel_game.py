"""Loads OpenSpiel games by name, and explains why a game cannot be played."""

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

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid

Tensor: TypeAlias = Literal["information_state", "observation"]
View: TypeAlias = Callable[[Any, int], Array]

# The seed parameter of games that draw chance events themselves.
RNG_SEED = "rng_seed"

_TENSORS: tuple[Tensor, ...] = ("information_state", "observation")
# Importing this module registers the games written in Python.
_PYTHON_GAMES, _PYTHON_PREFIX = "open_spiel.python.games", "python_"


def game_parameters(game: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the parameters in `game` ("goofspiel(num_cards=4)") and `parameters`, and add `name`.

    Raises ConfigInvalid with every unknown name and duplicate parameter.
    """
    if not isinstance(game, str):
        raise ConfigInvalid([f"game must be the name of a game of OpenSpiel, such as 'kuhn_poker', not {game!r}"])
    if not isinstance(parameters, Mapping):
        raise ConfigInvalid([f"parameters must be {{name: value, ...}} or null, not {parameters!r}"])
    try:
        inline = pyspiel.game_parameters_from_string(game)
    except pyspiel.SpielError as error:
        raise ConfigInvalid([f"game {game!r} cannot be read: {_reason(error)}; write name(key=value,...)"]) from error
    name, known = inline.get("name", ""), _registered()
    if name not in known or _PYTHON_PREFIX in f"{game} {parameters}":
        importlib.import_module(_PYTHON_GAMES)
        known = _registered()
    if name not in known:
        raise ConfigInvalid([f"OpenSpiel has no game {name!r}{_suggestion(name, list(known))}"])
    specification = known[name].parameter_specification
    problems = [
        f"game {name!r} has no parameter {key!r}{_suggestion(key, list(specification))}"
        for key in [*inline, *parameters]
        if key not in specification and key != "name"
    ]
    problems += [
        f"parameter {key!r} is given twice: in game {game!r} and as a parameter" for key in parameters if key in inline
    ]
    if RNG_SEED in inline or RNG_SEED in parameters:
        problems.append(f"parameter {RNG_SEED!r} of game {name!r} is set by the seed of each reset; leave it out")
    if problems:
        raise ConfigInvalid(problems)
    return {key: _cast_parameter(value, specification.get(key)) for key, value in {**inline, **parameters}.items()}


def load_game(parameters: Mapping[str, Any]) -> Any:
    """Return the `pyspiel.Game` of these parameters; raises ConfigInvalid."""
    arguments = {key: value for key, value in parameters.items() if key != "name"}
    name = parameters["name"]
    try:
        return pyspiel.load_game(name, arguments)
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no parameters"
        raise ConfigInvalid([f"game {name!r} cannot be loaded with {given}: {_reason(error)}"]) from error


def tensor_of(game: Any, requested: str | None) -> Tensor:
    """Return which tensor players of `game` observe; raises ConfigInvalid if it cannot be played."""
    kind, name = game.get_type(), game.get_type().short_name
    provided = [tensor for tensor in _TENSORS if getattr(kind, f"provides_{tensor}_tensor")]
    problems = [f"game {name!r} {reason}" for reason in _unsupported_reasons(game, kind)]
    if requested is not None and requested not in _TENSORS:
        problems.append(f"observation must be one of {', '.join(_TENSORS)} or null, not {requested!r}")
    elif not provided:
        problems.append(
            f"game {name!r} describes its states to players in words only, and no policy here can read them"
        )
    elif requested is not None and requested not in provided:
        problems.append(
            f"game {name!r} provides no {requested} tensor; leave observation out, or set it to {provided[0]}"
        )
    if problems:
        raise ConfigInvalid(problems)
    return requested or provided[0]  # type: ignore[return-value]


def view_of(game: Any, tensor: Tensor) -> tuple[View, int]:
    """Return a function from state and player to a new observation, float32 [D], and D.

    Raises ConfigInvalid if the game's tensor is empty.
    """
    size = getattr(game, f"{tensor}_tensor_size")()
    if not size:
        name = game.get_type().short_name
        raise ConfigInvalid([f"game {name!r} announces a tensor of what players see ({tensor}), but it is empty"])
    observer = None
    # Some games written in Python never write into their tensor.
    if not hasattr(game, "make_py_observer"):
        observer = make_observation(game, pyspiel.IIGObservationType(perfect_recall=tensor == "information_state"))
    if observer is None:
        return functools.partial(_read_listed, f"{tensor}_tensor"), size
    return functools.partial(_read_written, observer.set_from, observer.tensor), size


def _read_listed(method: str, state: Any, player: int) -> Array:
    return np.array(getattr(state, method)(player), np.float32)


def _read_written(set_from: Callable[[Any, int], None], tensor: Array, state: Any, player: int) -> Array:
    # The game writes into its own array, which is several times as fast as returning a list.
    set_from(state, player)
    return tensor.copy()


def draws_chance_itself(game: Any) -> bool:
    """Return whether the game samples chance events itself, by `rng_seed`."""
    return bool(game.get_type().chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC)


def _registered() -> dict[str, Any]:
    return {kind.short_name: kind for kind in pyspiel.registered_games()}


def _unsupported_reasons(game: Any, kind: Any) -> list[str]:
    reasons = []
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        reasons.append("is a mean-field game: its players are distributions, not agents")
    if kind.action_structs_only:
        reasons.append("has actions that are structures, not numbers")
    # Ask the registry: a wrapping game's own type also lists the parameters of the wrapped one, which it refuses.
    if draws_chance_itself(game) and RNG_SEED not in _registered()[kind.short_name].parameter_specification:
        reasons.append(
            f"draws its chance events itself and takes no {RNG_SEED}, so that no seed could repeat an episode"
        )
    return reasons


def _cast_parameter(value: Any, default: Any) -> Any:
    # OpenSpiel demands the exact type of the default.
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, dict) and isinstance(value, str):
        return pyspiel.game_parameters_from_string(value)
    return value


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; it has {', '.join(sorted(known)) or 'none'}"


def _reason(error: BaseException) -> str:
    return re.sub(r"^/\S+:\d+ ", "", "; ".join(str(error).split("\n")))
