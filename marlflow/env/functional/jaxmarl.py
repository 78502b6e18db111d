"""Environments of JaxMARL.

JaxMARL: Rutherford et al., "JaxMARL: Multi-Agent RL Environments and Algorithms in JAX" (NeurIPS 2024,
arXiv:2311.10090). `pip install 'marlflow[jaxmarl]'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.env.batched.protocol import groups_of
from marlflow.env.functional.batch import FunctionalBatch, batch_of, rarely
from marlflow.env.functional.jaxmarl_import import (
    MAP_NAME_TO_SCENARIO,
    SMAX_CLASSES,
    make,
    overcooked_layouts,
    registered_envs,
)
from marlflow.env.functional.jaxmarl_pictures import painter_of
from marlflow.env.functional_protocol import ByGroup, FunctionalStep, is_of_agents

DoneMeans = Literal["auto", "terminated", "truncated"]
_MEANINGS = "auto", "terminated", "truncated"
_NO_LIMIT = 2**30
# Arguments that are objects of JaxMARL's, by their names there.
_SCENARIOS = {"scenario": MAP_NAME_TO_SCENARIO}
_NAMED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "SMAX": _SCENARIOS,
    "HeuristicEnemySMAX": _SCENARIOS,
    "LearnedPolicyEnemySMAX": _SCENARIOS,
    "overcooked": {"layout": overcooked_layouts},
}
SpacesOf: TypeAlias = tuple[spaces.Space[Any], spaces.Space[Any]]
"""An agent's spaces of observations and of actions."""

_EACH = "observations"


class JaxmarlGame:
    """An environment of JaxMARL; its state is JaxMARL's and the number of env steps.

    Agents of one name, without its number, and spaces are a group.

    done_means: the meaning of JaxMARL's `done`, which does not tell ends apart. `auto`: truncated if the environment
        would continue without its `max_steps`, else terminated. `terminated` or `truncated`: always that.
    """

    turn_based = False

    def __init__(self, env: Any, name: str, done_means: DoneMeans) -> None:
        self.env, self._done_means = env, done_means
        self._spaces, self.own_names = spaces_of(env, name), agent_names(env)
        self.possible_agents, self.groups = list(self._spaces), groups_of(self._spaces)
        self._unlimited = without_limit(env) if done_means == "auto" else None
        _, state = jax.eval_shape(env.reset, jax.ShapeDtypeStruct((2,), np.uint32))
        self._masks_of, self._masked = _mask_method(self, state)
        world_state = getattr(env, "get_world_state", None)
        # Some give a state for each agent.
        if world_state is not None and getattr(jax.eval_shape(world_state, state), "ndim", 0) == 1:
            self.global_state = lambda state: world_state(state[0])
        if (painter := painter_of(env)) is not None:
            self.render = lambda state: painter(env, state[0])

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][1]

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        seen, state = self.env.reset(key)
        return (state, jnp.zeros((), jnp.int32)), FunctionalStep(
            self._observations(seen), action_masks=self._masks(state)
        )

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        chosen = {
            self.own_names[agent]: actions[name][at]
            for name, agents in self.groups.items()
            for at, agent in enumerate(agents)
        }
        before, env_steps = state
        # Not `step`, which resets.
        seen, after, rewards, dones, infos = self.env.step_env(key, before, chosen)
        ends, env_steps = self._ends(dones), env_steps + 1
        terminated = self._terminated(ends, env_steps, key, before, chosen)
        received = self._stacked({own: of_agent(rewards, self.env, own) for own in self.env.agents})
        step = FunctionalStep(
            self._observations(seen),
            received,
            terminated,
            {name: ends[name] & ~terminated[name] for name in ends},
            action_masks=self._masks(after),
            infos=self._infos(infos, received),
        )
        return (after, env_steps), step

    def _infos(self, infos: Mapping[str, Any], rewards: ByGroup) -> dict[str, ByGroup]:
        """Return the numbers in JaxMARL's infos by name and group, and whether SMAX's battle is won."""
        found: dict[str, ByGroup] = {}
        for name, value in infos.items():
            if isinstance(value, Mapping) and set(value) == set(self.env.agents):
                found[name] = self._stacked(value)
            elif is_of_agents(value, len(self.env.agents)):
                of_agents = jnp.broadcast_to(value, (len(self.env.agents),))
                found[name] = self._stacked(dict(zip(self.env.agents, of_agents, strict=True)))
        if isinstance(self.env, SMAX_CLASSES):
            # As JaxMARL's SMAXLogWrapper: the last reward has a bonus of 1.
            found["won_episode"] = {name: of_agents >= 1.0 for name, of_agents in rewards.items()}
        return found

    def _terminated(self, ends: dict[str, Any], env_steps: Any, key: Any, state: Any, chosen: Any) -> dict[str, Any]:
        if self._done_means != "auto":
            return {name: end & (self._done_means == "terminated") for name, end in ends.items()}
        if self._unlimited is None:
            return ends
        env, limit = self._unlimited
        # The limit is no cause earlier.
        at_limit = jnp.any(jnp.concatenate(list(ends.values()))) & (env_steps >= limit)

        def without_limit(key: Any, state: Any, chosen: Any) -> dict[str, Any]:
            return self._ends(env.step_env(key, state, chosen)[3])

        terminated: dict[str, Any] = rarely(at_limit, without_limit, ends, key, state, chosen)
        return terminated

    def _ends(self, dones: Mapping[Any, Any]) -> dict[str, Any]:
        all_end = dones["__all__"]
        return self._stacked({own: dones.get(own, False) | all_end for own in self.env.agents}, bool)

    def _observations(self, seen: Any) -> dict[str, Any]:
        return self._stacked({own: of_agent(seen, self.env, own) for own in self.env.agents})

    def _stacked(self, by_own_name: Mapping[Any, Any], dtype: Any = None) -> dict[str, Any]:
        return {
            name: jnp.stack([jnp.asarray(by_own_name[self.own_names[agent]], dtype) for agent in agents])
            for name, agents in self.groups.items()
        }

    def _masks(self, state: Any) -> dict[str, Any]:
        if not self._masked:
            return {}
        legal = self._masks_of(state)
        return {
            name: jnp.stack([legal[self.own_names[agent]] != 0 for agent in self.groups[name]]) for name in self._masked
        }


