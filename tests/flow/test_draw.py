"""How plans look: as a tree, and as Mermaid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import marlflow as mf
from marlflow.flow import Feed, RoundPace, Together, together
from tests.flow.fakes import Count, FakePlace

PREY, PREDATOR, REPLAY = FakePlace("learner of prey"), FakePlace("learner of predator"), FakePlace("replay of predator")


@dataclass(frozen=True)
class Operator:
    """Takes anything, gives it back."""

    def __call__(self, item: Any = None) -> Any:
        return item


@dataclass(frozen=True)
class Collect(Operator):
    pass


@dataclass(frozen=True)
class ByPolicy(Operator):
    pass


@dataclass(frozen=True)
class Concat(Operator):
    agent_steps: int = 4000

    def add(self, item: Any) -> list[Any]:
        return [item]


@dataclass(frozen=True)
class Advantages(Operator):
    discount: float = 0.99


@dataclass(frozen=True)
class Learn(Operator):
    epochs: int = 1


@dataclass(frozen=True)
class Publish(Operator):
    every: int = 1
    traits: ClassVar[mf.Traits] = mf.Traits(publishes=True)


@dataclass(frozen=True)
class Insert(Operator):
    pass


@dataclass(frozen=True)
class Draw(Operator):
    agent_steps: int = 64


@dataclass(frozen=True)
class Reprioritize(Operator):
    pass


def ppo(experience: mf.Flow[Any]) -> mf.Plan:
    estimated = experience.gather(Concat()).then(Advantages(), at=PREY)
    reports = estimated.then(Learn(epochs=10), at=PREY).then(Publish(), at=PREY)
    return mf.Plan("ppo", reports, waits_for_rounds=True)


def dqn(experience: mf.Flow[Any]) -> mf.Plan:
    store = experience.then(Insert(), at=REPLAY)
    learned = mf.source(Draw(), at=REPLAY).then(Learn(), at=PREDATOR)
    train = learned.then(Reprioritize(), at=REPLAY).then(Publish(every=10), at=PREDATOR)
    return mf.Plan("dqn", train, {"store": store}, mf.InTurn(store=mf.AgentSteps(4, starts=1000), output=1))


def ppo_and_dqn(rounds: RoundPace = "lockstep") -> Together:
    feeds = {"prey": Feed(2), "predator": Feed(2, "drop_oldest")}
    return together(mf.source(Collect()), ByPolicy(), {"prey": ppo, "predator": dqn}, feeds, rounds)


def test_tree_of_ppo_and_dqn() -> None:
    assert (
        "\n" + str(ppo_and_dqn())
        == """
rollouts: in rounds, in lockstep with prey
├── Collect
├── prey: ppo
│   └── queue(2) → Concat(agent_steps=4000)
│       → [Advantages(discount=0.99) → Learn(epochs=10) → Publish(every=1)] at learner of prey
└── predator: dqn   in turn: output 1 for every 4 agent steps of store, after the first 1000
    ├── store:  queue(2, drop_oldest) → [Insert] at replay of predator
    └── output: [Draw(agent_steps=64)] at replay of predator → [Learn(epochs=1)] at learner of predator
        → [Reprioritize] at replay of predator → [Publish(every=10)] at learner of predator"""
    )


def test_tree_says_how_rounds_proceed() -> None:
    assert str(ppo_and_dqn("overlap")).splitlines()[0] == "rollouts: in rounds, overlapping the learning of prey"
    alone = together(mf.source(Collect()), ByPolicy(), {"predator": dqn}, {"predator": Feed(2)})
    assert str(alone).splitlines()[0] == "rollouts: in rounds that wait for no plan"


def test_mermaid_of_ppo_and_dqn() -> None:
    assert (
        "\n" + ppo_and_dqn().mermaid()
        == """
flowchart LR
  subgraph p0["rollouts, in rounds, in lockstep with prey"]
    s0(["Collect"])
    s1{{"ByPolicy"}}
  end
  subgraph p1["prey: ppo"]
    s2[("queue(2)")]
    s3[/"Concat(agent_steps=4000)"/]
    s4["Advantages(discount=0.99)<br/>at learner of prey"]
    s5["Learn(epochs=10)<br/>at learner of prey"]
    s6["Publish(every=1)<br/>at learner of prey"]
  end
  subgraph p2["predator: dqn, in turn: output 1 for every 4 agent steps of store, after the first 1000"]
    s7[("queue(2, drop_oldest)")]
    s8["Insert<br/>at replay of predator"]
    s9(["Draw(agent_steps=64)<br/>at replay of predator"])
    s10["Learn(epochs=1)<br/>at learner of predator"]
    s11["Reprioritize<br/>at replay of predator"]
    s12["Publish(every=10)<br/>at learner of predator"]
  end
  s0 --> s1
  s1 -->|"prey"| s2
  s2 --> s3
  s3 --> s4
  s4 --> s5
  s5 --> s6
  s1 -->|"predator"| s7
  s7 --> s8
  s9 --> s10
  s10 --> s11
  s11 --> s12
"""
    )


def nested() -> mf.Plan:
    fresh, copy = mf.source(Count(), name="read").fork(2, capacity=3)
    routes = copy.then(Learn()).split(ByPolicy(), ["x", "y"])
    inner = mf.merge(mf.Freely(), "inner", x=routes["x"].queue(2), y=routes["y"].then(lambda item: item))
    return mf.Plan("nested", mf.merge(mf.InTurn(fresh=2, old=1), fresh=fresh, old=inner).then(Publish()))


def test_tree_of_forks_and_merges() -> None:
    assert (
        "\n" + str(nested())
        == """
nested
└── merge, in turn: fresh 2, old 1 → Publish(every=1)
    ├── fresh: fork[0]
    │   └── of read: Count → fork(2, capacity=3)
    └── old:   inner, freely
        ├── x: ByPolicy[x] → queue(2)
        │   └── of fork[1] → Learn(epochs=1) → ByPolicy
        │       └── of fork, above
        └── y: ByPolicy[y] → <lambda>
            └── of ByPolicy, above"""
    )


def test_mermaid_escapes_what_it_would_read_as_syntax() -> None:
    plan = mf.Plan('a "b" #1', mf.source(Count(), name="<end> [x] | {y}").then(Learn()))
    assert (
        "\n" + plan.mermaid()
        == """
flowchart LR
  subgraph p0["a #quot;b#quot; #35;1"]
    s0(["#lt;end#gt; [x] | {y}: Count"])
    s1["Learn(epochs=1)"]
  end
  s0 --> s1
"""
    )
