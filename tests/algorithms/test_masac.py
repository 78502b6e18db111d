"""MASAC: its losses, with Discrete and Box actions in one learner, against plain loops over rows and agents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from marlflow.algorithms.masac import MASAC
from marlflow.base.arrays import Array
from tests.algorithms.joint_parts import (
    CHOICES,
    ROWS,
    SEATS,
    critic_row,
    gumbel,
    mean,
    minibatch_of,
    one_hot,
    outputs,
    softmax,
    taken,
    team_learner,
    team_rows,
    terms_and_gradients,
    trained_seats,
    values,
)

DISCOUNT, ALPHA = 0.9, 0.5
Actions = dict[tuple[str, int], list[float]]


def policy_of(module: Any, columns: dict[str, Array], row: int, seat: int, prefix: str = "") -> Array:
    """Probabilities of a scout's actions."""
    logits = outputs(module, "scout", columns[f"scout:{prefix}obs"][row, seat])
    return softmax(logits, columns["scout:next_mask" if prefix else "scout:action_mask"][row, seat])


def sample_archer(
    module: Any, columns: dict[str, Array], row: int, z: Array, prefix: str = ""
) -> tuple[list[float], float]:
    """An action in [-1, 1] and its log-density, by the change of variables."""
    out, action, logp = outputs(module, "archer", columns[f"archer:{prefix}obs"][row, 0]), [], 0.0
    for d in range(2):
        raw = out[d] + math.exp(out[2 + d]) * float(z[d])
        action.append(math.tanh(raw))
        logp += -0.5 * float(z[d]) ** 2 - out[2 + d] - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(raw) ** 2)
    return action, logp


def sampled(module: Any, columns: dict[str, Array], row: int, noise: Array, prefix: str = "") -> Actions:
    """Actions of all present agents by the policies now; of absent ones zeros."""
    found: Actions = {}
    for seat in range(2):
        z = noise[row, seat * CHOICES : (seat + 1) * CHOICES]
        logits = outputs(module, "scout", columns[f"scout:{prefix}obs"][row, seat]) + [gumbel(x) for x in z]
        legal = columns["scout:next_mask" if prefix else "scout:action_mask"][row, seat]
        here = columns[f"scout:{prefix}present"][row, seat]
        found["scout", seat] = one_hot(int(np.where(legal, logits, -np.inf).argmax())) if here else [0.0] * CHOICES
    z = noise[row, 8:10] if prefix else noise[row, 6:8]
    action, _ = sample_archer(module, columns, row, z, prefix)
    found["archer", 0] = action if columns[f"archer:{prefix}present"][row, 0] else [0.0, 0.0]
    return found


def seen(actions: Actions, policy: str, seat: int) -> Actions:
    """The input of an agent's critics: for a scout, without its own action."""
    return {**actions, (policy, seat): [0.0] * CHOICES} if policy == "scout" else actions


def naive_critics(learner: Any, columns: dict[str, Array], policy: str, noise: Array) -> tuple[float, float]:
    """The loss, and the mean value of the actions taken."""
    module, target_module, total, q_mean = learner.module, learner.parameters.target_module, 0.0, 0.0
    for row in range(ROWS):
        stored: Actions = {(q, s): taken(columns, q, row, s) for q in SEATS for s in range(SEATS[q])}
        following, errors, worth = sampled(module, columns, row, noise, "next_"), [], []
        for seat in trained_seats(columns, policy, row):
            target = float(columns[f"{policy}:reward"][row, seat])
            if not columns[f"{policy}:terminated"][row, seat]:
                after = critic_row(columns, row, policy, seat, seen(following, policy, seat), prefix="next_")
                q = np.minimum(*(values(target_module, policy, k, after) for k in (0, 1)))
                if policy == "scout":
                    p = policy_of(module, columns, row, seat, "next_")
                    soft = sum(p[a] * (q[a] - ALPHA * math.log(p[a])) for a in range(CHOICES) if p[a] > 0)
                else:
                    _, logp = sample_archer(module, columns, row, noise[row, 8:10], "next_")
                    soft = q[0] - ALPHA * logp
                target += DISCOUNT * soft
            here = critic_row(columns, row, policy, seat, seen(stored, policy, seat))
            chosen = int(columns["scout:action"][row, seat]) if policy == "scout" else 0
            of_taken = [values(module, policy, k, here)[chosen] for k in (0, 1)]
            errors.append(sum(0.5 * (q - target) ** 2 for q in of_taken))
            worth.append(sum(of_taken) / 2)
        total += columns["weight"][row] * mean(errors) / ROWS
        q_mean += mean(worth) / ROWS
    return total, q_mean


