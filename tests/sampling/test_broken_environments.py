"""A broken environment must not affect whole episodes, the run's time, or other agents' randomness."""

from __future__ import annotations

import contextlib
import pickle
import time
from itertools import count
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.base.errors import EnvironmentFailed
from marlflow.policy.actor import Acted
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.watchdog import Watchdog
from tests.sampling.workers import lone_worker, rollout_worker


class Counter(ParallelEnv):
    """One agent, `length` env steps, reward 1 each."""

    metadata: ClassVar = {"name": "counter"}
    possible_agents: ClassVar = ["a"]
    length = 3

    def observation_space(self, agent):
        return spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def see(self):
        return {agent: np.full(1, self.t, np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        seen, agents, over = self.see(), self.agents, self.t == self.length
        if over:
            self.agents = []
        infos = {agent: {} for agent in agents}
        return seen, dict.fromkeys(agents, 1.0), dict.fromkeys(agents, over), dict.fromkeys(agents, False), infos


def worker(make_env, env_indices=(0,), **limits):
    return lone_worker(make_env, None, env_indices, seed=3, **limits)


class Failing(Counter):
    """Its resets number `fails` raise, counted over all instances."""

    fails: tuple[int, ...] = ()
    resets = 0

    def reset(self, seed=None, options=None):
        type(self).resets += 1
        if self.resets in self.fails:
            raise RuntimeError("no table free")
        return super().reset(seed, options)


@pytest.mark.parametrize("fails", [(4,), (4, 5), (4, 5, 6), (2,), (2, 3)])
def test_resets_that_fail_take_no_row_of_a_finished_episode(fails):
    # The first reset is the adapter's own; then one for each episode, and one for each reopened adapter.
    lucky = worker(type("Failing", (Failing,), {"fails": fails, "resets": 0}), tolerated_faults=len(fails))
    receipt, batches = lucky.collect(9)
    assert [result.returns for result in receipt.episodes] == [{"a": 3.0}] * 3
    assert batches["all"].rows == receipt.agent_steps == 9
    assert len(receipt.faults) == len(fails)
    assert all(fault.rows_lost == 0 for fault in receipt.faults)


def test_one_failing_reset_too_many_ends_it():
    unlucky = worker(type("Failing", (Failing,), {"fails": (4, 5, 6), "resets": 0}), tolerated_faults=2)
    with pytest.raises(EnvironmentFailed, match="no table free"):
        unlucky.collect(9)


class Tar(Counter):
    """Once it has hung, every later call of any instance hangs too: 20 s each, except for a few seconds."""

    until_s = 0.0

    def wait(self):
        with contextlib.suppress(Exception):
            while time.monotonic() < type(self).until_s:
                pass

    def reset(self, seed=None, options=None):
        self.wait()
        return super().reset(seed, options)

    def close(self):
        self.wait()

    def step(self, actions):
        if self.t == 1 and not type(self).until_s:
            type(self).until_s = time.monotonic() + 20
        self.wait()
        return super().step(actions)


def test_closing_and_opening_anew_are_watched_too():
    tar = type("Tar", (Tar,), {"until_s": 0.0})
    stuck = worker(tar, watchdog=Watchdog(0.1), tolerated_faults=3)
    with pytest.raises(EnvironmentFailed, match=r"longer than env\.step_timeout_s"):
        stuck.collect(5)
    assert time.monotonic() < tar.until_s  # else it waited for the environment, and nothing was watched


class Crowd(ParallelEnv):
    """Three agents at a time; which ones depends on the seed, and none is declared."""

    metadata: ClassVar = {"name": "crowd"}
    length = 3

    def observation_space(self, agent):
        return spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(1000)

    see, step = Counter.see, Counter.step

    def reset(self, seed=None, options=None):
        self.agents, self.t = [f"a_{(seed + number * 7) % 40}" for number in range(3)], 0
        return self.see(), {agent: {} for agent in self.agents}


class Recalling(RandomActor):
    """Remembers its actions; random also when greedy."""

    def act(self, obs, action_mask, memory, mode, generator):
        acted = super().act(obs, action_mask, memory, mode, generator)
        self.chosen = [*getattr(self, "chosen", []), *acted.action.tolist()]
        return Acted(*acted)


def test_choices_of_undeclared_agents_depend_on_their_names_and_not_on_who_came_before():
    def choices(before):
        actor = Recalling(spaces.Discrete(1000))
        playing = lone_worker(Crowd, actor, seed=1)
        playing.evaluate(EvaluationRequest(before))
        actor.chosen = []
        playing.evaluate(EvaluationRequest([17]))
        return actor.chosen

    assert choices([]) == choices([3, 4, 5, 6])


def test_masks_that_come_late_are_an_error_and_not_overlooked():
    class Late(Counter):
        def step(self, actions):
            *rest, infos = super().step(actions)
            return *rest, {agent: {"action_mask": np.array([1, 0])} for agent in infos} if self.t >= 2 else infos

    with pytest.raises(EnvironmentFailed, match="reset\\(\\) gave no agent one") as caught:
        worker(Late).collect(3)
    assert "env step 2" in caught.value.where


def test_box_actions_of_float64_stay_in_their_space():
    class Narrow(Counter):
        def action_space(self, agent):
            return spaces.Box(-0.1, 0.1, (1,), np.float64)

        def step(self, actions):
            assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
            return super().step(actions)

    class Ends(RandomActor):
        def act(self, obs, action_mask, memory, mode, generator):
            action = np.where(generator.uniform() < 0.5, np.float32(-0.1), np.float32(0.1)).astype(np.float32)
            return Acted(action[:, None], np.zeros(len(obs), np.float32), memory)

    receipt, batches = lone_worker(Narrow, Ends(spaces.Box(-0.1, 0.1, (1,), np.float64))).collect(30)
    assert receipt.env_steps == 30
    assert set(batches["all"]["action"].ravel().tolist()) == {float(np.float32(-0.1)), float(np.float32(0.1))}


def test_of_a_broken_episode_no_agents_rows_are_handed_over_not_even_of_one_that_had_ended():
    class Pair(Counter):
        possible_agents: ClassVar = ["a", "b"]
        began: ClassVar = []

        def reset(self, seed=None, options=None):
            self.began.append(seed)
            return super().reset(seed, options)

        def step(self, actions):
            if self.t == 1 and len(self.began) == 2:  # the first episode: the adapter's own reset came before
                raise RuntimeError("b took the ball along")
            seen, rewards, terminations, truncations, infos = super().step(actions)
            if self.t == 1:
                terminations["b"] = True
                self.agents = ["a"]
            return seen, rewards, terminations, truncations, infos

    receipt, batches = worker(Pair, tolerated_faults=1).collect(8)
    [fault] = receipt.faults
    assert fault.rows_lost == 3  # two of a, of which one was open, and one of b, whose trajectory had ended
    assert (batches["all"].segments["episode"] > 0).all()
    assert batches["all"].rows + fault.rows_lost == receipt.agent_steps


def test_a_failure_beyond_the_budget_comes_with_those_that_nobody_has_reported():
    class Raises(Counter):
        def step(self, actions):
            raise OSError("no server")

    several = worker(Raises, env_indices=[3, 5, 7], tolerated_faults=1)
    with pytest.raises(EnvironmentFailed) as caught:
        several.collect(1)
    failures = pickle.loads(pickle.dumps((*caught.value.earlier, caught.value)))  # noqa: S301  as to the driver
    assert [failure.where.split(", ")[1] for failure in failures] == ["env 3", "env 5"]


class Flooded(Counter):
    """Without `possible_agents`; in the environment that was made first, a crowd joins in the second env step."""

    made = 0

    def __init__(self):
        self.is_first = Flooded.made == 0
        Flooded.made += 1

    @property
    def possible_agents(self):
        raise AttributeError("possible_agents")

    def reset(self, seed=None, options=None):
        self.agents, self.t = ["a", "b"], 0
        return self.see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        if self.is_first and self.t == 1:
            self.agents = [*self.agents, *(f"c_{number}" for number in range(300))]
        return super().step(actions)


def test_a_crowd_that_is_too_large_breaks_its_own_environment_and_pays_nobody_in_the_next_one():
    Flooded.made = 0
    receipt, batches = worker(Flooded, (0, 1), tolerated_faults=9).collect(3)
    assert {fault.reason for fault in receipt.faults} == {"more than 256 agents appeared; declare possible_agents"}
    (episode,) = receipt.episodes
    assert (episode.env, episode.returns) == (1, {"a": 3.0, "b": 3.0})
    assert batches["all"]["reward"].tolist() == [1.0] * batches["all"].rows


class Strangers(Flooded):
    """Without `possible_agents`; each episode has three agents that no other one has, of which one joins late."""

    episodes = count()

    def reset(self, seed=None, options=None):
        self.episode = next(Strangers.episodes)
        self.agents, self.t = [f"a_{self.episode}", f"b_{self.episode}"], 0
        return self.see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        if self.t == 1:
            self.agents = [*self.agents, f"c_{self.episode}"]
        return Counter.step(self, actions)


def test_any_number_of_episodes_may_have_agents_of_their_own():
    playing, episodes = worker(Strangers, (0, 1)), []
    for _ in range(20):
        receipt, batches = playing.collect(60)
        assert not receipt.faults
        assert (batches["all"]["reward"] == 1.0).all()
        episodes += receipt.episodes
    assert len(episodes) > 200
    assert all(sorted(agent[0] for agent in episode.returns) == ["a", "b", "c"] for episode in episodes)
    assert len({agent for episode in episodes for agent in episode.returns}) == 3 * len(episodes)
    (returns,) = {tuple(sorted(episode.returns.values())) for episode in episodes}
    assert returns == (2.0, 3.0, 3.0)


class Visited(Flooded):
    """A stranger, whom no policy plays, joins in the second env step of the environment that was made first."""

    def step(self, actions):
        if self.is_first and self.t == 1:
            self.agents = [*self.agents, "stranger"]
        return super(Flooded, self).step(actions)


def test_an_agent_that_broke_an_environment_is_forgotten_when_it_is_opened_again():
    Flooded.made = 0
    mapping = [mf.Rule("a", "all"), mf.Rule("b", "all")]
    player = rollout_worker(
        Visited, (0,), mapping, {"all": RandomActor(spaces.Discrete(2))}, seed=3, tolerated_faults=1
    )
    receipt, _ = player.collect(20)
    assert len(receipt.faults) == 1
    assert len(receipt.episodes) == 6
    # Nor does a worker know it that resumes right after the fault.
    Flooded.made = 0
    stopped = rollout_worker(
        Visited, (0,), mapping, {"all": RandomActor(spaces.Discrete(2))}, seed=3, tolerated_faults=1
    )
    stopped.collect(2)
    again = rollout_worker(Visited, (0,), mapping, {"all": RandomActor(spaces.Discrete(2))}, seed=3)
    assert again.load_state(stopped.state(), 10**6) == (0, 0, 0)
    assert len(again.collect(18)[0].episodes) == 6
