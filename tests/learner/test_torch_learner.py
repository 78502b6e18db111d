from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import marlflow as mf
from marlflow.algorithms.dqn import DQNLoss
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import ActorCritic
from tests.learner.experience import ACTIONS, FEATURES, estimated, transitions

SEEN = Spaces(spaces.Box(-1.0, 1.0, (FEATURES,)), spaces.Discrete(ACTIONS))


class Recording:
    """A loss that notes which rows came, and is not finite for those with a negative mark."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        mark = minibatch["mark"]
        self.seen.append(mark.tolist())
        total = module.critic(minibatch["obs"]).mean() * torch.where((mark < 0).any(), float("nan"), 1.0)
        return mf.LossTerms(total, {"size": torch.tensor(float(len(mark)))}, mark.float())

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.values = dict(values)


def ppo_learner(seed: int = 0, shared: bool = False) -> mf.TorchLearner:
    module = ActorCritic(SEEN, mf.MLP((8, 8)), None if shared else mf.MLP((6,), "relu"), seed=0)
    loss = mf.PPOLoss(mf.Coefficients())
    return mf.TorchLearner(
        "p",
        module,
        loss,
        trains_on=mf.EstimatedBatch,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        optimizer=mf.Adam(eps=1e-5),
        seed=seed,
    )


def dqn_learner(dueling: bool = False) -> mf.TorchLearner:
    network = mf.QNetwork(SEEN, mf.MLP((8,)), dueling=dueling, seed=0)
    return mf.TorchLearner("d", network, DQNLoss(), trains_on=mf.Transitions, learning_rate=1e-2, target=True)


def recording_learner() -> tuple[mf.TorchLearner, Recording]:
    loss = Recording()
    module = ActorCritic(SEEN, mf.MLP((4,)), None, seed=0)
    return mf.TorchLearner("r", module, loss, trains_on=mf.EstimatedBatch, learning_rate=1e-2), loss


@pytest.mark.parametrize(
    ("rows", "minibatch", "sizes"),
    [(10, None, [10]), (10, 4, [5, 5]), (11, 4, [5, 6]), (3, 4, [3]), (12, 4, [4, 4, 4]), (0, 4, [])],
)
def test_each_epoch_uses_each_row_once_in_parts_no_smaller_than_asked(rows, minibatch, sizes) -> None:
    learner, loss = recording_learner()
    batch = estimated(rows)
    batch = mf.EstimatedBatch({**batch.columns, "mark": np.arange(rows)}, batch.segments)
    update = learner.update(batch, epochs=2, minibatch_agent_steps=minibatch)
    assert sorted(len(part) for part in loss.seen) == sorted(sizes * 2)
    assert sorted(row for part in loss.seen for row in part) == sorted([*range(rows), *range(rows)])
    assert (update.rows, update.updates, learner.updates) == (2 * rows, 2 * len(sizes), 2 * len(sizes))
    if rows:
        assert update.priorities is not None
        assert update.priorities.tolist() == list(range(rows))
        assert update.loss["size"] == pytest.approx(rows / len(sizes))


def test_a_loss_that_is_not_finite_is_skipped_and_counted() -> None:
    learner, _ = recording_learner()
    batch = estimated(8)
    mark = np.array([0, 0, 0, 0, 0, 0, 0, -1])
    update = learner.update(mf.EstimatedBatch({**batch.columns, "mark": mark}, batch.segments), 3, 4)
    assert update.updates_skipped == 3
    assert update.updates == 3
    assert np.isfinite(update.loss["grad_norm"])
    assert bool(torch.isfinite(learner.parameters.flat.vector).all())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_updates_equal_plain_torch(shared: bool, masked: bool) -> None:
    learner, reference = ppo_learner(shared=shared), ppo_learner(shared=shared)
    batch = estimated(50, masked=masked)
    module = reference.module
    for parameter in module.parameters():
        parameter.grad = None
    adam = torch.optim.Adam(module.parameters(), lr=1e-2, eps=1e-5)
    minibatch = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
    for _ in range(5):
        update = learner.update(batch)
        adam.zero_grad()
        terms = reference.parameters.groups[0].loss(module, None, minibatch)
        terms.total.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        adam.step()
        expected = {name: term.item() for name, term in terms.terms.items()} | {"grad_norm": norm.item()}
        assert update.loss == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(learner.module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


def test_an_update_of_q_learning_has_the_gradient_and_priorities_of_its_loss() -> None:
    learner, reference = dqn_learner(), dqn_learner()
    draw = transitions(20)
    names = ("obs", "action", "reward", "discount", "next_obs", "weight")
    minibatch = {name: torch.from_numpy(getattr(draw, name)) for name in names}
    update = learner.update(draw)
    terms = reference.parameters.groups[0].loss(reference.module, reference.parameters.target_module, minibatch)
    terms.total.backward()
    torch.testing.assert_close(
        learner.parameters.flat.gradient, reference.parameters.flat.gradient, atol=1e-7, rtol=1e-5
    )
    np.testing.assert_allclose(update.priorities, terms.priorities.numpy(), rtol=1e-5)
    assert update.loss["td"] == pytest.approx(terms.total.item(), rel=1e-5)
    assert update.row_ids is draw.row_id


@pytest.mark.parametrize("dueling", [False, True])
def test_the_target_stays_until_it_is_synced(dueling: bool) -> None:
    learner = dqn_learner(dueling)
    obs = torch.ones(3, FEATURES)
    before = learner.module(obs).detach().clone()
    learner.update(transitions(30))
    assert not torch.equal(learner.module(obs), before)
    assert torch.equal(learner.parameters.target_module(obs), before)
    learner.sync_target()
    assert torch.equal(learner.parameters.target_module(obs), learner.module(obs))
    assert learner.updates_when_synced == learner.updates == 1
    with pytest.raises(TypeError, match="without a target"):
        ppo_learner().sync_target()


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    vectors = []
    for seed in (1, 1, 2):
        learner = ppo_learner(seed)
        torch.rand(seed)
        learner.update(estimated(64), 3, 8)
        vectors.append(learner.parameters.flat.vector.clone())
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_versions_staleness_and_carried_rows() -> None:
    learner = ppo_learner()
    assert learner.version == 0
    published = [learner.publish(), learner.publish()]
    assert [weights[learner.name].version for weights in published] == [1, 2]
    assert learner.published is published[-1]
    batch = estimated(4)
    batch.columns["version"][:] = [2, 2, 1, 0]
    batch.segments["carried"][:] = True
    learner.stale_rows_dropped = 7
    update = learner.update(batch)
    found = (update.version, update.staleness_mean, update.rows_carried, update.stale_rows_dropped)
    assert found == (2, 0.75, 1, 7)
    assert learner.stale_rows_dropped == 0


def test_values_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = ppo_learner()
    obs = np.random.default_rng(0).standard_normal((55, FEATURES)).astype(np.float32)
    obs.flags.writeable = False
    whole = learner.values(obs)
    monkeypatch.setattr("marlflow.learner.value_chunks.CHUNK_ROWS", 16)
    np.testing.assert_allclose(learner.values(obs), whole, atol=1e-6)
    assert whole.dtype == np.float32
    assert learner.values(obs[:0]).shape == (0,)


def test_schedules_reach_the_optimizer_and_the_loss() -> None:
    learner, loss = recording_learner()
    learner.set_schedule({"learning_rate": 0.5, "entropy_coefficient": 0.1})
    assert learner.parameters.groups[0].optimizer.learning_rate == 0.5
    assert loss.values["entropy_coefficient"] == 0.1


# -- what is kept ---------------------------------------------------------------------------------------------------


def part_of_a_run(learner: mf.TorchLearner) -> None:
    """Updates of one size and another, versions and targets between them, and rows dropped as too old."""
    batch = estimated(40) if learner.parameters.target_module is None else transitions(40)
    learner.update(batch, 2, 8)
    learner.publish()
    if learner.parameters.target_module is not None:
        learner.sync_target()
    learner.update(batch, 1, 8)  # what is learned since the last version is not what that version names
    learner.stale_rows_dropped += 3


@pytest.mark.parametrize("make", [ppo_learner, dqn_learner])
def test_a_kept_learner_goes_on_bit_for_bit(make: Callable[[], mf.TorchLearner]) -> None:
    learner, successor = make(), make()
    part_of_a_run(learner)
    kept = to_bytes(learner.state())
    part_of_a_run(learner)
    for _ in range(3):  # whatever it was before
        part_of_a_run(successor)
    successor.load_state(from_bytes(kept))
    assert to_bytes(successor.state()) == kept
    part_of_a_run(successor)
    assert to_bytes(successor.state()) == to_bytes(learner.state())
    assert (successor.version, successor.updates, successor.stale_rows_dropped) == (2, 30, 6 - 3)


def test_what_is_kept_does_not_change_later() -> None:
    learner = dqn_learner()
    part_of_a_run(learner)
    state = learner.state()
    kept = to_bytes(state)
    part_of_a_run(learner)
    assert to_bytes(state) == kept
    learner.load_state(state)
    part_of_a_run(learner)
    assert to_bytes(state) == kept


def test_the_learning_rate_is_the_present_configurations() -> None:
    learner, successor = ppo_learner(), ppo_learner()
    successor.parameters.groups[0].optimizer.learning_rate = 0.125
    successor.load_state(learner.state())
    assert successor.parameters.groups[0].optimizer.learning_rate == 0.125


@pytest.mark.parametrize(("version", "expected"), [(0, 2), (1, 2), (2, 3), (9, 10)])
def test_a_lost_learners_successor_publishes_above_all_that_was_handed_out(version: int, expected: int) -> None:
    learner, successor = dqn_learner(), dqn_learner()
    part_of_a_run(learner)
    successor.load_state(learner.state())
    weights = successor.resume_above(version)[successor.name]
    assert (weights.version, successor.version) == (expected, expected)
    assert successor.published[successor.name] is weights
    np.testing.assert_array_equal(weights.flat, learner.parameters.flat.vector.numpy())
    assert successor.updates_when_published == successor.updates
    assert successor.publish()[successor.name].version == expected + 1


def damaged(**changes: Any) -> dict[str, Any]:
    return {**dqn_learner().state(), **changes}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "expected a dict of its parts, got nothing"),
        ({}, r"vector: expected float32 \[\d+\], got nothing"),
        (damaged(vector=np.zeros(3, np.float32)), r"vector: expected float32 \[\d+\], got float32 \[3\]"),
        (
            damaged(**{"optimizer/all/steps": np.zeros((), np.float64)}),
            r"steps: expected float32 \[\], got float64 \[\]",
        ),
        (damaged(target=[1.0]), r"target: expected float32 \[\d+\], got list \[1.0\]"),
        (damaged(generator=np.zeros(8, np.uint8)), r"generator: expected uint8 \[\d+\], got uint8 \[8\]"),
        (damaged(generator=np.full(5056, 255, np.uint8)), "generator: expected the state of a random generator"),
        (damaged(version=-1), "version: expected a count, got int -1"),
        (damaged(updates=True), "updates: expected a count, got bool True"),
        (damaged(momentum=1), "momentum: expected nothing of this name"),
        (ppo_learner().state(), r"(?s)vector: .*target: .* got nothing.*; was it kept with another"),
    ],
)
def test_a_state_of_another_learner_is_refused_and_changes_nothing(state: Any, said: str) -> None:
    learner = dqn_learner()
    part_of_a_run(learner)
    before = to_bytes(learner.state())
    with pytest.raises(mf.CheckpointUnusable, match=said) as refused:
        learner.load_state(state)
    assert all(problem.startswith("learner 'd': ") for problem in refused.value.problems)
    assert to_bytes(learner.state()) == before
