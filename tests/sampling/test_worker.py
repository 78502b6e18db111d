"""The worker around the rows: weights, schedules, evaluation, what is refused, and what an environment does wrong."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

import marlflow as mf
from marlflow.batches.items import Weights
from marlflow.env.games import cartpole_team
from marlflow.policy.actor import Acted
from marlflow.sampling.protocol import EvaluationRequest, Request
from tests.env.test_adapter import Scripted, Undeclared
from tests.sampling.workers import EVERYBODY, lone_worker, rollout_worker


class Constant:
    """Acts by its one parameter, or by its `epsilon`; remembers its inputs."""

    def __init__(self, action=0):
        self.parameter = np.array([action], np.float32)
        self.asked = []

    def act(self, obs, action_mask, memory, mode, generator):
        self.asked.append((len(obs), mode))
        return Acted(np.full(len(obs), int(self.parameter[0])), np.zeros(len(obs), np.float32), memory)

    def set_schedule(self, values):
        self.scheduled = dict(values)

    def flat(self):
        return self.parameter.copy()

    def load_flat(self, flat):
        self.parameter[:] = flat


def team(actor, **arguments):
    return lone_worker(cartpole_team.parallel_env, actor, [0, 1], seed=1, **arguments)


def test_weights_and_schedules_reach_the_actor_and_the_rows():
    actor = Constant()
    worker = team(actor)
    receipt, batches = worker.collect(
        3, Request(0, {"all": Weights(4, np.ones(1, np.float32))}, {"all": {"epsilon": 0.5}})
    )
    assert actor.scheduled == {"epsilon": 0.5}
    assert (batches["all"]["action"] == 1).all()
    assert (batches["all"]["version"] == 4).all()
    assert receipt.policies["all"].version == 4
    _, batches = worker.collect(3)
    assert (batches["all"]["version"] == 4).all()


def test_one_call_of_each_actor_per_tick():
    actor = Constant()
    team(actor).collect(5)
    assert actor.asked == [(8, "explore")] * 5


def test_policies_that_are_not_recorded_leave_episode_results_alone():
    actors = {"quiet": Constant(), "loud": Constant()}
    rules = [mf.Rule("cart_0", "quiet"), mf.Rule("*", "loud")]
    worker = rollout_worker(cartpole_team.parallel_env, [0], rules, actors, seed=0, recorded=["loud"])
    receipt, batches = worker.collect(40)
    assert set(batches) == set(receipt.policies) == {"loud"}
    assert receipt.episodes
    assert all(set(result.returns) == {"cart_0", "cart_1", "cart_2", "cart_3"} for result in receipt.episodes)


def test_a_batch_belongs_to_its_receiver():
    worker = team(Constant())
    _, first = worker.collect(6)
    before = {name: column.copy() for name, column in first["all"].columns.items()}
    worker.collect(6)
    for name, column in first["all"].columns.items():
        np.testing.assert_array_equal(column, before[name])


def test_the_seconds_of_a_collect_are_shared_out():
    receipt, _ = team(Constant()).collect(4)
    assert min(receipt.env_s, receipt.policy_s, receipt.bookkeeping_s) > 0
    assert receipt.env_steps == 8


def test_evaluation_is_greedy_and_leaves_training_as_it_was():
    actors = [Constant(), Constant()]
    alone, disturbed = (team(actor) for actor in actors)
    results = disturbed.evaluate(EvaluationRequest([3, 5], {"all": Weights(9, np.ones(1, np.float32))}))
    assert {mode for _, mode in actors[1].asked} == {"greedy"}
    assert [result.episode for result in results.episodes] == [3, 5]
    expected, found = alone.collect(30), disturbed.collect(30)
    for name, column in expected[1]["all"].columns.items():
        np.testing.assert_array_equal(found[1]["all"].columns[name], column)
    assert found[0].episodes == expected[0].episodes
    assert found[0].policies == expected[0].policies


def test_the_actor_is_asked_in_the_mode_of_the_evaluation():
    actor = Constant()
    team(actor).evaluate(EvaluationRequest([3], mode="sampled"))
    assert {mode for _, mode in actor.asked} == {"sampled"}


def test_an_evaluation_episode_depends_on_its_number_alone():
    worker, other = team(Constant()), lone_worker(cartpole_team.parallel_env, Constant(), [7], seed=1)
    many = {result.episode: result.returns for result in worker.evaluate(EvaluationRequest(range(40))).episodes}
    (one,) = other.evaluate(EvaluationRequest([23])).episodes
    assert one.returns == many[23]
    assert len({tuple(returns.values()) for returns in many.values()}) > 1


def test_agents_without_a_policy_and_policies_without_an_actor_are_refused():
    with pytest.raises(mf.ConfigInvalid, match="agent 'cart_1' is mapped to no policy") as caught:
        rollout_worker(cartpole_team.parallel_env, [0], {"cart_0": "all"}, {"all": Constant()}, seed=0)
    assert len(caught.value.problems) == 3
    with pytest.raises(mf.ConfigInvalid, match="policy 'all', which has no actor"):
        rollout_worker(cartpole_team.parallel_env, [0], EVERYBODY, {}, seed=0)


class Mixed(Scripted):
    def action_space(self, agent):
        return spaces.Discrete(3 if agent == "b" else 2)


def test_a_worker_without_copies_is_refused():
    with pytest.raises(mf.ConfigInvalid, match="rollout worker 0 has no environment to step"):
        rollout_worker(cartpole_team.parallel_env, [], EVERYBODY, {"all": Constant()}, seed=0)


def test_a_latecomer_whose_policy_nobody_had_is_an_error():
    rules = [mf.Rule("a", "all"), mf.Rule("b", "late")]
    worker = rollout_worker(Undeclared, [0], rules, {"all": Constant(), "late": Constant()}, seed=0)
    with pytest.raises(mf.EnvironmentFailed, match="mapped to policy 'late'"):
        worker.collect(3)


def test_agents_of_one_policy_need_the_same_spaces():
    with pytest.raises(mf.ConfigInvalid, match=r"policy 'all' plays 'a' .* and 'b' .*: agents of one policy need"):
        rollout_worker(lambda: Mixed([]), [0], EVERYBODY, {"all": Constant()}, seed=0)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), np.zeros(2), "x", "1"])
def test_a_reward_that_is_no_finite_number_is_an_error(reward):
    worker = lone_worker(lambda: Scripted([(["a", "b"], {"a": 0.0, "b": reward}, {}, {})]), Constant(), [6])
    with pytest.raises(mf.EnvironmentFailed, match="not a finite number") as caught:
        worker.collect(1)
    assert "env 6" in caught.value.where
    assert "agent 'b'" in caught.value.where
    # Only two zeros are several numbers, like rewards of several objectives.
    assert ("a wrapper can weigh its objectives" in caught.value.reason) == isinstance(reward, np.ndarray)


SAME = (["a", "b"], {"a": 0.0, "b": 0.0}, {}, {})


def fog_at(t):
    """The observations of agents; `b` has none in env step `t`."""
    return lambda now, agent: np.full(1, np.nan if now == t and agent == "b" else 0, np.float32)


@pytest.mark.parametrize(
    ("shows", "steps", "reason", "where"),
    [
        (fog_at(1), [SAME] * 3, "NaN", "env step 1, agent 'b'"),
        (
            fog_at(2),
            [SAME, (["a"], {"a": 0.0, "b": 0.0}, {}, {"b": True}), SAME],
            "final observation has a NaN",
            "agent 'b'",
        ),
        (lambda now, agent: np.zeros(1 + now, np.float32), [SAME] * 3, r"has shape \(2,\), not \(1,\)", ""),
    ],
    ids=["a NaN", "a NaN at an end", "another shape"],
)
def test_an_observation_that_is_no_point_of_its_space_is_an_error(shows, steps, reason, where):
    class Wrong(Scripted):
        def see(self, agents):
            return {agent: shows(self.t, agent) for agent in agents}

    with pytest.raises(mf.EnvironmentFailed, match=reason) as caught:
        lone_worker(lambda: Wrong(steps), Constant()).collect(3)
    assert caught.value.where.endswith(where)


def test_undeclared_agents_get_lanes_as_they_appear():
    worker = rollout_worker(Undeclared, [0, 1], EVERYBODY, {"all": Constant()}, seed=0)
    receipt, batches = worker.collect(12)
    batch = batches["all"]
    assert sorted(set(zip(batch["env"].tolist(), batch["agent"].tolist(), strict=True))) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert batch["obs"].shape == (batch.rows, 9)
    assert all(set(result.returns) == {"a", "b"} for result in receipt.episodes)


class Arrays(ParallelEnv):
    """Checks that every kind of action arrives as its space has it."""

    metadata = {"name": "arrays"}  # noqa: RUF012
    spaces_of = {  # noqa: RUF012
        "box": spaces.Box(-1, 1, (2, 2), np.float64),
        "multi": spaces.MultiDiscrete([2, 3], start=[5, 6]),
        "binary": spaces.MultiBinary(3),
    }

    def __init__(self, kind):
        self.kind, self.possible_agents = kind, ["a"]

    def observation_space(self, agent):
        return spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, ())])

    def action_space(self, agent):
        return self.spaces_of[self.kind]

    def reset(self, seed=None, options=None):
        self.agents = ["a"]
        return {"a": (1, np.float32(0.5))}, {"a": {}}

    def step(self, actions):
        assert self.spaces_of[self.kind].contains(actions["a"]), actions["a"]
        return {"a": (0, np.float32(0.25))}, {"a": 1}, {"a": False}, {"a": False}, {"a": {}}


@pytest.mark.parametrize("kind", ["box", "multi", "binary"])
def test_actions_arrive_as_the_space_has_them(kind):
    class Zeros(Constant):
        def act(self, obs, action_mask, memory, mode, generator):
            shape = Arrays.spaces_of[kind].shape
            dtype = np.float32 if kind == "box" else np.int64
            return Acted(np.zeros((len(obs), *shape), dtype), np.zeros(len(obs), np.float32), memory)

    worker = rollout_worker(lambda: Arrays(kind), [0], EVERYBODY, {"all": Zeros()}, seed=0)
    _, batches = worker.collect(3)
    assert batches["all"]["obs"].tolist() == [[0, 1, 0.5], [1, 0, 0.25], [1, 0, 0.25]]


def test_an_action_that_the_space_has_not_is_an_error():
    worker = team(Constant(action=-1))
    with pytest.raises(mf.MarlflowError, match=r"policy 'all' chose action -1, counted from 0, of Discrete\(2\)"):
        worker.collect(1)


class DeadAtReset(AECEnv):
    """`a` is dead from the start, and `b` receives 5 on its dead step, then 1 for each of three decisions."""

    metadata = {"name": "dead_at_reset_v0"}  # noqa: RUF012  PettingZoo's convention
    possible_agents = ["a", "b"]  # noqa: RUF012

    def observation_space(self, agent):
        return spaces.Box(-9, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return np.zeros(1, np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self.turns = ["a", "b"], "a", 0
        self.terminations, self.truncations = {"a": True, "b": False}, {"a": False, "b": False}
        self.rewards, self.infos = {"a": 0.0, "b": 0.0}, {"a": {}, "b": {}}
        self._cumulative_rewards = dict(self.rewards)

    def step(self, action):
        if self.agent_selection == "a":
            self.agents, self.agent_selection, self.rewards = ["b"], "b", {"b": 5.0}
        elif self.terminations["b"]:
            self.agents, self.rewards = [], {}
        else:
            self.turns += 1
            self.rewards = {"b": 1.0}
            self.terminations["b"] = self.turns == 3


def test_what_is_received_while_an_episode_begins_belongs_to_no_row():
    worker = rollout_worker(DeadAtReset, [0], EVERYBODY, {"all": Constant()}, seed=0)
    receipt, batches = worker.collect(2)
    assert receipt.policies["all"].reward_unattributed == 5.0
    receipt, more = worker.collect(1)
    assert [episode.returns["b"] for episode in receipt.episodes] == [8.0]
    assert batches["all"]["reward"].sum() + more["all"]["reward"].sum() == 3.0
    assert receipt.policies["all"].reward_unattributed == 5.0  # of the next episode, which has begun
