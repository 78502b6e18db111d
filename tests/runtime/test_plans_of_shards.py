"""Each shard of a replay paces its own draws, also after another one was lost."""

from __future__ import annotations

from typing import Any

import marlflow as mf
from marlflow.flow import Executor, Traits, source
from marlflow.learner.compute import ON_CPU
from tests.learner.group import DISCRETE


def network_of(algorithm: Any, replays: list[Any]) -> Any:
    learner = algorithm.learner("cart", {"cart": mf.Member(DISCRETE, mf.MLP((8,)))}, 0, ON_CPU)
    experience = source(lambda: None, name="experience", traits=Traits(emits=mf.Fragment))
    return Executor(algorithm.plan(experience, learner, replays))


def test_of_shards_only_the_lost_one_waits_until_it_is_filled_again() -> None:
    algorithm = mf.ApeX(learning_starts_agent_steps=40, replay_shards=2)
    replays = [mf.ReplayBuffer(50, 3, 0.99, 0, mf.Uniform(), name=f"cart@{shard}") for shard in range(2)]
    executor = network_of(algorithm, replays)
    ledgers = {name: one for name, one in executor._network.ledgers.items() if "Shard " in name}
    assert sorted(ledgers) == ["apex/Shard 0", "apex/Shard 1"]
    for ledger in ledgers.values():
        ledger.took("store", 400)
    earned = ledgers["apex/Shard 0"].permits("draw")
    assert earned > 0
    executor.reapply_starts("apex", "cart@1")
    assert {name: ledger.permits("draw") for name, ledger in ledgers.items()} == {
        "apex/Shard 0": earned,
        "apex/Shard 1": 0,
    }
    # Of a store that paces nothing by itself, all.
    executor.reapply_starts("apex", "elsewhere")
    assert [ledger.permits("draw") for ledger in ledgers.values()] == [0, 0]
