"""Several updates in one compiled call: what one at a time would learn, publish, draw and report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Update
from marlflow.flow.protocols import stage_call
from marlflow.learner.compiled_updates import AUTO_AFTER, STEPS_AHEAD
from marlflow.learner.compute import Compute
from marlflow.learner.learner import TorchLearner
from marlflow.learner.update_job import TargetUpdate
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.sampling import Prioritized, Uniform
from marlflow.runtime.stage_chain import run_chain
from marlflow.stages import Draw, Learn, Publish, Reprioritize, SyncTarget
from tests.learner.batches import Columns
from tests.replay.windowed import put
from tests.stages.test_replays import rows

DISCRETE, BOX = gym.Discrete(3), gym.Box(-1.0, 1.0, (2,))
ALGORITHMS = {"dqn": (mf.DQN(), DISCRETE), "sac": (mf.SAC(), BOX), "td3": (mf.TD3(), BOX)}
HARD, SOFT, HALF = TargetUpdate(3, 1.0), TargetUpdate(1, 0.05), TargetUpdate(2, 0.7)


def learner(name: str = "dqn", compile: Any = True, kind: type[TorchLearner] = TorchLearner, **given: Any) -> Any:
    algorithm, action = ALGORITHMS[name]
    spaces = Spaces(gym.Box(-1.0, 1.0, (4,)), action)
    settings: dict[str, Any] = {"trains_on": Columns, "learning_rate": 1e-2, "target": True, "compile": compile}
    network = algorithm.network(spaces, mf.MLP((8,)), 0)
    return kind("hunters", network, algorithm.losses(spaces), **{**settings, **given})


def batch(seed: int, name: str = "dqn", count: int = 21) -> Columns:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    action = random.integers(0, 3, count) if name == "dqn" else np.tanh(normal(count, 2))
    discount, weight = np.full(count, 0.9, np.float32), random.random(count).astype(np.float32)
    columns = {"obs": normal(count, 4), "action": action, "reward": normal(count), "next_obs": normal(count, 4)}
    return Columns({**columns, "discount": discount, "weight": weight})


def one_by_one(made: Any, batches: Sequence[Columns], target: TargetUpdate) -> list[Update]:
    reports = []
    for each in batches:
        reports.append(made.update(each))
        if made.updates - made.parameters.updates_when_synced >= target.every:
            made.sync_target(target.tau)
    return reports


def assert_same(found: Any, wanted: Any, reports: Sequence[Update], expected: Sequence[Update]) -> None:
    """States within rounding, counts and random numbers exactly."""
    assert_equal_counts(found, wanted)
    for name, value in wanted.state().items():
        np.testing.assert_allclose(found.state()[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    for report, other in zip(reports, expected, strict=True):
        assert report.loss == pytest.approx(other.loss, rel=1e-3, abs=1e-4)
        for count in ("rows", "updates", "updates_skipped", "version", "stale_rows_dropped"):
            assert getattr(report, count) == getattr(other, count)
        assert (report.priorities is None) == (other.priorities is None)
        if report.priorities is not None and other.priorities is not None:
            np.testing.assert_allclose(report.priorities, other.priorities, rtol=1e-3, atol=1e-4)


def assert_equal_counts(found: Any, wanted: Any) -> None:
    assert (found.updates, found.version) == (wanted.updates, wanted.version)
    assert found.parameters.updates_when_synced == wanted.parameters.updates_when_synced
    np.testing.assert_array_equal(found.state()["generator"], wanted.state()["generator"])


@pytest.mark.parametrize("target", [HARD, SOFT, HALF], ids=["hard", "soft", "between"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_several_updates_in_one_call_are_those_by_autograd(name: str, target: TargetUpdate) -> None:
    ahead, eager = learner(name), learner(name, compile=False)
    batches = [batch(seed, name) for seed in range(STEPS_AHEAD + 3)]
    reports, expected = ahead.update_each(batches, target), one_by_one(eager, batches, target)
    assert_same(ahead, eager, reports, expected)
    # One program, whatever the number of updates.
    assert sum(report.compiles for report in reports) == 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_how_many_go_into_a_call_changes_no_bit(name: str) -> None:
    batches, states = [batch(seed, name) for seed in range(12)], []
    for together in (1, 5, 12):
        made = learner(name)
        for first in range(0, 12, together):
            made.update_each(batches[first : first + together], HARD)
        states.append(made.state())
    for other in states[1:]:
        for key, value in states[0].items():
            np.testing.assert_array_equal(value, other[key], err_msg=key)


def test_batches_of_other_sizes_or_without_rows_are_learned_from_in_their_order() -> None:
    batches = [batch(seed, count=count) for seed, count in enumerate((21, 21, 40, 21, 0, 8, 8))]
    ahead, eager = learner(), learner(compile=False)
    reports, expected = ahead.update_each(batches, SOFT), one_by_one(eager, batches, SOFT)
    assert [report.rows for report in reports] == [21, 21, 40, 21, 0, 8, 8]
    assert_same(ahead, eager, reports, expected)


@pytest.mark.parametrize("broken", [0, 2])
def test_a_gradient_that_is_not_finite_skips_its_update_and_no_other(broken: int) -> None:
    batches = [batch(seed) for seed in range(6)]
    reward = batches[broken].columns["reward"].copy()
    reward[3] = np.nan
    batches[broken] = Columns({**batches[broken].columns, "reward": reward})
    ahead, eager = learner(), learner(compile=False)
    reports, expected = ahead.update_each(batches, HARD), one_by_one(eager, batches, HARD)
    assert [report.updates_skipped for report in reports] == [int(number == broken) for number in range(6)]
    assert_same(ahead, eager, reports, expected)


def test_an_infinite_term_beside_a_finite_gradient_is_no_difference_from_autograd() -> None:
    rows = batch(0)
    reward = rows.columns["reward"].copy()
    reward[3] = np.inf
    # The Huber loss of an infinite error has a gradient of 1.
    report = learner().update(Columns({**rows.columns, "reward": reward}))
    assert (report.updates, report.loss["td"], report.note) == (1, np.inf, "")


def test_a_target_far_from_the_parameters_moves_toward_them() -> None:
    ahead, eager = learner(), learner(compile=False)
    for one in (ahead, eager):
        one.parameters.target_flat.vector.zero_()
    batches = [batch(seed) for seed in range(4)]
    reports, expected = ahead.update_each(batches, SOFT), one_by_one(eager, batches, SOFT)
    assert_same(ahead, eager, reports, expected)
    moved, whole = (float(one.vector.norm()) for one in (ahead.parameters.target_flat, ahead.parameters.flat))
    assert moved == pytest.approx((1 - 0.95**4) * whole, rel=0.05)


def test_an_update_that_reaches_its_time_limit_leaves_the_rest() -> None:
    class Passed:
        def has_passed(self) -> bool:
            return True

    made = learner()
    made.loop.limit = Passed()
    reports = made.update_each([batch(seed) for seed in range(5)], HARD)
    assert [(report.updates, report.minibatches_left) for report in reports] == [(0, 1)] * 5
    assert made.updates == 0


class OwnUpdate(TorchLearner):
    def update(self, *given: Any, **named: Any) -> Update:
        seen.append("update")
        return super().update(*given, **named)


class OwnTarget(TorchLearner):
    def sync_target(self, tau: float = 1.0) -> None:
        seen.append("sync_target")
        super().sync_target(tau)


seen: list[str] = []


@pytest.mark.parametrize(("kind", "calls"), [(OwnUpdate, ["update"] * 4), (OwnTarget, ["sync_target"] * 2)])
def test_a_method_of_a_subclass_is_called_each_time(kind: type[TorchLearner], calls: list[str]) -> None:
    seen.clear()
    made = learner(kind=kind)
    assert not made.can_run_ahead
    made.update_each([batch(seed) for seed in range(4)], TargetUpdate(2, 1.0))
    assert seen == calls


def test_a_method_replaced_on_a_learner_is_called_each_time() -> None:
    made, calls = learner(), []
    update = made.update
    made.update = lambda *given, **named: calls.append(1) or update(*given, **named)
    made.update_each([batch(seed) for seed in range(3)], HARD)
    assert len(calls) == 3


class OwnReplay(ReplayBuffer):
    def reprioritize(self, row_ids: Any, priorities: Any) -> None:
        seen.append("reprioritize")


def test_a_replay_that_looks_at_updates_is_drawn_from_after_each() -> None:
    stored = OwnReplay(200, 1, 0.9, seed=0, sampling=Uniform())
    assert not stored.draws_uniformly
    assert replay().draws_uniformly
    assert not replay(Prioritized()).draws_uniformly


def test_nothing_runs_ahead_where_nothing_is_compiled() -> None:
    assert learner().can_run_ahead
    assert not learner(compile=False).can_run_ahead
    waiting = learner(compile="auto")
    assert not waiting.can_run_ahead
    waiting.parameters.updates = AUTO_AFTER
    assert waiting.can_run_ahead
    in_bfloat16 = learner(compile="auto", compute=Compute(precision="bfloat16"))
    in_bfloat16.parameters.updates = AUTO_AFTER
    assert not in_bfloat16.can_run_ahead


# -- in a plan ------------------------------------------------------------------------------------------------------


def replay(sampling: Any = None) -> ReplayBuffer:
    made = ReplayBuffer(200, 1, 0.9, seed=0, sampling=Uniform() if sampling is None else sampling)
    put(made, rows(100))
    return made


def drawn_learner(compile: Any = True) -> Any:
    spaces = Spaces(gym.Box(-1.0, 1.0, (1,)), DISCRETE)
    settings: dict[str, Any] = {"trains_on": Columns, "learning_rate": 1e-3, "target": True, "compile": compile}
    return TorchLearner("hunters", mf.DQN().network(spaces, mf.MLP((8,)), 0), mf.DQN().losses(spaces), **settings)


def updates_of(made: Any, stored: ReplayBuffer, publish: int = 7, learn: Learn | None = None, count: int = 20) -> Any:
    operators = [(Learn() if learn is None else learn, made), (SyncTarget(3), made), (Publish(publish), made)]
    calls = [stage_call(Draw(16), stored, is_source=True), *(stage_call(*pair) for pair in operators)]
    outputs, times = run_chain([*calls, stage_call(Reprioritize(), stored)], [None] * count)
    assert [each.rows for each in times] == [16 * count] * 5
    return outputs


@pytest.mark.parametrize("publish", [1, 7, 100])
@pytest.mark.parametrize("sampling", [Uniform(), Prioritized()], ids=["uniform", "prioritized"])
def test_a_plan_that_runs_ahead_draws_and_publishes_as_one_that_does_not(publish: int, sampling: Any) -> None:
    ahead, eager, stored, others = drawn_learner(), drawn_learner(False), replay(sampling), replay(sampling)
    reports, expected = (updates_of(*pair, publish) for pair in ((ahead, stored), (eager, others)))
    assert_same(ahead, eager, reports, expected)
    for report, other in zip(reports, expected, strict=True):
        np.testing.assert_array_equal(report.row_ids, other.row_ids)
    np.testing.assert_array_equal(stored.draw(50).obs, others.draw(50).obs)
    name = next(iter(ahead.published))
    np.testing.assert_allclose(ahead.published[name].flat, eager.published[name].flat, rtol=1e-3, atol=1e-4)


class Noting(Learn):
    """A stage of a user's own."""

    def __call__(self, batch: Any, learner: Any) -> Update:
        seen.append("learn")
        return super().__call__(batch, learner)


