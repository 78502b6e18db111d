"""MAML: its plan, its meta-gradient against finite differences, and that a learner adapts as its workers do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from marlflow.algorithms.maml import MAML, InnerStep, MetaActor, MetaLoss
from marlflow.learner.task_batches import TaskBatch
from marlflow.policy.categorical import CategoricalActor
from tests.algorithms.parts import MASKED, SMALL, make_learner, spread_out

TASKS, PHASES, ROWS, ACTIONS = 3, 3, 4, 3
RATE, CLIP = 0.4, 0.3


def test_workers_adapt() -> None:
    assert MAML().stages == {"Adapt": "worker"}


def tiny(seed: int = 0) -> MetaActor:
    """A network of float64, with weights large enough that every action differs."""
    generator = torch.Generator().manual_seed(seed)
    torso = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    module = MetaActor(CategoricalActor(torso, 3, ACTIONS, generator)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def made_up_tasks(masked: bool, seed: int = 1) -> dict[str, Tensor]:
    """Tasks whose last row in every phase is padding, with numbers in it that must not matter."""
    random = np.random.default_rng(seed)
    shape = (TASKS, PHASES, ROWS)
    action = random.integers(0, ACTIONS, shape)
    weight = np.full(shape, 1.0 / (ROWS - 1))
    weight[..., -1] = 0.0
    columns = {
        "obs": random.normal(size=(*shape, 2)),
        "action": action,
        "behavior_logp": random.uniform(-2.5, -0.3, shape),
        "advantage": random.normal(size=shape),
        "weight": weight,
    }
    if masked:
        mask = random.random((*shape, ACTIONS)) < 0.6
        np.put_along_axis(mask, action[..., None], True, -1)
        columns["action_mask"] = mask
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def by_loops(module: MetaActor, tasks: Mapping[str, Tensor]) -> float:
    """The meta-loss of `module` by plain loops over tasks, phases and rows; inner gradients by autograd on a copy."""
    total = 0.0
    for task in range(TASKS):
        adapted = tiny()
        adapted.load_state_dict(module.state_dict())
        for phase in range(PHASES - 1):
            adapted.zero_grad()
            loss = sum(
                (-torch.exp(logp(adapted, tasks, task, phase, row) - tasks["behavior_logp"][task, phase, row]))
                * tasks["advantage"][task, phase, row]
                for row in range(ROWS - 1)
            )
            (torch.as_tensor(loss) / (ROWS - 1)).backward()
            with torch.no_grad():
                for parameter in adapted.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(RATE * parameter.grad)
        for row in range(ROWS - 1):
            ratio = torch.exp(
                logp(adapted, tasks, task, PHASES - 1, row) - tasks["behavior_logp"][task, PHASES - 1, row]
            ).item()
            advantage = tasks["advantage"][task, PHASES - 1, row].item()
            clipped = min(max(ratio, 1.0 - CLIP), 1.0 + CLIP)
            total += -min(ratio * advantage, clipped * advantage) / (ROWS - 1) / TASKS
    return total


def logp(module: MetaActor, tasks: Mapping[str, Tensor], task: int, phase: int, row: int) -> Tensor:
    logits = module.actor.head(module.actor.torso(tasks["obs"][task, phase, row]))
    if "action_mask" in tasks:
        logits = torch.where(tasks["action_mask"][task, phase, row], logits, -1e30)
    return torch.log_softmax(logits, -1)[tasks["action"][task, phase, row]]


def value(module: MetaActor, tasks: Mapping[str, Tensor]) -> float:
    total = MetaLoss(InnerStep(RATE, "second"), CLIP)(module, None, tasks).total
    return total.item()


def gradient(module: MetaActor, tasks: Mapping[str, Tensor], order: Literal["first", "second"]) -> np.ndarray:
    module.zero_grad()
    total = MetaLoss(InnerStep(RATE, order), CLIP)(module, None, tasks).total
    total.backward()
    found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return torch.cat([grad.reshape(-1) for grad in found]).numpy()


def differences(module: MetaActor, loss: Callable[[], float], step: float = 1e-6) -> np.ndarray:
    found = []
    for parameter in module.parameters():
        flat = parameter.data.view(-1)
        for index in range(len(flat)):
            kept = flat[index].item()
            flat[index] = kept + step
            above = loss()
            flat[index] = kept - step
            below = loss()
            flat[index] = kept
            found.append((above - below) / (2.0 * step))
    return np.array(found)


@pytest.mark.parametrize("masked", [False, True])
def test_the_meta_loss_is_that_of_plain_loops_and_its_gradient_that_of_finite_differences(masked: bool) -> None:
    module, tasks = tiny(), made_up_tasks(masked)
    assert value(module, tasks) == pytest.approx(by_loops(module, tasks), abs=1e-12)
    expected = differences(module, lambda: value(module, tasks))
    np.testing.assert_allclose(gradient(module, tasks, "second"), expected, rtol=1e-5, atol=1e-8)


def test_of_first_order_it_is_the_gradient_where_the_steps_lead() -> None:
    """The gradient of one task: the last phase's, by the adapted parameters."""
    module, tasks = tiny(), {name: column[:1] for name, column in made_up_tasks(False).items()}
    first, second = gradient(module, tasks, "first"), gradient(module, tasks, "second")
    assert np.linalg.norm(first - second) > 0.1 * np.linalg.norm(second)
    adapted = tiny()
    adapted.load_state_dict(module.state_dict())
    for phase in range(PHASES - 1):
        # A loss without inner steps whose last phase is this one is -min(...), which without a clip is the inner loss.
        adapted.zero_grad()
        total = MetaLoss(InnerStep(RATE, "first"), 1e9)(adapted, None, only_phase(tasks, phase)).total
        total.backward()
        with torch.no_grad():
            for parameter in adapted.parameters():
                assert parameter.grad is not None
                parameter.sub_(RATE * parameter.grad)
    np.testing.assert_allclose(first, gradient(adapted, only_phase(tasks, PHASES - 1), "first"), rtol=1e-9)


