"""Scaled rewards: each agent's divided by the standard deviation of its discounted returns in random play.

The deviation is measured once, when the environment is made. A running one would change the rewards of a replayed
episode, so that no resume were exact, and give training, evaluation and each environment other units.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from pettingzoo import AECEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.env.adapter import EnvAdapter
from marlflow.env.agents import group_of
from marlflow.env.masking import random_legal_action
from marlflow.env.opening import open_adapter

ScaleBy: TypeAlias = Literal["agent", "group", "all"]

_SEED = 0


class RewardScaleParallel(BaseParallelWrapper):
    """Divides the rewards of a Parallel environment by `scales`, by agent."""

    def __init__(self, env: Any, scales: Mapping[str, float]) -> None:
        super().__init__(env)
        self.scales = dict(scales)

    def step(self, actions: Mapping[str, Any]) -> Any:
        observations, rewards, *rest = self.env.step(actions)
        return observations, _scaled(rewards, self.scales), *rest


class RewardScaleAEC(BaseWrapper):
    """Divides the rewards of an AEC environment by `scales`, by agent."""

    def __init__(self, env: Any, scales: Mapping[str, float]) -> None:
        super().__init__(env)
        self.scales = dict(scales)

    @property
    def rewards(self) -> dict[str, float]:
        """The scaled rewards of the last step, by agent."""
        return _scaled(self.env.rewards, self.scales)

    @property
    def _cumulative_rewards(self) -> dict[str, float]:
        return _scaled(self.env._cumulative_rewards, self.scales)


def _scaled(rewards: Mapping[str, float], scales: Mapping[str, float]) -> dict[str, float]:
    return {agent: reward / scales[agent] for agent, reward in rewards.items()}


def with_scaled_rewards(env: Any, scales: Mapping[str, float]) -> Any:
    """Divide the rewards of an environment of either API by `scales`, by agent."""
    return (RewardScaleAEC if isinstance(env, AECEnv) else RewardScaleParallel)(env, scales)


def scales_for(
    agents: Sequence[str],
    env: Callable[[], Any],
    discount: float = 0.99,
    env_steps: int = 1_000,
    by: ScaleBy = "agent",
    scale: float | None = None,
) -> dict[str, float]:
    """Return the divisor of each agent's rewards: `scale`, or the deviation measured in `env()`.

    Raises ConfigInvalid.
    """
    problems = [] if 0.0 <= discount <= 1.0 else [f"discount must be at least 0 and at most 1, not {discount}"]
    problems += [] if env_steps >= 1 else [f"env_steps must be at least 1, not {env_steps}"]
    problems += [] if by in get_args(ScaleBy) else [f"by must be {', '.join(get_args(ScaleBy))}, not {by!r}"]
    problems += [] if scale is None or 0.0 < scale < np.inf else [f"scale must be more than 0, not {scale}"]
    if problems:
        raise ConfigInvalid(problems)
    return measured_scales(env(), discount, env_steps, by) if scale is None else dict.fromkeys(agents, scale)


def measured_scales(env: Any, discount: float, env_steps: int, by: ScaleBy) -> dict[str, float]:
    """Return the standard deviation of discounted returns by agent, over `env_steps` of random play from seed 0.

    A return is R <- discount * R + reward at each decision of an agent, from 0 at its first. Agents of one group (name
    without number), or all, have the deviation of their pooled returns. Raises ConfigInvalid if returns do not vary.
    """
    agents = list(env.possible_agents)
    returns = random_returns(open_adapter(env), discount, env_steps)
    names = {
        "agent": list(agents),
        "group": [group_of(agent) for agent in agents],
        "all": [""] * len(agents),
    }
    pools = dict(zip(agents, names[by], strict=True))
    scales = {}
    for agent in agents:
        pooled = [each for other in agents if pools[other] == pools[agent] for each in returns.get(other, ())]
        scales[agent] = float(np.std(pooled)) if pooled else 0.0
    if constant := [agent for agent in agents if not scales[agent] > 0.0]:
        problem = f"the rewards of {constant} do not vary in {env_steps} env steps of random play"
        raise ConfigInvalid([f"{problem}; raise env_steps, or set scale"])
    return scales


def random_returns(adapter: EnvAdapter, discount: float, env_steps: int) -> dict[str, list[float]]:
    """Play `env_steps` with random legal actions; return the discounted return after each decision, by agent."""
    random = np.random.default_rng(_SEED)
    action_spaces = [copy.deepcopy(adapter.action_space(agent)) for agent in adapter.agents]
    for slot, space in enumerate(action_spaces):
        space.seed(_SEED + slot)
    returns: dict[str, list[float]] = {agent: [] for agent in adapter.agents}
    result, pending, current = adapter.reset(_SEED), dict[int, float](), dict[int, float]()
    for step in range(env_steps):
        masks: Sequence[Array | None] = result.masks or [None] * len(result.deciding)
        actions = [
            action_spaces[slot].sample() if mask is None else random_legal_action(action_spaces[slot], mask, random)
            for slot, mask in zip(result.deciding, masks, strict=True)
        ]
        pending |= dict.fromkeys(result.deciding, 0.0)
        result = adapter.act(actions)
        for slot, reward in zip(result.reward_slots, result.rewards, strict=True):
            # Rewards before an agent's first decision belong to no decision.
            if slot in pending:
                pending[slot] += float(reward)
        ended = {end.slot for end in result.ended}
        for slot in [slot for slot in pending if slot in ended or slot in result.deciding]:
            current[slot] = discount * current.get(slot, 0.0) + pending.pop(slot)
            returns[adapter.agents[slot]].append(current[slot])
        for slot in ended:
            current.pop(slot, None)
        if result.over:
            result, pending, current = adapter.reset(_SEED + 1 + step), {}, {}
    return returns
