"""The wrapper classes of `shipped`: mostly one for AEC and one for Parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

from marlflow.base.arrays import Array, copied
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import DISCRETE_KINDS, choices_of, describe_space
from marlflow.env.masking import MASK, MaskedView, ShownMasks, random_legal_action

_Space = spaces.Space[Any]
# A function of an agent's observation or action to its replacement; a function of an agent to its new space.
Change = Callable[[Any, str], Any]
SpaceOf = Callable[[str], _Space]
# Observations, rewards, terminations, truncations, infos.
Stepped = tuple[
    Mapping[str, Any], Mapping[str, float], Mapping[str, bool], Mapping[str, bool], Mapping[str, Mapping[str, Any]]
]


def change_observations(env: Any, change: Change, space_of: SpaceOf) -> Any:
    """Apply `change` to each observation once."""
    return (_ObservationWrapperAEC if isinstance(env, AECEnv) else _ObservationWrapperParallel)(env, change, space_of)


def change_actions(env: Any, change: Change, space_of: SpaceOf) -> Any:
    """Give agents other action spaces; `change` converts actions to the agent's own."""
    return (_ActionWrapperAEC if isinstance(env, AECEnv) else _ActionWrapperParallel)(env, change, space_of)


def remember_actions(env: Any, kinds: Mapping[str, Any]) -> Any:
    """Add each agent's last action to its observation, as numbers by `kinds` (see `wrappers.ActionVector`)."""
    return (_LastActionAEC if isinstance(env, AECEnv) else _LastActionParallel)(env, kinds)


def move_mask_to_info(env: Any) -> Any:
    """Move `observation["action_mask"]` to `info["action_mask"]`, of the agents that have one there."""
    return (_MaskInInfoAEC if isinstance(env, AECEnv) else _MaskInInfoParallel)(env)


# One class per API, because converting between the APIs, as SuperSuit does, processes every observation twice.
class _ObservationWrapper:
    def __init__(self, env: Any, change: Change, space_of: SpaceOf) -> None:
        super().__init__(env)  # type: ignore[call-arg]
        self._change, self._space_of = change, space_of
        # Cached, because PettingZoo demands the same object on every call.
        self._spaces: dict[str, _Space] = {agent: space_of(agent) for agent in getattr(env, "possible_agents", ())}

    def observation_space(self, agent: str) -> _Space:
        if agent not in self._spaces:
            self._spaces[agent] = self._space_of(agent)
        return self._spaces[agent]


class _ObservationWrapperAEC(_ObservationWrapper, BaseWrapper):
    def observe(self, agent: str) -> Any:
        observation = self.env.observe(agent)
        return None if observation is None else self._change(observation, agent)


