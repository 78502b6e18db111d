"""The numbers in infos that rows have as columns, because a part of an algorithm reads them or a policy names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marlflow.algorithms.algorithm import parts_of
from marlflow.base.info_columns import USUAL, At, InfoColumn, InfoColumns

_AT: Mapping[str, At] = {"credited": "sum", "info": "end"}


def columns_of_rows(algorithm: object, named: Mapping[str, str]) -> dict[str, At]:
    """Return the info columns of a policy's rows: the `named` ones, by kind, and all that parts read."""
    credited: dict[str, At] = {name: "sum" for part in parts_of(algorithm).values() for name in part.credited}
    return {**{name: _AT[kind] for name, kind in named.items()}, **credited}


def info_columns(
    policies: Mapping[str, tuple[object, Mapping[str, str]]], metrics: Sequence[InfoColumn] = ()
) -> InfoColumns:
    """Return all columns of a run; `policies` have an algorithm and the columns that they name."""
    readers: dict[tuple[str, At], list[str]] = {}
    for policy, of_policy in policies.items():
        for column in columns_of_rows(*of_policy).items():
            readers.setdefault(column, []).append(policy)
    asked = [*(InfoColumn(name, name, at, frozenset(of)) for (name, at), of in readers.items()), *metrics]
    taken = {column.name for column in asked}
    return InfoColumns((*asked, *(column for column in USUAL if column.name not in taken)))
