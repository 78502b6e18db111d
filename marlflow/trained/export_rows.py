"""Rows on which an exported file is compared with its policy: played in the run's environment, or arbitrary ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.progress import progress
from marlflow.base.spaces import Spaces, components
from marlflow.env.adapter import EnvAdapter, StepResult
from marlflow.env.opening import open_adapter
from marlflow.env.spaces_only import observation_rows
from marlflow.trained.games import Decision, Episode, Stopped, play_episode
from marlflow.trained.policy import TrainedPolicy
from marlflow.trained.seating import policy_player, seating
from marlflow.trained.team import Team

ROWS = 1_000
_SEED = 0
# An agent that seldom decides must not make the export endless.
_ENV_STEPS_PER_ROW = 10


@dataclass(frozen=True, slots=True)
class CheckRows:
    """Rows to compare on: observations, memories and masks, and where they are `of`.

    `reason` says why rows are arbitrary although there is an environment.
    """

    obs: Array
    memory: Array | None
    mask: Array | None
    of: Literal["played", "arbitrary"] = "arbitrary"
    reason: str | None = None

    def part(self, rows: slice) -> CheckRows:
        """Return some of the rows."""
        memory, mask = (None if column is None else column[rows] for column in (self.memory, self.mask))
        return CheckRows(self.obs[rows], memory, mask, self.of, self.reason)


def check_rows(team: Team, trained: TrainedPolicy, count: int = ROWS) -> CheckRows:
    """Return rows that the policy plays in the run's environment, or arbitrary ones if it cannot be played."""
    try:
        return played_rows(team, trained, count)
    except MarlflowError as error:
        return arbitrary_rows(trained, count, str(error).strip().splitlines()[-1])


def arbitrary_rows(trained: TrainedPolicy, count: int = ROWS, reason: str | None = None) -> CheckRows:
    """Make rows of the policy's spaces, the same each time."""
    generator = np.random.default_rng(_SEED)
    memory = trained.memory(count)
    if memory is not None:
        memory = generator.uniform(-1.0, 1.0, memory.shape).astype(np.float32)
    mask = _masks(trained.spaces, count, generator) if trained.spaces.masked else None
    return CheckRows(observation_rows(trained.spaces, count), memory, mask, "arbitrary", reason)


def _masks(spaces: Spaces, rows: int, generator: np.random.Generator) -> Array:
    mask = generator.random((rows, spaces.mask_width)) < 0.5
    for part in components(mask, spaces.choices):
        # Of each component one is legal in any case; the part is a view.
        part[np.arange(rows), generator.integers(0, part.shape[1], rows)] = True
    return mask


def played_rows(team: Team, trained: TrainedPolicy, count: int = ROWS) -> CheckRows:
    """Play episodes in which the policy samples its actions, and return its first `count` rows or fewer.

    It plays all agents that it can; others play as in training. It ends at 10 env steps for each row, at the latest.
    Raises MarlflowError if the environment cannot be made, breaks, or never asks the policy.
    """
    adapter = open_adapter(team.make_env())
    try:
        agents = tuple(adapter.agents)
        names = seating(team, None, None, {agent: trained.name for agent in trained.agents if agent in agents}, agents)
        others = policy_player(team, names, "sampled")
        rows = _RecordedRows(trained, count, adapter)
        players = {agent: rows.act for agent, name in names.items() if name == trained.name}
        with suppress(Stopped):
            for number in range(_ENV_STEPS_PER_ROW * count):
                play_episode(adapter, Episode(number, 0, team.reset(_SEED, number)), players, others, [rows])
    finally:
        adapter.close()
    return rows.columns()


class _RecordedRows:
    """A player that records what its policy sees; as a watcher, it ends the games when there are enough rows."""

    def __init__(self, trained: TrainedPolicy, count: int, adapter: EnvAdapter) -> None:
        self._trained, self._count, self._adapter = trained, count, adapter
        self._encoder = trained.spaces.encoder()
        self._random = np.random.default_rng(_SEED)
        self._memories: dict[str, Array | None] = {}
        self._env_steps = 0
        self._rows: list[tuple[Array, Array | None, Array | None]] = []

    def act(self, decision: Decision) -> Any:
        memory = self._memories.setdefault(decision.agent, self._trained.memory(1))
        mask = decision.mask
        if mask is None and self._trained.spaces.masked:
            mask = np.ones(self._trained.spaces.mask_width, np.bool_)
        row = self._encoder.stack([decision.observation])
        # Copied: the policy writes its next memory into the array.
        self._rows.append((row, None if memory is None else memory.copy(), mask))
        return self._trained.act([decision.observation], [mask], memory, "sampled", self._random)[0]

    def columns(self) -> CheckRows:
        """Return the rows; raises MarlflowError if there is none."""
        if not self._rows:
            raise MarlflowError(f"{self._trained.name!r} had nothing to decide in {self._env_steps:,} env steps")
        obs, memories, masks = zip(*self._rows[: self._count], strict=True)
        return CheckRows(np.concatenate(obs), _column(memories, False), _column(masks, True), "played")

    def began(self, episode: Episode) -> None:
        self._memories.clear()

    def decided(self, decision: Decision, action: Any) -> None:
        pass

    def stepped(self, result: StepResult) -> None:
        self._env_steps += 1
        progress("playing rows to compare", min(len(self._rows), self._count), self._count)
        if len(self._rows) >= self._count or self._env_steps >= _ENV_STEPS_PER_ROW * self._count:
            raise Stopped

    def ended(self, episode: Episode) -> None:
        pass


def _column(parts: Sequence[Array | None], is_mask: bool) -> Array | None:
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return np.stack(found).astype(np.bool_) if is_mask else np.concatenate(found)
