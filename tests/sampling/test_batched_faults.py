"""A fault of one row ends its episode alone; a call that raises ends all; both are counted. Arrays may be torch's."""

import time

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.errors import FaultKind
from marlflow.env.batched.protocol import as_numpy
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.watchdog import Watchdog
from tests.sampling.batched_counters import LENGTH, Counters, batched_worker


def worker_of(change=None, tolerated=0, resets=None, **settings):
    return batched_worker(lambda count: Counters(count, change, resets), tolerated_faults=tolerated, **settings)


def at(call, row, change):
    """A change of one row at one call."""

    def break_at(env, made):
        if env.calls == call:
            change(made, row)

    return break_at


def nan_observation(made, row):
    made.observations["a"][row, 1] = np.nan


def nan_reward(made, row):
    made.rewards["a"][row, 0] = np.nan


def outside(made, row):
    made.observations["a"][row, 0] = 101


def stuck(made, row):
    decides = np.ones((3, 2), bool)
    decides[row] = False
    made.decides = {"a": decides}


ROW_FAULTS = [
    (3, nan_observation, "agent 'a_1': the observation has a NaN"),
    (LENGTH, nan_observation, "agent 'a_1': the final observation has a NaN"),
    (4, nan_reward, "agent 'a_0': the reward is nan"),
    (LENGTH, nan_reward, "agent 'a_0': the reward is nan"),
    (2, outside, "agent 'a_0': the observation has 101.0"),
    (5, stuck, "no agent decides"),
]


def rows_of(batches):
    return sum(batch.rows for batch in batches.values())


def test_the_example_is_a_batched_environment():
    assert isinstance(Counters(2), mf.BatchedEnv)


@pytest.mark.parametrize("policies", [("all", "all"), ("x", "y")], ids=["one policy", "two"])
@pytest.mark.parametrize(("call", "change", "reason"), ROW_FAULTS)
def test_a_fault_of_one_row_ends_its_episode_alone(call, change, reason, policies):
    resets = []
    worker = worker_of(at(call, 1, change), 1, resets=resets, policies=policies)
    receipt, batches = worker.collect(LENGTH)
    (fault,) = receipt.faults
    assert reason in f"{fault.where}: {fault.reason}"
    assert "counters, env 1, " in fault.where
    # Every decision of the broken episode is lost, and no other one.
    assert fault.rows_lost == 2 * call
    assert receipt.agent_steps == 2 * 3 * LENGTH
    assert rows_of(batches) == receipt.agent_steps - fault.rows_lost
    assert [result.env for result in receipt.episodes] == [0, 2]
    assert all(result.returns == {"a_0": LENGTH, "a_1": LENGTH} for result in receipt.episodes)
    assert all(0 not in batch.segments["episode"][batch.segments["env"] == 1] for batch in batches.values())
    again = [envs for envs, _ in resets[2:]]
    assert sorted(index for envs in again for index in envs) == [0, 1, 2]


def test_one_fault_more_than_tolerated_raises():
    worker = worker_of(at(3, 1, nan_reward), 0)
    with pytest.raises(mf.EnvironmentFailed, match="the reward is nan"):
        worker.collect(LENGTH)


def test_a_step_that_raises_ends_all_episodes_and_is_one_fault():
    def raise_once(env, made):
        if env.calls == 4 and not raised:
            raised.append(True)
            raise RuntimeError("lost")

    raised = []
    worker = worker_of(raise_once, 1)
    receipt, batches = worker.collect(4 + LENGTH)
    (fault,) = receipt.faults
    assert "step() raised RuntimeError: lost" in fault.reason
    assert fault.rows_lost == 3 * 2 * 4
    assert rows_of(batches) == 3 * 2 * LENGTH
    assert [result.episode for result in receipt.episodes] == [1, 1, 1]
    assert receipt.env_steps == 3 * (4 + LENGTH)


