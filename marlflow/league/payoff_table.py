"""The payoff tables of a league as one Arrow table, and as a Parquet file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marlflow.base.files import replacing
from marlflow.league.game_statistics import ProfileCell, Returns
from marlflow.league.payoffs import Payoffs, Profile
from marlflow.league.sides import Sides


def payoff_table(tables: Mapping[str, Payoffs]) -> pa.Table:
    """Return one row per table (`train`, `match`) and profile; `tables` have the same sides.

    Columns: `table`; `past`, null or whose reset moved the games away (`main:0`: `main` before its first reset);
    `<role>_member`; `games`, `truncated` and `env_steps`, which are never decayed; for each role `<role>_return_mean`,
    `_return_variance` (unbiased; null with one game) and `_return_se` of all games, and `<role>_recent_mean` and
    `_recent_se`, decayed if a live member plays; for each pair of sides `<side>_against_<side>_wins`, `_draws` and
    `_losses` of the first, which are 0 where a member plays itself.
    """
    sides = next(iter(tables.values())).sides
    rows = [
        _row(sides, name, past, profile, cell)
        for name, payoffs in tables.items()
        for past, profile, cell in _all_cells(payoffs)
    ]
    return pa.Table.from_pylist(rows, schema=_schema(sides))


def write_payoffs(path: Path, tables: Mapping[str, Payoffs]) -> None:
    """Write the table as a Parquet file, replacing an earlier one; raises OSError."""
    with replacing(path) as aside:
        pq.write_table(payoff_table(tables), aside)


def _all_cells(payoffs: Payoffs) -> Iterator[tuple[str | None, Profile, ProfileCell]]:
    for profile, cell in payoffs.cells.items():
        yield None, profile, cell
    for past, cells in payoffs.past.items():
        for profile, cell in cells.items():
            yield past, profile, cell


def _schema(sides: Sides) -> pa.Schema:
    roles = [role.name for role in sides.roles]
    numbers = ("return_mean", "return_variance", "return_se", "recent_mean", "recent_se")
    return pa.schema(
        [
            ("table", pa.string()),
            ("past", pa.string()),
            *((f"{role}_member", pa.string()) for role in roles),
            *((name, pa.int64()) for name in ("games", "truncated", "env_steps")),
            *((f"{role}_{number}", pa.float64()) for role in roles for number in numbers),
            *(
                (f"{one}_against_{other}_{outcome}", pa.int64())
                for one, other in combinations(sides.names, 2)
                for outcome in ("wins", "draws", "losses")
            ),
        ]
    )


def _row(sides: Sides, table: str, past: str | None, profile: Profile, cell: ProfileCell) -> dict[str, Any]:
    row: dict[str, Any] = {"table": table, "past": past}
    row |= {"games": cell.games, "truncated": cell.truncated, "env_steps": cell.env_steps}
    for role, member, returns in zip(sides.roles, profile, cell.roles, strict=True):
        row[f"{role.name}_member"] = member
        row |= {f"{role.name}_{number}": value for number, value in _numbers(returns).items()}
    for (i, j), outcomes in cell.pairs.items():
        pair = f"{sides.names[i]}_against_{sides.names[j]}"
        row |= {f"{pair}_{name}": getattr(outcomes, name) for name in ("wins", "draws", "losses")}
    return row


def _numbers(returns: Returns) -> dict[str, float | None]:
    several = returns.n > 1
    variance = returns.m2 / (returns.n - 1) if several else None
    return {
        "return_mean": returns.mean,
        "return_variance": variance,
        "return_se": math.sqrt(variance / returns.n) if variance is not None else None,
        "recent_mean": returns.decayed_mean,
        "recent_se": returns.standard_error if several else None,
    }
