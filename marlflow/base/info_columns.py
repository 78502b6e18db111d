"""Numbers in agents' infos that become columns of rows, figures of episodes, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

COST: Final = "cost"
"""The column of costs, and their key in infos, as in Safety-Gymnasium."""

REWARD_FROM: Final = "reward_from"
"""The first part of the names of coefficients, by which a policy's columns are added to its rewards."""

At: TypeAlias = Literal["sum", "end"]
"""An episode's figure: the sum over the agent's env steps, or the value at the agent's end."""


class InfoColumn(NamedTuple):
    """The number `info[key]` of each agent, under the name `name`.

    `at`: what an episode's figure is. `policies`: those whose rows have it as a column: the sum since the decision, by
    the rules of rewards, or the last number since then (`end`). Each of their agents must have it in every env step.
    `is_asked`: whether the user, or an algorithm, asked for it.
    """

    name: str
    key: str
    at: At = "sum"
    policies: frozenset[str] = frozenset()
    is_asked: bool = True

    @property
    def adds(self) -> bool:
        """Whether its numbers are added up; else the last one counts."""
        return self.at == "sum"

    @property
    def is_in_rows(self) -> bool:
        """Whether it is a column of rows."""
        return bool(self.policies)

    def of(self, info: Mapping[str, Any] | None) -> Any:
        """Return the value in an agent's info; None if there is none. A key `a.b` is also key `b` of the dict `a`."""
        if not info or not isinstance(info, Mapping):
            return None
        if self.key in info:
            return info[self.key]
        outer, _, inner = self.key.partition(".")
        nested = info.get(outer) if inner else None
        return nested.get(inner) if isinstance(nested, Mapping) else None


@dataclass(frozen=True, slots=True)
class InfoColumns:
    """The columns of a worker: `stepped` are read after every env step, columns in rows first; `last` only at an end.

    Arrays of all of them are [K, ...], with `stepped` before `last`.
    """

    columns: tuple[InfoColumn, ...] = ()
    stepped: tuple[InfoColumn, ...] = field(init=False)
    last: tuple[InfoColumn, ...] = field(init=False)
    in_rows: tuple[InfoColumn, ...] = field(init=False)

    def __post_init__(self) -> None:
        in_rows = tuple(one for one in self.columns if one.is_in_rows)
        stepped = (*in_rows, *(one for one in self.columns if one.adds and not one.is_in_rows))
        last = tuple(one for one in self.columns if one not in stepped)
        # Not by assignment, because the class is frozen.
        for name, value in {"stepped": stepped, "last": last, "in_rows": in_rows}.items():
            object.__setattr__(self, name, value)

    def __iter__(self) -> Any:
        return iter((*self.stepped, *self.last))

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, [K]."""
        return tuple(column.name for column in self)

    def of_policy(self, policy: str) -> tuple[str, ...]:
        """Return the names of the columns that a policy's rows have."""
        return tuple(column.name for column in self.in_rows if policy in column.policies)


def coefficient_name(policy: str, column: str) -> str:
    """Return the name, among scheduled values, of the coefficient by which a column is added to a policy's rewards."""
    return f"{REWARD_FROM}.{policy}.{column}"


NO_COLUMNS: Final = InfoColumns()

USUAL: Final = (
    InfoColumn("battle_won", "battle_won", "end", is_asked=False),  # SMAC and its successors
    InfoColumn("won_episode", "won_episode", "end", is_asked=False),
    InfoColumn("won", "won", "end", is_asked=False),
    InfoColumn("is_success", "is_success", "end", is_asked=False),  # Gymnasium-Robotics, Stable-Baselines3
    InfoColumn("success", "success", "end", is_asked=False),
    InfoColumn("percent_eaten", "percent_eaten", "end", is_asked=False),  # jumanji's LevelBasedForaging
    InfoColumn("CSR", "metrics.CSR", "end", is_asked=False),  # pogema
    InfoColumn("ISR", "metrics.ISR", "end", is_asked=False),
)
"""Figures of episodes that are found without being asked for, by the names of their packages."""
