"""Level-based foraging (LBF) as a functional environment, by the rules of the package `lbforaging`.

For the same state, it has the observations, legal actions and (up to rounding) rewards of
`lbforaging.foraging.ForagingEnv`. Initial states are drawn from the same distribution by other random numbers, with one
exception: in lbforaging an agent does not begin where it, or an agent after it, ended the episode before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from lbforaging.foraging import ForagingEnv

from marlflow.base.errors import ConfigInvalid
from marlflow.env.functional.batch import FunctionalBatch, batch_of
from marlflow.env.functional_protocol import ByGroup, FunctionalStep
from marlflow.env.simulators import lbf

_AGENT = "agent"
# The actions none, north, south, west, east and load, as (rows, columns).
_MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)], np.int32)
_LOAD = 5
# The levels of the three weakest agents add up to the highest level of food.
_WEAKEST = 3


class ForagingState(NamedTuple):
    """A state of A agents and F foods: places int32 [A, 2] and [F, 2] as (row, column), levels int32 [A] and [F].

    Foods are ordered by row, then column; one that was eaten has level 0. `spawned`: the sum of all levels at first.
    """

    agents: Any
    agent_levels: Any
    foods: Any
    food_levels: Any
    spawned: Any
    env_steps: Any


class ForagingGame:
    """The rules of `game`, a ForagingEnv, of which only settings are read. Raises ConfigInvalid for grids."""

    turn_based = False

    def __init__(self, game: ForagingEnv) -> None:
        if game._grid_observation:
            raise ConfigInvalid(["the compiled LBF has no grid observations; set env.batched=false"])
        weakest = int(np.sort(game.min_player_level)[:_WEAKEST].sum())
        if game.max_food_level is None and not game.force_coop and game.min_food_level.max() > weakest:
            above = f"min_food_level={int(game.min_food_level.max())} is above the weakest agents' levels, {weakest}"
            raise ConfigInvalid([f"{above} together: give max_food_level"])
        self._game, self._num_agents = game, len(game.players)
        self.groups = {_AGENT: [f"{_AGENT}_{number}" for number in range(self._num_agents)]}
        self._last_cell = np.array(game.field_size, np.int32) - 1
        self._most = max(self._num_agents, game.max_num_food)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        space: spaces.Space[Any] = self._game.observation_space[0]
        return space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        return spaces.Discrete(len(_MOVES))

    def reset(self, key: Any) -> tuple[ForagingState, FunctionalStep]:
        bits = jax.random.bits(key, (2, self._most, 3), jnp.uint32)
        agents, agent_levels = self._placed_agents(bits[0])
        highest = jnp.sort(agent_levels)[:_WEAKEST].sum()
        foods, food_levels = self._placed_foods(bits[1], agents, highest)
        state = ForagingState(agents, agent_levels, foods, food_levels, food_levels.sum(), jnp.int32(0))
        return state, FunctionalStep({_AGENT: self._seen(state)})

    def step(self, key: Any, state: ForagingState, actions: ByGroup) -> tuple[ForagingState, FunctionalStep]:
        del key
        chosen = actions[_AGENT].astype(jnp.int32)
        has_food = state.food_levels > 0
        is_beside = (jnp.abs(state.agents[:, None] - state.foods[None]).sum(-1) == 1) & has_food  # [A, F]
        loads = is_beside & (chosen == _LOAD)[:, None]
        agents = self._moved(state, chosen)
        loaded = (loads * state.agent_levels[:, None]).sum(0)  # [F]
        eaten = has_food & (loaded > 0) & (loaded >= state.food_levels)
        food_levels = jnp.where(eaten, 0, state.food_levels)
        after = state._replace(agents=agents, food_levels=food_levels, env_steps=state.env_steps + 1)
        over = (food_levels.sum() == 0) | (after.env_steps >= self._game._max_episode_steps)
        rewards = self._rewards(state, loads, loaded, eaten)
        return after, FunctionalStep({_AGENT: self._seen(after)}, {_AGENT: rewards}, {_AGENT: over})

    @property
    def state_space(self) -> spaces.Box:
        """All agents' observations, side by side, as `state()` of `lbf.parallel_env` has them."""
        space = self.observation_space(self.groups[_AGENT][0])
        return spaces.Box(-np.inf, np.inf, (self._num_agents * spaces.flatdim(space),), np.float32)

    def global_state(self, state: ForagingState) -> Any:
        """Return all agents' observations, concatenated, [A * size]; wrappers of observations do not change this."""
        return self._seen(state).reshape(-1)

    def _moved(self, state: ForagingState, chosen: Any) -> Any:
        aims = state.agents + jnp.asarray(_MOVES)[chosen]
        is_food = ((aims[:, None] == state.foods[None]).all(-1) & (state.food_levels > 0)).any(1)
        is_outside = ((aims < 0) | (aims > self._last_cell)).any(1)
        aims = jnp.where((is_food | is_outside)[:, None], state.agents, aims)
        # If several agents aim at one cell, or one aims at a cell where another stays, none of them moves.
        rivals = (aims[:, None] == aims[None]).all(-1).sum(1)
        return jnp.where((rivals > 1)[:, None], state.agents, aims)

    def _rewards(self, state: ForagingState, loads: Any, loaded: Any, eaten: Any) -> Any:
        shares = state.agent_levels[:, None] * state.food_levels[None].astype(jnp.float32)  # [A, F]
        if self._game._normalize_reward:
            shares = shares / (jnp.maximum(loaded, 1) * jnp.maximum(state.spawned, 1))
        return (loads * jnp.where(eaten, shares, -self._game.penalty)).sum(1)

    def _seen(self, state: ForagingState) -> Any:
        """Return [A, 3 F + 3 A]: seen foods by row and column, the agent itself, and the others that it sees."""
        sight = self._game.sight
        corner = state.agents - jnp.minimum(state.agents, sight)  # of what an agent sees, [A, 2]
        end = jnp.minimum(state.agents + sight, self._last_cell)
        foods = state.foods[None] - corner[:, None]  # [A, F, 2]
        sees_food = (foods >= 0).all(-1) & (state.foods[None] <= end[:, None]).all(-1) & (state.food_levels > 0)
        others = state.agents[None] - corner[:, None]  # [A, A, 2]
        # At a border lbforaging shows agents that are farther away than food may be.
        sees_agent = (others >= 0).all(-1) & (others <= 2 * sight).all(-1)
        own_first = np.array([[n, *(m for m in range(len(others)) if m != n)] for n in range(len(others))])
        rows = np.arange(len(others))[:, None]
        entries = [foods, jnp.broadcast_to(state.food_levels[None, :, None], (*foods.shape[:2], 1))]
        seen = _listed(jnp.concatenate(entries, -1), sees_food)
        levels = jnp.broadcast_to(state.agent_levels[None, :, None], (*others.shape[:2], 1))
        players = jnp.concatenate([others, levels] if self._game._observe_agent_levels else [others], -1)
        team = _listed(players[rows, own_first], sees_agent[rows, own_first])
        return jnp.concatenate([seen, team], -1).astype(jnp.float32)

    def _placed_agents(self, bits: Any) -> tuple[Any, Any]:
        """Return the agents' cells and levels; `bits`: three random numbers for each, uint32 [A, 3]."""
        game, bits = self._game, bits[: self._num_agents]
        order = jnp.argsort(bits[:, 2])
        low, high = jnp.asarray(game.min_player_level)[order], jnp.asarray(game.max_player_level)[order]
        levels = _drawn_level(bits[:, 1], low, high)
        free, cells = jnp.ones(game.field_size, bool), []
        for number in range(self._num_agents):
            cell = _drawn_cell(bits[number, 0], free)
            free = free.at[tuple(cell)].set(False)
            cells.append(cell)
        return jnp.stack(cells), levels

    def _placed_foods(self, bits: Any, agents: Any, highest: Any) -> tuple[Any, Any]:
        """Return the foods' cells and levels, given where the agents are; `bits`: three numbers for each, [F, 3]."""
        game, most = self._game, self._game.max_num_food
        order = jnp.argsort(bits[:most, 2])
        high = jnp.full(most, highest) if game.max_food_level is None else jnp.asarray(game.max_food_level)
        low = high if game.force_coop else jnp.asarray(game.min_food_level)
        levels = _drawn_level(bits[:most, 1], low[order], high[order])
        rows, columns = np.indices(game.field_size)
        inner = (rows > 0) & (rows < game.rows - 1) & (columns > 0) & (columns < game.cols - 1)
        free, cells, placed = jnp.asarray(inner).at[agents[:, 0], agents[:, 1]].set(False), [], []
        for number in range(most):
            cell = _drawn_cell(bits[number, 0], free)
            down, right = jnp.abs(rows - cell[0]), jnp.abs(columns - cell[1])
            # Foods are no neighbours, nor two apart in a row or column.
            taken = (jnp.maximum(down, right) <= 1) | (jnp.minimum(down, right) == 0) & (jnp.maximum(down, right) <= 2)
            placed.append(free.any())
            free = jnp.where(placed[-1], free & ~taken, free)
            cells.append(cell)
        foods, levels = jnp.stack(cells), jnp.where(jnp.stack(placed), levels, 0)
        order = jnp.argsort(foods[:, 0] * game.cols + foods[:, 1])
        return foods[order], levels[order].astype(jnp.int32)