def only_phase(tasks: Mapping[str, Tensor], phase: int) -> dict[str, Tensor]:
    return {name: column[:, phase : phase + 1] for name, column in tasks.items()}


def test_several_learners_may_each_have_some_of_the_tasks() -> None:
    """The gradient of all tasks is the mean of the shares' gradients, weighted by their numbers of tasks."""
    module, tasks = tiny(), made_up_tasks(True)
    shares = [gradient(module, {name: column[share] for name, column in tasks.items()}, "second") for share in (
        slice(0, 1), slice(1, 3)
    )]  # fmt: skip
    np.testing.assert_allclose((shares[0] + 2.0 * shares[1]) / 3.0, gradient(module, tasks, "second"), rtol=1e-9)


def test_a_learner_adapts_as_its_actors_do() -> None:
    """Where an adapted policy chose itself, the learner finds the same probabilities: no divergence at its first step.

    So parameters, advantages and rows that both have come to the same parameters of each environment.
    """
    algorithm = MAML(inner_steps=PHASES - 1, inner_learning_rate=RATE)
    learner, actor = make_learner(algorithm, MASKED, seed=3), algorithm.actor(MASKED, SMALL, seed=4)
    spread_out(learner)
    actor.load_flat(learner.publish()["hunter"].flat)
    tasks = {
        name: (column if column.dtype in (torch.int64, torch.bool) else column.float()).numpy()
        for name, column in made_up_tasks(True).items()
    }
    for phase in range(PHASES - 1):
        actor.adapt(np.array([5, 6, 9]), {name: column[:, phase] for name, column in tasks.items()})
    for task, env_index in enumerate((5, 6, 9)):
        logits = make_learner(algorithm, MASKED).module.actor
        logits.load_flat(actor.parameters_of(env_index).numpy())
        last = {name: torch.from_numpy(column[task, -1]) for name, column in tasks.items()}
        found, _ = logits.log_prob_and_entropy(logits(last["obs"]), last["action"], last["action_mask"])
        tasks["behavior_logp"][task, -1] = found.detach().numpy()
    found = MetaLoss(InnerStep(RATE, "second"), CLIP)(
        learner.module, None, {n: torch.from_numpy(c) for n, c in tasks.items()}
    )
    assert abs(float(found.terms["kl"])) < 1e-9
    before = learner.parameters.flat.vector.clone()
    batch = TaskBatch({**tasks, "version": np.zeros(TASKS, np.int64)}, {"carried": np.zeros(0, bool)}, 27)
    assert learner.update(batch).updates == 1
    assert not torch.equal(learner.parameters.flat.vector, before)
