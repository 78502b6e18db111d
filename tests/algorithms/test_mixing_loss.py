"""The loss of VDN and QMIX against plain loops over rows and seats, and what seats change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.learner.compute import ON_CPU
from marlflow.policy.normalized import RunningMoments
from tests.algorithms.teams import SCOUT, TEAM, gradient_of, loss_of, team_learner, team_rows, tensors

SETTINGS: list[mf.VDN] = [
    mf.VDN(),
    mf.VDN(dueling=True),
    mf.VDN(double=False, huber_delta=0.5),
    mf.QMIX(embed_size=8, hypernet_layers=1),
    mf.QMIX(
        double=False, mixer_sees="observations", squash_state=False, hypernet_layers=2, embed_size=4, huber_delta=1.0
    ),
]


def names(algorithm: mf.VDN) -> str:
    return f"{algorithm.name}-{'double' if algorithm.double else 'single'}"


def looped(algorithm: mf.VDN, learner: mf.TorchLearner, columns: Mapping[str, Array]) -> tuple[float, list[float]]:
    """The loss, and each row's absolute error, seat by seat."""
    given, target_module = tensors(columns), learner.parameters.target_module
    losses, errors = [], []
    for n in range(len(columns["reward"])):
        with torch.no_grad():
            q_tot = mixed(learner.module, given, n, "", partial(taken, given, n))
            chooser = learner.module if algorithm.double else target_module
            following = mixed(target_module, given, n, "next_", partial(best, chooser, given, n))
        error = float(given["reward"][n] + given["discount"][n] * following - q_tot)
        size, delta = abs(error), float(algorithm.huber_delta)  # type: ignore[arg-type]
        loss = 0.5 * size**2 if size <= delta else delta * (size - 0.5 * delta)
        losses.append(loss * float(given["weight"][n]))
        errors.append(size)
    return sum(losses) / len(losses), errors


def taken(given: Mapping[str, Tensor], n: int, q: Tensor, policy: str, seat: int) -> Tensor:
    return q[given[f"{policy}:action"][n, seat]]


def best(chooser: Any, given: Mapping[str, Tensor], n: int, q: Tensor, policy: str, seat: int) -> Tensor:
    choosing = chooser.actors[policy](given[f"{policy}:next_obs"][n, seat][None])[0]
    legal = given.get(f"{policy}:next_mask")
    actions = [a for a in range(len(q)) if legal is None or legal[n, seat, a]]
    return q[max(actions, key=lambda a: float(choosing[a]))]


def mixed(module: Any, given: Mapping[str, Tensor], n: int, prefix: str, value: Any) -> Tensor:
    """The team's value of row `n`, by `value` of each present seat."""
    chosen, present = [], []
    for policy, member in TEAM.items():
        for seat in range(len(member.spaces.seats)):
            is_present = bool(given[f"{policy}:{prefix}present"][n, seat])
            present.append(float(is_present))
            q = module.actors[policy](given[f"{policy}:{prefix}obs"][n, seat][None])[0]
            chosen.append(value(q, policy, seat) if is_present else torch.zeros(()))
    if module.mixer_input is None:
        return torch.stack(chosen).sum()
    if module.mixer_input.sees == "state":
        seen = given[f"{prefix}state"][n]
    else:
        seen = torch.cat([given[f"{policy}:{prefix}obs"][n].reshape(-1) for policy in TEAM])
    if module.mixer_input.squashes:
        seen = torch.tensor([math.copysign(math.log(1.0 + abs(x)), x) for x in seen.tolist()])
    rows = torch.cat((seen, torch.tensor(present)))[None]
    total: Tensor = module.mixer(torch.stack(chosen)[None], torch.tensor([present]), rows)
    return total[0]


@pytest.mark.parametrize("algorithm", SETTINGS, ids=names)
def test_the_loss_against_a_loop_over_rows_and_seats(algorithm: mf.VDN) -> None:
    learner, columns = team_learner(algorithm), team_rows()
    terms, _ = gradient_of(learner, tensors(columns))
    loss, errors = looped(algorithm, learner, columns)
    assert float(terms.terms["td"]) == pytest.approx(loss, rel=1e-4)
    assert float(terms.terms["td_error_mean"]) == pytest.approx(np.mean(errors), rel=1e-4)
    assert terms.priorities is not None
    np.testing.assert_allclose(terms.priorities.numpy(), errors, rtol=1e-4, atol=1e-5)
    assert float(np.min(errors)) > 0


@pytest.mark.parametrize("algorithm", SETTINGS, ids=names)
def test_gradients_by_differences(algorithm: mf.VDN) -> None:
    learner, given = team_learner(algorithm), tensors(team_rows())
    _, gradient = gradient_of(learner, given)
    vector, loss = learner.parameters.flat.vector, loss_of(learner)
    # With a target that does not move: the one of now is added to the rewards.
    target = loss._target(learner.module, learner.parameters.target_module, given)
    fixed = {**given, "reward": target, "discount": torch.zeros_like(target)}
    random = np.random.default_rng(0)
    for direction in random.standard_normal((3, len(vector))).astype(np.float32):
        moved, values = 2e-4 * torch.from_numpy(direction), []
        for sign in (1.0, -1.0):
            vector.add_(moved, alpha=sign)
            with torch.no_grad():
                values.append(float(loss(learner.module, learner.parameters.target_module, fixed).terms["td"]))
            vector.sub_(moved, alpha=sign)
        assert (values[0] - values[1]) / 4e-4 == pytest.approx(float(gradient @ direction), rel=0.05, abs=0.2)


