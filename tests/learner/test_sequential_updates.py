"""Joint advantages equal the advantages of one policy with all rows; the factor M equals a loop over joint rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.learner.advantages import advantages, normalized
from marlflow.stages.joint_updates import joint_advantages, merged, turn_order, update_in_order
from tests.learner.lives import Critic, Life, batch_of, lives

ACTIONS = 3


class TableActor:
    """Log-probabilities are a table by action, whatever is observed."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits

    def __call__(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.log(np.exp(self.logits) / np.exp(self.logits).sum()))

    def log_prob_and_entropy(self, outputs: Any, action: torch.Tensor, mask: Any) -> tuple[torch.Tensor, None]:
        return outputs[action], None


@dataclass
class TeamOfTables:
    """A learner whose update of a policy adds random numbers to that policy's table, and records its arguments."""

    policies: list[str]
    seed: int
    updates: int = 0
    minibatches_left: int = 0
    trained: list[tuple[str, mf.TrainBatch]] = field(default_factory=list)
    changes: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = torch.device("cpu")
        self.random = np.random.default_rng(self.seed)
        self.module = SimpleNamespace(
            actors={p: TableActor(self.random.standard_normal(ACTIONS)) for p in self.policies}
        )

    def update(
        self, batch: mf.TrainBatch, epochs: int = 1, minibatch: int | None = None, policy: str | None = None
    ) -> mf.Update:
        assert policy is not None
        actor = self.module.actors[policy]
        before = actor(torch.zeros(1)).numpy()
        actor.logits = actor.logits + self.random.standard_normal(ACTIONS)
        self.changes[policy] = actor(torch.zeros(1)).numpy() - before
        self.trained.append((policy, batch))
        self.updates += 1
        return mf.Update("team", batch.rows, 1, 0, {"policy": 1.0}, minibatches_left=self.minibatches_left)


@st.composite
def teams(draw: st.DrawFn) -> tuple[dict[str, list[Life]], int]:
    """Lives of one to three policies; agents are numbered through."""
    found: dict[str, list[Life]] = {policy: [] for policy in "abc"[: draw(st.integers(1, 3))]}
    for life in draw(lives()):
        found[draw(st.sampled_from(sorted(found)))].append(life)
    return found, draw(st.integers(0, 99))


def estimated(found: dict[str, list[Life]], seed: int) -> mf.EstimatedJointBatches:
    random = np.random.default_rng(seed)
    batches = {}
    for policy, own in found.items():
        batch = batch_of(own, random)
        action, advantage = random.integers(0, ACTIONS, batch.rows), random.standard_normal(batch.rows)
        columns = {**batch.columns, "action": action, "advantage": advantage.astype(np.float32)}
        batches[policy] = mf.EstimatedBatch(columns, batch.segments)
    return mf.EstimatedJointBatches(batches)


@given(teams())
def test_the_factor_is_the_product_of_ratios_of_those_before_at_the_same_moment(
    given_team: tuple[dict[str, list[Life]], int],
) -> None:
    found, seed = given_team
    batches = estimated(found, seed)
    learner = TeamOfTables(list(batches), seed)
    update = update_in_order(learner, batches, 1, None)
    assert update.rows == sum(batch.rows for batch in batches.values())
    order = [policy for policy, _ in learner.trained]
    assert sorted(order) == [policy for policy in sorted(batches) if batches[policy].rows] or len(order) == 1
    moments = {p: [(b["env"][r], b["episode"][r], b["t_env"][r]) for r in range(b.rows)] for p, b in batches.items()}
    distances = []
    for turn, (policy, got) in enumerate(learner.trained):
        assert isinstance(got, mf.EstimatedBatch)
        for row in range(got.rows):
            factor = 1.0
            for earlier in order[:turn]:
                for other in range(batches[earlier].rows):
                    if moments[earlier][other] == moments[policy][row]:
                        factor *= math.exp(learner.changes[earlier][batches[earlier]["action"][other]])
            np.testing.assert_allclose(
                got["advantage"][row], factor * batches[policy]["advantage"][row], rtol=1e-5, atol=1e-6
            )
            distances += [abs(factor - 1.0)] if turn else []
    if len(order) > 1:
        assert update.loss["factor_distance"] == pytest.approx(np.mean(distances), rel=1e-5)
    else:
        assert update.loss == {"policy": 1.0}


