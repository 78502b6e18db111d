"""The task of an automaton: agents see its state, which moves by events, and are rewarded for accepting states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import BaseParallelWrapper

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import describe_space
from marlflow.env.agents import declared_agents, matching_agents
from marlflow.env.masking import MASK, OBSERVATION, MaskedView, as_mask
from marlflow.env.wrappers.automaton import Automaton, automaton_data, read_automaton

Sees: TypeAlias = Literal["observation", "env"]
_AUTOMATON = "automaton"


def automaton(  # noqa: PLR0913, PLR0917  each is a key of the configuration
    env: Any,
    labels: Callable[..., Any] | None = None,
    automaton: Mapping[str, Any] | None = None,
    formula: str | None = None,
    sees: Sees = "observation",
    agents: str = "*",
    reward: float = 1.0,
    keep_reward: bool = False,
    end_at_sink: bool = True,
    end_when_satisfied: bool = True,
    noop: Any = None,
) -> Any:
    """Give `agents` (a pattern) of a Parallel environment the task of an automaton, or of a formula of LTL.

    `labels(observation, agent)`, or with `sees="env"` `labels(env, agent)`, returns the names of the propositions that
    are true now. The automaton reads the labels of the first observation, and of the one after each env step. `reward`
    is given for a visit to a set of the accepting frontier: the sets that were not visited since all of them were; a
    visit is by reading labels, and not by a move without labels. The environment's own rewards are dropped, unless
    `keep_reward`. Observations gain the state, one-hot, and with several sets the frontier, as bits. Moves without
    labels (epsilon) are further actions, masked in states without any. `noop` is the action that the environment gets
    from an agent that makes such a move, or has ended here, while others act.

    Raises ConfigInvalid for an automaton, settings, and functions that do not fit.
    """
    problems = list(_argument_problems(env, labels, automaton, formula, sees))
    if problems or labels is None:
        raise ConfigInvalid(problems)
    task = read_automaton(automaton if automaton is not None else automaton_data(formula or ""))
    rules = TaskRules(task, labels, sees, float(reward), keep_reward, end_at_sink, end_when_satisfied)
    chosen = matching_agents(env, agents)
    problems = [problem for agent in chosen for problem in _action_problems(env.action_space(agent), agent, task)]
    problems += _noop_problems(env, chosen, rules, noop)
    if problems:
        raise ConfigInvalid(problems)
    wrapper = AutomatonTask(env, rules, chosen, noop)
    # So that a function with a wrong signature or result is refused before a run.
    wrapper.reset(seed=0)
    return wrapper


def _argument_problems(env: Any, labels: object, automaton: object, formula: object, sees: object) -> Iterator[str]:
    if sees not in get_args(Sees):
        yield f"sees must be observation or env, not {sees!r}"
    if isinstance(env, AECEnv):
        yield "it takes a Parallel environment, in which all agents act at once: name its parallel_env"
    if labels is None:
        yield "set labels, the import path of a function that names what is true in an observation"
    if (automaton is None) == (formula is None):
        yield "set either automaton, its states and transitions, or formula"


def _action_problems(space: spaces.Space[Any], agent: str, task: Automaton) -> list[str]:
    if not task.epsilon or isinstance(space, spaces.Discrete):
        return []
    problem = f"agent {agent!r} has {describe_space(space)} actions; epsilon moves are further actions of Discrete ones"
    return [f"{problem}, so remove them from the automaton"]


def _noop_problems(env: Any, chosen: list[str], rules: TaskRules, noop: Any) -> list[str]:
    task = rules.task
    stays_behind = (
        bool(task.epsilon)
        or (rules.end_at_sink and bool(task.sinks))
        or (rules.end_when_satisfied and bool(task.satisfied))
    )
    if noop is None:
        needed = stays_behind and len(declared_agents(env)) > 1
        reason = "while others act, the environment needs an action from agents that move by epsilon or have ended"
        return [f"noop is not set: {reason}"] if needed else []
    outside = [agent for agent in chosen if not env.action_space(agent).contains(noop)]
    return [f"noop={noop!r} is not in {env.action_space(outside[0])} of agent {outside[0]!r}"] if outside else []


class TaskRules:
    """A task with its labels, its rewards, and the states that end an agent."""

    def __init__(
        self,
        task: Automaton,
        labels: Callable[..., Any],
        sees: Sees,
        reward: float,
        keep_reward: bool,
        end_at_sink: bool,
        end_when_satisfied: bool,
    ) -> None:
        self.task, self.labels, self.sees = task, labels, sees
        self.reward, self.keep_reward = reward, keep_reward
        self.end_at_sink, self.end_when_satisfied = end_at_sink, end_when_satisfied
        self.moves = sorted({target for targets in task.epsilon.values() for target in targets})
        """Targets of epsilon moves; the first one is the first action after the environment's own."""
        self.size = len(task.names) + (len(task.accepting) if len(task.accepting) > 1 else 0)

    def true_labels(self, seen: Any, agent: str) -> set[str]:
        """Return the labels of an agent; raises ConfigInvalid if the function returned something else."""
        names = self.labels(seen, agent)
        if isinstance(names, str) or not hasattr(names, "__iter__") or not all(isinstance(n, str) for n in names):
            raise ConfigInvalid([f"labels returned {names!r:.200}; it must return a list or a set of names"])
        return set(names)


