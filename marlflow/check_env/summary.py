"""Summarizes random episodes: over all, and by group of agents."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from gymnasium import spaces as gym

from marlflow.base.random import episode_seed
from marlflow.base.spaces import DISCRETE_KINDS, Spaces
from marlflow.check_env.outcome import Episodes, GroupOutcome, Spread
from marlflow.check_env.play import Played
from marlflow.check_env.seats import SeatGroup, Seats
from marlflow.check_env.suitable import Suitable
from marlflow.sampling import group


def episodes_of(played: Played, conserved: bool | None, seed: int, episodes: int, budget_s: float) -> Episodes:
    """Return the summary of all episodes, played with `seed`."""
    results = played.results
    running = None if played.ledger is None else played.ledger.running.seed
    numbers = {episode_seed(seed, 0, episode): episode + 1 for episode in range(episodes + 1)}
    return Episodes(
        asked=episodes,
        played=len(results),
        env_steps=played.env_steps,
        length=Spread.of([result.env_steps for result in results]),
        conserved=conserved,
        zero_sum=_is_zero_sum(played),
        agents_vanished=played.vanished,
        slowest_step_s=played.ledger.slowest_step_s if played.ledger else 0.0,
        out_of_time_s=budget_s if played.out_of_time else None,
        failed_in=None if played.failure is None or running is None else numbers.get(running),
    )


def _is_zero_sum(played: Played) -> bool | None:
    returns = [list(result.returns.values()) for result in played.results]
    # Exactly zero, by fsum: rounding of the sum must not decide. None if all returns are zero.
    return not any(map(math.fsum, returns)) if any(map(any, returns)) else None


def groups_of(seats: Seats, fits: Mapping[str, Suitable], played: Played) -> tuple[GroupOutcome, ...]:
    """Return the summary of each group."""
    return tuple(_group(seat_group, seats, fits[seat_group.name], played) for seat_group in seats.groups)


def _group(seat_group: SeatGroup, seats: Seats, fit: Suitable, played: Played) -> GroupOutcome:
    policies = seats.policies(seat_group)
    by_agent: defaultdict[str, list[float]] = defaultdict(list)
    for result in played.results:
        for agent, amount in result.returns.items():
            if agent in seat_group.agents or (not seats.declared and group(agent) == seat_group.name):
                by_agent[agent].append(amount)
    finished = len(played.results)
    decisions = {key: count for key, count in played.decisions.items() if key[1] in policies}
    acted = {policy for _, policy, _ in decisions}
    legal = [count for policy in policies for count in played.legal[policy]]
    return GroupOutcome(
        name=seat_group.name,
        agents=seat_group.agents if seats.declared else tuple(dict.fromkeys([*seat_group.agents, *by_agent])),
        observation_space=_space_text(seat_group.spaces.observation),
        action_space=_space_text(seat_group.spaces.action),
        masks=seat_group.masks,
        algorithms=fit.reasons,
        num_actions=_num_actions(seat_group.spaces),
        legal_mean=math.fsum(legal) / len(legal) if legal else None,
        decisions=Spread.of([count for (episode, _, _), count in decisions.items() if episode < finished]),
        returns=Spread.of([amount for amounts in by_agent.values() for amount in amounts]),
        common_reward=played.ledger.has_common_reward(group(seat_group.agents[0])) if played.ledger else None,
        costs=Spread.of(played.ledger.costs_of(seat_group.agents)) if played.ledger else None,
        terminated=sum(played.terminated[policy] for policy in policies),
        truncated=sum(played.truncated[policy] for policy in policies),
        reward_unattributed=math.fsum(amount for policy in policies for amount in played.unattributed[policy]),
        never_acted=tuple(agent for agent in seat_group.agents if finished and seats.policy_of(agent) not in acted),
    )


def _num_actions(spaces: Spaces) -> int | None:
    return spaces.mask_width if isinstance(spaces.action, DISCRETE_KINDS) else None


def _space_text(space: gym.Space[object]) -> str:
    """Return a space as one line; a Box without its bounds.

    >>> _space_text(gym.Dict({"arm": gym.Box(0, 1, (3,)), "held": gym.Discrete(2)}))
    'Dict(arm: Box(3,) float32, held: Discrete(2))'
    """
    if isinstance(space, gym.Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, gym.Dict):
        return f"Dict({', '.join(f'{key}: {_space_text(part)}' for key, part in space.spaces.items())})"
    if isinstance(space, gym.Tuple):
        return f"Tuple({', '.join(map(_space_text, space.spaces))})"
    return str(space)
