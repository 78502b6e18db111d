"""Wrappers of functional environments, in which each is an environment of the same protocol, by functions of arrays."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid
from marlflow.env.functional_protocol import ByGroup, FunctionalEnv, FunctionalStep, FunctionalWrapper

Wrapping = Callable[..., FunctionalEnv]


class _SpacesOfEnv:
    """The agents and spaces of a functional environment, for wrappers that change spaces."""

    def __init__(self, env: FunctionalEnv) -> None:
        declared = getattr(env, "possible_agents", None)
        of_groups = [agent for agents in env.groups.values() for agent in agents]
        self.possible_agents = of_groups if declared is None else list(declared)
        self.observation_space, self.action_space = env.observation_space, env.action_space


class _FunctionalObservationWrapper(FunctionalWrapper):
    """A wrapper that changes observations, by `_changed`."""

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        state, step = self.env.reset(key)
        return state, self._with_changed(step)

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        state, step = self.env.step(key, state, actions)
        return state, self._with_changed(step)

    def _with_changed(self, step: FunctionalStep) -> FunctionalStep:
        return step._replace(observations={name: self._changed(name, seen) for name, seen in step.observations.items()})

    def _changed(self, name: str, seen: Any) -> Any:
        """Return the observations [A, *shape] of the group `name` as they are shown."""
        raise NotImplementedError


class AgentIndicator(_FunctionalObservationWrapper):
    """`wrappers.agent_indicator` of a functional environment."""

    def __init__(self, env: FunctionalEnv, type_only: bool = False) -> None:
        from marlflow.env.wrappers.shipped import identity_of  # late: SuperSuit takes half a second

        super().__init__(env)
        identity = identity_of(_SpacesOfEnv(env), type_only)
        self._space = identity.space
        self._numbers = {
            name: np.array([identity.numbers[agent] for agent in agents]) for name, agents in env.groups.items()
        }
        self._marks = {
            name: None if identity.marks is None else np.stack([identity.marks[agent] for agent in agents])
            for name, agents in env.groups.items()
        }
        self._count = identity.total

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._space

    def _changed(self, name: str, seen: Any) -> Any:
        marks = self._marks[name]
        if marks is None:
            return seen * self._count + self._numbers[name]
        # A picture without channels gets one.
        seen = seen[..., None] if seen.ndim == 3 else seen
        between = (1,) * (seen.ndim - 2)
        shown = jnp.asarray(marks).reshape(len(marks), *between, -1)
        return jnp.concatenate([seen, jnp.broadcast_to(shown, (*seen.shape[:-1], shown.shape[-1]))], axis=-1)


class ClipObservations(_FunctionalObservationWrapper):
    """`wrappers.clip_observations` of a functional environment."""

    def _changed(self, name: str, seen: Any) -> Any:
        space = self.env.observation_space(self.env.groups[name][0])
        return jnp.clip(seen, space.low, space.high) if isinstance(space, spaces.Box) else seen


class PadObservations(_FunctionalObservationWrapper):
    """`wrappers.pad_observations` of a functional environment."""

    def __init__(self, env: FunctionalEnv) -> None:
        from marlflow.env.wrappers.shipped import common_space  # late: SuperSuit takes half a second

        super().__init__(env)
        self._space: spaces.Space[Any] = common_space("see", _SpacesOfEnv(env).possible_agents, env.observation_space)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._space

    def _changed(self, name: str, seen: Any) -> Any:
        if not isinstance(self._space, spaces.Box):
            return seen
        missing = (more - has for more, has in zip(self._space.shape, seen.shape[1:], strict=True))
        return jnp.pad(seen, [(0, 0), *((0, rest) for rest in missing)])


class PadActions(FunctionalWrapper):
    """`wrappers.pad_actions` of a functional environment."""

    def __init__(self, env: FunctionalEnv) -> None:
        from marlflow.env.wrappers.shipped import common_space  # late: SuperSuit takes half a second

        super().__init__(env)
        self._space: Any = common_space("do", _SpacesOfEnv(env).possible_agents, env.action_space)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        space: spaces.Space[Any] = self._space
        return space

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        state, step = self.env.reset(key)
        return state, self._with_masks(step)

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        state, step = self.env.step(key, state, {name: self._own(name, of) for name, of in actions.items()})
        return state, self._with_masks(step)

    def _with_masks(self, step: FunctionalStep) -> FunctionalStep:
        # Where actions are masked, those that an agent does not have are illegal.
        masks = {
            name: jnp.pad(of, ((0, 0), (0, self._space.n - of.shape[1]))) for name, of in step.action_masks.items()
        }
        return step._replace(action_masks=masks)

    def _own(self, name: str, actions: Any) -> Any:
        own: Any = self.env.action_space(self.env.groups[name][0])
        if isinstance(own, spaces.Discrete):
            return jnp.where(actions < own.n, actions, 0)
        return jnp.clip(actions[(slice(None), *map(slice, own.shape or ()))], own.low, own.high)


class WidenBounds(FunctionalWrapper):
    """`wrappers.widen_bounds` of a functional environment."""

    def __init__(self, env: FunctionalEnv) -> None:
        from marlflow.env.wrappers.shipped import unbounded  # late: SuperSuit takes half a second

        super().__init__(env)
        agents = [agent for of_group in env.groups.values() for agent in of_group]
        self._spaces = {agent: unbounded(env.observation_space(agent)) for agent in agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent]


class Limited(FunctionalWrapper):
    """Says to wrappers after how many env steps all agents are truncated; None: never."""

    def __init__(self, env: FunctionalEnv, max_env_steps: int | None) -> None:
        super().__init__(env)
        self.max_env_steps = max_env_steps


class RewardScale(FunctionalWrapper):
    """`wrappers.reward_scale` of a functional environment."""

    def __init__(self, env: FunctionalEnv, **settings: Any) -> None:
        from marlflow.env.functional.batch import FunctionalBatch  # late: it wraps environments
        from marlflow.env.functional.calls import FunctionalCalls
        from marlflow.env.wrappers.reward_scale import scales_for

        super().__init__(env)

        def playable() -> FunctionalBatch:
            return FunctionalBatch(1, "to measure", FunctionalCalls(env, getattr(env, "max_env_steps", None)))

        scales = scales_for(_SpacesOfEnv(env).possible_agents, playable, **settings)
        self._scales = {
            name: np.array([scales[agent] for agent in agents], np.float32) for name, agents in env.groups.items()
        }

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        state, step = self.env.step(key, state, actions)
        return state, step._replace(rewards={name: of / self._scales[name] for name, of in step.rewards.items()})


class LastAction(FunctionalWrapper):
    """`wrappers.last_action` of a functional environment."""

    def __init__(self, env: FunctionalEnv) -> None:
        from marlflow.env.wrappers.shipped import ActionVector  # late: SuperSuit takes half a second

        super().__init__(env)
        self._kinds = {
            name: ActionVector(agents[0], env.observation_space(agents[0]), env.action_space(agents[0]))
            for name, agents in env.groups.items()
        }
        self._spaces = {agent: self._kinds[name].wider for name, agents in env.groups.items() for agent in agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent]

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        state, step = self.env.reset(key)
        last = {
            name: jnp.zeros((len(agents), self._kinds[name].count), self._spaces[agents[0]].dtype)
            for name, agents in self.env.groups.items()
        }
        return (state, last, self._deciders(step)), self._shown(step, last)

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        inner, last, decided = state
        inner, step = self.env.step(key, inner, actions)
        taken = {name: self._numbers(name, of) for name, of in actions.items()}
        if decided:
            # On others' turns an agent's last action stays.
            taken = {name: jnp.where(decided[name][:, None], of, last[name]) for name, of in taken.items()}
        return (inner, taken, self._deciders(step)), self._shown(step, taken)

    def _deciders(self, step: FunctionalStep) -> dict[str, Any]:
        """Return which agents act next, bool [A] for each group; empty if all act. One number is for all agents."""
        groups = self.env.groups
        return {n: jnp.broadcast_to(jnp.asarray(of, bool), (len(groups[n]),)) for n, of in step.decides.items()}

    def _numbers(self, name: str, actions: Any) -> Any:
        kind, dtype = self._kinds[name], self._spaces[self.env.groups[name][0]].dtype
        if kind.start is None:
            return actions.astype(dtype)
        return (actions[:, None] - kind.start == jnp.arange(kind.count)).astype(dtype)

    def _shown(self, step: FunctionalStep, last: Mapping[str, Any]) -> FunctionalStep:
        seen = {name: jnp.concatenate([of, last[name]], axis=-1) for name, of in step.observations.items()}
        return step._replace(observations=seen)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        # They are functions of the state of the environment inside.
        return (lambda state: found(state[0])) if name in ("global_state", "render") else found


class FunctionalRandomOpening(FunctionalWrapper):
    """`wrappers.random_opening` of a functional environment, with moves of JAX's random numbers."""

    def __init__(self, env: FunctionalEnv, moves: int = 20) -> None:
        from marlflow.env.wrappers.shipped import random_opening_problem  # late: SuperSuit takes half a second

        super().__init__(env)
        if problem := random_opening_problem(_SpacesOfEnv(env), env.turn_based, moves):
            raise ConfigInvalid([problem])
        self._moves = moves
        self._actions: dict[str, Any] = {name: env.action_space(agents[0]) for name, agents in env.groups.items()}

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        begins, counts, plays = jax.random.split(key, 3)
        start, shown = self.env.reset(begins)

        def moved(state: Any, step: FunctionalStep) -> FunctionalStep:
            return self.env.step(key, state, self._random_actions(key, step))[1]

        # A reset and a move may give the same value as a number and as an array, or in two dtypes.
        form = jax.tree.map(_common, shown, _begun(jax.eval_shape(moved, start, shown)))
        first = start, _as(shown, form)

        def move(number: Any, before: Any) -> Any:
            state, step, is_quiet = before
            chooses, steps = jax.random.split(jax.random.fold_in(plays, number))
            state, step = self.env.step(steps, state, self._random_actions(chooses, step))
            quiet = [jnp.all(~jnp.asarray(of, bool)) for of in (*step.terminated.values(), *step.truncated.values())]
            quiet += [jnp.all(jnp.asarray(of) == 0) for of in step.rewards.values()]
            return state, _as(_begun(step), form), jnp.logical_and(is_quiet, jnp.all(jnp.stack(quiet)))

        count = jax.random.randint(counts, (), 0, self._moves + 1)
        state, step, is_quiet = jax.lax.fori_loop(0, count, move, (*first, jnp.asarray(True)))
        chosen: tuple[Any, FunctionalStep] = jax.tree.map(
            lambda played, fresh: jnp.where(is_quiet, played, fresh), (state, step), first
        )
        return chosen

    def _random_actions(self, key: Any, step: FunctionalStep) -> ByGroup:
        """Return a legal action of each agent, all of them equally likely; for agents that do not act, any action."""
        actions = {}
        for number, (name, agents) in enumerate(self.env.groups.items()):
            space = self._actions[name]
            legal = step.action_masks.get(name, jnp.ones((len(agents), int(space.n)), bool))
            scores = jnp.where(jnp.asarray(legal, bool), 0.0, -jnp.inf)
            drawn = jax.random.categorical(jax.random.fold_in(key, number), scores)
            actions[name] = drawn + int(space.start)
        return actions