def without_limit(env: Any) -> tuple[Any, int] | None:
    """Return a copy of `env` that has no limit of env steps, and the limit; None if it has no `max_steps`."""
    attributes = vars(env)
    inner = without_limit(attributes["_env"]) if "_env" in attributes else None
    limit = attributes.get("max_steps", None if inner is None else inner[1])
    if limit is None:
        return None
    # Not by copy.copy, which fails for environments that forward attributes to one that is not set yet.
    unlimited = object.__new__(type(env))
    vars(unlimited).update(attributes)
    if "max_steps" in attributes:
        unlimited.max_steps = _NO_LIMIT
    if inner is not None:
        unlimited._env = inner[0]
    return unlimited, int(limit)


def _mask_method(game: JaxmarlGame, state: Any) -> tuple[Any, list[str]]:
    """Return the function that gives legal actions, and the groups that have masks."""
    for method in ("get_avail_actions", "get_legal_moves"):
        try:
            legal = jax.eval_shape(getattr(game.env, method), state)
        # The base class raises where there are none.
        except (AttributeError, NotImplementedError):
            continue
        names = game.own_names
        return getattr(game.env, method), [
            group
            for group, agents in game.groups.items()
            if legal[names[agents[0]]].shape == (getattr(game.action_space(agents[0]), "n", None),)
        ]
    return None, []


def batched_env(
    num_envs: int,
    name: str = "MPE_simple_spread_v3",
    parameters: Mapping[str, Any] | None = None,
    max_env_steps: int | None = None,
    done_means: DoneMeans = "auto",
    render_mode: str | None = None,
) -> FunctionalBatch:
    """Return `num_envs` environments of JaxMARL.

    name: as in `jaxmarl.registered_envs`.
    parameters: arguments of the environment, such as `{"num_agents": 4}`.
    max_env_steps: env steps after which all agents are truncated; None: the environment's own limit alone.
    done_means: what `done` means (`JaxmarlGame`).
    render_mode: `rgb_array` (MPE, SMAX, Overcooked: JaxMARL's own pictures), or None.

    `state()` is JaxMARL's world state if there is one for all agents, else all agents' observations. Raises
    ConfigInvalid.
    """
    known = list(registered_envs)
    if name not in known:
        raise ConfigInvalid([f"JaxMARL has no environment {name!r}{meant(name, known)}"])
    if done_means not in _MEANINGS:
        raise ConfigInvalid([f"there is no done_means {done_means!r}{meant(done_means, _MEANINGS, 'there are')}"])
    given = dict(parameters or {})
    return batch_of(
        num_envs,
        f"jaxmarl_{name}",
        ("jaxmarl", name, done_means),
        given,
        lambda: JaxmarlGame(_made(name, given), name, done_means),
        max_env_steps,
        render_mode,
    )