@given(lives(), st.lists(st.sampled_from("abc"), min_size=4, max_size=4), st.integers(0, 99), st.booleans())
def test_advantages_are_as_if_all_rows_were_of_one_policy(
    found: list[Life], policy_of: list[str], seed: int, at_death: bool
) -> None:
    whole = batch_of(found, np.random.default_rng(seed))
    central = {"central": whole.columns["obs"]}, {"bootstrap_central": whole.segments["bootstrap_obs"]}
    whole = mf.Batch(whole.columns | central[0], whole.segments | central[1])
    expected = normalized(advantages(whole, Critic(), 0.9, 0.7, at_death))
    owners = np.array(policy_of)[whole.segments["agent"]]
    batches = mf.JointBatches({policy: _seen_as(whole.only(owners == policy), policy) for policy in "abc"})
    result = joint_advantages(batches, Critic(), 0.9, 0.7, at_death)
    assert list(result) == ["a", "b", "c"]
    names = ["value", "advantage", "value_target", *(["bootstrapped_at_death"] if at_death else [])]
    for policy, batch in result.items():
        rows = np.repeat(owners == policy, whole.segments["length"])
        for name in names:
            # The sums of all advantages are in another order.
            np.testing.assert_allclose(batch.columns[name], expected.columns[name][rows], rtol=1e-5, atol=1e-6)
        assert batch.columns["obs"] is batches[policy].columns["obs"]


def _seen_as(batch: mf.Batch, policy: str) -> mf.Batch:
    """Observations of policies may differ in shape, since the critic sees another column."""
    width = ord(policy) - ord("a")
    ends = np.zeros((len(batch.segments["length"]), width), np.float32)
    obs = np.zeros((batch.rows, width), np.float32)
    return mf.Batch({**batch.columns, "obs": obs}, {**batch.segments, "bootstrap_obs": ends})


def test_an_update_without_rows_is_reported() -> None:
    batches = estimated({"a": [], "b": []}, 0)
    learner = TeamOfTables(["a", "b"], 0)
    assert update_in_order(learner, batches, 1, None).rows == 0
    assert len(learner.trained) == 1


def test_after_a_policy_whose_update_was_ended_early_no_other_is_trained() -> None:
    batches = estimated({policy: [Life(0, 0, agent, 0, 2, True, False, 2)] for agent, policy in enumerate("ab")}, 0)
    learner = TeamOfTables(["a", "b"], 0, minibatches_left=3)
    assert update_in_order(learner, batches, 1, None).minibatches_left == 3
    assert len(learner.trained) == 1


def test_orders_are_all_equally_likely_and_depend_on_seed_and_updates() -> None:
    orders = [tuple(turn_order(7, updates, 3)) for updates in range(0, 6_000 * 14, 14)]
    counts = {order: orders.count(order) for order in set(orders)}
    assert len(counts) == 6
    assert max(abs(count - 1_000) for count in counts.values()) < 150
    assert [tuple(turn_order(7, updates, 3)) for updates in range(0, 140, 14)] == orders[:10]
    assert [tuple(turn_order(8, updates, 3)) for updates in range(0, 140, 14)] != orders[:10]


def test_reports_of_turns_are_merged_by_steps_and_rows() -> None:
    first = mf.Update("t", 30, 3, 5, {"policy": 1.0, "kl": 0.5}, 1.0, 2, 1, 4, 0)
    second = mf.Update("t", 10, 1, 5, {"policy": 5.0}, 3.0, 0, 2, 1, 1)
    both = merged([first, second], {"factor_distance": 0.25})
    assert both.loss == {"policy": 2.0, "kl": 0.5, "factor_distance": 0.25}
    assert (both.rows, both.updates, both.version, both.staleness_mean) == (40, 4, 5, 1.5)
    counts = (both.stale_rows_dropped, both.rows_carried, both.rows_bootstrapped_at_death, both.updates_skipped)
    assert counts == (2, 3, 5, 1)
    nothing = merged([mf.Update("t", 0, 0, 5, {"policy": 1.0}), mf.Update("t", 0, 0, 5)], {})
    assert nothing.loss == {"policy": 0.0}
    assert nothing.staleness_mean == 0.0
