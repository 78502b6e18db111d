"""Sums up random episodes, over all and by group of agents, and checks that rows conserve the reward."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from gymnasium import spaces as gym

from marlflow.base.random import episode_seed
from marlflow.base.spaces import DISCRETE_KINDS
from marlflow.check_env.outcome import Episodes, GroupOutcome, Spread
from marlflow.check_env.play import Account, Ledger, Played
from marlflow.check_env.seats import SeatGroup, Seats, Suitable
from marlflow.sampling import EpisodeResult, group


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
    # None if all returns are zero.
    if not any(map(any, returns)):
        return None
    return all(all(map(math.isfinite, one)) and _equal(math.fsum(one), 0.0, one) for one in returns)


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
        num_actions=seat_group.spaces.mask_width if isinstance(seat_group.spaces.action, DISCRETE_KINDS) else None,
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


# Relative tolerance, since adding in another order rounds differently.
_ROUNDING = 1e-9


def unbalanced(played: Played, ledger: Ledger, seats: Seats, seed: int) -> str | None:
    """Describe the first mismatch between `played` and `ledger`, by episode and agent; None without one."""
    rows: Counter[tuple[int, str]] = Counter()
    for (episode, policy, _), count in played.decisions.items():
        rows[episode, policy] += count
    # Reward before an agent's first decision or after its end is in no row. Workers count it per collect and not per
    # episode, so it can only be compared in total.
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    for result in played.results:
        account = ledger.accounts[episode_seed(seed, 0, result.episode)]
        mismatch = _return_mismatch(result, account) or _row_mismatch(
            result.episode, account, rows, played, seats, gaps
        )
        if mismatch is not None:
            return f"episode seed {account.seed}: {mismatch}"
    is_incomplete = played.out_of_time or played.failure is not None
    return None if is_incomplete else _total_mismatch(played, ledger.running, seats, gaps)


def _return_mismatch(result: EpisodeResult, account: Account) -> str | None:
    for agent, amounts in account.issued.items():
        issued, returned = math.fsum(amounts), result.returns.get(agent, 0.0)
        if not _equal(issued, returned, amounts):
            return f"{agent!r} was issued {issued:g}, its return is {returned:g}"
    return None


def _row_mismatch(
    episode: int,
    account: Account,
    rows: Counter[tuple[int, str]],
    played: Played,
    seats: Seats,
    gaps: defaultdict[str, list[float]],
) -> str | None:
    decisions: Counter[str] = Counter()
    for agent, count in account.decisions.items():
        decisions[seats.policy_of(agent)] += count
    for policy, amounts in _by_policy(account, seats).items():
        in_rows = played.rewards[episode, policy]
        # The reward that the episode's rows lack.
        gap = math.fsum([*amounts, *(-reward for reward in in_rows)])
        gaps[policy].append(gap)
        if (episode, policy) not in played.shared and not _equal(gap, 0.0, amounts):
            return f"{policy!r} was issued {math.fsum(amounts):g}, its rows have {math.fsum(in_rows):g}"
    for policy, count in decisions.items():
        if rows[episode, policy] != count:
            return f"{policy!r} decided {count} times and has {rows[episode, policy]} rows"
    return None


def _total_mismatch(played: Played, running: Account, seats: Seats, gaps: defaultdict[str, list[float]]) -> str | None:
    # In the running episode no agent has acted yet, so none of its reward is in rows.
    for policy, amounts in _by_policy(running, seats).items():
        gaps[policy] += amounts
    for policy, missing in gaps.items():
        counted = played.unattributed[policy]
        if not _equal(math.fsum(missing), math.fsum(counted), [*missing, *counted]):
            return (
                f"over all episodes the rows of {policy!r} lack {math.fsum(missing):g} of what was issued, "
                f"and {math.fsum(counted):g} was counted as unattributed"
            )
    return None


def _by_policy(account: Account, seats: Seats) -> dict[str, list[float]]:
    by_policy: defaultdict[str, list[float]] = defaultdict(list)
    for agent, amounts in account.issued.items():
        by_policy[seats.policy_of(agent)] += amounts
    return by_policy


def _equal(first: float, second: float, amounts: Iterable[float]) -> bool:
    return abs(first - second) <= _ROUNDING * math.fsum(map(abs, amounts))