class TaskProgress:
    """One agent's state of the automaton and its accepting frontier."""

    def __init__(self, task: Automaton) -> None:
        self._task = task
        self.state = task.initial
        self.frontier = set(range(len(task.accepting)))

    def read(self, labels: set[str]) -> bool:
        """Move by labels; return whether the new state is in a set of the frontier, which loses that set."""
        self.state = self._task.next(self.state, labels)
        hit = {number for number in self.frontier if self.state in self._task.accepting[number]}
        self.frontier -= hit
        if not self.frontier:
            everything = set(range(len(self._task.accepting)))
            self.frontier = everything - hit or everything
        return bool(hit)

    def numbers(self) -> Array:
        """Return the state, one-hot, and with several accepting sets a bit for each that is in the frontier."""
        states = np.arange(len(self._task.names)) == self.state
        count = len(self._task.accepting)
        bits = [number in self.frontier for number in range(count)] if count > 1 else []
        return np.concatenate([states, bits]).astype(np.float32)


class _TaskAgentView:
    """One agent's spaces, and its observations with the automaton's numbers."""

    def __init__(self, env: Any, agent: str, rules: TaskRules) -> None:
        space, actions = env.observation_space(agent), env.action_space(agent)
        self._inner, self._rules = MaskedView(space, actions), rules
        bare = self._inner.space
        numbers = spaces.Box(0.0, 1.0, (rules.size,), np.float32)
        self._is_vector = isinstance(bare, spaces.Box) and len(bare.shape) == 1 and bare.dtype.kind == "f"
        seen: spaces.Space[Any] = spaces.Dict({OBSERVATION: bare, _AUTOMATON: numbers})
        if isinstance(bare, spaces.Box) and self._is_vector:
            seen = spaces.Box(np.append(bare.low, numbers.low), np.append(bare.high, numbers.high), dtype=np.float32)
        self.own_actions, self.action_space, width = 0, actions, self._inner.width
        if rules.moves:
            self.own_actions, width = int(actions.n), width + len(rules.moves)
            self.action_space = spaces.Discrete(width, start=int(actions.start))
        self.observation_space = seen
        if self._inner.is_inside:
            self.observation_space = spaces.Dict({OBSERVATION: seen, MASK: spaces.Box(0, 1, (width,), np.int8)})

    def bare(self, observation: Any) -> Any:
        return self._inner.bare(observation)

    def target(self, action: Any) -> int | None:
        """Return the state that an epsilon move leads to, None for an action of the environment."""
        if not self._rules.moves or isinstance(action, np.ndarray | list):
            return None
        index = int(action) - int(self.action_space.start) - self.own_actions
        return self._rules.moves[index] if index >= 0 else None

    def show(self, observation: Any, info: Mapping[str, Any], progress: TaskProgress) -> tuple[Any, dict[str, Any]]:
        """Return the observation and the info with the automaton's numbers and moves."""
        bare, numbers, info = self._inner.bare(observation), progress.numbers(), dict(info)
        seen: Any = {OBSERVATION: bare, _AUTOMATON: numbers}
        if self._is_vector:
            seen = np.concatenate([np.asarray(bare, np.float32), numbers])
        if self._inner.is_inside or self._rules.moves:
            possible = self._rules.task.epsilon.get(progress.state, ())
            moves = [target in possible for target in self._rules.moves]
            mask = as_mask(np.concatenate([self._inner.legal(observation, info), np.array(moves, np.bool_)]))
            if self._inner.is_inside:
                return {OBSERVATION: seen, MASK: mask}, info
            info[MASK] = mask
        return seen, info


