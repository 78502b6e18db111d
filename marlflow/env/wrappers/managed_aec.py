"""The AEC environment of managers and workers that `managed` makes of a Parallel environment, and their options."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from marlflow.base.arrays import Array, copied
from marlflow.base.errors import ConfigInvalid
from marlflow.env.masking import MASK, OBSERVATION, MaskedView
from marlflow.env.wrappers.joint_state import JointObservations

ManagerSees: TypeAlias = Literal["obs", "state"]
ManagerActs: TypeAlias = Literal["when_due", "every_env_step"]
OPTION: Final = "option"
LEFT: Final = "left"


class ManagedAEC(AECEnv[str, Any, Any]):
    """An AEC environment of managers, whose turns come first when they are due, and of the agents of `env`.

    The wrapped environment steps once all of its agents have chosen. A manager ends when its last worker ends:
    truncated if any of them was, else terminated.
    """

    def __init__(self, env: Any, managers: Mapping[str, str], rules: OptionRules) -> None:
        super().__init__()
        self.env, self._rules, self._manager_of = env, rules, dict(managers)
        names = dict.fromkeys(managers.values())
        self._workers_of = {name: [w for w, m in managers.items() if m == name] for name in names}
        self.possible_agents = [*names, *env.possible_agents]
        self.metadata = {**(getattr(env, "metadata", None) or {}), "is_parallelizable": False}
        self.render_mode = getattr(env, "render_mode", None)
        if isinstance(getattr(env, "state_space", None), spaces.Box):
            self.state_space = env.state_space
        self._views = {w: WorkerView(env.observation_space(w), env.action_space(w), rules) for w in managers}
        self._joint = {
            name: JointObservations({worker: self._views[worker].bare_space for worker in workers})
            for name, workers in self._workers_of.items()
            if len(workers) > 1 and rules.manager_sees == "obs"
        }
        self.agents: list[str] = []
        # At an episode's end, the last infos of agents that had ended before.
        self.final_infos: dict[str, Any] = {}
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        # Cached, because PettingZoo demands the same object on every call.
        self._manager_spaces = {name: self._manager_space(name) for name in names}
        self._option_spaces = {name: copy.deepcopy(rules.space) for name in names}
        self._manager_views: dict[str, ManagerView] = {}
        if rules.manager_acts == "every_env_step":
            self._manager_views = {name: ManagerView(space, rules) for name, space in self._manager_spaces.items()}
        self._clear()

    def _clear(self) -> None:
        self._actions: dict[str, Any] = {}
        self._option: dict[str, Any] = {}
        # By manager: the env steps until it is due, or for a manager that has ended, the value when it ended.
        self._left: dict[str, int] = {}
        # The last observation of each agent of the wrapped environment.
        self._seen: dict[str, Any] = {}
        self._queue: list[str] = []
        self._live: list[str] = []
        # Managers with a worker that was truncated since they began.
        self._was_truncated: set[str] = set()
        # The rewards of the last env step to managed agents that had ended before.
        self._late: dict[str, float] = {}

    def _manager_space(self, name: str) -> spaces.Space[Any]:
        if self._rules.manager_sees == "state":
            state: spaces.Box = self.env.state_space
            return state
        if name in self._joint:
            return self._joint[name].space
        return copy.deepcopy(self._views[self._workers_of[name][0]].bare_space)

    def observation_space(self, agent: str) -> Any:
        if agent in self._manager_views:
            return self._manager_views[agent].observation_space
        if agent in self._manager_spaces:
            return self._manager_spaces[agent]
        return self._views[agent].observation_space if agent in self._views else self.env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        if agent in self._manager_views:
            return self._manager_views[agent].action_space
        return self._option_spaces[agent] if agent in self._option_spaces else self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._clear()
        self.agents = []
        self.rewards, self._cumulative_rewards, self.infos = {}, {}, {}
        self.terminations, self.truncations = {}, {}
        self._skip_agent_selection = None
        self._seen = copied(dict(observations))
        self._join(list(self.env.agents), infos)
        # Masks come in infos, and who has one has to be known at the reset, also of managers that begin later.
        self.infos |= {name: {MASK: view.mask(0)} for name, view in self._manager_views.items()}
        self._begin_step()

    def _join(self, joined: list[str], infos: Mapping[str, Any]) -> None:
        self._live += joined
        managers = dict.fromkeys(self._manager_of[agent] for agent in joined if agent in self._manager_of)
        new = [name for name in managers if name not in self.agents]
        self._left |= dict.fromkeys(new, 0)
        self._was_truncated.difference_update(new)
        for agent in [*new, *joined]:
            self.agents.append(agent)
            self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
            self.terminations[agent] = self.truncations[agent] = False
            self.infos[agent] = dict(infos.get(agent) or {})

    def _begin_step(self) -> None:
        acting = [name for name in self._leading() if name in self._manager_views or self._left[name] <= 0]
        self._queue = [*acting, *self._live]
        self._mask_managers()
        self._select()

    def _leading(self) -> list[str]:
        """Return the managers that have begun and not ended."""
        ended = self.terminations, self.truncations
        return [name for name in self._left if name in self.agents and not any(flags[name] for flags in ended)]

    def _mask_managers(self) -> None:
        for name in self._leading() if self._manager_views else ():
            self.infos[name][MASK] = self._manager_views[name].mask(self._left[name])

    def _select(self) -> None:
        dead = [agent for agent in self.agents if self.terminations[agent] or self.truncations[agent]]
        if dead or self._queue:
            self.agent_selection = (dead or self._queue)[0]

    def observe(self, agent: str) -> Any:
        if agent in self._views:
            # Before the first option, something of its space.
            option = self._option.get(agent)
            option = self._rules.nothing if option is None else option
            left = max(self._left.get(self._manager_of[agent], 0), 0)
            return self._views[agent].show(self._seen[agent], option, left)
        if agent not in self._workers_of:
            return self._seen[agent]
        seen = self._observe_workers(agent)
        if agent not in self._manager_views:
            return seen
        # One option for all of its workers; before the first, nothing is left of it.
        option = self._option.get(self._workers_of[agent][0])
        return self._manager_views[agent].show(seen, option, self._left[agent])

    def _observe_workers(self, manager: str) -> Any:
        if self._rules.manager_sees == "state":
            return self.env.state()
        workers = self._workers_of[manager]
        if manager in self._joint:
            present = [worker for worker in workers if worker in self._live or self.truncations.get(worker)]
            self._joint[manager].set((worker, self._views[worker].bare(self._seen[worker])) for worker in present)
            return self._joint[manager].state()
        return self._views[workers[0]].bare(self._seen[workers[0]])

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            self._select()
            return
        self._cumulative_rewards[agent] = 0.0
        # Without the late rewards of agents that are gone.
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._queue.remove(agent)
        if agent in self._workers_of:
            self._choose(agent, action)
        else:
            self._actions[agent] = action
        if self._queue:
            self._select()
            return
        self._step_env()
        self._accumulate_rewards()
        self.rewards |= self._late
        self._begin_step()

    def _choose(self, manager: str, option: Any) -> None:
        if manager in self._manager_views:
            goes_on = int(option) == self._manager_views[manager].go_on
            if goes_on == (self._left[manager] <= 0):
                raise ValueError(f"{manager!r} chose {option}, which its action mask excludes")
            if goes_on:
                return
        self._left[manager] = self._rules.every
        for worker in self._workers_of[manager]:
            # A copy, because `moved` may change it in place.
            self._option[worker] = copied(option)

    def _step_env(self) -> None:
        before, seen = self._live, self._seen
        observations, rewards, terminations, truncations, infos = self.env.step(self._actions)
        # Copies, because the environment may fill the same arrays in the next step.
        self._actions, self._seen = {}, {**seen, **copied(dict(observations))}
        self._check_step(before, observations, rewards, terminations, truncations)
        self._reward(before, seen, rewards)
        self._live = []
        for agent in before:
            terminated, truncated = bool(terminations.get(agent)), bool(truncations.get(agent))
            self.infos[agent] = dict(infos.get(agent) or {})
            if agent in self.env.agents and not (terminated or truncated):
                self._live.append(agent)
                continue
            # An agent that left without a flag counts as truncated.
            self.terminations[agent], self.truncations[agent] = terminated, not terminated
            if not terminated and agent in self._manager_of:
                self._was_truncated.add(self._manager_of[agent])
        self.final_infos = {} if self.env.agents else {agent: infos[agent] for agent in infos if agent not in before}
        self._go_on(before, seen)
        self._join([agent for agent in self.env.agents if agent not in before and agent not in self.agents], infos)
        self._end_managers()

    def _check_step(
        self, before: list[str], observations: Mapping[str, Any], rewards: Mapping[str, float], *ends: Mapping[str, Any]
    ) -> None:
        """Raise RuntimeError if the environment gives a living agent no observation, or one that ends no reward."""
        for agent in before:
            ended = any(of_kind.get(agent) for of_kind in ends)
            if agent not in rewards and (ended or agent in self.env.agents):
                raise RuntimeError(f"no reward came for {agent!r}, which was alive before the step")
            if agent not in observations and agent in self.env.agents and not ended:
                raise RuntimeError(f"no observation came for {agent!r}, which is in `agents`")

    def _reward(self, before: list[str], seen: Mapping[str, Any], rewards: Mapping[str, float]) -> None:
        for agent in before:
            issued = rewards.get(agent, 0.0)
            if agent not in self._manager_of:
                self.rewards[agent] = issued
                continue
            view, option = self._views[agent], self._option[agent]
            old, new = view.bare(seen[agent]), view.bare(self._seen[agent])
            self.rewards[agent] = self._rules.worker_reward(issued, old, option, new)
            self.rewards[self._manager_of[agent]] += issued
        ended = [agent for agent in rewards if agent in self._manager_of and agent not in before]
        self._late = {agent: self._rules.worker_share * rewards[agent] for agent in ended}
        living = self._leading()
        for agent in ended:
            manager = self._manager_of[agent]
            if manager in living:
                self.rewards[manager] += rewards[agent]
            else:
                self._late[manager] = self._late.get(manager, 0.0) + rewards[agent]

    def _go_on(self, before: list[str], seen: Mapping[str, Any]) -> None:
        """Count the env step, move options, and make managers due whose options are over."""
        for name in self._leading():
            self._left[name] -= 1
        for agent in before:
            if agent in self._views:
                view = self._views[agent]
                old, new = view.bare(seen[agent]), view.bare(self._seen[agent])
                self._option[agent] = self._rules.moved_option(old, self._option[agent], new)
        for name, workers in self._workers_of.items():
            # Once all have ended: the workers truncated in this step, whose last observations may be bootstrapped.
            asked = [worker for worker in workers if worker in self._live]
            asked = asked or [worker for worker in workers if worker in before and self.truncations[worker]]
            over = [self._rules.ends(self._views[w].bare(self._seen[w]), self._option[w]) for w in asked]
            if over and all(over):
                self._left[name] = 0
        # Also of managers that end now, whose values may be bootstrapped.
        self._mask_managers()

    def _end_managers(self) -> None:
        for name in self._leading():
            if not any(worker in self._live for worker in self._workers_of[name]):
                self.truncations[name] = name in self._was_truncated
                self.terminations[name] = not self.truncations[name]

    @property
    def turns(self) -> str:
        """Say how many env steps, which are turns, a step of the wrapped environment is."""
        agents, managers, every = len(self.env.possible_agents), len(self._workers_of), self._rules.every
        if self._manager_views:
            every = 1
        more = ", and more where options end early" if self._rules.terminate and not self._manager_views else ""
        return (
            f"env steps are turns: one step of the managed environment, with all agents alive, is {agents} + "
            f"{managers} / {every} = {agents + managers / every:g} of them on average{more}"
        )

    def try_functions(self) -> None:
        """Call the functions of the options once, on observations of a reset; raises ConfigInvalid."""
        space = copy.deepcopy(self._rules.space)
        space.seed(0)
        for worker, view in self._views.items():
            if worker in self._seen:
                seen, option = view.bare(self._seen[worker]), space.sample()
                self._rules.worker_reward(0.0, seen, option, seen)
                self._rules.moved_option(seen, option, seen)
                self._rules.ends(seen, option)

    def state(self) -> Any:
        return self.env.state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def managed_of(env: Any) -> ManagedAEC | None:
    """Return the environment with managers that `env` is or wraps, if any."""
    while isinstance(env, AECEnv) and not isinstance(env, ManagedAEC):
        env = vars(env).get("env")
    return env if isinstance(env, ManagedAEC) else None


class OptionRules:
    """The duration of options, and their rewards."""

    def __init__(
        self,
        space: spaces.Space[Any],
        every: int,
        terminate: Callable[..., Any] | None,
        intrinsic: Callable[..., Any] | None,
        moved: Callable[..., Any] | None,
        worker_share: float,
        manager_sees: ManagerSees,
        manager_acts: ManagerActs = "when_due",
    ) -> None:
        self.space, self.every, self.manager_sees, self.manager_acts = space, every, manager_sees, manager_acts
        self.terminate, self.intrinsic, self.moved, self.worker_share = terminate, intrinsic, moved, worker_share

        self.nothing = _lowest(space)
        """Stands in for an option before the first one is chosen; no decision sees it."""

    def worker_reward(self, issued: float, seen: Any, option: Any, following: Any) -> float:
        """Return a worker's reward for an env step; raises ConfigInvalid if `intrinsic` returned no number."""
        own = self.worker_share * issued
        if self.intrinsic is None:
            return own
        paid: Any = self.intrinsic(seen, option, following)
        if np.shape(paid) != () or not np.issubdtype(np.asarray(paid).dtype, np.number) or not np.isfinite(paid):
            raise ConfigInvalid([f"intrinsic returned {paid!r:.200}; it must return a finite number"])
        return own + float(paid)

    def moved_option(self, seen: Any, option: Any, following: Any) -> Any:
        """Return the option after an env step, clipped to a Box; raises ConfigInvalid if it is not in its space."""
        if self.moved is None:
            return option
        after = self.moved(seen, option, following)
        if isinstance(self.space, spaces.Box):
            # A relative goal that was not reached may lie outside of the manager's action space.
            after = np.clip(np.asarray(after, self.space.dtype), self.space.low, self.space.high)
        if not self.space.contains(after):
            raise ConfigInvalid([f"moved returned {after!r:.200}, which is not in {self.space}"])
        return after

    def ends(self, seen: Any, option: Any) -> bool:
        """Return whether an option ends early; raises ConfigInvalid if `terminate` returned no bool."""
        if self.terminate is None:
            return False
        answer = self.terminate(seen, option)
        if not isinstance(answer, bool | np.bool_):
            raise ConfigInvalid([f"terminate returned {answer!r:.200}; it must return a bool"])
        return bool(answer)


