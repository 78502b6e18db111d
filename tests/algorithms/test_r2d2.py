"""R2D2: its plan, refusals, and its loss on draws of its replay, compared with plain loops over steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.sequences import SequenceTransitions
from marlflow.learner.compute import ON_CPU
from tests.algorithms.parts import DISCRETE, MASKED, NUM_ACTIONS, gradient_by_differences, loss_and_gradient
from tests.replay.sequence_batches import put

MODEL = mf.GRU(hidden_size=3, encoder_sizes=(4,))
CONFIG = mf.R2D2(
    sequence_agent_steps=4,
    burn_in_agent_steps=3,
    batch_agent_steps=24,
    learning_starts_agent_steps=20,
    n_step=2,
    discount=0.8,
    squash_epsilon=0.1,
    priority_max_share=0.7,
    dueling=False,
)


def make_learner(config: mf.R2D2, spaces: Spaces = DISCRETE, seed: int = 0, model: Any = MODEL) -> mf.TorchLearner:
    return config.learner("hunter", {"hunter": mf.Member(spaces, model)}, seed, ON_CPU)


def _drawn(masked: bool) -> SequenceTransitions:
    """Sequences of every length, out of segments that end in every way."""
    generator = np.random.default_rng(5)
    length = np.array([9, 2, 1, 7])
    rows, count = int(length.sum()), len(length)
    columns: dict[str, Array] = {
        "obs": generator.normal(size=(rows, 2)).astype(np.float32),
        "action": generator.integers(0, NUM_ACTIONS, rows),
        "reward": generator.normal(size=rows),
        "version": np.arange(rows),
        "memory": generator.normal(size=(rows, 3)).astype(np.float32),
    }
    tables: dict[str, Array] = {
        "length": length,
        "terminated": np.array([True, False, True, False]),
        "truncated": np.array([False, True, False, False]),
        "bootstrap_obs": generator.normal(size=(count, 2)).astype(np.float32),
    }
    if masked:
        columns["action_mask"] = generator.random((rows, NUM_ACTIONS)) < 0.6
        tables["bootstrap_mask"] = generator.random((count, NUM_ACTIONS)) < 0.6
        for mask in (columns["action_mask"], tables["bootstrap_mask"]):
            mask[:, 1] |= ~mask.any(1)
    replay = CONFIG.replay("hunter", {}, seed=1)
    put(replay, mf.Batch(columns, tables))
    return replay.draw(40)


def _sigmoid(x: Array) -> Array:
    found: Array = 1.0 / (1.0 + np.exp(-x))
    return found


class Loops:
    """Action values of one step at a time, by the parameters as they are, in float64."""

    def __init__(self, module: Any) -> None:
        self.named = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in module.state_dict().items()}

    def _linear(self, layer: str, x: Array) -> Array:
        found: Array = self.named[f"{layer}.weight"] @ x + self.named[f"{layer}.bias"]
        return found

    def step(self, obs: Array, memory: Array) -> tuple[Array, Array]:
        seen = np.tanh(self._linear("actor.torso.encoder.layers.0", obs.astype(np.float64)))
        by_input, by_memory = self._linear("actor.torso.by_input", seen), self._linear("actor.torso.by_memory", memory)
        reset, keep = (_sigmoid(by_input[at : at + 3] + by_memory[at : at + 3]) for at in (0, 3))
        new = np.tanh(by_input[6:] + reset * by_memory[6:])
        after = (1.0 - keep) * new + keep * memory
        return self._linear("actor.head.head", after), after

    def renewed(self, drawn: SequenceTransitions, s: int) -> Array:
        """The memory after the burn-in."""
        memory = drawn.memory[s].astype(np.float64)
        for t in range(CONFIG.burn_in_agent_steps):
            if drawn.valid[s, t]:
                _, memory = self.step(drawn.obs[s, t], memory)
        return memory

    def values(self, drawn: SequenceTransitions, s: int, memory: Array) -> list[Array]:
        """The trained rows, and the row after them."""
        found = []
        for t in range(CONFIG.burn_in_agent_steps, drawn.obs.shape[1]):
            if drawn.valid[s, t]:
                q, memory = self.step(drawn.obs[s, t], memory)
                found.append(q)
        return found


def _squash(x: float) -> float:
    return float(np.sign(x) * (np.sqrt(abs(x) + 1.0) - 1.0) + 0.1 * x)


def _unsquash(y: float) -> float:
    root = (np.sqrt(1.0 + 0.4 * (abs(y) + 1.1)) - 1.0) / 0.2
    return float(np.sign(y) * (root**2 - 1.0))


def _targets(online: Loops, target: Loops, drawn: SequenceTransitions, s: int) -> list[float]:
    q = online.values(drawn, s, online.renewed(drawn, s))
    q_target = target.values(drawn, s, target.renewed(drawn, s))
    found = []
    for t in range(int(drawn.trained[s].sum())):
        then = int(drawn.following[s, t])
        legal = [a for a in range(NUM_ACTIONS) if drawn.mask is None or drawn.mask[s, then, a]]
        best = max(legal, key=lambda a: q[then][a])
        found.append(_squash(float(drawn.reward[s, t] + drawn.discount[s, t] * _unsquash(q_target[then][best]))))
    return found


@pytest.mark.parametrize("masked", [False, True])
def test_its_loss_and_gradient_equal_plain_loops(masked: bool) -> None:
    """The burn-in has no gradient: the memory after it counts as constant."""
    learner, drawn = make_learner(CONFIG, MASKED if masked else DISCRETE), _drawn(masked)
    assert set(drawn.trained.sum(1).tolist()) >= {1, 2, 3}
    other = make_learner(CONFIG, seed=7)
    learner.parameters.target_module.load_state_dict(other.module.state_dict())
    columns: Mapping[str, Array] = drawn.columns_for_losses()
    terms, gradient, priorities = loss_and_gradient(learner, columns)
    before, target = Loops(learner.module), Loops(learner.parameters.target_module)
    memory = [before.renewed(drawn, s) for s in range(drawn.count)]
    targets = [_targets(before, target, drawn, s) for s in range(drawn.count)]

    def errors() -> list[list[float]]:
        now = Loops(learner.module)
        found = []
        for s in range(drawn.count):
            q = now.values(drawn, s, memory[s])
            found.append([want - q[t][drawn.action[s, t]] for t, want in enumerate(targets[s])])
        return found

    def loss() -> float:
        each = [w * sum(0.5 * e**2 for e in row) / 4.0 for w, row in zip(drawn.weight, errors(), strict=True)]
        return float(sum(each) / drawn.count)

    assert terms["td"] == pytest.approx(loss(), rel=1e-5)
    # Sequences weigh equally; values of the actions taken are the targets without the errors.
    by_sequence = [np.subtract(want, error).mean() for want, error in zip(targets, errors(), strict=True)]
    assert terms["q_mean"] == pytest.approx(np.mean(by_sequence), rel=1e-4)
    sizes = [[abs(e) for e in row] for row in errors()]
    want = [0.7 * max(row) + 0.3 * sum(row) / len(row) for row in sizes]
    np.testing.assert_allclose(priorities.numpy(), want, rtol=1e-4)
    np.testing.assert_allclose(gradient, gradient_by_differences(learner, loss), rtol=2e-3, atol=2e-5)


def test_an_update_reports_rows_and_says_what_to_draw_again() -> None:
    learner, drawn = make_learner(CONFIG), _drawn(masked=False)
    learner.publish()
    update = learner.update(drawn)
    assert (update.rows, update.updates) == (int(drawn.trained.sum()), 1)
    assert update.staleness_mean == pytest.approx(1.0 - drawn.version.mean())
    np.testing.assert_array_equal(update.row_ids, drawn.row_id)
    assert update.priorities is not None
    assert update.priorities.shape == (drawn.count,)