@pytest.mark.parametrize(
    ("kind", "arrays", "reason"),
    [
        ("rewards", lambda made: {"a": made.rewards["a"].reshape(-1)}, r"of shape \[6\] for group 'a', not \[3, 2\]"),
        ("observations", lambda made: {"b": made.observations["a"]}, r"of the groups \['b'\], not of \['a'\]"),
    ],
    ids=["of a wrong shape", "without one group"],
)
def test_a_step_of_other_arrays_is_a_fault_that_names_both(kind, arrays, reason):
    with pytest.raises(mf.EnvironmentFailed, match=rf"{kind} {reason}"):
        worker_of(lambda env, made: setattr(made, kind, arrays(made))).collect(1)


def test_a_step_that_hangs_ends_all_episodes():
    def hang_once(env, made):
        if env.calls == 2 and not hung:
            hung.append(True)
            time.sleep(60)

    hung = []
    worker = worker_of(hang_once, 1, watchdog=Watchdog(0.3))
    receipt, batches = worker.collect(2 + LENGTH)
    (fault,) = receipt.faults
    assert fault.kind is FaultKind.ENV_HANGS
    assert "step() took longer than env.step_timeout_s" in fault.reason
    assert rows_of(batches) == 3 * 2 * LENGTH


def test_a_reset_that_raises_is_tried_again_with_the_next_episodes():
    class Resets(Counters):
        def reset(self, envs, seeds):
            if len(envs) == 3 and not failed:
                failed.append(True)
                raise RuntimeError("not now")
            return super().reset(envs, seeds)

    failed = []
    worker = batched_worker(Resets, tolerated_faults=1)
    receipt, batches = worker.collect(LENGTH)
    (fault,) = receipt.faults
    assert "reset() raised RuntimeError: not now" in fault.reason
    assert fault.rows_lost == 0
    assert [result.episode for result in receipt.episodes] == [1, 1, 1]
    assert rows_of(batches) == receipt.agent_steps


def test_a_broken_evaluation_episode_is_left_out():
    worker = worker_of(at(3, 1, nan_observation), 1)
    evaluated = worker.evaluate(EvaluationRequest(range(3)))
    assert [result.episode for result in evaluated.episodes] == [0, 2]
    assert len(evaluated.faults) == 1


def test_a_version_of_another_number_of_environments_is_refused():
    with pytest.raises(mf.EnvironmentFailed, match="it has 1 environments, not the 3 asked for"):
        batched_worker(lambda count: Counters(1))


class TorchCounters(Counters):
    """The same as tensors, some of which need gradients."""

    def reset(self, envs, seeds):
        return self.as_tensors(super().reset(envs, seeds))

    def step(self, actions):
        torch.from_numpy(actions["a"])
        return self.as_tensors(super().step(actions))

    def as_tensors(self, made):
        def tensors(arrays):
            return {name: torch.from_numpy(array) for name, array in arrays.items()}

        seen = {name: tensor.requires_grad_() for name, tensor in tensors(made.observations).items()}
        return mf.BatchedStep(seen, tensors(made.rewards), tensors(made.terminated), tensors(made.truncated))


def test_tensors_give_the_rows_of_arrays():
    (_, ours), (_, theirs) = (batched_worker(make).collect(2 * LENGTH + 1) for make in (TorchCounters, Counters))
    for name, column in ours["all"].columns.items():
        np.testing.assert_array_equal(column, theirs["all"].columns[name])


def test_a_tensor_is_taken_over_without_a_copy():
    tensor = torch.zeros(3, 2, dtype=torch.bool)
    assert np.shares_memory(as_numpy(tensor), tensor.numpy())
    array = np.zeros(3)
    assert as_numpy(array) is array


def test_policies_that_adapt_are_refused():
    class Adapts(RandomActor):
        inner_steps, taken = 1, 0
        flat = load_flat = restart = adapt = RandomActor.act

    with pytest.raises(mf.ConfigInvalid, match=r"cannot play batched environments; set env\.batched=false"):
        batched_worker(Counters, actor=Adapts)
