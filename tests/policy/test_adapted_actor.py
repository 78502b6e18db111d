"""An adapted actor acts in each environment as a network with that environment's parameters would, and in no other."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import marlflow as mf
from marlflow.algorithms.maml import InnerStep
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.adapted import AdaptedActor, AdaptingActor
from marlflow.policy.tensors import write_flat

SPACES = Spaces(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4), masked=True)
RATE = 0.7


def network():
    made = stochastic_actor(SPACES, mf.MLP((8, 8)), torch.Generator().manual_seed(0))
    with torch.no_grad():
        made.head.weight.mul_(100.0)  # its first weights hardly differ from 0: every policy would be alike
    return made


def rows_of(num_envs, rows, seed):
    random = np.random.default_rng(seed)
    mask = random.random((num_envs, rows, 4)) < 0.7
    mask[:, :, 1] = True
    return {
        "obs": random.normal(size=(num_envs, rows, 3)).astype(np.float32),
        "action": np.ones((num_envs, rows), np.int64),
        "action_mask": mask,
        "behavior_logp": random.uniform(-2.0, 0.0, (num_envs, rows)).astype(np.float32),
        "advantage": random.normal(size=(num_envs, rows)).astype(np.float32),
        "weight": np.full((num_envs, rows), 1.0 / rows, np.float32),
    }


def stepped(before, rows):
    """One gradient step by plain autograd, of one environment's rows."""
    stepped_network = network()
    write_flat(stepped_network, before)
    logits = stepped_network(torch.from_numpy(rows["obs"])).masked_fill(torch.from_numpy(~rows["action_mask"]), -1e30)
    logp = torch.log_softmax(logits, -1)[:, 1]
    ratio = torch.exp(logp - torch.from_numpy(rows["behavior_logp"]))
    (-(ratio * torch.from_numpy(rows["advantage"])).mean()).backward()
    with torch.no_grad():
        for parameter in stepped_network.parameters():
            parameter.sub_(RATE * parameter.grad)
    return stepped_network


def test_it_is_what_the_worker_takes_for_one_that_adapts():
    assert isinstance(AdaptedActor(network(), 1, InnerStep(RATE, "first")), AdaptingActor)
    assert not isinstance(network(), AdaptingActor)


def test_each_copy_acts_by_its_own_steps_and_no_other():
    actor = AdaptedActor(network(), 2, InnerStep(RATE, "first"))
    env_indices = np.array([3, 11, 40])
    first, second = rows_of(3, 5, 0), rows_of(2, 6, 1)
    actor.adapt(env_indices, first)
    actor.adapt(env_indices[:2], second)  # the last environment made no rows
    by_env = {}
    for index, env_index in enumerate(env_indices.tolist()):
        mine = stepped(network().flat(), {name: column[index] for name, column in first.items()})
        if index < 2:
            mine = stepped(mine.flat(), {name: column[index] for name, column in second.items()})
        by_env[env_index] = mine
    by_env[7] = network()  # one that has not adapted at all

    deciding = np.array([11, 3, 3, 7, 40, 11, 3])
    obs = np.random.default_rng(2).normal(size=(7, 3)).astype(np.float32)
    mask = rows_of(1, 7, 3)["action_mask"][0]
    for keys in (np.arange(7, dtype=np.uint64), np.arange(7, 14, dtype=np.uint64)):
        streams = lambda keys=keys: mf.RowRandom(keys, np.zeros(7, np.int64), deciding)  # noqa: E731
        acted = actor.act(obs, mask, None, "explore", streams())
        for row, env_index in enumerate(deciding.tolist()):
            one = slice(row, row + 1)
            alone = by_env[env_index].act(obs[one], mask[one], None, "explore", streams().only(np.array([row])))
            assert acted.action[row] == alone.action[0]
            assert acted.behavior_logp[row] == pytest.approx(alone.behavior_logp[0], abs=1e-5)


def test_rows_may_come_in_another_order_and_number_at_every_tick():
    actor = AdaptedActor(network(), 1, InnerStep(RATE, "first"))
    actor.adapt(np.array([0, 1]), rows_of(2, 5, 0))
    obs = np.random.default_rng(4).normal(size=(1, 3)).astype(np.float32)

    def logp(env_indices):
        streams = mf.RowRandom(
            np.zeros(len(env_indices), np.uint64), np.zeros(len(env_indices), np.int64), np.array(env_indices)
        )
        acted = actor.act(np.repeat(obs, len(env_indices), 0), None, None, "greedy", streams)
        return dict(zip(env_indices, acted.behavior_logp.tolist(), strict=True))

    together = logp([0, 1])
    assert together[0] != together[1]
    assert logp([1, 0]) == pytest.approx(together)
    assert logp([1]) == pytest.approx({1: together[1]})


def test_a_restart_and_new_weights_end_all_adaptation():
    untouched = network()
    actor = AdaptedActor(network(), 1, InnerStep(RATE, "first"))
    obs = np.random.default_rng(5).normal(size=(2, 3)).astype(np.float32)
    streams = lambda: mf.RowRandom(np.zeros(2, np.uint64), np.zeros(2, np.int64), np.arange(2))  # noqa: E731
    expected = untouched.act(obs, None, None, "greedy", streams()).behavior_logp
    for end in (actor.restart, lambda: actor.load_flat(untouched.flat())):
        actor.adapt(np.arange(2), rows_of(2, 5, 0))
        assert actor.taken == 1
        assert not np.allclose(actor.act(obs, None, None, "greedy", streams()).behavior_logp, expected)
        end()
        assert actor.taken == 0
        np.testing.assert_array_equal(actor.act(obs, None, None, "greedy", streams()).behavior_logp, expected)
    np.testing.assert_array_equal(actor.flat(), untouched.flat())  # what was published never changed
