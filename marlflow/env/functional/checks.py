"""Checks of a functional environment before anything is compiled: its functions are traced with shapes alone."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import DISCRETE_KINDS, choices_of
from marlflow.env.functional_protocol import FunctionalEnv, FunctionalStep
from marlflow.env.user_code import own_lines

_SPACES = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary
_KEY = jax.ShapeDtypeStruct((2,), np.uint32)


def checked(env: object, name: str) -> FunctionalEnv:
    """Return `env`; raises ConfigInvalid if its functions cannot be compiled, or do not keep the protocol."""
    if not isinstance(env, FunctionalEnv):
        problem = (
            f"{name} makes a {type(env).__name__}, and not a marlflow.env.FunctionalEnv, which has groups, turn_based, "
            "observation_space, action_space, reset and step"
        )
        raise ConfigInvalid([problem])
    problems = [f"functional environment {name}: {problem}" for problem in _problems(env)]
    if problems:
        raise ConfigInvalid(problems)
    return env


def _problems(env: FunctionalEnv) -> Iterator[str]:
    """Yield the problems of an environment, in phases; a phase with a problem is the last one."""
    for group, agents in env.groups.items():
        for space in (env.observation_space(agents[0]), env.action_space(agents[0])):
            if not isinstance(space, _SPACES):
                yield (
                    f"group {group!r} has a {type(space).__name__}, and spaces are Box, Discrete, MultiDiscrete or "
                    "MultiBinary; flatten it in the environment"
                )
                return
    try:
        (state, first), start = _traced(env.reset, "reset(key)", _KEY)
        (after, step), going_on = _traced(env.step, "step(key, state, actions)", _KEY, state, actions_like(env))
        for traced, function, arguments in (
            (start, env.reset, (_KEY,)),
            (going_on, env.step, (_KEY, state, actions_like(env))),
        ):
            what = "reset(key)" if function == env.reset else "step(key, state, actions)"
            if _traced(function, what, *arguments)[1] != traced:
                yield (
                    f"{what} computes something else when it is called again with the same arguments, so it has side "
                    "effects, such as attributes that it changes or random numbers without its key; keep all that "
                    "changes in the state, and draw from the key"
                )
                return
    except ConfigInvalid as refused:
        yield from refused.problems
        return
    # A reset's array of a wrong shape is most often a step's, too.
    odd = [*_odd_arrays(env, "reset", first)] or [*_odd_arrays(env, "step", step)]
    yield from odd
    yield from _changed(state, after)
    yield from _odd_optional(env, first, step)


def _traced(function: Callable[..., Any], what: str, *arguments: Any) -> tuple[tuple[Any, FunctionalStep], str]:
    """Return the shapes of the results of `function`, and its program as text."""
    try:
        # A new function object each time, since JAX caches the trace of a function.
        program, shapes = jax.make_jaxpr(partial(function), return_shape=True)(*arguments)
    except BdbQuit:
        raise
    except jax.errors.JAXTypeError as error:
        reason = str(error).partition("\n")[0]
        remedy = "use jnp.where, jax.lax.cond or jax.numpy where a value is only known in a run"
        raise ConfigInvalid([f"{what} cannot be compiled: {reason}; {remedy}{own_lines(error)}"]) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ConfigInvalid([f"{what} raised {reason}{own_lines(error)}"]) from error
    if not (isinstance(shapes, tuple) and len(shapes) == 2 and isinstance(shapes[1], FunctionalStep)):
        raise ConfigInvalid([f"{what} must return a state and a marlflow.env.FunctionalStep"])
    return shapes, f"{program} {program.consts}"


def actions_like(env: FunctionalEnv) -> dict[str, Any]:
    """Return shapes and types of the actions of each group, [A, ...]."""
    found = {}
    for name, agents in env.groups.items():
        space = env.action_space(agents[0])
        dtype = jax.dtypes.canonicalize_dtype(space.dtype)
        found[name] = jax.ShapeDtypeStruct((len(agents), *(space.shape or ())), dtype)
    return found


def _changed(state: Any, after: Any) -> Iterator[str]:
    """Yield how a step changes the structure of a state, or the shape or dtype of one of its arrays."""
    before, then = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(one)[0]}
        for one in (state, after)
    )
    structures: list[Any] = [jax.tree_util.tree_structure(one) for one in (state, after)]
    if structures[0] != structures[1]:
        names = sorted(set(before) ^ set(then)) or [str(structures[1])]
        yield f"a step changes the structure of the state at {', '.join(names[:3])}; return the same pytree as reset"
        return
    for name, old in before.items():
        new = then[name]
        if jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
            yield f"the state{name} is a typed key; keep jax.random.key_data(key), and make it one by wrap_key_data"
        elif old.shape != new.shape or not np.can_cast(new.dtype, old.dtype, "same_kind"):
            yield (
                f"a step changes the state{name} from {_kind(old)} to {_kind(new)}; shapes and types must stay the same"
            )


def _odd_arrays(env: FunctionalEnv, what: str, step: FunctionalStep) -> Iterator[str]:
    for group, agents in env.groups.items():
        expected = (len(agents), *(env.observation_space(agents[0]).shape or ()))
        seen = step.observations.get(group)
        if seen is None or tuple(np.shape(seen)) != expected:
            found = "none" if seen is None else f"an array of shape {list(np.shape(seen))}"
            yield f"{what} gives {found} as observations of group {group!r}, not one of {list(expected)}"
        mask = step.action_masks.get(group)
        action = env.action_space(agents[0])
        if mask is not None and not isinstance(action, DISCRETE_KINDS):
            yield f"{what} gives action masks to group {group!r}, whose actions are a Box"
        elif mask is not None and tuple(np.shape(mask)) != (shape := (len(agents), sum(choices_of(action)))):
            yield f"{what} gives action masks of shape {list(np.shape(mask))} to group {group!r}, not {list(shape)}"
        kinds = {kind: getattr(step, kind) for kind in ("rewards", "terminated", "truncated", "decides")}
        for kind, by_group in {**kinds, **{f"infos[{name!r}]": of for name, of in step.infos.items()}}.items():
            value = by_group.get(group)
            if value is not None and tuple(np.shape(value)) not in ((), (len(agents),)):
                yield f"{what} gives {kind} of shape {list(np.shape(value))} to group {group!r}, not {[len(agents)]}"
    whole = step._asdict()
    whole |= {f"infos[{name!r}]": of for name, of in whole.pop("infos").items()}
    for kind, values in whole.items():
        if strangers := sorted(set(values) - set(env.groups)):
            yield f"{what} gives {kind} of {strangers[0]!r}, and the groups are {', '.join(env.groups)}"


def _odd_optional(env: FunctionalEnv, first: FunctionalStep, step: FunctionalStep) -> Iterator[str]:
    if not step.rewards:
        yield "step gives no rewards"
    for kind in ("decides", "action_masks"):
        now, then = (set(getattr(one, kind)) for one in (first, step))
        if now != then:
            yield f"reset gives {kind} of {_named(now)} and step of {_named(then)}; both must give the same"
    if env.turn_based and set(step.decides) != set(env.groups):
        yield "it is turn_based, so reset and step must give decides of each group"


def _named(groups: Mapping[str, Any] | set[str]) -> str:
    return ", ".join(sorted(groups)) or "no group"


def _kind(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