def _begun(step: FunctionalStep) -> FunctionalStep:
    """Return the observations and action masks, as a reset gives them."""
    return FunctionalStep(step.observations, decides=step.decides, action_masks=step.action_masks)


def _common(one: Any, other: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.broadcast_shapes(jnp.shape(one), other.shape), other.dtype)


def _as(step: FunctionalStep, form: Any) -> FunctionalStep:
    made: FunctionalStep = jax.tree.map(
        lambda of, like: jnp.broadcast_to(jnp.asarray(of, like.dtype), like.shape), step, form
    )
    return made


# The forms of shipped wrappers, by their names in `marlflow.env.wrappers.shipped`.
_SHIPPED: Mapping[str, Wrapping] = {
    "agent_indicator": AgentIndicator,
    "clip_observations": ClipObservations,
    "last_action": LastAction,
    "pad_actions": PadActions,
    "pad_observations": PadObservations,
    "random_opening": FunctionalRandomOpening,
    "reward_scale": RewardScale,
    "widen_bounds": WidenBounds,
}


def functional_wrapped(env: FunctionalEnv, wrappers: Sequence[Any], name: str) -> FunctionalEnv:
    """Apply the functional forms of `wrappers`, the first one innermost; raises ConfigInvalid."""
    for wrapper in wrappers:
        make, settings = getattr(wrapper, "make", wrapper), getattr(wrapper, "arguments", {})
        if isinstance(make, functools.partial) and not (make.args or hasattr(make, "functional")):
            settings = {**make.keywords, **settings}
            make = make.func
        shown = getattr(wrapper, "name", None) or getattr(make, "__qualname__", repr(make))
        is_shipped = getattr(make, "__module__", "") == "marlflow.env.wrappers.shipped"
        form = _SHIPPED.get(make.__name__) if is_shipped else getattr(make, "functional", None)
        if form is None:
            raise ConfigInvalid(
                [
                    f"wrapper {shown} of environment {name} has no form for functional environments, as "
                    f"{', '.join(_SHIPPED)} have; leave it out, or give a wrapper of your own an attribute "
                    "`functional`, a function from one marlflow.env.FunctionalEnv to another"
                ]
            )
        try:
            env = form(env, **settings)
        except ConfigInvalid as error:
            problems = [f"wrapper {shown} of environment {name}: {reason}" for reason in error.problems]
            raise ConfigInvalid(problems) from error
    return env


def compared(parts: Sequence[Any]) -> bytes | None:
    """Return a value that is equal for equal wrappers or arguments; None if they cannot be compared."""
    try:
        return pickle.dumps([*parts])
    except Exception:  # noqa: BLE001  objects of a user's may raise anything, and so may modules that pickle looks through
        return None
