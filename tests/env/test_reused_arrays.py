"""Environments that fill the same arrays at every step, or share dicts, are seen as those that make new ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marlflow.env import BatchedStep, open_adapter
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shield import shield
from marlflow.env.wrappers.shipped import joint_state, last_action, mask_in_info, pad_actions
from marlflow.policy.scripted import RandomActor
from tests.sampling.workers import rollout_worker

SEES = spaces.Box(-100.0, 100.0, (1,), np.float32)
PLAYERS = ("player_0", "player_1")


class Turns(AECEnv):
    """Two players in turn. Each observes 10 times the number of turns, and player_1 one more.

    `reuses`: all observations and masks are in the same arrays, and infos without masks are one dict.
    `masks`: players with an action mask, inside their observations or in infos that are kept from turn to turn.
    """

    def __init__(self, reuses: bool, masks: tuple[str, ...] = PLAYERS, in_info: bool = False) -> None:
        self.metadata = {"name": "turns_v0", "render_modes": [], "is_parallelizable": False}
        self.possible_agents, self.render_mode = list(PLAYERS), None
        self._reuses, self._masks, self._in_info = reuses, masks, in_info
        self._seen, self._mask = np.zeros(1, np.float32), np.zeros(3, np.int8)
        self._actions = {player: spaces.Discrete(3 + number) for number, player in enumerate(PLAYERS)}

    def observation_space(self, agent: str) -> Any:
        if agent not in self._masks or self._in_info:
            return SEES
        return spaces.Dict(observation=SEES, action_mask=spaces.Box(0, 1, (3,), np.int8))

    def action_space(self, agent: str) -> Any:
        return self._actions[agent] if self._in_info else self._actions["player_0"]

    def observe(self, agent: str) -> Any:
        number = PLAYERS.index(agent)
        seen, mask = (self._seen, self._mask) if self._reuses else (self._seen.copy(), self._mask.copy())
        seen[:], mask[:] = 10 * self._turn + number, [1, 1 - number, number]
        return seen if agent not in self._masks or self._in_info else {"observation": seen, "action_mask": mask}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self._turn, self.agent_selection = list(PLAYERS), 0, PLAYERS[0]
        self.rewards, self._cumulative_rewards = dict.fromkeys(PLAYERS, 0.0), dict.fromkeys(PLAYERS, 0.0)
        self.terminations, self.truncations = dict.fromkeys(PLAYERS, False), dict.fromkeys(PLAYERS, False)
        self._left = {player: np.ones(space.n, np.int8) for player, space in self._actions.items()}
        if self._in_info:
            self.infos = {player: {"action_mask": self._left[player]} for player in PLAYERS}
        else:
            shared: dict[str, Any] = {}
            self.infos = {player: shared if self._reuses else {} for player in PLAYERS}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        if self._in_info:
            assert self._left[agent][action], "an action can be taken once"
            # In place, so that the kept info shows it.
            self._left[agent][action] = 0
        self._turn += 1
        self.terminations = dict.fromkeys(PLAYERS, self._turn == 6)
        self.agent_selection = PLAYERS[self._turn % 2]


def rows_of(make: Any, env_steps: int = 24) -> dict[str, Any]:
    """Return the columns of rows of random play, by agent's policy."""
    adapter = open_adapter(make())
    actors = {agent: RandomActor(adapter.action_space(agent)) for agent in adapter.agents}
    worker = rollout_worker(make, range(1), {agent: agent for agent in adapter.agents}, actors, seed=0)
    _, batches = worker.collect(env_steps)
    return {agent: batch.columns for agent, batch in batches.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        joint_state,
        mask_in_info,
        lambda env: joint_state(mask_in_info(env)),
        lambda env: joint_state(shield(env, safe=lambda seen, agent: np.array([True, True, False]))),
    ],
    ids=["bare", "joint_state", "mask_in_info", "joint_mask_in_info", "joint_shield"],
)
def test_players_see_their_own_observation_and_mask(wrap: Any) -> None:
    shown, fresh = (rows_of(lambda reuses=reuses: wrap(Turns(reuses))) for reuses in (True, False))
    for number, player in enumerate(PLAYERS):
        turns = np.arange(number, 6, 2)
        assert shown[player]["obs"].ravel()[:3].tolist() == (10 * turns + number).tolist()
        for name, column in fresh[player].items():
            np.testing.assert_array_equal(shown[player][name], column, err_msg=name)


def test_the_mask_of_one_player_is_not_shown_to_the_other_that_shares_its_info() -> None:
    rows = rows_of(lambda: mask_in_info(Turns(True, masks=("player_1",))), 120)
    assert rows["player_0"].get("action_mask", np.ones(1)).all()
    assert set(rows["player_0"]["action"].tolist()) == {0, 1, 2}
    assert set(rows["player_1"]["action"].tolist()) == {0, 2}


def test_padded_masks_follow_a_mask_that_is_changed_in_place() -> None:
    rows = rows_of(lambda: pad_actions(Turns(False, in_info=True)), 120)
    assert rows["player_0"]["action_mask"][:3].sum(1).tolist() == [3, 2, 1]
    assert rows["player_1"]["action_mask"][:3].sum(1).tolist() == [4, 3, 2]


class InParts(Turns):
    """Actions have two components, and the masks of both are a tuple."""

    def action_space(self, agent: str) -> Any:
        return spaces.MultiDiscrete([2, 3])

    def observation_space(self, agent: str) -> Any:
        parts = spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])
        return spaces.Dict(observation=SEES, action_mask=parts)

    def observe(self, agent: str) -> Any:
        seen = super().observe(agent)["observation"]
        return {"observation": seen, "action_mask": (np.array([0, 1], np.int8), np.array([1, 0, 1], np.int8))}