class AutomatonTask(BaseParallelWrapper):
    """Gives agents of a Parallel environment the task of an automaton.

    If all agents that are left move by epsilon, the environment makes no step.
    """

    def __init__(self, env: Any, rules: TaskRules, agents: list[str], noop: Any) -> None:
        super().__init__(env)
        self._rules, self._noop = rules, noop
        self._views = {agent: _TaskAgentView(env, agent, rules) for agent in agents}
        self.agents: list[str] = []
        self._ended: set[str] = set()
        self.progress: dict[str, TaskProgress] = {}
        self._last: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def observation_space(self, agent: str) -> Any:
        return self._views[agent].observation_space if agent in self._views else self.env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self._views[agent].action_space if agent in self._views else self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents, self._ended, self.progress = list(self.env.agents), set(), {}
        for agent in self.agents:
            self._begin(agent, observations[agent])
        self._last = dict(observations), dict(infos)
        return self._shown(self.agents)

    def _begin(self, agent: str, observation: Any) -> None:
        if agent in self._views:
            # The first labels move the automaton; a reward here would belong to no decision.
            progress = self.progress[agent] = TaskProgress(self._rules.task)
            progress.state = self._rules.task.next(progress.state, self._labels(agent, observation))

    def _labels(self, agent: str, observation: Any) -> set[str]:
        seen = self.env if self._rules.sees == "env" else self._views[agent].bare(observation)
        return self._rules.true_labels(seen, agent)

    def _shown(self, agents: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = {}, {}
        for agent in agents:
            seen, info = self._last[0].get(agent), self._last[1].get(agent) or {}
            if seen is not None:
                if agent in self.progress:
                    seen, info = self._views[agent].show(seen, info, self.progress[agent])
                observations[agent] = seen
            infos[agent] = info
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> Any:
        before = list(self.agents)
        targets = {agent: self._views[agent].target(actions[agent]) for agent in before if agent in self._views}
        moving = {agent: target for agent, target in targets.items() if target is not None}
        for agent, target in moving.items():
            self.progress[agent].state = target
        if moving and len(moving) == len(before):
            no, zeros = dict.fromkeys(before, False), dict.fromkeys(before, 0.0)
            observations, infos = self._shown(before)
            return observations, zeros, no, dict(no), infos
        idle = {*moving, *self._ended}
        stepped = self.env.step({a: self._noop if a in idle else actions[a] for a in self.env.agents})
        observations, rewards, terminations, truncations, infos = stepped
        self._last = dict(observations), dict(infos)
        rewards, terminations, truncations = dict(rewards), dict(terminations), dict(truncations)
        for agent in before:
            if agent in self._views and (agent in observations or agent in rewards):
                # An agent that ends may have no last observation, of which there are no labels then.
                seen = observations.get(agent)
                reward, ends = (0.0, False) if seen is None else self._read(agent, seen)
                if agent in rewards or not self._rules.keep_reward:
                    rewards[agent] = reward + (rewards[agent] if self._rules.keep_reward else 0.0)
                if ends:
                    terminations[agent], truncations[agent] = True, False
                    self._ended.add(agent)
        for agent in self.env.agents:
            if agent not in before and agent not in self._ended:
                self._begin(agent, observations[agent])
        known = {**observations, **rewards, **terminations, **truncations}
        shown = [agent for agent in known if agent in before or agent not in self._ended]
        self.agents = [agent for agent in self.env.agents if agent not in self._ended]
        observations, infos = self._shown(shown)
        # Agents that ended earlier may learn how the episode ended.
        infos = infos if self.agents else {**self._last[1], **infos}
        own = (
            {agent: each[agent] for agent in shown if agent in each} for each in (rewards, terminations, truncations)
        )
        return observations, *own, infos

    def _read(self, agent: str, observation: Any) -> tuple[float, bool]:
        rules, progress = self._rules, self.progress[agent]
        is_hit = progress.read(self._labels(agent, observation))
        ends = rules.end_at_sink and progress.state in rules.task.sinks
        ends = ends or (rules.end_when_satisfied and progress.state in rules.task.satisfied)
        return rules.reward * is_hit, ends
