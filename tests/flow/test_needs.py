"""How many agent steps come before the first update: by what stages gather, and by what paces hold back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from marlflow.flow import AgentSteps, AtMost, Flow, Freely, InTurn, Plan, Traits, merge, source
from marlflow.flow.plan import agent_steps_of_first_update
from tests.flow.fakes import Batches


@dataclass
class Gather:
    agent_steps: int

    @property
    def traits(self) -> Traits:
        return Traits(agent_steps=self.agent_steps)

    def add(self, item: int) -> Sequence[int]:
        return [item]


class Learn:
    traits = Traits(updates=True)

    def __call__(self, item: int) -> int:
        return item


def numbers() -> Flow[int]:
    return source(iter(range(9)).__next__)


def paced(pace: InTurn) -> Plan:
    store = numbers().gather(Gather(30)).then(abs)
    return Plan("dqn", numbers().then(Learn()).then(abs), {"store": store}, pace)


def sharded() -> Plan:
    """A replay in two shards, each drawn from when it has its part."""
    shards = {
        f"shard_{shard}": merge(AtMost(store=AgentSteps(8, starts), draw=1), store=numbers(), draw=numbers()).only(
            "draw"
        )
        for shard, starts in enumerate((500, 70))
    }
    return Plan("apex", merge(Freely(), **shards).queue(2).then(Learn()))


PLANS = {
    "one batch": (Plan("ppo", numbers().gather(Gather(400)).then(Learn())), 400),
    "behind another": (Plan("ppo", numbers().gather(Gather(400)).gather(Gather(90)).then(Learn())), 400),
    "a ratio": (paced(InTurn(store=AgentSteps(8, 1_000), output=1)), 1_008),
    "what is stored is gathered": (paced(InTurn(store=AgentSteps(1, 5), output=1)), 30),
    "a limit": (paced(AtMost(store=AgentSteps(8, 1_000), output=1)), 1_008),
    "a ratio in items": (paced(InTurn(store=1, output=1)), 0),
    "whichever shard is first": (sharded(), 78),
    "a gather that declares nothing": (Plan("mine", numbers().gather(Batches(5)).then(Learn())), 0),
    "nothing learns": (Plan("mine", numbers().gather(Gather(400))), 0),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_agent_steps_before_the_first_update(name: str) -> None:
    plan, expected = PLANS[name]
    assert agent_steps_of_first_update(plan) == expected
