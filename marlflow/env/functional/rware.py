"""The robotic warehouse (RWARE) as a functional environment, by the rules of the package `rware`.

For the same state, it has the same observations, legal actions and rewards as `rware.warehouse.Warehouse`, number for
number. Initial states and new requests are drawn from the same distributions by other random numbers.

In few states another agent advances: where equally long lines of agents aim at one free cell. rware lists the cells of
all agents, each agent's own and then the one that it aims at, and the line advances whose head is in this list first.
If fewer than half of the listed cells are connected with the free one, though, a Python set's order of these decides.
Here it is always the list. With up to three agents, the free cell is connected with at least half.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from rware.warehouse import RewardType, Warehouse

from marlflow.base.errors import ConfigInvalid
from marlflow.env.functional.batch import FunctionalBatch, batch_of
from marlflow.env.functional_protocol import ByGroup, FunctionalStep
from marlflow.env.simulators import rware

_AGENT = "agent"
_NUM_ACTIONS = 5
_FORWARD, _LEFT, _RIGHT, _TOGGLE = range(1, _NUM_ACTIONS)
_UP_DOWN_LEFT_RIGHT = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)], np.int32)
"""The directions 0 to 3, as (rows, columns)."""
_TURNED = np.tile(np.arange(4, dtype=np.int32), (_NUM_ACTIONS, 1))
"""Directions by action and direction before it."""
_TURNED[_LEFT], _TURNED[_RIGHT] = (2, 3, 1, 0), (3, 2, 0, 1)
_NEVER = -1000


class WarehouseState(NamedTuple):
    """A state of A agents and S shelves, numbered from 1 as in rware, of which R are requested.

    All arrays are int32, except `has_delivered`. Cells are numbered by row in the padded grid: the field, with a border
    as wide as an agent's view. `standing` [cells]: the shelf in each cell that no agent carries; 0: none. `loads` [A]:
    the shelf that each agent carries; 0: none. `has_delivered` [A], bool: whether it delivered since it last unloaded.
    `requests` [R] and `others` [S - R]: the requested shelves, and all other shelves.
    """

    cells: Any
    directions: Any
    loads: Any
    has_delivered: Any
    standing: Any
    requests: Any
    others: Any
    inactive_steps: Any
    env_steps: Any


class WarehouseGame:
    """The rules of `game`, a Warehouse, of which only settings are read; raises ConfigInvalid for some of them."""

    turn_based = False

    def __init__(self, game: Warehouse) -> None:
        _check(game)
        self._game, sight = game, game.sensor_range
        self.groups = {_AGENT: [f"{_AGENT}_{number}" for number in range(game.n_agents)]}
        shape, is_free = game.grid_size, game.highways == 0
        padded = np.arange((shape[0] + 2 * sight) * (shape[1] + 2 * sight), dtype=np.int32)
        padded = padded.reshape(-1, shape[1] + 2 * sight)
        self._field = padded[sight:, sight:][: shape[0], : shape[1]]  # the numbers of its cells
        self._seen_cells = (padded[: 2 * sight + 1, : 2 * sight + 1] - padded[sight, sight]).ravel()
        self._goals = [int(self._field[row, column]) for column, row in game.goals]
        places = np.indices(shape, np.int32).transpose(1, 2, 0)  # [rows, columns, 2]
        ahead = np.clip(places[:, :, None] + _UP_DOWN_LEFT_RIGHT, 0, np.array(shape) - 1)
        largest = np.array(shape) - 1 if game.normalised_coordinates else 1

        def by_cell(of_field: Any) -> Any:
            around = [(sight, sight), (sight, sight), *[(0, 0)] * (of_field.ndim - 2)]
            return np.pad(of_field, around).reshape(-1, *of_field.shape[2:])

        self._ahead = by_cell(self._field[ahead[..., 0], ahead[..., 1]])
        self._is_highway = by_cell(~is_free)
        self._place = by_cell((places / largest)[..., ::-1].astype(np.float32))  # (column, row)
        self._shelves = by_cell(np.where(is_free, np.cumsum(is_free).reshape(shape), 0).astype(np.int32))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        space: spaces.Space[Any] = self._game.observation_space[0]
        return space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        return spaces.Discrete(_NUM_ACTIONS)

    def reset(self, key: Any) -> tuple[WarehouseState, FunctionalStep]:
        where, facing, asked = jax.random.split(key, 3)
        num_agents, nobody = self._game.n_agents, jnp.zeros(self._game.n_agents, jnp.int32)
        cells = jax.random.permutation(where, self._field.ravel())[:num_agents]
        directions = jax.random.randint(facing, (num_agents,), 0, len(_UP_DOWN_LEFT_RIGHT), jnp.int32)
        shelves = jax.random.permutation(asked, self._shelves[self._shelves > 0])
        requests, others = jnp.split(shelves, [self._game.request_queue_size])
        zero, standing = jnp.int32(0), jnp.asarray(self._shelves)
        state = WarehouseState(cells, directions, nobody, nobody > 0, standing, requests, others, zero, zero)
        return state, FunctionalStep({_AGENT: self._seen(state)})

    def step(self, key: Any, state: WarehouseState, actions: ByGroup) -> tuple[WarehouseState, FunctionalStep]:
        chosen, is_loaded = actions[_AGENT].astype(jnp.int32), state.loads > 0
        aims = jnp.where(chosen == _FORWARD, jnp.asarray(self._ahead)[state.cells, state.directions], state.cells)
        # A carried shelf cannot enter a cell with another shelf.
        aims = jnp.where(is_loaded & (state.standing[aims] > 0), state.cells, aims)
        below, toggles = state.standing[state.cells], chosen == _TOGGLE
        lifts = toggles & ~is_loaded
        unloads = toggles & is_loaded & ~jnp.asarray(self._is_highway)[state.cells]
        left = jnp.where(lifts, 0, jnp.where(unloads, state.loads, below))
        after = state._replace(
            cells=jnp.where(_advances(state.cells, aims), aims, state.cells),
            directions=jnp.asarray(_TURNED)[chosen, state.directions],
            loads=jnp.where(lifts, below, jnp.where(unloads, 0, state.loads)),
            standing=state.standing.at[state.cells].set(left, unique_indices=True),
            has_delivered=state.has_delivered & ~unloads,
            env_steps=state.env_steps + 1,
        )
        after, rewards = self._delivered(key, after)
        if self._game.reward_type == RewardType.TWO_STAGE:
            rewards += 0.5 * (unloads & state.has_delivered)
        limits = (after.inactive_steps, self._game.max_inactivity_steps), (after.env_steps, self._game.max_steps)
        over = [count >= limit for count, limit in limits if limit]
        return after, FunctionalStep({_AGENT: self._seen(after)}, {_AGENT: rewards}, {_AGENT: sum(over) > 0})

    @property
    def state_space(self) -> spaces.Box:
        """All agents' observations, side by side, as `state()` of `rware.parallel_env` has them."""
        space = self.observation_space(self.groups[_AGENT][0])
        return spaces.Box(-np.inf, np.inf, (self._game.n_agents * spaces.flatdim(space),), np.float32)

    def global_state(self, state: WarehouseState) -> Any:
        """Return all agents' observations, concatenated, [A * size]; wrappers of observations do not change this."""
        return self._seen(state).reshape(-1)

    def _delivered(self, key: Any, state: WarehouseState) -> tuple[WarehouseState, Any]:
        """Return the state in which requested shelves at goals are replaced as requests, and the agents' rewards."""
        kind, rewards = self._game.reward_type, jnp.zeros(self._game.n_agents, jnp.float32)
        requests, others, delivers = state.requests, state.others, jnp.zeros(self._game.n_agents, bool)
        # In this order: a shelf that is requested after a delivery at one goal may already be at the next.
        for bits, goal in zip(jax.random.bits(key, (len(self._goals),), jnp.uint32), self._goals, strict=True):
            # Shelves at a goal are carried, since none can be unloaded there.
            is_there = state.cells == goal
            shelf = (is_there * state.loads).sum()
            is_its = (requests == shelf) & (shelf > 0)
            is_due, choice = is_its.any(), (bits % np.uint32(len(others))).astype(jnp.int32)
            requests = jnp.where(is_its, others[choice], requests)
            others = jnp.where((np.arange(len(others)) == choice) & is_due, shelf, others)
            paid = is_due if kind == RewardType.GLOBAL else is_due & is_there
            rewards += paid * (0.5 if kind == RewardType.TWO_STAGE else 1.0)
            delivers |= is_due & is_there
        inactive_steps = jnp.where(delivers.any(), 0, state.inactive_steps + 1)
        return state._replace(
            requests=requests,
            others=others,
            has_delivered=state.has_delivered | delivers,
            inactive_steps=inactive_steps,
        ), rewards

    def _seen(self, state: WarehouseState) -> Any:
        """Return [A, 8 + 7 C]: 8 entries of each agent, then 7 of each of the C cells that it senses, by row."""
        seen = state.cells[:, None] + self._seen_cells  # [A, C]
        is_in = seen[:, :, None] == state.cells  # [A, C, A]
        facing = (is_in * (state.directions + 1)).sum(2)  # 0: no agent
        shelves = state.standing[seen] + (is_in * state.loads).sum(2)
        is_requested = (shelves[:, :, None] == state.requests).any(2)
        # A cell without agent has direction 0.
        facing_each = [facing <= 1, facing == 2, facing == 3, facing == 4]
        sensed = jnp.stack([facing > 0, *facing_each, shelves > 0, is_requested], 2)
        own = [state.loads[:, None] > 0, state.directions[:, None] == np.arange(4)]
        highway = jnp.asarray(self._is_highway)[state.cells][:, None]
        rest = jnp.concatenate([*own, highway, sensed.reshape(len(sensed), -1)], 1).astype(jnp.float32)
        return jnp.concatenate([jnp.asarray(self._place)[state.cells], rest], 1)


