"""Records the rewards and costs that an environment issues, independently of rows."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pettingzoo import AECEnv

from marlflow.base.errors import UserCodeFailed
from marlflow.base.info_columns import COST
from marlflow.sampling import group


@dataclass
class Account:
    """One episode: rewards in order of issue, decisions and the sum of costs by agent, and env steps."""

    seed: int | None
    issued: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    decisions: Counter[str] = field(default_factory=Counter)
    costs: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    env_steps: int = 0
    over: bool = False


class Ledger:
    """Wraps `reset` and `step` of `env` and records what they issue.

    `accounts` has the last episode of each seed.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._step, self._reset = env.step, env.reset
        self.accounts: dict[int | None, Account] = {}
        self.running = Account(None)
        # Groups of which several agents received a reward in one step, and those in which these ever differed.
        self.compared: set[str] = set()
        self.unequal: set[str] = set()
        # Agents that ever acted without a cost.
        self.without_cost: set[str] = set()
        self.slowest_step_s = 0.0
        # Patched on the instance, so that the worker plays exactly the environment that learners get.
        if isinstance(env, AECEnv):
            env.reset, env.step = self._aec_reset, self._aec_step
        else:
            env.reset, env.step = self._parallel_reset, self._parallel_step

    def _begin(self, seed: int | None) -> None:
        self.running = self.accounts[seed] = Account(seed)

    def _aec_reset(self, seed: int | None = None, **options: Any) -> None:
        self._begin(seed)
        self._reset(seed=seed, **options)

    def _aec_step(self, action: Any) -> None:
        account, env = self.running, self._env
        # None is the action of a dead agent.
        if action is not None:
            account.decisions[env.agent_selection] += 1
            account.env_steps += 1
        began = perf_counter()
        self._step(action)
        self.slowest_step_s = max(self.slowest_step_s, perf_counter() - began)
        self._issued(env.rewards)

    def _parallel_reset(self, seed: int | None = None, **options: Any) -> Any:
        self._begin(seed)
        return self._reset(seed=seed, **options)

    def _parallel_step(self, actions: Any) -> Any:
        account = self.running
        account.env_steps += 1
        account.decisions.update(actions.keys())
        began = perf_counter()
        stepped = self._step(actions)
        self.slowest_step_s = max(self.slowest_step_s, perf_counter() - began)
        self._issued(stepped[1])
        self._spent(actions.keys(), stepped[-1])
        account.over = not self._env.agents
        return stepped

    def _issued(self, rewards: Any) -> None:
        first: dict[str, float] = {}
        for agent, reward in rewards.items():
            try:
                amount = float(reward)
            except (TypeError, ValueError):
                # The rollout worker raises an error for it.
                continue
            self.running.issued[agent].append(amount)
            name = group(agent)
            if name in first:
                self.compared.add(name)
                if amount != first[name]:
                    self.unequal.add(name)
            first.setdefault(name, amount)

    def _spent(self, acted: Collection[str], infos: Any) -> None:
        # Anything else the rollout worker raises an error for.
        for agent in {*acted, *infos} if isinstance(infos, Mapping) else ():
            cost: Any = (infos.get(agent) or {}).get(COST)
            try:
                amount = float(cost)
            except (TypeError, ValueError):
                # None, or no number.
                if agent in acted:
                    self.without_cost.add(agent)
                continue
            self.running.costs[agent] += amount

    @property
    def partly_without_cost(self) -> list[str]:
        """The agents that had a cost at some env steps, and acted at others without one."""
        return sorted(a for a in self.without_cost if any(a in account.costs for account in self.accounts.values()))

    def costs_of(self, agents: Collection[str]) -> list[float]:
        """Return what each of `agents` cost in each finished episode; empty if one ever acted without a cost."""
        if not self.without_cost.isdisjoint(agents):
            return []
        finished = [account.costs for account in self.accounts.values() if account.over]
        return [costs[agent] for costs in finished for agent in agents if agent in costs]

    def has_common_reward(self, name: str) -> bool | None:
        """Return whether all agents of a group always received equal rewards; None if never two did in one step."""
        return name not in self.unequal if name in self.compared else None


def without_own_frames(failure: UserCodeFailed) -> str:
    """Return a failure's traceback from its first frame on, without a ledger's frame."""
    error = failure.__cause__
    frame = error.__traceback__ if error is not None else None
    start = None
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__:
            start = frame.tb_next
        frame = frame.tb_next
    if error is None or start is None:
        return failure.user_traceback
    return "".join(traceback.format_exception(type(error), error, start, chain=False))