def _made(name: str, parameters: Mapping[str, Any]) -> Any:
    named = dict(parameters)
    for key, known in _NAMED.get(name, {}).items():
        if isinstance(chosen := named.get(key), str):
            if chosen not in known:
                raise ConfigInvalid(
                    [f"{name} of JaxMARL has no {key} {chosen!r}{meant(chosen, list(known))} (env.parameters)"]
                )
            named[key] = known[chosen]
    try:
        return make(name, **named)
    # Environments of packages (mabrax, jaxrobotarium) that are not installed.
    except ImportError as error:
        raise ConfigInvalid([f"{name} of JaxMARL cannot be imported: {error}"]) from error
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
        problem = f"{name} of JaxMARL cannot be made with {given or 'its defaults'}: {type(error).__name__}: {error}"
        raise ConfigInvalid([f"{problem} (env.parameters)"]) from error


def agent_names(env: Any) -> dict[str, Any]:
    """Return JaxMARL's own name of each agent; agents that JaxMARL only numbers are called agent_0, agent_1, ..."""
    return {f"agent_{own}" if str(own).isdecimal() else str(own): own for own in env.agents}


def of_agent(of_all: Any, env: Any, own: Any) -> Any:
    """Return the value in `of_all` for the agent that JaxMARL calls `own`; a Dict is flattened into one vector."""
    place = env.agents.index(own)
    if isinstance(of_all, Mapping):
        # In storm, one of the entries has an array for each agent, and the others are seen by all.
        one = (
            of_all[own]
            if own in of_all
            else {key: of_all[key][place] if key == _EACH else of_all[key] for key in of_all}
        )
    else:
        one = of_all[place]
    if not isinstance(one, Mapping):
        return one
    return jnp.concatenate([jnp.ravel(one[key]).astype(jnp.float32) for key in sorted(one)])


def spaces_of(env: Any, name: str) -> dict[str, SpacesOf]:
    """Return the spaces of each agent of `env`, in the order of its agents; `name` is for messages.

    Observations have the shapes that a reset gives, since some environments declare others. Raises ConfigInvalid.
    """
    names = agent_names(env)

    def seen(key: Any) -> dict[str, Any]:
        of_all = env.reset(key)[0]
        return {agent: of_agent(of_all, env, own) for agent, own in names.items()}

    shapes = jax.eval_shape(seen, jax.random.PRNGKey(0))
    return {
        agent: (
            _observation_space(env.observation_space(own), shapes[agent], f"observations of {agent} in {name}"),
            _converted(env.action_space(own), None, f"actions of {agent} in {name}"),
        )
        for agent, own in names.items()
    }


def _observation_space(space: Any, like: Any, what: str) -> spaces.Space[Any]:
    if isinstance(space, Mapping):
        return spaces.Box(-np.inf, np.inf, like.shape, np.float32)
    return _converted(space, like.shape, what)


def _converted(space: Any, shape: tuple[int, ...] | None, what: str) -> spaces.Space[Any]:
    kind = type(space).__name__
    if kind == "Discrete" and shape in (None, ()):
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.num_categories))
    if kind == "Box":
        shape = tuple(np.atleast_1d(space.shape)) if shape is None else shape
        dtype = np.dtype(space.dtype)
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        low, high = (_within(bound, limits, dtype) for bound in (space.low, space.high))
        return spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype.type)
    problem = f"{what} of JaxMARL are a {kind} {space!r:.80}, and marlflow takes its Box, Discrete and MultiDiscrete"
    raise ConfigInvalid([f"{problem}; choose another env.name"])


def _within(bound: Any, limits: Any, dtype: np.dtype[Any]) -> Any:
    values = np.asarray(bound, np.float64)
    return values.astype(dtype) if dtype.kind == "f" else np.clip(values, limits.min, limits.max).astype(dtype)