@pytest.mark.parametrize("algorithm", [mf.VDN(), mf.QMIX(embed_size=8, hypernet_layers=1)], ids=names)
def test_a_seat_that_is_always_absent_changes_no_loss_and_no_gradient(algorithm: mf.VDN) -> None:
    """The values of its columns are read, and have no effect."""
    learner, columns = team_learner(algorithm), team_rows()
    for name in ("present", "next_present"):
        columns[f"carrier:{name}"][:] = False
    before, gradient = gradient_of(learner, tensors(columns))
    random = np.random.default_rng(1)
    for name in ("obs", "next_obs"):
        columns[f"carrier:{name}"] = random.standard_normal(columns[f"carrier:{name}"].shape).astype(np.float32)
    columns["carrier:action"] = random.integers(0, 2, columns["carrier:action"].shape)
    after, other = gradient_of(learner, tensors(columns))
    assert float(before.terms["td"]) == float(after.terms["td"])
    assert np.array_equal(gradient, other)
    carrier: Any = learner.module.actors["carrier"]
    gradient_of(learner, tensors(columns))
    assert all(not parameter.grad.any() for parameter in carrier.parameters())
    scout: Any = learner.module.actors["scout"]
    assert any(parameter.grad.any() for parameter in scout.parameters())


def test_permuting_the_seats_of_a_policy_permutes_the_mixers_gradients_and_no_actors() -> None:
    algorithm = mf.QMIX(embed_size=8, hypernet_layers=1)
    learner, columns = team_learner(algorithm), team_rows()
    _, gradient = gradient_of(learner, tensors(columns))
    first = parts(learner)
    swapped = {n: c[:, ::-1].copy() if n.startswith("scout:") else c for n, c in columns.items()}
    # The mixer's weights of the two seats (0 and 1 of 3) and of their presence bits change places, too.
    for module in (learner.module, learner.parameters.target_module):
        permute(module)
    _, _ = gradient_of(learner, tensors(swapped))
    permute(learner.module, gradients=True)
    second = parts(learner)
    assert np.abs(gradient).max() > 0
    for name in first:
        np.testing.assert_allclose(second[name], first[name], rtol=1e-4, atol=1e-5, err_msg=name)


def permute(module: Any, gradients: bool = False) -> None:
    """Swap the first two of three seats in the weights of a mixer of 8 units, or in their gradients."""
    with torch.no_grad():
        for name, parameter in module.mixer.named_parameters():
            tensor = parameter.grad if gradients else parameter.data
            if name.endswith(("w1.weight", "b1.weight", "w2.weight", "v.0.weight")):
                tensor[:, [5, 6]] = tensor[:, [6, 5]]
            if name.startswith("w1"):
                tensor[:16] = tensor[:16].view(2, 8, -1).flip(0).reshape(tensor[:16].shape)


def parts(learner: mf.TorchLearner) -> dict[str, Array]:
    return {name: p.grad.numpy().copy() for name, p in learner.module.named_parameters() if p.grad is not None}


def test_members_share_no_parameters_and_seeds_differ() -> None:
    twins = {name: mf.Member(SCOUT, TEAM["scout"].model) for name in ("a", "b")}
    learner = mf.VDN().learner("team", {n: replace(m) for n, m in twins.items()}, 0, ON_CPU)
    a, b = (list(learner.module.actors[name].parameters()) for name in ("a", "b"))
    assert not torch.equal(a[0], b[0])


@pytest.mark.parametrize("algorithm", [mf.VDN(), mf.QMIX()], ids=names)
def test_published_weights_are_those_of_the_actors_and_fit_them(algorithm: mf.VDN) -> None:
    learner = team_learner(algorithm)
    published = learner.publish()
    for policy, member in TEAM.items():
        actor: Any = algorithm.actor(member.spaces, member.model, 5)
        actor.load_flat(published[policy].flat)
        obs = torch.from_numpy(team_rows()[f"{policy}:obs"][:, 0])
        with torch.no_grad():
            assert torch.equal(actor(obs), learner.module.actors[policy](obs))


def test_the_state_is_needed_unless_the_mixer_sees_observations() -> None:
    stateless = replace(SCOUT, state=None)
    (problem,) = mf.QMIX().validate(stateless, TEAM["scout"].model)
    assert "wrappers=joint_state" in problem.remedy
    assert "mixer_sees=observations" in problem.remedy
    assert not mf.QMIX(mixer_sees="observations").validate(stateless, TEAM["scout"].model)
    assert not mf.VDN().validate(stateless, TEAM["scout"].model)


def test_normalization_learns_from_the_observations_of_present_seats() -> None:
    members = {"scout": mf.Member(SCOUT, mf.MLP((6,), normalize_observations=True)), "carrier": TEAM["carrier"]}
    learner, columns = mf.VDN().learner("team", members, 0, ON_CPU), team_rows()
    learner.update(mf.JointTransitions(columns))
    obs = columns["scout:obs"][columns["scout:present"]]
    (moments,) = (part for part in learner.module.modules() if isinstance(part, RunningMoments))
    np.testing.assert_allclose(moments.mean.numpy(), obs.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moments.variance.numpy(), obs.var(0), rtol=1e-4)
    assert float(moments.count) == len(obs)
