"""Common properties of MADDPG, MATD3 and MASAC: absent agents, order of agents, opponents, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from marlflow.policy.actor import WeightedActor
from marlflow.policy.normalized import observers
from tests.algorithms.joint_parts import (
    ARCHER,
    ROWS,
    SCOUT,
    SEATS,
    TEAM,
    minibatch_of,
    team_learner,
    team_rows,
    terms_and_gradients,
    transitions,
)
from tests.algorithms.parts import SMALL
from tests.sentences import sentences

KINDS = [mf.MADDPG, mf.MATD3, mf.MASAC]
# By kind, how many numbers of noise an agent of each policy takes.
NOISE = {mf.MADDPG: (3, 0), mf.MATD3: (3, 2), mf.MASAC: (3, 4)}


def noise_of(kind: Any, seats: Mapping[str, int] = SEATS) -> Array:
    """Noise of each row, of the scouts in the order of their seats, then of the archers."""
    width = sum(seats[policy] * size for policy, size in zip(("scout", "archer"), NOISE[kind], strict=True))
    return np.random.default_rng(1).standard_normal((ROWS, width)).astype(np.float32)


def blocks(policy: str, scouts: int, kind: Any) -> dict[tuple[str, int], list[int]]:
    """For each part of a critic's row and each scout, the columns of the row that are of this scout."""
    found: dict[tuple[str, int], list[int]] = {}
    start = 0
    for part, size in {"obs": 2, "action": 3, "present": 1, "seat": 1}.items():
        if part == "seat" and policy != "scout":
            continue
        for seat in range(scouts):
            found[part, seat] = list(range(start, start + size))
            start += size
        # The archer's numbers come last: 3 of its observation, 2 of its action, and its presence.
        start += {"obs": 3, "action": 2, "present": 1, "seat": 0}[part]
    return found