def _drawn_cell(bits: Any, free: Any) -> Any:
    """Return a cell of `free` (bool [rows, columns]), each as likely given random `bits`; any cell if none is free."""
    # The free cell with the highest hash: threefry's bits for each cell would take ten times as long as a step.
    mixed = bits + np.arange(free.size, dtype=np.uint32) * np.uint32(0x9E3779B9)
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        mixed = (mixed ^ (mixed >> 15)) * np.uint32(factor)
    priority = jnp.where(free.ravel(), (mixed ^ (mixed >> 16)) | 1, 0)
    return jnp.stack(jnp.unravel_index(jnp.argmax(priority), free.shape)).astype(jnp.int32)


def _drawn_level(bits: Any, low: Any, high: Any) -> Any:
    """Return whole numbers from `low` to `high`; their probabilities are equal to within 2**-24."""
    return low + ((bits >> 8) % (high - low + 1).astype(jnp.uint32)).astype(jnp.int32)


def _listed(entries: Any, is_seen: Any) -> Any:
    """Return the seen `entries` [A, N, E] one after the other, [A, N * E]; the rest is -1, -1 and level 0."""
    place = jnp.cumsum(is_seen, 1) - 1
    holds = is_seen[:, :, None] & (place[:, :, None] == jnp.arange(entries.shape[1]))  # [A, N, place]
    listed = jnp.einsum("anp,ane->ape", holds.astype(entries.dtype), entries)
    nothing = jnp.asarray([-1, -1, 0][: entries.shape[2]])
    return jnp.where(holds.any(1)[..., None], listed, nothing).reshape(len(entries), -1)


def batched_env(
    num_envs: int,
    id: str = lbf.USUAL_ID,
    max_cycles: int = 50,
    arguments: Mapping[str, Any] | None = None,
) -> FunctionalBatch:
    """Return `num_envs` environments of the game `id`, as `lbf.parallel_env` makes one; raises ConfigInvalid."""
    given = dict(arguments or {})

    def made() -> ForagingGame:
        return ForagingGame(lbf.parallel_env(id, max_cycles, given).game)

    return batch_of(num_envs, id, ("lbf", id), given, made, max_cycles, None)


batched_env.takes_wrappers = True  # type: ignore[attr-defined]