def _advances(cells: Any, aims: Any) -> Any:
    """Return which agents move from `cells` to `aims`, bool [A].

    An agent may take the cell of an agent that leaves it. If several aim at one cell, the agent that is followed by the
    longest line of agents advances. Two agents do not swap places; a longer cycle of agents does advance.
    """
    stays, numbers = aims == cells, np.arange(len(cells))
    follows = (aims[:, None] == cells) & ~stays[:, None]  # agent of a row aims at the cell of a column's agent
    # The most moves from one agent's cell to another's; negative: none lead there. In a cycle, as many as are counted.
    moves = jnp.where(np.eye(len(cells), dtype=bool), 0, jnp.where(follows, 1, _NEVER))
    for _ in range((len(cells) - 1).bit_length()):
        moves = (moves[:, :, None] + moves).max(1)
    appears = jnp.minimum(2 * numbers, jnp.where(follows, 2 * numbers[:, None] + 1, 2 * len(cells)).min(0))
    priority = moves.max(0) * 2 * len(cells) - appears
    is_behind = ((aims[:, None] == aims) & (priority > priority[:, None])).any(1)
    swaps = (follows & follows.T).any(1)
    is_stuck = stays | is_behind | swaps
    return ~((moves >= 0) & is_stuck).any(1)


def _check(game: Warehouse) -> None:
    if not game.fast_obs:
        raise ConfigInvalid(["the compiled warehouse has flattened observations only; set env.batched=false"])
    if game.msg_bits:
        raise ConfigInvalid(["the compiled warehouse has no messages (msg_bits); set env.batched=false"])
    shelves, cells = int((game.highways == 0).sum()), game.highways.size
    if game.request_queue_size >= shelves:
        problem = f"request_queue_size={game.request_queue_size} leaves none of the {shelves} shelves for new requests"
        raise ConfigInvalid([problem])
    if game.n_agents > cells:
        raise ConfigInvalid([f"n_agents={game.n_agents} have no place in {cells} cells"])


def batched_env(
    num_envs: int,
    id: str = rware.USUAL_ID,
    max_cycles: int = 500,
    arguments: Mapping[str, Any] | None = None,
) -> FunctionalBatch:
    """Return `num_envs` environments of the warehouse `id`, as `rware.parallel_env` makes one; raises ConfigInvalid."""
    given = dict(arguments or {})

    def made() -> WarehouseGame:
        return WarehouseGame(rware.parallel_env(id, max_cycles, given).game)

    return batch_of(num_envs, id, ("rware", id), given, made, max_cycles, None)


batched_env.takes_wrappers = True  # type: ignore[attr-defined]
