"""Parts that learn by losses of their own, optimizers by name, noise, soft targets: against plain torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.batch import EstimatedBatch, Transitions
from marlflow.learner.learner import TorchLearner
from marlflow.learner.loss import LossTerms
from marlflow.learner.loss_groups import LossGroup, as_groups
from marlflow.learner.optimizer import Adam, Optimizer, TorchOptimizer
from marlflow.policy.normalized import NormalizedTorso

ROWS = 12


class Pair(nn.Module):
    """An actor and a critic of one number each, and another number that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(1, 1, bias=False)
        self.critic = nn.Linear(1, 1, bias=False)
        self.mean = nn.Parameter(torch.tensor([5.0]), requires_grad=False)
        with torch.no_grad():
            self.actor.weight.fill_(2.0)
            self.critic.weight.fill_(3.0)


class Product:
    """Half the square of actor times critic: each one's gradient depends on the other."""

    def __init__(self, name: str, noise_per_row: int = 0) -> None:
        self.name, self.noise_per_row, self.seen = name, noise_per_row, list[Any]()

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing here is scheduled."""

    def __call__(self, module: Pair, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        self.seen.append(minibatch.get("noise"))
        both = 0.5 * (module.actor.weight * module.critic.weight).square().sum() * minibatch["obs"].mean()
        return LossTerms(both, {self.name: both.detach()})


def batch(rows: int = ROWS) -> Transitions:
    ones = np.ones(rows, np.float32)
    return Transitions(ones[:, None], np.zeros(rows, np.int64), ones, ones, ones[:, None], ones, np.arange(rows))


def parts(every: int = 1, critic_rate: float | None = None) -> Sequence[LossGroup]:
    return (
        LossGroup("critic", lambda module: module.critic.parameters(), Product("critic"), critic_rate),
        LossGroup("actor", lambda module: module.actor.parameters(), Product("actor"), every=every),
    )


def learner(loss: Any, optimizer: Optimizer = TorchOptimizer(torch.optim.SGD), rate: float = 0.01) -> TorchLearner:
    return TorchLearner("p", Pair(), loss, trains_on=Transitions, learning_rate=rate, optimizer=optimizer, target=True)


def weights(one: TorchLearner) -> tuple[float, float]:
    return one.module.actor.weight.item(), one.module.critic.weight.item()


def test_each_part_sees_those_before_it_changed_and_changes_nothing_else() -> None:
    one, actor, critic = learner(parts()), 2.0, 3.0
    for _ in range(3):
        update = one.update(batch())
        critic -= 0.01 * actor**2 * critic
        actor -= 0.01 * critic**2 * actor
        assert weights(one) == pytest.approx((actor, critic), rel=1e-5)
    assert (update.updates, one.updates) == (1, 3)
    assert set(update.loss) == {"critic", "actor", "grad_norm"}
    assert float(one.module.mean) == 5.0


def test_a_part_may_learn_at_every_other_minibatch_over_updates_too() -> None:
    one, actor, critic = learner(parts(every=2)), 2.0, 3.0
    for turn in range(5):
        update = one.update(batch())
        critic -= 0.01 * actor**2 * critic
        actor -= 0.01 * critic**2 * actor if turn % 2 else 0.0
        assert weights(one) == pytest.approx((actor, critic), rel=1e-5)
        assert ("actor" in update.loss) == (turn % 2 == 1)
    both = one.update(batch(), epochs=1, minibatch_agent_steps=ROWS // 4)
    assert both.updates == 4
    assert {"actor", "critic"} <= set(both.loss)


def test_learning_rates_of_parts_and_their_schedules() -> None:
    one = learner(parts(critic_rate=0.5))
    assert [part.optimizer.learning_rate for part in one.parameters.groups] == [0.5, 0.01]
    one.set_schedule({"learning_rate": 0.1, "max_grad_norm": 7.0})
    assert [part.optimizer.learning_rate for part in one.parameters.groups] == [0.5, 0.1]
    assert [part.optimizer.max_grad_norm for part in one.parameters.groups] == [7.0, 7.0]
    one.set_schedule({"critic_learning_rate": 0.2})
    assert [part.optimizer.learning_rate for part in one.parameters.groups] == [0.2, 0.1]
    assert one.scheduled == {"learning_rate": 0.1, "max_grad_norm": 7.0, "critic_learning_rate": 0.2}


def test_parameters_of_one_loss_are_neighbors() -> None:
    class Four(Pair):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(1, 1)

    crossed = [
        LossGroup("first", lambda m: [m.critic.weight, m.other.bias], Product("first")),
        LossGroup("second", lambda m: [m.actor.weight, m.other.weight], Product("second")),
    ]
    with pytest.raises(ValueError, match="must be one submodule, or neighboring ones"):
        TorchLearner("p", Four(), crossed, trains_on=Transitions, learning_rate=1.0)


@pytest.mark.parametrize(
    ("optimizer", "plain"),
    [
        (Adam(0.8, 0.99, 1e-3), lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), eps=1e-3)),
        (Adam(weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        (TorchOptimizer(torch.optim.RMSprop, {"alpha": 0.9}), lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9)),
        (
            TorchOptimizer(torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        ),
        (TorchOptimizer(torch.optim.NAdam), lambda p: torch.optim.NAdam(p, lr=0.01)),
    ],
    ids=["adam", "adamw", "rmsprop", "sgd", "nadam"],
)
def test_optimizers_are_torchs_and_go_on_from_what_was_kept(optimizer: Optimizer, plain: Any) -> None:
    one, module, other = learner(Product("both"), optimizer), Pair(), None
    reference = plain([module.actor.weight, module.critic.weight])
    for turn in range(6):
        one.update(batch())
        reference.zero_grad()
        (0.5 * (module.actor.weight * module.critic.weight).square().sum()).backward()
        reference.step()
        expected = module.actor.weight.item(), module.critic.weight.item()
        assert weights(one) == pytest.approx(expected, rel=1e-5)
        if other is not None:
            other.update(batch())
            assert weights(other) == weights(one)
        if turn in (0, 2):
            other = learner(Product("both"), optimizer)
            other.load_state(from_bytes(to_bytes(one.state())))
    assert float(one.module.mean) == 5.0  # no optimizer may step or decay a running statistic


def test_gradients_are_clipped_for_every_optimizer() -> None:
    sgd = TorchLearner(
        "p",
        Pair(),
        Product("both"),
        trains_on=Transitions,
        learning_rate=1.0,
        max_grad_norm=0.5,
        optimizer=TorchOptimizer(torch.optim.SGD),
    )
    update = sgd.update(batch())
    norm = np.hypot(2.0 * 9.0, 4.0 * 3.0)
    assert update.loss["grad_norm"] == pytest.approx(norm)
    assert weights(sgd) == pytest.approx((2.0 - 0.5 * 18.0 / norm, 3.0 - 0.5 * 12.0 / norm))


@pytest.mark.parametrize(
    ("make", "settings", "problem"),
    [
        (torch.optim.RMSprop, {"alhpa": 0.9}, "RMSprop does not take these values: .*'alhpa'"),
        (torch.optim.SGD, {"momentum": -1.0}, "SGD does not take"),
        (torch.optim.LBFGS, {}, "LBFGS does not step each number by itself; take Adam, RMSprop or SGD"),
    ],
)
def test_optimizers_that_cannot_be(make: Any, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigInvalid, match=problem):
        TorchOptimizer(make, settings)


def test_noise_is_the_learners_own_and_goes_on_after_a_resume() -> None:
    loss = Product("both", noise_per_row=3)
    one = TorchLearner("p", Pair(), loss, trains_on=Transitions, learning_rate=0.0, seed=4)
    one.update(batch(), epochs=2, minibatch_agent_steps=6)
    assert [tuple(noise.shape) for noise in loss.seen] == [(6, 3)] * 4
    drawn = torch.cat(loss.seen)
    assert len(drawn.unique()) == drawn.numel()
    again = Product("both", noise_per_row=3)
    other = TorchLearner("p", Pair(), again, trains_on=Transitions, learning_rate=0.0, seed=5)
    other.load_state(one.state())
    one.update(batch())
    other.update(batch())
    assert torch.equal(loss.seen[-1], again.seen[-1])


def test_soft_targets() -> None:
    one = learner(Product("both"))
    one.update(batch())
    actor, _ = weights(one)
    one.sync_target(0.25)
    assert float(one.parameters.target_module.actor.weight) == pytest.approx(2.0 + 0.25 * (actor - 2.0))
    one.sync_target()
    assert float(one.parameters.target_module.actor.weight) == actor


def test_gradients_found_by_one_are_applied_by_another() -> None:
    alone, finder, applier = (learner(Product("both"), Adam()) for _ in range(3))
    for _ in range(3):
        finder.parameters.flat.load(applier.parameters.flat.vector)
        expected = alone.update(batch())
        found = applier.apply(finder.gradients(batch()))
        assert weights(applier) == weights(alone)
        assert (found.updates, found.rows, found.loss) == (expected.updates, expected.rows, expected.loss)
    empty = applier.apply(finder.gradients(batch(0)))
    assert (empty.updates, empty.rows, weights(applier)) == (0, 0, weights(alone))
    with pytest.raises(TypeError, match="several losses"):
        learner(parts()).gradients(batch())


class Breaking(Product):
    """Its gradient is not finite at the turns `breaks`."""

    def __init__(self, name: str, breaks: Sequence[int]) -> None:
        super().__init__(name)
        self.breaks = breaks

    def __call__(self, module: Pair, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        found = super().__call__(module, target_module, minibatch)
        factor = float("nan") if len(self.seen) - 1 in self.breaks else 1.0
        return LossTerms(found.total * factor, found.terms)


def test_a_step_that_is_not_finite_is_skipped_by_all_parts_and_counts_for_none() -> None:
    actor = Product("actor")
    one = learner(
        (
            LossGroup("critic", lambda module: module.critic.parameters(), Breaking("critic", breaks=(1, 2))),
            LossGroup("actor", lambda module: module.actor.parameters(), actor, every=2),
        )
    )
    with np.errstate(invalid="ignore"):
        found = [one.update(batch()) for _ in range(6)]
    assert [update.updates for update in found] == [1, 0, 0, 1, 1, 1]
    assert [update.updates_skipped for update in found] == [0, 1, 1, 0, 0, 0]
    assert one.updates == 4
    assert len(actor.seen) == 2  # at every other step that was taken


def test_what_does_not_learn_reaches_a_soft_target_at_once() -> None:
    one = learner(Product("both"))
    one.update(batch())
    with torch.no_grad():
        one.module.mean.fill_(9.0)
    one.sync_target(0.25)
    assert float(one.parameters.target_module.mean) == 9.0
    assert float(one.parameters.target_module.actor.weight) == pytest.approx(2.0 + 0.25 * (weights(one)[0] - 2.0))


# -- groups trained apart -------------------------------------------------------------------------------------------

APART = {"critic": Transitions, "actor": EstimatedBatch}


def separable(losses: Sequence[LossGroup], seed: int = 0) -> TorchLearner:
    return TorchLearner(
        "p", Pair(), losses, trains_on=Transitions, learning_rate=0.01, target=True, loss_groups=APART, seed=seed
    )


@settings(max_examples=25)
@given(turns=st.lists(st.sampled_from(["actor", "critic", "both"]), max_size=8), kept=st.integers(0, 8))
def test_groups_trained_apart_are_those_of_a_plain_loop_and_resume_exactly(turns: list[str], kept: int) -> None:
    one, module = separable(parts()), Pair()
    own = {
        "critic": torch.optim.Adam([module.critic.weight], 0.01),
        "actor": torch.optim.Adam([module.actor.weight], 0.01),
    }
    for turn, which in enumerate(turns):
        if turn == kept:
            saved, one = one.state(), separable(parts(), seed=9)
            one.load_state(from_bytes(to_bytes(saved)))
        update = one.update(batch(), groups=None if which == "both" else (which,))
        names = ["critic", "actor"] if which == "both" else [which]
        assert set(update.loss) == {*names, "grad_norm"}
        for name in names:
            own[name].zero_grad()
            (0.5 * (module.actor.weight * module.critic.weight).square().sum()).backward()
            own[name].step()
        assert weights(one) == pytest.approx((module.actor.weight.item(), module.critic.weight.item()), rel=1e-5)
        assert one.updates == turn + 1
    published = one.publish()["p"]
    assert (one.version, published.flat.tolist()) == (1, [one.module.actor.weight.item()])


def test_noise_is_drawn_for_the_groups_that_use_it_alone() -> None:
    actor, critic = Product("actor"), Product("critic", noise_per_row=2)
    one = separable(
        (
            LossGroup("critic", lambda module: module.critic.parameters(), critic),
            LossGroup("actor", lambda module: module.actor.parameters(), actor),
        )
    )
    before = one.loop.generator.get_state()
    one.update(batch(), groups=("actor",))
    assert torch.equal(one.loop.generator.get_state(), before)
    assert actor.seen == [None]
    one.update(batch(), groups=("critic",))
    assert tuple(critic.seen[0].shape) == (ROWS, 2)


def test_groups_that_cannot_be_trained_apart() -> None:
    with pytest.raises(
        InvalidInput, match=r"learner 'p' has no loss groups \['critics'\] to train apart, but critic, "
    ):
        separable(parts()).update(batch(), groups=("critics",))
    with pytest.raises(InvalidInput, match="to train apart, but none"):
        learner(parts()).update(batch(), groups=("critic",))
    with pytest.raises(TypeError, match="cannot train the delayed loss group 'actor' apart"):
        separable(parts(every=2))
    with pytest.raises(TypeError, match="declares the loss groups critic, actor, and has all too"):
        separable(as_groups(Product("all")))


class Normalized(Pair):
    """Each part has running statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = (nn.Sequential(NormalizedTorso(part, 1)) for part in (self.actor, self.critic))


class Through:
    """The mean of one part's outputs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing here is scheduled."""

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        mean = getattr(module, self.name)(minibatch["obs"]).mean()
        return LossTerms(mean, {self.name: mean.detach()})


def test_running_statistics_are_those_of_the_groups_trained() -> None:
    groups = [
        LossGroup("critic", lambda module: module.critic.parameters(), Through("critic")),
        LossGroup("actor", lambda module: module.actor.parameters(), Through("actor")),
    ]
    one = TorchLearner("p", Normalized(), groups, trains_on=Transitions, learning_rate=0.1, loss_groups=APART)

    def statistics(part: str) -> list[list[float]]:
        return [p.flatten().tolist() for p in getattr(one.module, part).parameters() if not p.requires_grad]

    before = statistics("actor"), statistics("critic")
    one.update(batch(), groups=("actor",))
    assert statistics("actor") != before[0]
    assert statistics("critic") == before[1]
