"""DD-PPO: PPO whose learner is on the rollout workers; its placement, refusals and resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.batches.batch import EstimatedBatch
from marlflow.checks.validation import ready
from marlflow.config.plans import drawn_plan
from marlflow.flow.protocols import StageCall
from marlflow.learner.distributed.replicas import AllShardsExchange
from marlflow.learner.gradient_exchange import SingleProcess
from marlflow.runtime.resources import requests_of
from marlflow.runtime.stage_chain import AllShards, over_all, payloads_by_worker
from tests.driver.kept_runs import kept
from tests.driver.watching import standing
from tests.runtime.small_runs import SMALL, SMALL_DQN, policies, small_run
from tests.sentences import refusals, sentences

SMALL_DDPPO = mf.DDPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64)
BESIDE_DQN = policies(hunters=SMALL_DDPPO, prey=SMALL_DQN)
HALF, WHOLE = 720, 1_360


def until(env_steps: int, **changes: Any) -> mf.Experiment:
    return small_run(
        policies=BESIDE_DQN, stop=mf.Stop(env_steps), checkpoint=mf.CheckpointConfig(every_env_steps=None), **changes
    )


@pytest.mark.parametrize("num_workers", [1, 3])
def test_it_may_go_on_with_another_number_of_workers(num_workers: int, tmp_path: Path) -> None:
    """Also with rows that waited when it stopped: rows of workers that no longer exist go to others."""
    first = mf.train(until(HALF), tmp_path)
    half = kept(tmp_path)
    assert {key for fragment in half["driver"]["flow"]["held"]["hunters/Shards"] for key in fragment["keys"]} == {
        "0",
        "1",
    }
    result = mf.resume(until(WHOLE, rollouts=mf.Rollouts(num_workers=num_workers, fragment_env_steps=40)), tmp_path)
    made, trained = (
        [standing(each.metrics, "hunters")[name] for each in (first, result)]
        for name in ("agent_steps_sampled", "agent_steps_trained")
    )
    waiting = sum(fragment["rows"] for fragment in kept(tmp_path)["driver"]["flow"]["held"].get("hunters/Shards", []))
    assert trained[1] == 2 * (made[1] - waiting)
    assert trained[0] < trained[1]


def test_a_batch_keeps_what_each_worker_made_apart() -> None:
    shards, emitted = mf.Shards(agent_steps=10), []
    for round in range(2):
        for worker, rows in ((0, 4), (1, 0), (2, 3)):
            payload = (f"{worker}/{round}",)
            emitted += shards.add(mf.Fragment("team", worker, round, worker == 2, rows, 0, payload))
    (item,) = emitted
    assert item.rows == 14
    assert payloads_by_worker(item, 3) == [("0/0", "0/1"), (), ("2/0", "2/1")]
    assert payloads_by_worker(item, 2) == [("0/0", "2/0", "0/1", "2/1"), ()]


def test_a_learner_with_replicas_refuses_rows_that_are_nobodys() -> None:
    with pytest.raises(TypeError, match="gather Shards"):
        payloads_by_worker(mf.Fragment("team", 0, 0, True, 4, 0, ("rows",)), 2)


def test_no_process_is_reserved_and_the_plan_says_where_it_runs() -> None:
    experiment = small_run(policies=BESIDE_DQN)
    spec = ready(experiment).spec
    assert [one.name for one in requests_of(spec)] == ["rollout worker 0", "rollout worker 1", "learner prey"]
    shown = str(drawn_plan(experiment, spec))
    assert "NormalizeShards → Learn(epochs=2, minibatch=64) → Publish(every=1)] at rollout workers" in shown
    assert "at learner hunters" not in shown
    assert "at learner prey" in shown
    drawn_plan(experiment, spec).check()


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (mf.PlacementOverrides(num_learners=2), "num_learners must be null, not 2"),
        (mf.PlacementOverrides(num_gpus=0.5), "num_gpus must be null, not 0.5"),
        (mf.PlacementOverrides(num_cpus=1.0), "num_cpus must be null, not 1.0"),
        (mf.PlacementOverrides(device="cuda"), "device must be null, not 'cuda'"),
        (mf.PlacementOverrides(stages={"Advantages": "worker"}), "stages must be null"),
    ],
)
def test_what_is_said_of_processes_that_it_does_not_have_is_refused(
    placement: mf.PlacementOverrides, said: str
) -> None:
    experiment = small_run(
        policies={"team": mf.Policy(SMALL_DDPPO, SMALL, placement), "rest": mf.Policy(mf.Random())},
        mapping=(mf.Rule("cart_0", "team"), mf.Rule("*", "rest")),
    )
    (problem,) = refusals(mf.ConfigInvalid, ready, experiment)
    assert problem.startswith(f"policies.team.placement.{said}")
    assert problem.endswith(
        "ddppo learns on the rollout workers, with all stages beside each; set rollouts.num_workers and "
        "rollouts.placement"
    )


def test_what_the_run_says_of_learners_is_not_for_it() -> None:
    run = mf.RunPlacement(learners=mf.LearnerPlacement(num_learners=2, num_cpus=0.5))
    spec = ready(small_run(policies=BESIDE_DQN, placement=run)).spec
    assert spec.learners["hunters"].placement == mf.LearnerPlacement()
    assert spec.learners["prey"].placement.num_learners == 2


def test_it_is_ppo_but_for_where_it_learns() -> None:
    spec = ready(small_run(policies=BESIDE_DQN)).spec.learners["hunters"]
    learner, other = spec.learner(), replace(spec, seed=spec.seed + 1).learner()
    assert isinstance(learner.exchange, AllShardsExchange)
    assert not np.array_equal(learner.published[learner.name].flat, other.published[other.name].flat)
    assert sentences(spec.algorithm.validate(spec.policies[0].spaces, SMALL)) == []
    assert sentences(
        mf.DDPPO(batch_agent_steps=10, minibatch_agent_steps=11).validate(spec.policies[0].spaces, SMALL)
    ) == ["ddppo cannot cut batches of 10 agent steps into minibatches of 11; lower minibatch_agent_steps"]


@given(rows=st.lists(st.integers(0, 7), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_advantages_are_normalized_over_the_rows_of_all_workers(rows: list[int], seed: int) -> None:
    random, stage = np.random.default_rng(seed), mf.NormalizeShards()
    estimates = [random.normal(2.0 * number, 1.0 + number, count) for number, count in enumerate(rows)]
    shards = [
        EstimatedBatch(
            {"advantage": own.astype(np.float32), "reward": number + own}, {"length": np.ones(len(own), int)}
        )
        for number, own in enumerate(estimates)
    ]
    found = over_all(StageCall(stage, SingleProcess(), stage.traits, passes_at=True))(AllShards(shards))
    assert [len(shard.columns["advantage"]) for shard in found.batches] == rows
    whole = np.concatenate([shard.columns["advantage"] for shard in shards]).astype(np.float64)
    expected = (whole - whole.mean()) / (whole.std() + 1e-8) if len(whole) else whole
    actual = np.concatenate([shard.columns["advantage"] for shard in found.batches])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    for before, after in zip(shards, found.batches, strict=True):
        np.testing.assert_array_equal(after.columns["reward"], before.columns["reward"])