def naive_actor(
    learner: Any, columns: dict[str, Array], policy: str, others: str, noise: Array
) -> tuple[float, float, float]:
    """The loss, the mean entropy, and how far it is below its target on average."""
    module, found = learner.module, np.zeros(3)
    for row in range(ROWS):
        rows = []
        for seat in range(SEATS[policy]):
            if not columns[f"{policy}:present"][row, seat]:
                continue
            actions: Actions = (
                {(q, s): taken(columns, q, row, s) for q in SEATS for s in range(SEATS[q])}
                if others == "replay"
                else sampled(module, columns, row, noise)
            )
            if policy == "scout":
                p, legal = policy_of(module, columns, row, seat), columns["scout:action_mask"][row, seat]
                inputs = critic_row(columns, row, policy, seat, seen(actions, policy, seat))
                q = np.minimum(*(values(module, policy, k, inputs) for k in (0, 1)))
                loss = sum(p[a] * (ALPHA * math.log(p[a]) - q[a]) for a in range(CHOICES) if p[a] > 0)
                entropy = -sum(x * math.log(x) for x in p if x > 0)
                rows.append((loss, entropy, 0.8 * math.log(legal.sum()) - entropy))
            else:
                actions[policy, seat], logp = sample_archer(module, columns, row, noise[row, 6:8])
                inputs = critic_row(columns, row, policy, seat, actions)
                q = min(values(module, policy, k, inputs)[0] for k in (0, 1))
                rows.append((ALPHA * logp - q, -logp, -2.0 + logp))
        found += [mean(column) / ROWS for column in zip(*rows, strict=True)] if rows else 0.0
    loss, entropy, short = found
    return float(loss), float(entropy), float(short)


@pytest.mark.parametrize("others", ["replay", "policies"])
def test_losses_are_those_of_plain_loops(others: Any) -> None:
    config = MASAC(others=others, discount=DISCOUNT, initial_temperature=ALPHA, target_entropy_share=0.8)
    learner, columns = team_learner(config), team_rows()
    for policy in SEATS:
        learner.module.tempered(policy).log_temperature.data.fill_(math.log(ALPHA))
    noise = np.random.default_rng(1).standard_normal((ROWS, 2 * CHOICES + 4)).astype(np.float32)
    assert {group.loss.noise_per_row for group in learner.parameters.groups if "temp" not in group.name} == {10}  # type: ignore[attr-defined]
    terms, _ = terms_and_gradients(learner, minibatch_of(columns, noise))
    for policy in SEATS:
        loss, entropy, short = naive_actor(learner, columns, policy, others, noise)
        critics, q_mean = naive_critics(learner, columns, policy, noise)
        expected = {
            "critics": critics,
            "q_mean": q_mean,
            "actor": loss,
            "entropy": entropy,
            "temperature": ALPHA,
        }
        for name, value in expected.items():
            assert terms[f"{name}/{policy}"] == pytest.approx(value, rel=1e-4, abs=1e-5), (name, policy)
        gradient = float(learner.module.tempered(policy).log_temperature.grad)
        assert gradient == pytest.approx(-short, rel=1e-3, abs=1e-5)


def test_a_fixed_temperature_stays_and_follows_its_schedule() -> None:
    learner, columns = team_learner(MASAC(temperature=0.3)), team_rows()
    assert [group.name for group in learner.parameters.groups] == [
        "critics/scout",
        "actor/scout",
        "critics/archer",
        "actor/archer",
    ]
    minibatch = minibatch_of(columns, np.zeros((ROWS, 10), np.float32))
    first, _ = terms_and_gradients(learner, minibatch)
    learner.set_schedule({"temperature": 0.0})
    without, _ = terms_and_gradients(learner, minibatch)
    for policy in SEATS:
        difference = without[f"actor/{policy}"] - first[f"actor/{policy}"]
        assert difference == pytest.approx(0.3 * first[f"entropy/{policy}"], rel=1e-3, abs=1e-5)
        assert without[f"critics/{policy}"] != pytest.approx(first[f"critics/{policy}"], rel=1e-3)
