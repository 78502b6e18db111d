"""Checks reward conservation: rows and unattributed reward against the rewards issued."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from marlflow.base.random import episode_seed
from marlflow.check_env.ledger import Account, Ledger
from marlflow.check_env.play import Played
from marlflow.check_env.seats import Seats
from marlflow.sampling import EpisodeResult

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