def first_layers(learner: mf.TorchLearner, policy: str) -> list[Any]:
    return [torso.layers[0].weight for torso in learner.module.critics[policy].torsos]


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_that_is_never_there_changes_nothing(kind: Any) -> None:
    """A third scout, always absent: losses and gradients are those without it, and its own weights get gradient 0."""
    more = {**TEAM, "scout": mf.Member(replace(SCOUT, seats=(0, 2, 3)), TEAM["scout"].model)}
    small, large = team_learner(kind()), team_learner(kind(), more)
    columns, noise = team_rows(), noise_of(kind)
    grown = {
        name: np.concatenate([column, np.zeros_like(column[:, :1])], 1) if name.startswith("scout:") else column
        for name, column in columns.items()
    }
    # Noise of the absent agent is there, and used for nothing.
    more_noise = np.insert(noise, [6] * 3, 5.0, axis=1)
    kept: dict[str, list[int]] = {}
    for policy in TEAM:
        where, there = blocks(policy, 2, kind), blocks(policy, 3, kind)
        absent = [c for (_, seat), block in there.items() if seat == 2 for c in block]
        kept[policy] = [c for c in range(first_layers(large, policy)[0].shape[1]) if c not in absent]
        assert len(kept[policy]) == first_layers(small, policy)[0].shape[1], where
    copies = {small.module: large.module, small.parameters.target_module: large.parameters.target_module}
    with torch.no_grad():
        for ours, theirs in copies.items():
            for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
                policy = name.split(".")[1]
                one.copy_(other[:, kept[policy]] if one.shape != other.shape else other)
    found, _ = terms_and_gradients(large, minibatch_of(grown, more_noise))
    expected, _ = terms_and_gradients(small, minibatch_of(columns, noise))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for (name, one), (_, other) in zip(small.module.named_parameters(), large.module.named_parameters(), strict=True):
        gradient = other.grad
        if one.shape != other.shape:
            policy = name.split(".")[1]
            absent = sorted(set(range(other.shape[1])) - set(kept[policy]))
            np.testing.assert_array_equal(gradient[:, absent], 0.0, err_msg=name)
            gradient = gradient[:, kept[policy]]
        np.testing.assert_allclose(gradient, one.grad, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_another_order_of_agents_is_another_order_of_gradients(kind: Any) -> None:
    learner, columns, noise = team_learner(kind()), team_rows(), noise_of(kind)
    terms, _ = terms_and_gradients(learner, minibatch_of(columns, noise))
    before = {name: p.grad.clone() for name, p in learner.module.named_parameters() if p.grad is not None}
    swapped = {name: c[:, ::-1].copy() if name.startswith("scout:") else c for name, c in columns.items()}
    noise = np.concatenate([noise[:, 3:6], noise[:, :3], noise[:, 6:]], 1)
    order: dict[str, list[int]] = {}
    for policy in TEAM:
        where = blocks(policy, 2, kind)
        order[policy] = list(range(first_layers(learner, policy)[0].shape[1]))
        for part, seat in where:
            for column, other in zip(where[part, seat], where[part, 1 - seat], strict=True):
                order[policy][column] = other
        for module in (learner.module, learner.parameters.target_module):
            for torso in module.critics[policy].torsos:
                torso.layers[0].weight.data.copy_(torso.layers[0].weight.data[:, order[policy]].clone())
    again, _ = terms_and_gradients(learner, minibatch_of(swapped, noise))
    assert again == pytest.approx(terms, rel=1e-5, abs=1e-6)
    for name, parameter in learner.module.named_parameters():
        if name in before:
            expected = before[name]
            if name.endswith("layers.0.weight") and name.startswith("critics"):
                expected = expected[:, order[name.split(".")[1]]]
            np.testing.assert_allclose(parameter.grad, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reward_of_one_agent_that_is_no_number_skips_the_step(kind: Any) -> None:
    columns, learner = team_rows(), team_learner(kind())
    assert learner.update(transitions(columns)).updates == 1
    before = learner.parameters.flat.vector.numpy().copy()
    row, seat = np.argwhere(columns["scout:present"] & columns["scout:next_present"])[0]
    columns["scout:reward"][row, seat] = np.nan
    update = learner.update(transitions(columns))
    assert (update.updates, update.updates_skipped) == (0, 1)
    np.testing.assert_array_equal(learner.parameters.flat.vector.numpy(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_opponents_learn_each_its_own_return(kind: Any) -> None:
    """A zero-sum game in which every decision is the last: values are the rewards, with opposite signs."""
    columns = team_rows()
    for policy, sign in {"scout": 1.0, "archer": -1.0}.items():
        columns[f"{policy}:present"][:] = columns[f"{policy}:terminated"][:] = True
        columns[f"{policy}:next_present"][:] = False
        columns[f"{policy}:reward"][:] = 2.0 * sign
    learner = team_learner(kind(learning_rate=0.05, **({"actor_learning_rate": 0.0} if kind is mf.MADDPG else {})))
    for _ in range(60):
        update = learner.update(transitions(columns))
    # A critic of all Discrete actions learns the value of those taken, so its mean over actions says little.
    if kind is not mf.MASAC:
        assert update.loss["q_mean/scout"] == pytest.approx(2.0, abs=0.1)
    assert update.loss["q_mean/archer"] == pytest.approx(-2.0, abs=0.1)
    assert update.loss["critics/scout"] < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_actors_take_what_the_learner_publishes_and_a_resumed_learner_goes_on_bit_for_bit(kind: Any) -> None:
    algorithm = kind(learning_starts_agent_steps=10, learning_rate=mf.PiecewiseConstant([0.01, 0.001], [20]))
    assert isinstance(algorithm, mf.Algorithm)
    one, other = (team_learner(algorithm, seed=seed) for seed in (0, 1))
    columns = transitions(team_rows())
    for policy, member in TEAM.items():
        actor = algorithm.actor(member.spaces, member.model, seed=5)
        assert isinstance(actor, WeightedActor)
        actor.load_flat(one.published[policy].flat)
        np.testing.assert_array_equal(actor.flat(), one.published[policy].flat)
    for learner in (one, other):
        learner.update(columns)
        learner.sync_target(0.1)
    other.load_state(one.state())
    for learner in (one, other):
        learner.update(columns)
    torch.testing.assert_close(one.parameters.flat.vector, other.parameters.flat.vector, rtol=0.0, atol=0.0)
    assert algorithm.schedules(9)["acts_uniformly"] == 1.0
    one.set_schedule(algorithm.schedules(20))
    rates = {group.name: group.optimizer.learning_rate for group in one.parameters.groups}
    assert rates["critics/scout"] == 0.001
    assert rates["actor/archer"] == 0.001


def test_actors_have_a_learning_rate_of_their_own() -> None:
    algorithm = mf.MADDPG(learning_rate=0.02, actor_learning_rate=mf.PiecewiseConstant([0.001, 0.0], [10]))
    learner = team_learner(algorithm)
    learner.set_schedule(algorithm.schedules(10))
    rates = {group.name: group.optimizer.learning_rate for group in learner.parameters.groups}
    assert rates == {"critics/scout": 0.02, "actor/scout": 0.0, "critics/archer": 0.02, "actor/archer": 0.0}


def test_matd3_updates_actors_every_other_time() -> None:
    learner, columns = team_learner(mf.MATD3(learning_rate=0.01)), transitions(team_rows())
    moved = []
    for _ in range(4):
        before = {policy: weights.flat.copy() for policy, weights in learner.publish().items()}
        learner.update(columns)
        moved.append([bool((learner.publish()[policy].flat != before[policy]).any()) for policy in TEAM])
    assert moved == [[False, False], [True, True], [False, False], [True, True]]


@pytest.mark.parametrize("kind", KINDS)
def test_normalized_observations_are_those_of_the_agents_present(kind: Any) -> None:
    members = {
        policy: replace(member, model=mf.MLP((4,), normalize_observations=True)) for policy, member in TEAM.items()
    }
    learner, columns = kind().learner("team", members, 0, ON_CPU), team_rows()
    learner.update(transitions(columns))
    for policy in TEAM:
        seen = columns[f"{policy}:obs"][columns[f"{policy}:present"]]
        found = [one for one in observers(learner.module) if one.column == f"{policy}:obs"]  # type: ignore[attr-defined]
        assert len(found) == 2  # of the actor, and of all critics
        for one in found:
            assert float(one.moments.count) == len(seen)  # type: ignore[attr-defined]
            np.testing.assert_allclose(one.moments.mean, seen.mean(0), rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_refuses(kind: Any) -> None:
    algorithm, name = kind(), kind.name
    assert sentences(algorithm.validate(SCOUT, SMALL)) == sentences(algorithm.validate(ARCHER, SMALL)) == []
    multi = Spaces(SCOUT.observation, gym.MultiBinary(2), seats=(0,))
    assert sentences(algorithm.validate(multi, SMALL)) == [
        f"{name} cannot act in MultiBinary(2); it needs Discrete or Box actions"
    ]
    unbounded = Spaces(SCOUT.observation, gym.Box(-np.inf, 1.0, (2,)), seats=(0,))
    (problem,) = sentences(algorithm.validate(unbounded, SMALL))
    assert problem.startswith(f"{name} cannot act in Box(2,): it needs actions with finite bounds")
    (problem,) = sentences(algorithm.validate(SCOUT, mf.CNN()))
    assert problem.startswith(f"{name} cannot learn with CNN: its critics see all agents' observations and actions as")
    stateless = replace(SCOUT, state=None)
    (problem,) = sentences(kind(critic_sees=["state"]).validate(stateless, SMALL))
    assert "no state()" in problem
    assert "wrappers=joint_state" in problem
