"""Steps all copies of a worker together: one call of each actor per tick, for all its lanes in all copies.

A tick costs a fixed number of vector operations and, per copy, the environment's own step; what concerns a single
agent is only done when somebody ends or comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.random import RowRandom
from marlflow.env import Turn, Window
from marlflow.policy.actor import Mode
from marlflow.rollout.fragment import EpisodeResult
from marlflow.rollout.player import Player
from marlflow.rollout.recorder import Recorder

# The lanes of a copy whose environment does not say who may appear in it.
UNDECLARED_LANES = 256


class Episodes(Protocol):
    """Which episodes a copy plays, and the randomness that belongs to each."""

    def next(self, index: int) -> int | None:
        """The next episode of the worker's copy `index`; None leaves the copy idle."""
        ...

    def seed(self, index: int, episode: int) -> int:
        """What the environment is reset with."""
        ...

    def stream(self, index: int, episode: int, slot: int) -> int:
        """The key of the random stream of one agent's choices."""
        ...


class Lockstep:
    """`windows`, one per copy; lane = index * stride + slot. `policy_of` names the player of each agent."""

    def __init__(
        self,
        windows: Sequence[Window],
        copies: Sequence[int],
        players: dict[str, Player],
        policy_of: Callable[[str], str | None],
        episodes: Episodes,
        mode: Mode,
        recorder: Recorder | None,
    ) -> None:
        self.windows, self.copies, self.players, self._policy_of = windows, copies, players, policy_of
        self._episodes, self._mode, self._recorder = episodes, mode, recorder
        self._masked = any(player.spaces.masked for player in players.values())
        self._order = list(players.values())
        self._number = {policy: number for number, policy in enumerate(players)}
        self.stride = lanes_per_copy(windows[0])
        lanes = self.stride * len(windows)
        self._welcomed = [0] * len(windows)
        self._player_of = np.full(lanes, -1)
        self._row_of = np.zeros(lanes, np.int64)
        self._copy_of = np.repeat(np.arange(len(windows)), self.stride)
        self._keys = np.zeros(lanes, np.uint64)
        self._t_agent = np.zeros(lanes, np.int64)
        self._returns = np.zeros(lanes, np.float64)
        self.episode_of = np.zeros(lanes, np.int64)
        self._env_steps = np.zeros(len(windows), np.int64)
        self._turns: list[Turn] = [_IDLE] * len(windows)
        self._lanes_of: list[list[int]] = [[] for _ in windows]
        self._deciding: Array = np.empty(0, np.int64)
        self._deciding_copy: Array = np.empty(0, np.int64)
        self.results: list[EpisodeResult] = []
        self.env_steps = self.agent_steps = self.ticks = 0
        self.env_s = self.policy_s = 0.0
        for index in range(len(windows)):
            self._reset(index)
        self._gather(steady=False)

    @property
    def idle(self) -> bool:
        """Whether no copy has an episode to play."""
        return not len(self._deciding)

    def tick(self) -> None:
        """Every copy takes one env step."""
        actions = self._decide()
        began = perf_counter()
        steady, offset = True, 0
        for index, lanes in enumerate(self._lanes_of):
            if lanes:
                end = offset + len(lanes)
                turn = self._turns[index] = self.windows[index].act(actions[offset:end])
                offset = end
                self.env_steps += 1
                if not turn.steady:
                    steady = False
        self.env_s += perf_counter() - began
        self._env_steps += 1
        self.ticks += 1
        self._receive(steady)
        if not steady:
            self._end_trajectories()
        self._gather(steady)

    def _decide(self) -> list[Any]:
        """The actions of all pending lanes, in the order of `_deciding`."""
        deciding, recorder = self._deciding, self._recorder
        self.agent_steps += len(deciding)
        t_agent = self._t_agent[deciding]
        cells = None
        if recorder is not None:
            cells = recorder.decided(deciding, self._env_steps[self._deciding_copy], t_agent)
        actions: list[Any] = [None] * len(deciding)
        for player in self._order:
            if not player.positions:
                continue
            where = player.where
            generator = RowRandom(self._keys[player.lanes], t_agent[where])
            began = perf_counter()
            acted = player.actor.act(player.obs, player.mask, None, self._mode, generator)
            self.policy_s += perf_counter() - began
            if player.columns is not None and cells is not None:
                cell = cells[where]
                player.columns.write(player.rows, cell, player.obs, player.mask, acted.action, acted.behaviour_logp)
            for position, choice in zip(player.positions, player.choices(acted.action), strict=True):
                actions[position] = choice
        t_agent += 1
        self._t_agent[deciding] = t_agent
        return actions

    def _receive(self, steady: bool) -> None:
        rewards: list[float] = []
        lanes: list[int] = []
        for index, turn in enumerate(self._turns):
            rewards += turn.rewards
            if not steady:
                first = index * self.stride
                lanes += self._lanes_of[index] if turn.steady else [first + slot for slot in turn.reward_slots]
        if not rewards:
            return
        into = self._deciding if steady else np.array(lanes)
        amounts = self._amounts(rewards, into)
        np.add.at(self._returns, into, amounts)
        if self._recorder is not None:
            self._recorder.received(into, amounts)

    def _amounts(self, rewards: list[float], lanes: Array) -> Array:
        try:
            amounts = np.array(rewards, np.float64)
        except (TypeError, ValueError):
            amounts = np.empty(0)
        if amounts.shape == (len(rewards),) and np.isfinite(amounts).all():
            return amounts
        for reward, lane in zip(rewards, lanes.tolist(), strict=True):
            number = np.asarray(reward)
            if number.shape != () or number.dtype.kind not in "biuf" or not np.isfinite(number):
                raise self._wrong(lane, f"the reward is {reward!r}, not a finite number")
        raise AssertionError("every single reward is a number, but not all of them together")

    def _wrong(self, lane: int, reason: str) -> EnvironmentFailed:
        window = self.windows[lane // self.stride]
        return EnvironmentFailed(window.where(window.agents[lane % self.stride]), reason)

    def _end_trajectories(self) -> None:
        for index, turn in enumerate(self._turns):
            if turn.steady:
                continue
            first = index * self.stride
            if len(self.windows[index].agents) > self._welcomed[index]:
                self._welcome(index)
            if self._recorder is not None:
                for ending in turn.ended:
                    lane = first + ending.slot
                    player = self._order[self._player_of[lane]]
                    try:
                        self._recorder.ended(lane, ending, int(self.episode_of[lane]), player)
                    except ValueError as error:
                        raise self._wrong(lane, str(error)) from error
            self._receive_without_row(first, turn.late_slots, turn.late_rewards)
            if turn.over:
                self._finish(index)
                self._reset(index)
            else:
                self._lanes_of[index] = [first + slot for slot in turn.deciding]

    def _receive_without_row(self, first: int, slots: Sequence[int], rewards: Sequence[float]) -> None:
        """Rewards of a copy that no row can have: after an agent's end, or before its first decision."""
        if not rewards:
            return
        lanes = np.array([first + slot for slot in slots])
        amounts = self._amounts(list(rewards), lanes)
        np.add.at(self._returns, lanes, amounts)
        if self._recorder is not None:
            self._recorder.received_late(lanes, amounts)

    def _finish(self, index: int) -> None:
        window, first = self.windows[index], index * self.stride
        returns = self._returns[first : first + self.stride].tolist()
        appeared = window.appeared()
        by_agent = {a: returns[slot] for slot, a in enumerate(window.agents) if slot in appeared or returns[slot]}
        episode = int(self.episode_of[first])
        self.results.append(EpisodeResult(self.copies[index], episode, window.env_steps, by_agent, self.ticks))
        if self._recorder is not None:
            self._recorder.over(slice(first, first + self.stride))

    def _reset(self, index: int) -> None:
        """The copy's next episode, if it has one."""
        first = index * self.stride
        lanes = slice(first, first + self.stride)
        episode = self._episodes.next(index)
        if episode is None:
            self._turns[index], self._lanes_of[index] = _IDLE, []
            return
        began = perf_counter()
        turn = self._turns[index] = self.windows[index].reset(self._episodes.seed(index, episode))
        self.env_s += perf_counter() - began
        self.episode_of[lanes] = episode
        self._returns[lanes] = 0.0
        self._t_agent[lanes] = 0
        self._env_steps[index] = 0
        if len(self.windows[index].agents) > self._welcomed[index]:
            self._welcome(index)
        for slot in range(self._welcomed[index]):
            self._keys[first + slot] = self._episodes.stream(index, episode, slot)
        # An AEC environment may have stepped an agent that was dead from the start.
        self._receive_without_row(first, turn.reward_slots, turn.rewards)
        self._receive_without_row(first, turn.late_slots, turn.late_rewards)
        self._lanes_of[index] = [first + slot for slot in turn.deciding]

    def _welcome(self, index: int) -> None:
        """Lanes for agents that appeared for the first time."""
        window, first = self.windows[index], index * self.stride
        if len(window.agents) > self.stride:
            reason = f"more than {self.stride} agents appeared; declare possible_agents"
            raise EnvironmentFailed(window.where(), reason)
        for slot in range(self._welcomed[index], len(window.agents)):
            lane = first + slot
            player = self._player_for(window, window.agents[slot])
            self._player_of[lane] = self._number[player.policy]
            self._keys[lane] = self._episodes.stream(index, int(self.episode_of[first]), slot)
            if player.columns is not None:
                self._row_of[lane] = player.columns.add(lane)
        self._welcomed[index] = len(window.agents)

    def _player_for(self, window: Window, agent: str) -> Player:
        policy = self._policy_of(agent)
        player = None if policy is None else self.players.get(policy)
        if player is None:
            reason = f"it appeared late, mapped to policy {policy!r}, and no agent of that was there at the start"
            raise EnvironmentFailed(window.where(agent), reason)
        found = window.observation_space(agent), window.action_space(agent)
        if found != (player.spaces.observation, player.spaces.action):
            reason = f"it appeared late, and its spaces {found} are not those of its policy {policy!r}"
            raise EnvironmentFailed(window.where(agent), reason)
        return player

    def _gather(self, steady: bool) -> None:
        """Shows each player what its pending lanes see."""
        observations: list[Any] = []
        masks: list[Array | None] = []
        for turn in self._turns:
            observations += turn.observations
            if self._masked:
                masks += turn.masks
        if not steady:
            self._deal()
        for player in self._order:
            seen = [observations[position] for position in player.positions]
            try:
                player.show(seen, [masks[position] for position in player.positions] if self._masked else [])
            except (TypeError, ValueError) as error:
                self._find_misshapen(player, seen)
                raise error
            if player.may_be_nan and np.isnan(player.obs).any():
                row = int(np.isnan(player.obs.reshape(len(player.obs), -1)).any(axis=1).argmax())
                raise self._wrong(int(player.lanes[row]), "the observation has a NaN")

    def _find_misshapen(self, player: Player, observations: Sequence[Any]) -> None:
        expected = player.spaces.observation.shape
        for lane, observation in zip(player.lanes.tolist(), observations, strict=True):
            if expected is not None and np.shape(observation) != expected:
                reason = f"an observation of shape {expected} was declared, one of shape {np.shape(observation)} came"
                raise self._wrong(lane, reason)

    def _deal(self) -> None:
        """Finds which lanes decide, and whose they are."""
        lanes: list[int] = []
        for of_copy in self._lanes_of:
            lanes += of_copy
        self._deciding = np.array(lanes, np.int64)
        self._deciding_copy = self._copy_of[self._deciding]
        player_of = self._player_of[self._deciding]
        for number, player in enumerate(self._order):
            where = np.flatnonzero(player_of == number)
            player.lanes = self._deciding[where]
            player.rows = self._row_of[player.lanes]
            player.where = where
            player.positions = where.tolist()


# What a copy without an episode has to say.
_IDLE = Turn()
_IDLE.steady = True


def lanes_per_copy(window: Window) -> int:
    """How many lanes each copy of an environment has."""
    return len(window.agents) if window.declared else UNDECLARED_LANES
