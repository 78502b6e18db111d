"""Ape-X: its plan, where its stages run, and how its shards divide the rows."""

from __future__ import annotations

import pytest

import marlflow as mf
from marlflow.replay.protocol import learner_of_replay
from marlflow.runtime.spec import LearnerSpec, PolicySpec
from marlflow.runtime.stage_chain import InlinePlace
from tests.algorithms.parts import DISCRETE, SMALL, experience, make_learner


def _spec(config: mf.ApeX) -> LearnerSpec:
    return LearnerSpec("hunter", (PolicySpec("hunter", config, SMALL, DISCRETE, seed=0),), config, seed=0)


def test_the_plan_reads_as_its_paper() -> None:
    config = mf.ApeX(replay_shards=2, train_every_agent_steps=4, learning_starts_agent_steps=51, draws_ahead=3)
    spec = _spec(config)
    learner = make_learner(config)
    learner.place = InlinePlace("learner hunter")
    replays = [spec.replay(shard) for shard in range(2)]
    for replay in replays:
        replay.place = InlinePlace(f"replay {replay.name}")
    plan = config.plan(mf.source(experience), learner, replays)
    plan.check()
    shown = " ".join(line.strip("├└─│ →") for line in str(plan).splitlines())
    assert shown.startswith(
        "apex Returned, freely shard_0: ByShard[0] → [Reprioritize 0: Reprioritize] at replay hunter@0"
    )
    assert (
        "of Shards, freely → Draws(3) [Learn(epochs=1) → SyncTarget(every=200, tau=1.0) → Publish(every=10)] "
        "at learner hunter ByShard shard_0: Shard 0, at most: draw 1 for every 4 agent steps of store, after the first "
        "26; hands on draw store: Rotation[0] → [Insert 0: Insert] at replay hunter@0"
    ) in shown
    assert "draw:  [Draw 1: Draw(agent_steps=64)] at replay hunter@1" in shown
    assert shown.endswith("shard_1: ByShard[1] → [Reprioritize 1: Reprioritize] at replay hunter@1 of ByShard, above")
    assert spec.stages == {"NStep": "worker", "InitialPriorities": "worker"}


def test_shards_divide_what_is_remembered_and_have_names_and_seeds_of_their_own() -> None:
    config = mf.ApeX(replay_shards=3, replay_agent_steps=10_000, learning_starts_agent_steps=100)
    assert isinstance(config, mf.Algorithm)
    spec = _spec(config)
    assert spec.replays == ("hunter@0", "hunter@1", "hunter@2")
    assert {learner_of_replay(name) for name in (*spec.replays, "hunter")} == {"hunter"}
    assert spec.replays_apart
    states = [spec.replay(shard).state() for shard in range(3)]
    assert len({str(state["generator"]) for state in states}) == 3
    assert [state["first"] for state in states] == sorted({state["first"] for state in states})
    single = _spec(mf.ApeX(replay_shards=1))
    assert single.replays == ("hunter",)
    assert not single.replays_apart


def test_settings_and_actor() -> None:
    assert mf.ApeX().schedules(10) == {"epsilon": 0.4}
    assert mf.ApeX(epsilon=mf.Linear(1.0, 0.5, 100)).schedules(50) == {"epsilon": 0.75}
    assert mf.ApeX(epsilon_ladder=5.0).actor(DISCRETE, SMALL, seed=2).ladder == pytest.approx(5.0)