def test_learn_runs_ahead_up_to_a_publication_and_only_where_it_knows_all_stages() -> None:
    made, stored = drawn_learner(), replay()

    def ahead(learn: Learn, *after: Any) -> int:
        return learn.ahead(made, [stage_call(operator, made) for operator in after])

    assert ahead(Learn(), SyncTarget(3)) == STEPS_AHEAD
    assert ahead(Learn(), SyncTarget(3), Publish(5), Reprioritize()) == 5
    assert ahead(Learn(epochs=2), SyncTarget(3), Publish(5)) == 0
    assert ahead(Learn(minibatch=4), SyncTarget(3), Publish(5)) == 0
    assert ahead(Learn(), Publish(5)) == 0
    # One at a time has a program of its own.
    assert ahead(Learn(), SyncTarget(3), Publish(1)) == 0
    assert ahead(Learn(), SyncTarget(3), Publish(5), lambda update: update) == 0
    assert ahead(Noting(), SyncTarget(3), Publish(5)) == 0
    assert Learn().ahead(made, [stage_call(SyncTarget(3), drawn_learner())]) == 0
    updates_of(made, stored, count=3)
    assert ahead(Learn(), SyncTarget(3), Publish(7)) == 4
    seen.clear()
    updates_of(made, stored, learn=Noting(), count=4)
    assert seen == ["learn"] * 4
