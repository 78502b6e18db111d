"""Compiled updates against those by autograd: the same parameters, terms, counts and priorities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.dqn_loss import DQNLoss
from marlflow.base.spaces import Spaces
from marlflow.batches.sequences import Sequences
from marlflow.compiled import xla
from marlflow.learner import compiled_updates
from marlflow.learner.compiled_updates import AUTO_AFTER
from marlflow.learner.compute import Compute
from tests.algorithms.loss_cases import CASES, Case, minibatches
from tests.learner.batches import Columns, ppo_rows

SPACES = Spaces(gym.Box(-1.0, 1.0, (4,)), gym.Discrete(3))
PPO = mf.PPO(max_grad_norm=0.05)


def learner(
    compile: Any, loss: Any = None, optimizer: mf.Optimizer = mf.Adam(eps=1e-5), **settings: Any
) -> mf.TorchLearner:
    """PPO's with small layers, and a loss of one's own."""
    return mf.TorchLearner(
        "hunters",
        PPO.network(SPACES, mf.MLP((8, 8)), 0),
        PPO.losses(SPACES) if loss is None else loss,
        trains_on=Columns,
        learning_rate=3e-3,
        max_grad_norm=0.05,
        optimizer=optimizer,
        compile=compile,
        **settings,
    )


def assert_same(compiled: mf.TorchLearner, eager: mf.TorchLearner, report: mf.Update, expected: mf.Update) -> None:
    state, other = compiled.state(), eager.state()
    for name in state.keys() - {"generator"}:
        np.testing.assert_allclose(state[name], other[name], rtol=1e-4, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(state["generator"], other["generator"])
    assert report.loss == pytest.approx(expected.loss, rel=1e-3, abs=1e-5)
    assert list(report.loss) == list(expected.loss)
    counts = ("rows", "updates", "updates_skipped", "minibatches_left")
    assert [getattr(report, name) for name in counts] == [getattr(expected, name) for name in counts]


@pytest.mark.parametrize(("rows", "minibatch"), [(64, None), (70, 16), (61, 60), (5, None), (9, 2)])
def test_rows_that_divide_unevenly_are_learned_from_as_by_autograd(rows: int, minibatch: int | None) -> None:
    compiled, eager = learner(True), learner(False)
    for number in range(2):
        batch = ppo_rows(rows + number, seed=number)
        reports = [one.update(batch, 3, minibatch) for one in (compiled, eager)]
        assert_same(compiled, eager, *reports)
    assert not reports[0].note


@pytest.mark.parametrize(("minibatch", "calls"), [(16, 1), (None, 1), (1, 3)])
def test_all_epochs_of_an_update_are_few_calls(
    minibatch: int | None, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, counts = learner(True), list[int]()
    compiled.update(ppo_rows(64), 3, minibatch)
    monkeypatch.setattr(compiled_updates, "_CALL_S", 60.0)
    call = compiled_updates._Program._call
    monkeypatch.setattr(
        compiled_updates._Program, "_call", lambda self, *given: counts.append(len(given[2])) or call(self, *given)
    )
    report = compiled.update(ppo_rows(64, seed=1), 3, minibatch)
    # Calls of at most 64 minibatches each.
    assert len(counts) == calls
    assert report.updates == sum(counts) == 3 * (64 // (minibatch or 64))


def test_sizes_that_are_nearly_equal_share_a_program() -> None:
    compiled = learner(True)
    compiles = [compiled.update(ppo_rows(rows), 1, 128).compiles for rows in (2_000, 2_010, 2_047)]
    # The compilation of the trial before the first use, and no other.
    assert compiles == [1, 0, 0]


def sequences(rows: int, mean_length: float, seed: int) -> Sequences:
    """About `rows` rows in sequences of up to 16."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.poisson(mean_length, max(1, round(rows / mean_length))), 1, 16)
    valid = np.arange(16) < lengths[:, None]
    flat = {**ppo_rows(valid.size, seed=seed).columns, "version": np.zeros(valid.size)}
    columns = {name: column.reshape(*valid.shape, *column.shape[1:]) for name, column in flat.items()}
    for column in columns.values():
        column[~valid] = 0
    memory = random.standard_normal((len(lengths), 8)).astype(np.float32)
    return Sequences(columns, valid, memory, np.zeros(len(lengths), bool))


