"""The input of a central critic: global state, own observation and agent id in one row.

Centralized training with decentralized execution: a critic is needed only in training, so it may see what its actor
does not (Lowe et al., 2017, arXiv:1706.02275; Yu et al., 2021, arXiv:2103.01955, section 5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import spaces as gym

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.observations import ObservationLayout, layout
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch

CriticSees: TypeAlias = Literal["state", "obs", "agent"]
"""The environment's global state, the agent's own observation, its one-hot id."""

OWN_OBSERVATION: tuple[CriticSees, ...] = ("obs",)
"""The input of a critic that is not central."""


@dataclass(frozen=True, slots=True)
class CriticInput:
    """The rows that a central critic sees: the parts `sees`, in that order, one after the other.

    `layout` describes the rows: float32, or bytes if a part has pixels.
    """

    sees: tuple[CriticSees, ...]
    layout: ObservationLayout
    parts: Mapping[CriticSees, ObservationLayout]
    num_agents: int

    def added_to(self, batch: Batch) -> Batch:
        """Return `batch` with the column `central` [N, *layout.shape] and the segment property `bootstrap_central`.

        They replace `state` and `bootstrap_state`, which no loss needs.
        """
        columns = {name: column for name, column in batch.columns.items() if name != "state"}
        segments = {name: column for name, column in batch.segments.items() if name != "bootstrap_state"}
        columns["central"] = self._rows({**batch.columns, "agent": batch["agent"]}, "", batch.rows)
        segments["bootstrap_central"] = self._rows(batch.segments, "bootstrap_", len(batch.segments["length"]))
        return type(batch)(columns, segments)

    def _rows(self, columns: Mapping[str, Array], prefix: str, count: int) -> Array:
        arrays: list[Array] = []
        for part in self.sees:
            if part == "agent":
                arrays.append(np.eye(self.num_agents, dtype=np.float32)[columns["agent"]])
            else:
                arrays += self.parts[part].read(columns[f"{prefix}{part}"]).values()
        packed = self.layout.form == "packed"
        rows = np.empty((count, *self.layout.shape), self.layout.dtype)
        for leaf, array in zip(self.layout.leaves, arrays, strict=True):
            numbers = np.ascontiguousarray(array.reshape(count, leaf.size), leaf.dtype)
            rows[:, leaf.start : leaf.stop] = numbers.view(np.uint8).reshape(count, -1) if packed else numbers
        return rows


def critic_input(spaces: Spaces, sees: Sequence[CriticSees]) -> CriticInput | None:
    """Return the input of a critic that sees `sees`; None for its own observation alone, the column `obs`.

    Raises ConfigInvalid if the environment does not have a part.
    """
    if tuple(sees) == OWN_OBSERVATION:
        return None
    if problems := critic_input_problems(spaces, sees):
        raise ConfigInvalid([f"the critic {problem}; {remedy}" for problem, remedy in problems])
    parts: dict[CriticSees, gym.Space[Any]] = {"obs": spaces.observation}
    if spaces.state is not None:
        parts["state"] = spaces.state
    if spaces.num_agents:
        parts["agent"] = gym.Discrete(spaces.num_agents)
    whole = layout(gym.Tuple([parts[part] for part in sees]))
    layouts: dict[CriticSees, ObservationLayout] = {part: layout(parts[part]) for part in sees if part != "agent"}
    return CriticInput(tuple(sees), whole, layouts, spaces.num_agents)


def critic_input_problems(spaces: Spaces, sees: Sequence[CriticSees]) -> list[tuple[str, str]]:
    """Return why a critic cannot see `sees`, with the remedy of each."""
    if not sees:
        return [("sees nothing (critic_sees is empty)", "give it some of state, obs and agent")]
    problems = [
        (f"sees {part} {sees.count(part)} times (critic_sees)", "name each once")
        for part in dict.fromkeys(sees)
        if sees.count(part) > 1
    ]
    if "state" in sees and spaces.state is None:
        remedy = "add wrappers=joint_state, which makes one of all agents' observations, or leave state out"
        problems.append(("sees state (critic_sees), and the environment has no state() of numbers", remedy))
    if "agent" in sees and not spaces.num_agents:
        remedy = "leave agent out, or declare them"
        problems.append(("sees agent (critic_sees), and the environment has no possible_agents to number", remedy))
    return problems