@pytest.mark.parametrize(
    ("wrap", "allowed"),
    [
        (lambda env: env, [0, 1, 1, 0, 1]),
        (mask_in_info, [0, 1, 1, 0, 1]),
        (lambda env: shield(env, safe=lambda seen, agent: np.arange(5) < 4), [0, 1, 1, 0, 0]),
    ],
    ids=["bare", "mask_in_info", "shield"],
)
def test_a_mask_may_be_a_tuple_of_the_masks_of_components(wrap: Any, allowed: list[int]) -> None:
    for columns in rows_of(lambda: wrap(InParts(True))).values():
        assert (columns["action_mask"] == np.array(allowed, bool)).all()
        assert (columns["action"][:, 0] == 1).all()
        assert set(columns["action"][:, 1].tolist()) <= {0, 2}


class Line(ParallelEnv):
    """Two walkers that go one cell in each of six steps, all in one array; `step` sets the actions to 0."""

    def __init__(self, reuses: bool = True) -> None:
        self.metadata, self.render_mode = {"name": "line_v0", "render_modes": []}, None
        self.possible_agents, self._reuses = ["walker_0", "walker_1"], reuses
        self._place = np.zeros(1, np.float32)

    def observation_space(self, agent: str) -> Any:
        return SEES

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self._steps = list(self.possible_agents), 0
        self._place[:] = 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> Any:
        return {agent: self._place if self._reuses else self._place.copy() for agent in self.agents}

    def step(self, actions: Any) -> Any:
        for action in actions.values():
            action[:] = 0
        self._place += 1
        self._steps += 1
        seen, over = self._seen(), self._steps == 6
        flags = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        rewards, infos = dict.fromkeys(self.agents, 0.0), {agent: {} for agent in self.agents}
        self.agents = [] if over else self.agents
        return seen, rewards, *flags, infos


@pytest.mark.parametrize("reuses", [True, False])
def test_workers_are_paid_for_the_way_from_the_last_observation(reuses: bool) -> None:
    paid = []

    def progress(seen: Any, option: Any, following: Any) -> float:
        paid.append(float(following[0] - seen[0]))
        return paid[-1]

    env = managed(Line(reuses), options=2, every=3, intrinsic=progress)
    env.reset(seed=0)
    paid.clear()
    while env.agents:
        agent = env.agent_selection
        ended = env.terminations[agent] or env.truncations[agent]
        env.step(None if ended else env.action_space(agent).sample())
    assert paid == [1.0] * 12


def test_options_of_one_manager_that_are_moved_in_place_are_moved_once() -> None:
    def moved(seen: Any, option: Any, following: Any) -> Any:
        option -= following - seen
        return option

    env = managed(Line(), options=spaces.Box(-50, 50, (1,), np.float32), every=3, manager="boss", moved=moved)
    env.reset(seed=0)
    options = []
    chosen = np.array([10.0], np.float32)
    for _ in range(7):
        agent = env.agent_selection
        if agent != "boss":
            options.append(float(env.observe(agent)["option"][0]))
        env.step(chosen if agent == "boss" else np.zeros(1, np.float32))
    assert options == [10.0, 10.0, 9.0, 9.0, 8.0, 8.0]
    assert chosen == 10.0


def test_agents_see_the_last_action_as_they_took_it() -> None:
    env = last_action(Line())
    env.reset(seed=0)
    seen, *_ = env.step({agent: np.array([0.5], np.float32) for agent in env.agents})
    assert {agent: row.tolist() for agent, row in seen.items()} == {"walker_0": [1.0, 0.5], "walker_1": [1.0, 0.5]}


def test_actions_that_are_corrected_in_place_are_counted() -> None:
    def halved(observations: Any, actions: Any) -> Any:
        for action in actions.values():
            action[:] = 0.25
        return actions

    env = shield(Line(), post=halved)
    env.reset(seed=0)
    env.step({"walker_0": np.array([1.0], np.float32), "walker_1": np.array([0.25], np.float32)})
    assert env.actions_corrected == 1


class Smooth:
    """Pays each of its environments the negative distance of an action from the one before, which it keeps."""

    groups: ClassVar = {"arm": ["arm_0"]}
    turn_based = False

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self._steps = num_envs, np.zeros(num_envs, np.int64)
        self._before: Any = None

    def observation_space(self, agent: str) -> Any:
        return SEES

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(5)

    def _seen(self) -> Any:
        return {"arm": self._steps[:, None, None].astype(np.float32)}

    def reset(self, envs: Any, seeds: Any) -> BatchedStep:
        self._steps[envs] = 0
        return BatchedStep(self._seen())

    def step(self, actions: Any) -> BatchedStep:
        action = actions["arm"]
        before = action if self._before is None else self._before
        paid = np.where(self._steps[:, None] > 0, -np.abs(action - before), 0.0)
        self._before = action
        self._steps += 1
        return BatchedStep(self._seen(), {"arm": paid}, {}, {"arm": self._steps[:, None] >= 10})

    def close(self) -> None:
        pass


def test_a_batched_environment_may_keep_the_actions_of_its_last_step() -> None:
    actors = {"arm": RandomActor(spaces.Discrete(5))}
    worker = rollout_worker(None, range(2), {"arm_0": "arm"}, actors, seed=0, make_batched=Smooth)
    _, batches = worker.collect(20)
    columns = batches["arm"].columns
    moved = -np.abs(np.diff(columns["action"][:10]))
    assert moved.any()
    assert columns["reward"][:10].tolist() == [0.0, *moved.tolist()]
