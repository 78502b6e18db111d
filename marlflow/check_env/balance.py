"""Whether what learners get is what the environment issued: rows and unattributed reward against the ledger."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from marlflow.base.random import episode_seed
from marlflow.check_env.ledger import Account, Ledger
from marlflow.check_env.play import Played
from marlflow.check_env.seats import Seats
from marlflow.sampling import EpisodeResult

# Adding up in another order changes a sum by no more than this part of what was added.
_ROUNDING = 1e-9


def unbalanced(played: Played, ledger: Ledger, seats: Seats, seed: int) -> str | None:
    """The first episode, and agent, for which they are not the same; None if they always are.

    `ledger` saw the environment that was played with `seed`. What came before an agent's first decision or after its
    end belongs to no row: a worker counts it for a whole collect, so in total it must be what rows do not have.
    """
    rows: Counter[tuple[int, str]] = Counter()
    for (episode, policy, _), count in played.decisions.items():
        rows[episode, policy] += count
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    for result in played.results:
        account = ledger.accounts[episode_seed(seed, 0, result.episode)]
        wrong = _wrong_return(result, account) or _wrong_rows(result.episode, account, rows, played, seats, gaps)
        if wrong is not None:
            return f"episode seed {account.seed}: {wrong}"
    in_the_midst = played.out_of_time or played.failure is not None
    return None if in_the_midst else _wrong_total(played, ledger.running, seats, gaps)


def _wrong_return(result: EpisodeResult, account: Account) -> str | None:
    for agent, amounts in account.issued.items():
        issued, returned = math.fsum(amounts), result.returns.get(agent, 0.0)
        if not _same(issued, returned, amounts):
            return f"{agent!r} was issued {issued:g}, its return is {returned:g}"
    return None


def _wrong_rows(
    episode: int,
    account: Account,
    rows: Counter[tuple[int, str]],
    played: Played,
    seats: Seats,
    gaps: defaultdict[str, list[float]],
) -> str | None:
    """Of one episode; adds to `gaps` what each policy's rows do not have."""
    decisions: Counter[str] = Counter()
    for agent, count in account.decisions.items():
        decisions[seats.policy_of(agent)] += count
    for policy, amounts in _by_policy(account, seats).items():
        in_rows = played.rewards[episode, policy]
        gap = math.fsum([*amounts, *(-reward for reward in in_rows)])
        gaps[policy].append(gap)
        if (episode, policy) not in played.shared and not _same(gap, 0.0, amounts):
            return f"{policy!r} was issued {math.fsum(amounts):g}, its rows have {math.fsum(in_rows):g}"
    for policy, count in decisions.items():
        if rows[episode, policy] != count:
            return f"{policy!r} decided {count} times and has {rows[episode, policy]} rows"
    return None


def _wrong_total(played: Played, begun: Account, seats: Seats, gaps: defaultdict[str, list[float]]) -> str | None:
    """Over all episodes; of the one that has `begun` nobody has decided anything yet."""
    for policy, amounts in _by_policy(begun, seats).items():
        gaps[policy] += amounts
    for policy, missing in gaps.items():
        counted = played.unattributed[policy]
        if not _same(math.fsum(missing), math.fsum(counted), [*missing, *counted]):
            return (
                f"over all episodes the rows of {policy!r} lack {math.fsum(missing):g} of what was issued, "
                f"and {math.fsum(counted):g} was counted as unattributed"
            )
    return None


def _by_policy(account: Account, seats: Seats) -> dict[str, list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for agent, amounts in account.issued.items():
        found[seats.policy_of(agent)] += amounts
    return found


def _same(one: float, other: float, amounts: Iterable[float]) -> bool:
    return abs(one - other) <= _ROUNDING * math.fsum(map(abs, amounts))
