"""MADDPG and MATD3: their losses against plain loops over rows and agents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import marlflow as mf
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
    taken,
    team_learner,
    team_rows,
    terms_and_gradients,
    trained_seats,
    values,
)

DISCOUNT = 0.9
Actions = dict[tuple[str, int], list[float]]


def best(module: Any, columns: dict[str, Array], policy: str, row: int, seat: int, prefix: str = "") -> list[float]:
    """The action that a policy prefers; zeros where the agent is absent."""
    out = outputs(module, policy, columns[f"{policy}:{prefix}obs"][row, seat])
    if policy == "scout":
        legal = columns["scout:next_mask" if prefix else "scout:action_mask"][row, seat]
        found = one_hot(int(np.where(legal, out, -np.inf).argmax()))
    else:
        found = [math.tanh(x) for x in out]
    return found if columns[f"{policy}:{prefix}present"][row, seat] else [0.0] * len(found)


def naive_critics(learner: Any, columns: dict[str, Array], policy: str, sees: str, noise: Array | None) -> float:
    module, target_module = learner.module, learner.parameters.target_module
    count = len(module.critics[policy].heads)
    total = 0.0
    for row in range(ROWS):
        following: Actions = {
            (q, s): best(target_module, columns, q, row, s, "next_") for q in SEATS for s in range(SEATS[q])
        }
        if noise is not None and columns["archer:next_present"][row, 0]:
            shift = np.clip(0.3 * noise[row, -2:], -0.4, 0.4)
            following["archer", 0] = list(np.clip(np.array(following["archer", 0]) + shift, -1.0, 1.0))
        stored: Actions = {(q, s): taken(columns, q, row, s) for q in SEATS for s in range(SEATS[q])}
        errors = []
        for seat in trained_seats(columns, policy, row):
            after = critic_row(columns, row, policy, seat, following, sees, "next_")
            value = min(values(target_module, policy, k, after)[0] for k in range(count))
            over = columns[f"{policy}:terminated"][row, seat]
            target = columns[f"{policy}:reward"][row, seat] + (0.0 if over else DISCOUNT * value)
            here = critic_row(columns, row, policy, seat, stored, sees)
            errors.append(sum(0.5 * (values(module, policy, k, here)[0] - target) ** 2 for k in range(count)))
        total += columns["weight"][row] * mean(errors) / ROWS
    return total


def naive_actor(
    learner: Any, columns: dict[str, Array], policy: str, sees: str, others: str, noise: Array, penalty: float
) -> float:
    module, total = learner.module, 0.0
    for row in range(ROWS):
        losses, logits = [], []
        for seat in range(SEATS[policy]):
            if not columns[f"{policy}:present"][row, seat]:
                continue
            actions: Actions = {
                (q, s): taken(columns, q, row, s) if others == "replay" else best(module, columns, q, row, s)
                for q in SEATS
                for s in range(SEATS[q])
            }
            if policy == "scout":
                out, legal = (
                    outputs(module, policy, columns["scout:obs"][row, seat]),
                    columns["scout:action_mask"][row, seat],
                )
                drawn = [gumbel(z) for z in noise[row, seat * CHOICES : (seat + 1) * CHOICES]]
                actions[policy, seat] = one_hot(int(np.where(legal, out + drawn, -np.inf).argmax()))
                logits.append(float(np.mean(out[legal] ** 2)))
            else:
                actions[policy, seat] = best(module, columns, policy, row, seat)
            losses.append(-values(module, policy, 0, critic_row(columns, row, policy, seat, actions, sees))[0])
        total += (mean(losses) + penalty * mean(logits)) / ROWS
    return total


CASES: list[tuple[type, str, str]] = [
    (mf.MADDPG, "observations", "replay"),
    (mf.MADDPG, "state", "policies"),
    (mf.MATD3, "observations", "replay"),
    (mf.MATD3, "state", "policies"),
]


@pytest.mark.parametrize(("kind", "sees", "others"), CASES)
def test_losses_are_those_of_plain_loops(kind: Any, sees: Any, others: Any) -> None:
    smoothed = {"target_noise": 0.3, "target_noise_clip": 0.4} if kind is mf.MATD3 else {}
    config = kind(critic_sees=[sees], others=others, discount=DISCOUNT, logit_penalty=0.1, **smoothed)
    learner, columns = team_learner(config), team_rows()
    width = max(group.loss.noise_per_row for group in learner.parameters.groups)  # type: ignore[attr-defined]
    assert width == SEATS["scout"] * CHOICES + (2 if smoothed else 0)
    noise = np.random.default_rng(1).standard_normal((ROWS, width)).astype(np.float32)
    terms, _ = terms_and_gradients(learner, minibatch_of(columns, noise))
    for policy in SEATS:
        critics = naive_critics(learner, columns, policy, sees, noise if smoothed else None)
        assert terms[f"critics/{policy}"] == pytest.approx(critics, rel=1e-4), policy
        actor = naive_actor(learner, columns, policy, sees, others, noise, penalty=0.1)
        assert terms[f"actor/{policy}"] == pytest.approx(actor, rel=1e-4, abs=1e-5), policy
