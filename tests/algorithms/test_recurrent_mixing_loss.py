"""VDN and QMIX with memory: their loss on sequences against plain loops over steps and seats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.mixing_loss import RecurrentMixingLoss
from marlflow.base.arrays import Array
from marlflow.learner.compute import ON_CPU
from tests.algorithms.teams import CARRIER, SCOUT, STATE

TEAM = {"scout": mf.Member(SCOUT, mf.GRU(5, (4,))), "carrier": mf.Member(CARRIER, mf.LSTM(3, (4,)))}
BURN_IN, LENGTH, SEQUENCES = 2, 4, 6
SETTINGS: dict[str, Any] = {"sequence_agent_steps": LENGTH, "burn_in_agent_steps": BURN_IN, "td_lambda": 0.7}
FORMS = [
    mf.VDN(**SETTINGS),
    mf.VDN(double=False, huber_delta=0.5, **SETTINGS),
    mf.QMIX(embed_size=4, hypernet_layers=1, squash_state=False, **SETTINGS),
    mf.QMIX(embed_size=4, mixer_sees="observations", double=False, **SETTINGS),
]


def names(algorithm: mf.VDN) -> str:
    return f"{algorithm.name}-{'double' if algorithm.double else 'single'}"


def sequences(seed: int = 0) -> dict[str, Array]:
    """Random columns of JointSequenceTransitions, of different lengths, with absent seats and terminations."""
    random = np.random.default_rng(seed)
    steps = BURN_IN + LENGTH + 1
    length = random.integers(1, LENGTH + 1, SEQUENCES)
    burn_in = random.integers(0, BURN_IN + 1, SEQUENCES)
    at = np.arange(steps) - BURN_IN
    valid = (at >= -burn_in[:, None]) & (at <= length[:, None])
    trained = np.arange(LENGTH) < length[:, None]
    is_last = np.arange(LENGTH) == length[:, None] - 1
    ends = random.random(SEQUENCES) < 0.5
    columns: dict[str, Array] = {
        "valid": valid,
        "trained": trained,
        "reward": random.standard_normal((SEQUENCES, LENGTH)) * trained,
        "discount": np.where(is_last & ends[:, None], 0.0, 0.9) * trained,
        "following": (np.arange(LENGTH) + 1) * trained,
        "weight": random.random(SEQUENCES).astype(np.float32) + 0.5,
        "row_id": np.arange(SEQUENCES),
        "version": np.zeros((SEQUENCES, LENGTH), np.int64),
        "state": random.standard_normal((SEQUENCES, steps, *STATE.shape)).astype(np.float32) * valid[..., None],
    }
    for policy, member in TEAM.items():
        columns |= {f"{policy}:{name}": column for name, column in seats(random, member, valid, trained).items()}
    return columns


def seats(random: np.random.Generator, member: mf.Member, valid: Array, trained: Array) -> dict[str, Array]:
    spaces, model = member.spaces, member.model
    seats_of = (*valid.shape, len(spaces.seats))
    present = (random.random(seats_of) < 0.8) & valid[..., None]
    action = random.integers(0, spaces.num_actions, (*trained.shape, seats_of[2]))
    memory = random.standard_normal((len(valid), seats_of[2], *model.memory_shape)).astype(np.float32)  # type: ignore[attr-defined]
    found = {
        "valid": present,
        "obs": random.standard_normal((*seats_of, *spaces.obs_shape)).astype(np.float32),
        "memory": memory,
        "action": action,
        "reward": random.standard_normal(action.shape),
        "terminated": np.zeros(action.shape, bool),
    }
    if spaces.masked:
        mask = random.random((len(valid), LENGTH + 1, seats_of[2], spaces.num_actions)) < 0.5
        np.put_along_axis(mask[:, :-1], action[..., None], True, -1)
        mask[:, -1, :, 0] = True
        found["action_mask"] = mask
    return found


def tensors(columns: Mapping[str, Array]) -> dict[str, Tensor]:
    batch = mf.JointSequenceTransitions(columns)
    return {name: torch.from_numpy(column) for name, column in batch.columns_for_losses().items()}


def made(algorithm: mf.VDN) -> mf.TorchLearner:
    """A learner of large parameters, which differ from its target's."""
    learner = algorithm.learner("team", TEAM, 0, ON_CPU)
    noise = np.random.default_rng(3).standard_normal(len(learner.parameters.flat.vector)).astype(np.float32)
    learner.parameters.flat.vector.add_(torch.from_numpy(noise), alpha=0.3)
    return learner


def values(module: Any, given: Mapping[str, Tensor], s: int) -> dict[tuple[str, int, int], Tensor]:
    """Action values by policy, seat and step from the burn-in on, one step at a time."""
    found = {}
    for policy, member in TEAM.items():
        for seat in range(len(member.spaces.seats)):
            memory = given[f"{policy}:memory"][s, seat][None]
            for step in range(BURN_IN + LENGTH + 1):
                actor = module.actors[policy]
                q, after = actor.outputs(given[f"{policy}:obs"][s, step, seat][None], memory)
                if given[f"{policy}:valid"][s, step, seat]:
                    memory = after
                    found[policy, seat, step - BURN_IN] = q[0]
    return found