class WorkerView:
    """One worker's spaces, and its observations with its option."""

    def __init__(self, observation: Any, action: Any, rules: OptionRules) -> None:
        self._inner, self._every = MaskedView(observation, action), rules.every
        left = spaces.Box(0.0, 1.0, (1,), np.float32)
        seen: spaces.Space[Any] = spaces.Dict({OBSERVATION: self._inner.space, OPTION: rules.space, LEFT: left})
        if self._inner.is_inside:
            mask = observation[MASK]
            seen = spaces.Dict({OBSERVATION: seen, MASK: mask})
        self.observation_space = seen
        self.bare_space = self._inner.space

    def bare(self, observation: Any) -> Any:
        """Return the environment's observation without its mask."""
        return self._inner.bare(observation)

    def show(self, observation: Any, option: Any, left: int) -> Any:
        """Return the observation with the option and the share of its env steps that is left."""
        share = np.array([left / self._every], np.float32)
        seen = {OBSERVATION: self._inner.bare(observation), OPTION: option, LEFT: share}
        return {OBSERVATION: seen, MASK: observation[MASK]} if self._inner.is_inside else seen


class ManagerView:
    """The spaces and observations of a manager that acts at every env step: until it is due, it may only continue.

    It sees its option and the time left, because the value of continuing depends on both.
    """

    def __init__(self, observation: spaces.Space[Any], rules: OptionRules) -> None:
        options = rules.space
        assert isinstance(options, spaces.Discrete), "numbered options only: the mask must be able to leave one action"
        self._rules = rules
        self.go_on = int(options.start + options.n)
        self.action_space = spaces.Discrete(int(options.n) + 1, start=int(options.start))
        left = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Dict({OBSERVATION: observation, OPTION: options, LEFT: left})

    def show(self, observation: Any, option: Any, left: int) -> Any:
        """Return the observation with the option (hidden if it is over) and the share of its time that is left."""
        share = np.array([max(left, 0) / self._rules.every], np.float32)
        return {OBSERVATION: observation, OPTION: option if left > 0 else self._rules.nothing, LEFT: share}

    def mask(self, left: int) -> Array:
        """Return the mask, int8 [options + 1]: the options if the last one is over (`left` is 0), else to continue."""
        mask: Array = np.full(self.action_space.n, left <= 0, np.int8)
        mask[-1] = left > 0
        return mask


def _lowest(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return space.start if isinstance(space, spaces.Discrete) else np.zeros(space.shape or (), space.dtype)