def test_sequences_of_any_lengths_are_learned_from_as_by_autograd_by_a_handful_of_programs() -> None:
    algorithm, settings = mf.RecurrentPPO(minibatch_agent_steps=64), {"trains_on": Sequences, "learning_rate": 1e-3}
    compiled, eager = (
        mf.TorchLearner(
            "hunters",
            algorithm.network(SPACES, mf.GRU(8, (8,)), 0),
            algorithm.losses(SPACES),
            optimizer=mf.Adam(eps=1e-5),
            compile=compile,
            **settings,  # type: ignore[arg-type]
        )
        for compile in (True, False)
    )
    compiles = 0
    # From 4 to 80 sequences in each of 9 to 11 minibatches.
    for seed, mean_length in enumerate(np.geomspace(16, 1, 20)):
        reports = [one.update(sequences(640, mean_length, seed), 1, 64) for one in (compiled, eager)]
        assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-3, abs=1e-5)
        assert not reports[0].note
        compiles += reports[0].compiles
    assert_same(compiled, eager, *reports)
    assert compiles == 4


def test_a_learner_that_compiles_many_programs_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_updates, "MANY_PROGRAMS", 2)
    compiled = learner(True)
    notes = [compiled.update(ppo_rows(rows), 1).note for rows in (8, 16, 24, 32)]
    assert [bool(note) for note in notes] == [False, False, True, False]
    assert notes[2].startswith("3 programs were compiled, which took ")


