"""The reset of a policy on a worker drops unfinished rows and memories, and no reward."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo.classic import tictactoe_v3

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.policy.actor_critic import ActorCritic
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.protocol import Request
from tests.driver.kept_runs import assert_equal
from tests.sampling.workers import rows_in

SEEN = Spaces(spaces.Box(0, 1, (3, 3, 2), np.int8), spaces.Discrete(9), masked=True)
MAPPING = {"player_1": "one", "player_2": "two"}


def actor(recurrent: bool) -> Any:
    if recurrent:
        return mf.RecurrentPPO().actor(SEEN, mf.GRU(8, (8,)), 3)
    return ActorCritic(SEEN, mf.MLP((8,)), None, 3).actor


def worker(recurrent: bool = False) -> RolloutWorker:
    config = SamplerConfig(tictactoe_v3.env, (0, 1, 2), MAPPING, seed=4)
    return RolloutWorker(config, dict.fromkeys(("one", "two"), lambda: actor(recurrent)))


def collects(of: RolloutWorker, recurrent: bool, reset_in: Collection[int]) -> list[tuple[Any, dict[str, mf.Batch]]]:
    """Eight collects of 5 env steps, each with new versions; in some of them `one` has begun again."""
    flat = actor(recurrent).flat()
    found = []
    for number in range(8):
        weights = {name: Weights(number, flat * np.float32(1 + number / 10)) for name in ("one", "two")}
        found.append(of.collect(5, Request(weights=weights, reset=["one"] if number in reset_in else ())))
    return found


@pytest.mark.parametrize("recurrent", [False, True])
def test_unfinished_rows_of_the_one_policy_are_dropped_and_their_rewards_are_counted(recurrent: bool) -> None:
    plain, after_reset = (collects(worker(recurrent), recurrent, resets) for resets in ((), (2, 5)))
    dropped = 0
    for number, ((receipt, batches), (_, others)) in enumerate(zip(after_reset, plain, strict=True)):
        if number in (2, 5):
            assert others["one"].segments["carried"].any(), "it was to have unfinished rows"
            assert not batches["one"].segments["carried"].any()
            assert batches["one"]["version"].min() == number
            assert receipt.policies["one"].rows_carried == 0
        if recurrent:
            continue  # it acts otherwise from the reset on
        dropped += others["one"].rows - batches["one"].rows
        assert_equal(*(rows_in(each)["two"] for each in (batches, others)))
    if not recurrent:
        assert dropped > 0
    for name in ("one", "two"):
        gained = sum(float(batches[name]["reward"].sum()) for _, batches in after_reset)
        gained += sum(receipt.policies[name].reward_unattributed for receipt, _ in after_reset)
        agent = {policy: agent for agent, policy in MAPPING.items()}[name]
        ended = sum(episode.returns[agent] for receipt, _ in after_reset for episode in receipt.episodes)
        # In tictactoe rewards come at the end only, so running episodes have none.
        assert gained == ended != 0


def test_the_memory_of_the_one_policy_is_zero_again() -> None:
    batches = collects(worker(recurrent=True), True, (2, 5))[5][1]
    segments = batches["one"].segments
    assert (segments["memory_version"] == 5).all()
    assert not segments["memory"].any(), "every segment was to begin with a memory of zeros"
    assert batches["two"].segments["memory"].any()


def test_a_policy_that_a_worker_does_not_have_is_passed_over() -> None:
    made = worker()
    weights = {name: Weights(0, actor(False).flat()) for name in ("one", "two")}
    receipt, _ = made.collect(5, Request(weights=weights, reset=["nobody"]))
    assert receipt.env_steps == 15
