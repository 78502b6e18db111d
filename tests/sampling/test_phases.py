"""Collects in phases: a task for each environment, parameters of its own, and nothing that outlives the collect."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.runtime.relocation import RelocatedStages
from marlflow.sampling.phases import phase_ticks
from marlflow.sampling.protocol import EvaluationRequest, Request
from marlflow.sampling.saved_state import merged, share
from tests.sampling.row_actors import RowActor
from tests.sampling.workers import rollout_worker

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
MAML_TWICE = mf.MAML(inner_steps=2, inner_learning_rate=1.0)
SPACES = Spaces(BOX, spaces.Discrete(3))
TICKS = 17


class Tasks(ParallelEnv):
    """Two agents that see the number of their task in full, and their clock; rewards are of the task too."""

    metadata = {"name": "tasks_v0"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    @functools.cache  # noqa: B019
    def observation_space(self, agent):
        return BOX

    @functools.cache  # noqa: B019
    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        task = (options or {}).get("task", 0)
        self.random = np.random.default_rng(seed)
        self.halves, self.best = (task >> 16, task & 0xFFFF), task % 3
        self.agents, self.t, self.length = list(self.possible_agents), 0, int(self.random.integers(3, 9))
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self):
        return {agent: np.array([*self.halves, self.t], np.float32) for agent in self.agents}

    def step(self, actions):
        self.t += 1
        rewards = {agent: float(action == self.best) for agent, action in actions.items()}
        over = dict.fromkeys(self.agents, self.t == self.length)
        stepped = self.seen(), rewards, over, dict.fromkeys(self.agents, False), {agent: {} for agent in self.agents}
        self.agents = [] if self.t == self.length else self.agents
        return stepped


class Scaled(mf.MLP):
    """Numbers of tasks are large."""

    def build(self, obs_shape, generator):
        body, features = super().build(obs_shape, generator)
        return torch.nn.Sequential(_Shrunk(), body), features


class _Shrunk(torch.nn.Module):
    def forward(self, obs):
        return obs / 30_000.0


MODEL = Scaled((6,))


def learner():
    return MAML_TWICE.learner("all", {"all": mf.Member(SPACES, MODEL)}, 0, _compute())


def _compute():
    from marlflow.learner.compute import ON_CPU

    return ON_CPU


WEIGHTS = Weights(3, learner().published["all"].flat + np.random.default_rng(0).normal(size=45).astype(np.float32))


EVERYBODY = (mf.Rule("*", "all"),)


def worker(env_indices, seed=7, rules=EVERYBODY, others=()):
    relocated = RelocatedStages("all", ("all",), MAML_TWICE, MAML_TWICE.stages, learner)
    actors = {"all": MAML_TWICE.actor(SPACES, MODEL, 1), **dict(others)}
    worker_stages = relocated.on_worker()
    assert worker_stages is not None
    return rollout_worker(Tasks, env_indices, list(rules), actors, seed, worker_stages={"all": worker_stages})


def collected(made, ticks=TICKS):
    _, batches = made.collect(ticks, Request(weights={"all": WEIGHTS}))
    return batches["all"]


def tasks_seen(batch):
    return (batch["obs"][:, 0].astype(np.int64) << 16) + batch["obs"][:, 1].astype(np.int64)


def test_phases_share_the_env_steps():
    actors = [MAML_TWICE.actor(SPACES, MODEL, 1), mf.MAML().actor(SPACES, MODEL, 1)]
    assert phase_ticks(17, actors) == [6, 6, 5]
    assert phase_ticks(17, actors[1:]) == [9, 8]


def test_each_env_has_one_task_in_all_phases_and_another_in_the_next_collect():
    made, tasks = worker([0, 5, 2]), []
    for _ in range(2):
        batch = collected(made)
        np.testing.assert_array_equal(tasks_seen(batch), batch["task"])
        pairs = set(zip(batch["env"].tolist(), batch["task"].tolist(), strict=True))
        assert len(pairs) == 3
        tasks += [task for _, task in pairs]
        assert set(batch.segments["adapted"].tolist()) == {0, 1, 2}
    assert len(set(tasks)) == 6


def test_no_row_is_lost_and_no_episode_is_in_two_phases():
    receipt, batches = worker([0, 1]).collect(TICKS, Request(weights={"all": WEIGHTS}))
    batch = batches["all"]
    assert batch.rows == receipt.policies["all"].rows == receipt.agent_steps == 2 * 2 * TICKS
    assert receipt.env_steps == 2 * TICKS
    by_phase = [set(zip(*(batch.only(batch.segments["adapted"] == phase).segments[name].tolist()
                          for name in ("env", "episode")), strict=True)) for phase in range(3)]  # fmt: skip
    assert not by_phase[0] & by_phase[1]
    assert not by_phase[1] & by_phase[2]
    ends = batch.segments["terminated"]
    assert (batch.segments["bootstrap_obs"][~ends][:, 2] == batch["t_agent"][batch.ends()][~ends] + 1).all()
    assert len(receipt.policies["all"].stage_times) == 1
    assert receipt.policies["all"].stage_times[0].rows == batch.rows


def test_every_row_is_chosen_with_its_copys_own_parameters():
    """Against one environment after the other, each alone with a network that takes the steps on its rows."""
    batch = collected(worker([0, 5, 2]))
    for env_index in (0, 2, 5):
        mine = batch.only(batch.segments["env"] == env_index)
        network = MAML_TWICE.actor(SPACES, MODEL, 1).network
        network.load_flat(WEIGHTS.flat)
        for phase in range(3):
            rows = mine.only(mine.segments["adapted"] == phase).columns
            logits = network(torch.from_numpy(rows["obs"]))
            logp, _ = network.log_prob_and_entropy(logits, torch.from_numpy(rows["action"]), None)
            np.testing.assert_allclose(logp.detach().numpy(), rows["behavior_logp"], atol=1e-4)
            network.zero_grad()
            (-(torch.exp(logp - logp.detach()) * torch.from_numpy(rows["advantage"])).mean()).backward()
            before = network.flat()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.sub_(parameter.grad)
            assert phase or np.abs(network.flat() - before).max() > 1e-2


def by_copies(*batches):
    names = ("env", "episode", "agent", "t_agent")
    return {
        key: (
            batch["obs"][row].tolist(),
            int(batch["action"][row]),
            float(batch["reward"][row]),
            int(batch["task"][row]),
        )
        for batch in batches
        for row, key in enumerate(zip(*(batch[name].tolist() for name in names), strict=True))
    }


def test_which_worker_plays_a_copy_does_not_matter():
    together = worker([0, 1, 2, 3])
    apart = [worker([0, 2]), worker([1, 3])]
    for _ in range(2):
        assert by_copies(collected(together)) == by_copies(*(collected(one) for one in apart))
    assert by_copies(collected(worker([0, 1], seed=8))) != by_copies(collected(worker([0, 1])))


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_of_a_task_is_kept_and_another_goes_on_as_this_one(workers):
    made = worker([0, 1, 2, 3])
    collected(made)
    tree = made.state()
    assert all(one["running"] is None for one in tree["envs"])
    expected = by_copies(collected(made))
    again = [worker(list(range(number, 4, workers))) for number in range(workers)]
    for number, one in enumerate(again):
        taken = one.load_state(share(tree, range(number, 4, workers)), 1_000)
        assert (taken.episodes_abandoned, taken.episodes_restarted, taken.rows_lost) == (0, 0, 0)
    assert by_copies(*(collected(one) for one in again)) == expected
    assert merged([one.state() for one in again])["envs"][0]["running"] is None


def test_evaluation_is_without_adaptation_and_changes_nothing():
    made, other = worker([0, 1]), worker([0, 1])
    first = made.evaluate(EvaluationRequest(range(4), {"all": WEIGHTS})).episodes
    collected(made)
    collected(other)
    assert made.evaluate(EvaluationRequest(range(4), {"all": WEIGHTS})).episodes == first
    assert by_copies(collected(made)) == by_copies(collected(other))


def test_a_policy_that_does_not_adapt_may_share_the_worker():
    rules = (mf.Rule("a", "all"), mf.Rule("*", "other"))
    made = worker([0, 1], rules=rules, others={"other": RowActor(spaces.Discrete(3))})
    receipt, batches = made.collect(TICKS, Request(weights={"all": WEIGHTS}))
    assert batches["all"].rows == batches["other"].rows == 2 * TICKS
    assert "advantage" not in batches["other"].columns
    assert receipt.policies["other"].rows == 2 * TICKS