@pytest.mark.parametrize(
    "optimizer",
    [
        mf.Adam(weight_decay=0.1),
        mf.TorchOptimizer(torch.optim.SGD),
        mf.TorchOptimizer(torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        mf.TorchOptimizer(torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
        mf.TorchOptimizer(torch.optim.RMSprop, {"alpha": 0.9}),
        mf.TorchOptimizer(torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
    ids=["adamw", "sgd", "momentum", "dampened", "rmsprop", "torch-adamw"],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_optimizers_step_as_torchs_do(optimizer: mf.Optimizer, is_first: bool) -> None:
    compiled, eager = learner("auto", optimizer=optimizer), learner(False, optimizer=optimizer)
    is_dampened = isinstance(optimizer, mf.TorchOptimizer) and "dampening" in optimizer.settings
    for one in (compiled, eager):
        # Torch makes an optimizer's state at its first step, which is not dampened.
        if not is_first or is_dampened:
            one.update(ppo_rows(40), 1)
        one.parameters.updates = AUTO_AFTER
    reports = [one.update(ppo_rows(96, seed=1), 5, 32) for one in (compiled, eager)]
    assert reports[0].compiles
    assert_same(compiled, eager, *reports)


def test_an_optimizer_without_a_counterpart_is_said_once() -> None:
    compiled = learner("auto", optimizer=mf.TorchOptimizer(torch.optim.Adagrad))
    compiled.parameters.updates = AUTO_AFTER
    notes = [compiled.update(ppo_rows(40), 1).note for _ in range(2)]
    assert notes == ["updates are not compiled: its optimizer is none of Adam, AdamW, SGD and RMSprop as compiled", ""]


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    rows = ppo_rows(64)
    advantage = rows.columns["advantage"].copy()
    advantage[7] = np.inf
    broken = Columns({**rows.columns, "advantage": advantage})
    compiled, eager = learner(True), learner(False)
    reports = [one.update(broken, 2, 16) for one in (compiled, eager)]
    assert reports[0].updates_skipped == 2
    assert_same(compiled, eager, *reports)


def test_scheduled_settings_are_inputs_of_the_program() -> None:
    compiled, eager = learner(True), learner(False)
    for step in range(3):
        scheduled = {
            "learning_rate": 1e-3 * (step + 1),
            "clip_range": 0.05 * (step + 1),
            "entropy_coefficient": 0.1 * step,
            "max_grad_norm": 0.5 / (step + 1),
        }
        for one in (compiled, eager):
            one.set_schedule(scheduled)
        reports = [one.update(ppo_rows(64), 2, 16) for one in (compiled, eager)]
        assert_same(compiled, eager, *reports)
        assert reports[0].compiles == (step == 0)
    assert compiled.parameters.groups[0].loss.coefficients == mf.Coefficients(0.15000000000000002, 0.5, 0.2)  # type: ignore[attr-defined]


class NormalizedLoss(mf.PPOLoss):
    """With advantages that are normalized in each minibatch, as CleanRL has them."""

    def of_actor(self, actor: Any, outputs: Tensor, rows: Mapping[str, Tensor], mean: Any) -> mf.LossTerms:
        advantage = rows["advantage"]
        normalized = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return super().of_actor(actor, outputs, {**rows, "advantage": normalized}, mean)


def entropy_floor(module: Any, minibatch: Mapping[str, Tensor]) -> Tensor:
    _, entropy = module.actor.log_prob_and_entropy(module.actor(minibatch["obs"]), minibatch["action"], None)
    floor: Tensor = torch.relu(1.2 - entropy).mean()
    return floor


def test_losses_and_extra_losses_of_a_users_own_are_compiled_too() -> None:
    extra = {"floor": mf.ExtraLoss(entropy_floor, 0.3)}
    compiled, eager = (learner(one, NormalizedLoss(mf.Coefficients()), extra_losses=extra) for one in (True, False))
    reports = [one.update(ppo_rows(70), 3, 16) for one in (compiled, eager)]
    assert reports[0].loss["floor"] > 0
    assert_same(compiled, eager, *reports)


def weight_penalty(module: Any, minibatch: Mapping[str, Tensor]) -> Tensor:
    penalty: Tensor = module.actor.torso.layers[0].weight.square().mean()
    return penalty


def test_parameters_of_the_size_of_a_padded_minibatch_are_not_taken_for_rows() -> None:
    extra = {"penalty": mf.ExtraLoss(weight_penalty, 3.0)}
    compiled, eager = (learner(one, extra_losses=extra) for one in ("auto", False))
    for one in (compiled, eager):
        one.parameters.updates = AUTO_AFTER
    assert not compiled.update(ppo_rows(70), 1).note
    eager.update(ppo_rows(70), 1)
    # A minibatch of 6 rows is padded to 8, the size of the layers: here autograd computes it.
    reports = [one.update(ppo_rows(6, seed=1), 2) for one in (compiled, eager)]
    assert "differs from autograd's" in reports[0].note
    assert_same(compiled, eager, *reports)


def test_a_size_that_autograd_computes_leaves_others_compiled_so_that_a_resume_is_exact() -> None:
    extra = {"penalty": mf.ExtraLoss(weight_penalty, 3.0)}
    whole, resumed = (learner("auto", extra_losses=extra) for _ in range(2))
    whole.parameters.updates = AUTO_AFTER
    # With 6 rows, it is computed by autograd, as above.
    assert whole.update(ppo_rows(6), 2).note
    resumed.load_state(whole.state())
    reports = [one.update(ppo_rows(70, seed=1), 2) for one in (whole, resumed)]
    assert [report.compiles for report in reports] == [1, 1]
    np.testing.assert_array_equal(whole.state()["vector"], resumed.state()["vector"])


def test_a_minibatch_that_is_not_finite_does_not_verify_a_program() -> None:
    rows = ppo_rows(6)
    broken = Columns({**rows.columns, "advantage": np.full(6, np.inf, np.float32)})
    extra = {"penalty": mf.ExtraLoss(weight_penalty, 3.0)}
    compiled = learner("auto", extra_losses=extra)
    compiled.parameters.updates = AUTO_AFTER
    notes = [compiled.update(batch, 1).note for batch in (broken, rows)]
    assert notes[0] == ""
    assert "differs from autograd's" in notes[1]


def test_minibatches_after_one_that_is_not_finite_are_verified_before_they_are_learned_from() -> None:
    rows, extra = ppo_rows(12), {"penalty": mf.ExtraLoss(weight_penalty, 3.0)}
    order = torch.randperm(12, generator=learner(False).loop.generator)
    # The row is in the first minibatch, and in the second.
    for row in (order[0], order[-1]):
        advantage = rows.columns["advantage"].copy()
        advantage[row] = np.inf
        batch = Columns({**rows.columns, "advantage": advantage})
        compiled, eager = (learner(one, extra_losses=extra) for one in ("auto", False))
        for one in (compiled, eager):
            one.parameters.updates = AUTO_AFTER
        reports = [one.update(batch, 1, 6) for one in (compiled, eager)]
        assert (reports[0].updates, reports[0].updates_skipped) == (1, 1)
        assert "differs from autograd's" in reports[0].note
        assert_same(compiled, eager, *reports)


class Printing(mf.PPOLoss):
    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        return terms if float(terms.total.detach()) > -1e9 else terms._replace(total=terms.total * 2.0)


class Remembering(mf.PPOLoss):
    kept: Any = 0.0

    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        self.kept = terms.total
        return terms


class Counting(mf.PPOLoss):
    calls = 0

    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        self.calls += 1
        return super().__call__(module, target_module, minibatch)


class Around(mf.PPOLoss):
    """Computed by a loss inside, as a loss of one's own is that adds to a shipped one."""

    def __init__(self, coefficients: mf.Coefficients) -> None:
        super().__init__(coefficients)
        self.inner = Counting(coefficients)

    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        return self.inner(module, target_module, minibatch)


class Warm:
    """A term of one's own that counts minibatches."""

    def __init__(self) -> None:
        self.calls = 0

    def term(self, module: Any, minibatch: Mapping[str, Tensor]) -> Tensor:
        self.calls += 1
        return self.calls * module.actor(minibatch["obs"]).square().mean()

    __call__ = term


@pytest.mark.parametrize(
    "make",
    [Warm, lambda: Warm().term, lambda: partial(Warm().term), lambda: mf.ExtraLoss(Warm(), coefficient=0.5)],
    ids=["object", "method", "partial", "ExtraLoss"],
)
def test_what_an_extra_loss_counts_is_no_constant_however_it_is_given(make: Any) -> None:
    compiled, eager = (learner(one, extra_losses={"warm": make()}) for one in ("auto", False))
    for one in (compiled, eager):
        one.parameters.updates = AUTO_AFTER
    reports = [one.update(ppo_rows(70), 2, 16) for one in (compiled, eager)]
    assert "Warm changes its own calls with each minibatch" in reports[0].note
    compiled.update(ppo_rows(70), 2, 16)
    eager.update(ppo_rows(70), 2, 16)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 5.0


class Straight(mf.PPOLoss):
    """With a gradient that is not that of its value."""

    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        total: Any = _Backward.apply(terms.total)  # type: ignore[no-untyped-call]
        return terms._replace(total=total)


class ByNumpy(mf.PPOLoss):
    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        assert terms.total is not None
        return terms._replace(total=terms.total * float(np.abs(minibatch["obs"].numpy()).max() > 0))


class Differentiating(mf.PPOLoss):
    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        assert terms.total is not None
        (gradient,) = torch.autograd.grad(terms.total, module.actor.torso.layers[0].weight, create_graph=True)
        return terms._replace(total=terms.total + gradient.square().sum())


class Broken(mf.PPOLoss):
    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        if minibatch["obs"].device.type != "cpu":
            raise RuntimeError("only eager tensors here")
        return super().__call__(module, target_module, minibatch)


class CountingRows(mf.PPOLoss):
    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        return terms._replace(total=terms.total * len(minibatch["obs"]))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Printing, "float() asks for a tensor's numbers, on which the code then depends: return terms if float("),
        (Remembering, "Remembering keeps kept from one minibatch to the next"),
        (Counting, "Counting changes its own calls with each minibatch"),
        (Around, "Counting changes its own calls with each minibatch"),
        (Straight, "differs from autograd's"),
        (ByNumpy, "numpy() asks for a tensor's numbers"),
        (Differentiating, "grad() differentiates within the loss: (gradient,) = torch.autograd.grad("),
        (Broken, "RuntimeError while it was compiled: only eager tensors here"),
        (CountingRows, "differs from autograd's"),
    ],
)
def test_a_loss_that_cannot_be_compiled_is_computed_by_autograd_and_said(kind: type, says: str) -> None:
    compiled, eager = learner("auto", kind(mf.Coefficients())), learner(False, kind(mf.Coefficients()))
    for one in (compiled, eager):
        one.parameters.updates = AUTO_AFTER
    reports = [one.update(ppo_rows(70), 2, 16) for one in (compiled, eager)]
    assert says in reports[0].note
    assert compiled.update(ppo_rows(70), 2, 16).note == ""
    eager.update(ppo_rows(70), 2, 16)
    np.testing.assert_array_equal(compiled.state()["vector"], eager.state()["vector"])
    with pytest.raises(mf.InvalidInput, match="compile=true, and "):
        learner(True, kind(mf.Coefficients())).update(ppo_rows(70), 2, 16)


class Adaptive(mf.PPOLoss):
    """With a penalty whose coefficient others change."""

    beta = 0.2

    def __init__(self, coefficients: mf.Coefficients) -> None:
        super().__init__(coefficients)
        self.beta = 0.2

    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        assert terms.total is not None
        penalty = self.beta * module.actor(minibatch["obs"]).square().mean()
        return terms._replace(total=terms.total + penalty)


@pytest.mark.parametrize("number", [float, np.float32])
def test_a_number_of_a_loss_that_changes_between_updates_is_no_constant(number: Any) -> None:
    losses = [Adaptive(mf.Coefficients()) for _ in range(2)]
    for loss in losses:
        loss.beta = number(0.25)
    compiled, eager = learner("auto", losses[0]), learner(False, losses[1])
    for one in (compiled, eager):
        one.parameters.updates = AUTO_AFTER
    assert compiled.update(ppo_rows(70), 2, 16).note == ""
    eager.load_state(compiled.state())
    for loss in losses:
        loss.beta = number(5.0)
    reports = [one.update(ppo_rows(70), 2, 16) for one in (compiled, eager)]
    assert reports[0].note == "updates are not compiled: Adaptive changes its own beta from one update to the next"
    np.testing.assert_array_equal(compiled.state()["vector"], eager.state()["vector"])


def _clamping(parameters: Any, lr: float) -> torch.optim.Optimizer:
    adam = torch.optim.Adam(parameters, lr=lr)
    (parameter,) = adam.param_groups[0]["params"]
    adam.register_step_post_hook(lambda *_: parameter.data.clamp_(-0.05, 0.05))
    return adam


def _patched(parameters: Any, lr: float) -> torch.optim.Optimizer:
    adam = torch.optim.Adam(parameters, lr=lr)
    (parameter,), step = adam.param_groups[0]["params"], adam.step

    def clamped() -> None:
        step()
        parameter.data.clamp_(-0.05, 0.05)

    adam.step = clamped  # type: ignore[method-assign]
    return adam


@pytest.mark.parametrize("kind", [_clamping, _patched])
def test_an_optimizer_whose_step_does_more_is_not_compiled(kind: Any) -> None:
    compiled = learner("auto", optimizer=mf.TorchOptimizer(kind))
    compiled.parameters.updates = AUTO_AFTER
    report = compiled.update(ppo_rows(64), 1)
    assert "updates are not compiled: its optimizer is none of" in report.note
    assert np.abs(compiled.state()["vector"]).max() <= np.float32(0.05)


def test_auto_compiles_by_the_number_of_steps_alone_so_that_a_resume_is_exact() -> None:
    whole = learner("auto")
    assert whole.update(ppo_rows(64), 1, 16).compiles == 0
    whole.parameters.updates = AUTO_AFTER - 4
    assert whole.update(ppo_rows(64), 1, 16).compiles == 0
    kept = whole.state()
    assert whole.update(ppo_rows(64), 1, 16).compiles == 1
    resumed = learner("auto")
    resumed.load_state(kept)
    resumed.update(ppo_rows(64), 1, 16)
    np.testing.assert_array_equal(resumed.state()["vector"], whole.state()["vector"])


@dataclass
class After:
    """Passes at the n-th question."""

    left: int

    def has_passed(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_an_update_ends_between_two_calls_and_counts_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = learner(True)
    compiled.update(ppo_rows(64), 1, 2)
    # Calls of one minibatch each.
    monkeypatch.setattr(compiled_updates, "_CALL_S", 0.0)
    before = compiled.updates
    compiled.loop.limit = After(5)
    report = compiled.update(ppo_rows(64), 2, 2)
    assert (report.updates, report.minibatches_left) == (5, 59)
    assert compiled.updates == before + 5


def test_without_jax_or_a_cache_folder_training_goes_on_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "cache_problem", lambda: "compiled programs are not kept for the next run: read-only")
    report = learner(True).update(ppo_rows(64), 1)
    assert report.note == "compiled programs are not kept for the next run: read-only"
    monkeypatch.setattr(xla, "problem", lambda: "jax cannot be imported (No module named 'jax')")
    compiled = learner("auto")
    compiled.parameters.updates = AUTO_AFTER
    report = compiled.update(ppo_rows(64), 1)
    assert report.note == "updates are not compiled: jax cannot be imported (No module named 'jax')"
    assert report.updates == 1


def test_on_a_gpu_or_in_bfloat16_updates_are_not_compiled_and_true_is_refused() -> None:
    compute = Compute(precision="bfloat16")
    with pytest.raises(mf.InvalidInput, match="compile=true, and updates are compiled in float32 only"):
        learner(True, compute=compute)
    compiled = learner("auto", compute=compute)
    compiled.parameters.updates = AUTO_AFTER
    reports = [compiled.update(ppo_rows(64), 1) for _ in range(2)]
    reason = "updates are compiled in float32 only, and this learner is in bfloat16"
    assert [(report.updates, report.note) for report in reports] == [
        (1, f"updates are not compiled: {reason}"),
        (1, ""),
    ]


class Prioritized(DQNLoss):
    """DQN's, with priorities made of the errors `e` [N]."""

    def of(self, e: Tensor) -> Tensor:
        raise NotImplementedError

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        assert terms.priorities is not None
        return terms._replace(priorities=self.of(terms.priorities))


class Relative(Prioritized):
    def of(self, e: Tensor) -> Tensor:
        return e / e.sum() + e / e.max()


class Softmax(Prioritized):
    def of(self, e: Tensor) -> Tensor:
        return torch.softmax(e, 0)


class ByPlace(Prioritized):
    def of(self, e: Tensor) -> Tensor:
        return e / len(e)


class Backwards(Prioritized):
    def of(self, e: Tensor) -> Tensor:
        return e.flip(0)


def test_priorities_are_those_of_the_rows() -> None:
    random = np.random.default_rng(0)
    rows = 21

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    columns = {
        "obs": normal(rows, 4),
        "action": random.integers(0, 3, rows),
        "reward": normal(rows),
        "discount": np.full(rows, 0.9, np.float32),
        "weight": random.random(rows).astype(np.float32),
        "next_obs": normal(rows, 4),
    }

    def updated(compile: bool, loss: DQNLoss) -> mf.Update:
        settings: Any = {"trains_on": Columns, "learning_rate": 1e-3, "target": True, "compile": compile}
        made = mf.TorchLearner("hunters", mf.DQN().network(SPACES, mf.MLP((8,)), 0), loss, **settings)
        return made.update(Columns(columns), 2, 5)

    for kind in (DQNLoss, Relative):
        found = [updated(compile, kind()).priorities for compile in (True, False)]
        assert found[0] is not None
        np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
    for kind in (Softmax, ByPlace, Backwards):
        with pytest.raises(mf.InvalidInput, match="compile=true, and the priorities differ from autograd's"):
            updated(True, kind())


def _by(case: Case, compile: Any) -> mf.TorchLearner:
    return case.spec(replace(case.algorithm, compile=compile)).learner()  # type: ignore[type-var]


def turns(case: Case, learner: mf.TorchLearner) -> Iterator[tuple[Columns, dict[str, Any]]]:
    """The batches that the learner trains on in turn, and the arguments of `update` for each."""
    batches = {
        group: Columns({name: column.numpy() for name, column in made.items() if name != "noise"})
        for group, made in minibatches(case).items()
    }
    if learner.loss_groups:
        yield from ((batches[group], {"groups": [group]}) for group in learner.loss_groups)
    elif case.algorithm.name == "happo" and case.policies > 1:
        yield from ((batches[f"actor {policy}"], {"policy": policy}) for policy in learner.published)
    else:
        yield next(iter(batches.values())), {}


# MAML differentiates within its loss.
@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.algorithm.name != "maml"], ids=str)
def test_every_shipped_loss_and_network_learns_compiled_what_it_does_by_autograd(case: Case) -> None:
    compiled, eager = _by(case, True), _by(case, False)
    for round in range(3):
        for batch, only in turns(case, eager):
            reports = [one.update(batch, 2, **only) for one in (compiled, eager)]
            assert not reports[0].note
            assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-3, abs=1e-5)
            if reports[1].priorities is not None:
                assert reports[0].priorities is not None
                np.testing.assert_allclose(reports[0].priorities, reports[1].priorities, rtol=1e-3, atol=1e-4)
        for one in (compiled, eager):
            if one.parameters.target_module is not None:
                one.sync_target(0.1)
        for group, other in zip(compiled.parameters.groups, eager.parameters.groups, strict=True):
            if round == 0:
                moments = [one.optimizer.state()["moment_1"] for one in (group, other)]
                np.testing.assert_allclose(*moments, rtol=1e-3, atol=1e-6, err_msg=group.name)
            # Adam divides by the size of a gradient, so that rounding errors of almost none become steps.
            difference = (compiled.parameters.flat.vector - eager.parameters.flat.vector)[group.span].abs()
            assert float((difference > 1e-5).float().mean()) <= 1e-3, group.name