def team_value(
    module: Any, given: Mapping[str, Tensor], s: int, t: int, chosen: Mapping[tuple[str, int], Tensor]
) -> float:
    """The mixed value of the seats that have one, at step `t` after the burn-in."""
    everyone = [(policy, seat) for policy, member in TEAM.items() for seat in range(len(member.spaces.seats))]
    q = torch.stack([chosen.get(one, torch.zeros(())) for one in everyone])[None]
    present = torch.tensor([[float(one in chosen) for one in everyone]])
    if module.mixer_input is None:
        return float((q * present).sum())
    if module.mixer_input.sees == "state":
        seen = given["state"][s, BURN_IN + t]
    else:
        # Whatever an absent seat has, it is not seen.
        of = {(policy, seat): given[f"{policy}:obs"][s, BURN_IN + t, seat].reshape(-1) for policy, seat in everyone}
        seen = torch.cat([row * (one in chosen) for one, row in of.items()])
    if module.mixer_input.squashes:
        seen = torch.tensor([math.copysign(math.log(1.0 + abs(x)), x) for x in seen.tolist()])
    return float(module.mixer(q, present, torch.cat((seen, present[0]))[None])[0])


def greedy(
    algorithm: mf.VDN,
    given: Mapping[str, Tensor],
    s: int,
    t: int,
    online: Mapping[Any, Tensor],
    target: Mapping[Any, Tensor],
) -> dict[tuple[str, int], Tensor]:
    found = {}
    for (policy, seat, step), q in target.items():
        if step == t:
            legal = given.get(f"{policy}:action_mask")
            actions = [a for a in range(len(q)) if legal is None or legal[s, t, seat, a]]
            choosing = online[policy, seat, step] if algorithm.double else q
            found[policy, seat] = q[max(actions, key=lambda a: float(choosing[a]))]
    return found


def looped(algorithm: mf.VDN, learner: mf.TorchLearner, given: Mapping[str, Tensor]) -> tuple[float, list[float]]:
    """The loss, and the largest and mean errors of each sequence as a priority."""
    losses, priorities = [], []
    module, target_module = learner.module, learner.parameters.target_module
    for s in range(SEQUENCES):
        online, target = values(module, given, s), values(target_module, given, s)
        steps = int(given["trained"][s].sum())
        following = 0.0
        sizes: list[float] = []
        loss = 0.0
        for t in reversed(range(steps)):
            bootstrap = team_value(target_module, given, s, t + 1, greedy(algorithm, given, s, t + 1, online, target))
            share = 0.0 if t == steps - 1 else algorithm.td_lambda
            following = float(
                given["reward"][s, t] + given["discount"][s, t] * ((1 - share) * bootstrap + share * following)
            )
            taken = {
                (policy, seat): q[given[f"{policy}:action"][s, t, seat]]
                for (policy, seat, step), q in online.items()
                if step == t
            }
            size = abs(following - team_value(module, given, s, t, taken))
            delta = float(algorithm.huber_delta)  # type: ignore[arg-type]
            loss += 0.5 * size**2 if size <= delta else delta * (size - 0.5 * delta)
            sizes.append(size)
        losses.append(loss / LENGTH * float(given["weight"][s]))
        priorities.append(0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes))
    return sum(losses) / len(losses), priorities


@pytest.mark.parametrize("algorithm", FORMS, ids=names)
def test_the_loss_against_a_loop_over_steps_and_seats(algorithm: mf.VDN) -> None:
    learner, given = made(algorithm), tensors(sequences())
    assert learner.trains_on is mf.JointSequenceTransitions
    loss = learner.parameters.groups[0].loss
    assert isinstance(loss, RecurrentMixingLoss)
    terms = loss(learner.module, learner.parameters.target_module, given)
    with torch.no_grad():
        expected, priorities = looped(algorithm, learner, given)
    assert float(terms.terms["td"]) == pytest.approx(expected, rel=1e-4)
    assert terms.priorities is not None
    np.testing.assert_allclose(terms.priorities.numpy(), priorities, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", FORMS[1:], ids=names)
def test_what_absent_seats_and_missing_steps_hold_changes_nothing(algorithm: mf.VDN) -> None:
    learner = made(algorithm)
    columns = sequences()
    results = []
    for seed in (None, 7):
        random = np.random.default_rng(seed)
        for policy in TEAM if seed else ():
            absent = ~columns[f"{policy}:valid"]
            columns[f"{policy}:obs"][absent] = random.standard_normal(columns[f"{policy}:obs"][absent].shape)
            gone = absent[:, BURN_IN:-1]
            columns[f"{policy}:action"][gone] = 1
        if seed:
            columns["reward"][~columns["trained"]] = 9.0
        learner.parameters.flat.gradient.zero_()
        loss: Any = learner.parameters.groups[0].loss
        terms = loss(learner.module, learner.parameters.target_module, tensors(columns))
        terms.total.backward()
        results.append((float(terms.terms["td"]), learner.parameters.flat.gradient.numpy().copy()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)
    assert np.abs(results[0][1]).max() > 0


def test_sequences_may_be_shorter_than_the_returns_without_memory() -> None:
    assert not mf.VDN(sequence_agent_steps=2, burn_in_agent_steps=0, n_step=3).validate(CARRIER, mf.GRU())


def test_actors_take_what_their_learner_publishes() -> None:
    learner = made(mf.VDN(**SETTINGS))
    published = learner.publish()
    for policy, member in TEAM.items():
        actor: Any = mf.VDN().actor(member.spaces, member.model, 5)
        actor.load_flat(published[policy].flat)
        assert actor.memory_shape == member.model.memory_shape  # type: ignore[attr-defined]