class _ObservationWrapperParallel(_ObservationWrapper, BaseParallelWrapper):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._change_all(observations), infos

    def step(self, actions: Mapping[str, Any]) -> Stepped:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return self._change_all(observations), rewards, terminations, truncations, infos

    def _change_all(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        return {
            agent: None if observation is None else self._change(observation, agent)
            for agent, observation in observations.items()
        }


class _LastAction(_ObservationWrapper):
    def __init__(self, env: Any, kinds: Mapping[str, Any]) -> None:
        self._last: dict[str, Any] = {}

        def change(observation: Any, agent: str) -> Any:
            kind = kinds[agent]
            shown = np.concatenate([observation, kind.of(self._last.get(agent))])
            return shown.astype(kind.wider.dtype, copy=False) if kind.wider.dtype.kind == "f" else shown

        super().__init__(env, change, lambda agent: kinds[agent].wider)

    def _forget_all_but(self, agents: Iterable[str]) -> None:
        # An agent that comes back has not acted yet.
        for agent in self._last.keys() - set(agents):
            del self._last[agent]


class _LastActionAEC(_LastAction, _ObservationWrapperAEC):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._last.clear()
        self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> None:
        if action is not None:
            # A copy, because the environment may change its actions in place.
            self._last[self.env.agent_selection] = copied(action)
        self.env.step(action)
        self._forget_all_but(self.env.agents)


class _LastActionParallel(_LastAction, _ObservationWrapperParallel):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._last.clear()
        return super().reset(seed, options)

    def step(self, actions: Mapping[str, Any]) -> Stepped:
        # Copies, because the environment may change its actions in place.
        self._last.update({agent: copied(action) for agent, action in actions.items()})
        stepped = super().step(actions)
        self._forget_all_but(self.env.agents)
        return stepped


class _ActionWrapper:
    def __init__(self, env: Any, change: Change, space_of: SpaceOf) -> None:
        super().__init__(env)  # type: ignore[call-arg]
        self._change, self._space_of = change, space_of

    def action_space(self, agent: str) -> _Space:
        return self._space_of(agent)

    def _masked(self, agent: str, info: Any) -> Any:
        """Return an agent's info, in which actions that only the wider space has are illegal."""
        space, mask = self._space_of(agent), (info or {}).get(MASK)
        if mask is None or not isinstance(space, spaces.Discrete) or len(mask) == space.n:
            return info
        return {**info, MASK: np.pad(mask, (0, int(space.n) - len(mask)))}


class _ActionWrapperAEC(_ActionWrapper, BaseWrapper):
    def __init__(self, env: Any, change: Change, space_of: SpaceOf) -> None:
        super().__init__(env, change, space_of)
        self._shown = ShownMasks(env)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._shown.restore()
        self.env.reset(seed=seed, options=options)
        self._mask_acting_agent()

    def step(self, action: Any) -> None:
        self._shown.restore()
        self.env.step(None if action is None else self._change(action, self.env.agent_selection))
        self._mask_acting_agent()

    def _mask_acting_agent(self) -> None:
        if self.env.agents and (agent := self.env.agent_selection) in self.env.infos:
            info = self.env.infos[agent]
            if (masked := self._masked(agent, info)) is not info:
                self._shown.show(agent, masked[MASK])


class _ActionWrapperParallel(_ActionWrapper, BaseParallelWrapper):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, self._all_masked(infos)

    def step(self, actions: Mapping[str, Any]) -> Stepped:
        *told, infos = self.env.step({agent: self._change(action, agent) for agent, action in actions.items()})
        return (*told, self._all_masked(infos))

    def _all_masked(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: self._masked(agent, info) for agent, info in infos.items()}


class _Views(dict[str, MaskedView]):
    """How each agent observes; made when it is first asked for, since agents may be unknown before."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._env = env

    def __missing__(self, agent: str) -> MaskedView:
        view = self[agent] = MaskedView(self._env.observation_space(agent))
        return view


class _MaskInInfoAEC(BaseWrapper):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._views = _Views(env)
        self._shown = ShownMasks(env)
        # The agent to act and its observation, which is computed once per turn.
        self._observed: tuple[str | None, Any] = (None, None)

    def observation_space(self, agent: str) -> Any:
        return self._views[agent].space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._shown.restore()
        self.env.reset(seed=seed, options=options)
        for agent in self.env.agents:
            # Adapters expect later masks only if there are some in the first infos.
            if self._views[agent].is_inside:
                space = self.env.action_space(agent)
                self._shown.show(agent, np.ones(sum(choices_of(space)), np.int8))
        self._observe_acting_agent()

    def step(self, action: Any) -> None:
        self._shown.restore()
        self.env.step(action)
        self._observe_acting_agent()

    def _observe_acting_agent(self) -> None:
        agent = self.env.agent_selection if self.env.agents else None
        observation = None if agent is None else self.env.observe(agent)
        if agent is None or observation is None:
            self._observed = (None, None)
            return
        view = self._views[agent]
        # Copies, because the environment may fill the same arrays when it is asked for another agent's.
        if view.is_inside:
            self._shown.show(agent, copied(observation[MASK]))
        self._observed = (agent, copied(view.bare(observation)))

    def observe(self, agent: str) -> Any:
        if agent == self._observed[0]:
            return self._observed[1]
        observation = self.env.observe(agent)
        return None if observation is None else self._views[agent].bare(observation)


class _MaskInInfoParallel(BaseParallelWrapper):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._views = _Views(env)

    def observation_space(self, agent: str) -> Any:
        return self._views[agent].space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._separate_masks(observations, infos)

    def step(self, actions: Mapping[str, Any]) -> Stepped:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        observations, infos = self._separate_masks(observations, infos)
        return observations, rewards, terminations, truncations, infos

    def _separate_masks(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> tuple[Any, Any]:
        given = {agent: observation for agent, observation in observations.items() if observation is not None}
        masks = {agent: {MASK: seen[MASK]} for agent, seen in given.items() if self._views[agent].is_inside}
        without = {agent: self._views[agent].bare(seen) for agent, seen in given.items()}
        return without, {agent: {**(infos.get(agent) or {}), **masks.get(agent, {})} for agent in {**infos, **masks}}


class NamedAgents(BaseParallelWrapper):
    """Names agents that are numbers, or of another type than text: 0 is agent_0."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._own: dict[str, Any] = {}
        self._names(getattr(env, "possible_agents", ()))

    @property
    def possible_agents(self) -> list[str]:
        """Return the names of all agents."""
        return self._names(self.env.possible_agents)

    @property
    def agents(self) -> list[str]:
        """Return the names of living agents."""
        return self._names(self.env.agents)

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(self._own[agent])

    def action_space(self, agent: str) -> Any:
        return self.env.action_space(self._own[agent])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._named(observations), self._named(infos)

    def step(self, actions: Mapping[str, Any]) -> Stepped:
        observations, *rest = self.env.step({self._own[agent]: action for agent, action in actions.items()})
        rewards, terminations, truncations, infos = map(self._named, rest)
        return self._named(observations), rewards, terminations, truncations, infos

    def _names(self, agents: Iterable[Any]) -> list[str]:
        named = {agent if isinstance(agent, str) else f"agent_{agent}": agent for agent in agents}
        self._own |= named
        return list(named)

    def _named(self, by_agent: Mapping[Any, Any]) -> dict[str, Any]:
        return dict(zip(self._names(by_agent), by_agent.values(), strict=True))


class RandomOpening(BaseWrapper[Any, Any, Any]):
    """Begins each episode with 0 to `moves` uniformly random legal moves, all numbers equally likely.

    The seed of `reset` decides them. An opening that ends an agent, or in which one gets a reward, is not played: the
    episode then begins as without this wrapper.
    """

    def __init__(self, env: AECEnv[Any, Any, Any], moves: int) -> None:
        super().__init__(env)
        self._moves = moves
        self._random = np.random.default_rng()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        # So that an opening which is not played can be taken back, whether or not there is a seed.
        start = seed if seed is not None else int(self._random.integers(2**31))
        super().reset(seed=start, options=options)
        for _ in range(int(self._random.integers(self._moves + 1))):
            self.step(self._move())
            ended = any(self.terminations.values()) or any(self.truncations.values())
            if ended or any(self.rewards.values()):
                super().reset(seed=start, options=options)
                return

    def _move(self) -> Any:
        observation, _, _, _, info = self.last()
        mask = observation.get(MASK) if isinstance(observation, dict) else None
        mask = info.get(MASK) if mask is None else mask
        space = self.action_space(self.agent_selection)
        return random_legal_action(space, np.ones(sum(choices_of(space))) if mask is None else mask, self._random)


class FlatActions:
    """The entries of an agent's Dict or Tuple actions, in the order of the space, as one action of `space`.

    It is a MultiDiscrete if all entries are discrete, a Box if all are Boxes of floats. Other spaces stay as they are.
    Raises ConfigInvalid if they are mixed, or of another kind.
    """

    def __init__(self, agent: str, nested: _Space) -> None:
        self._nested, self.space = nested, nested
        if not isinstance(nested, spaces.Dict | spaces.Tuple):
            return
        flat = list(entries(nested))
        if flat and all(isinstance(entry, DISCRETE_KINDS) for entry in flat):
            self.space = spaces.MultiDiscrete([count for entry in flat for count in choices_of(entry)])
        elif flat and all(isinstance(entry, spaces.Box) and entry.dtype.kind == "f" for entry in flat):
            low, high = (
                np.concatenate([np.ravel(getattr(entry, bound)) for entry in flat]).astype(np.float32)
                for bound in ("low", "high")
            )
            self.space = spaces.Box(low, high)
        else:
            problem = (
                f"agent {agent!r} has {describe_space(nested)} actions, and one action has discrete entries only, or "
                "Boxes of floats only; make them alike in the environment, such as a Box of five steps"
            )
            raise ConfigInvalid([problem])

    def nested(self, action: Any) -> Any:
        """Return an action of the nested space."""
        return action if self.space is self._nested else _nested(self._nested, iter(np.asarray(action).tolist()))


def entries(space: _Space) -> Iterator[_Space]:
    """Return the entries of a Dict or Tuple, also nested, in order; of another space, itself."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for entry in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from entries(entry)
    else:
        yield space


def _nested(space: _Space, numbers: Iterator[float]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(entry, numbers) for key, entry in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(entry, numbers) for entry in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.start + space.dtype.type(next(numbers))
    shape: Any = space.shape
    taken: Array = np.array([next(numbers) for _ in range(int(np.prod(shape)))]).reshape(shape)
    if isinstance(space, spaces.Box):
        # A bound that float32 rounds may be outside.
        return np.asarray(np.clip(taken.astype(space.dtype), space.low, space.high))
    return (taken + getattr(space, "start", 0)).astype(space.dtype)