@pytest.mark.slow
def test_a_transformer_learns_compiled_what_it_does_by_autograd() -> None:
    spaces = Spaces(gym.MultiDiscrete([7] * 5), gym.Discrete(3))
    tokens = np.random.default_rng(0).integers(0, 7, (70, 5))
    batch = Columns({**ppo_rows(70).columns, "obs": spaces.encoder().stack(list(tokens))})
    algorithm, model = mf.PPO(minibatch_agent_steps=16), mf.Transformer(num_layers=2, hidden_size=12, num_heads=3)
    settings: Any = {"trains_on": Columns, "learning_rate": 1e-3, "optimizer": mf.Adam(eps=1e-5)}
    compiled, eager = (
        mf.TorchLearner(
            "hunters", algorithm.network(spaces, model, 0), algorithm.losses(spaces), compile=compile, **settings
        )
        for compile in (True, False)
    )
    reports = [one.update(batch, 2, 16) for one in (compiled, eager)]
    assert reports[0].compiles == 1
    assert_same(compiled, eager, *reports)


def test_maml_says_why_it_is_not_compiled() -> None:
    case = next(case for case in CASES if case.algorithm.name == "maml")
    batch = Columns({name: column.numpy() for name, column in next(iter(minibatches(case).values())).items()})
    with pytest.raises(
        mf.InvalidInput, match=r"^compile=true, and vmap\(\) or another function of torch\.func transforms"
    ):
        _by(case, True).update(batch, 1)


def test_gradients_that_are_applied_apart_are_not_compiled_and_said_once() -> None:
    compiled = learner("auto")
    compiled.parameters.updates = AUTO_AFTER
    gradients = compiled.gradients(ppo_rows(64))
    notes = [compiled.apply(gradients).note for _ in range(2)]
    assert notes == ["updates are not compiled: gradients are computed by one stage, and applied by another", ""]
    with pytest.raises(mf.InvalidInput, match="compile=true, and gradients are computed by one stage"):
        learner(True).apply(gradients)
