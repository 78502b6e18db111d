from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from marlflow.learner.flat_parameters import FlatParameters
from marlflow.learner.optimizer import Adam, FlatAdam
from marlflow.policy.tensors import read_flat


class TwoPart(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.critic, self.actor = nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.actor(x).square().sum() + self.critic(x).square().sum()


def test_parameters_and_gradients_are_views_with_the_acting_ones_first() -> None:
    module = TwoPart()
    expected = torch.cat([p.detach().reshape(-1) for p in [*module.actor.parameters(), *module.critic.parameters()]])
    flat = FlatParameters(module, {"p": module.actor})
    torch.testing.assert_close(flat.vector, expected)
    assert len(flat.publish()["p"]) == sum(p.numel() for p in module.actor.parameters())
    module(torch.ones(4, 3)).backward()
    gradients = torch.cat([p.grad.reshape(-1) for p in flat.parameters])
    torch.testing.assert_close(flat.gradient, gradients)
    assert gradients.any()
    flat.vector.zero_()
    assert not any(p.any() for p in module.parameters())


def test_publishing_copies() -> None:
    module = TwoPart()
    flat = FlatParameters(module, {"p": module.actor})
    published = flat.publish()["p"]
    before = published.copy()
    flat.vector += 1.0
    assert np.array_equal(published, before)
    assert published.dtype == np.float32


def test_each_policys_actor_is_published_by_itself_whatever_does_not_learn() -> None:
    """Parameters that do not learn come before all others, so an actor that has some is not contiguous."""
    module = nn.ModuleDict({"one": nn.Linear(2, 3), "two": nn.Linear(3, 2), "critic": nn.Linear(5, 1)})
    actors: dict[str, Any] = {"two": module["two"], "one": module["one"]}
    module["one"].bias.requires_grad_(False)
    module["two"].weight.requires_grad_(False)
    flat = FlatParameters(module, actors)
    expected = {name: read_flat(actor) for name, actor in actors.items()}
    np.testing.assert_equal(flat.publish(), expected)
    assert flat.span(p for p in module.parameters() if p.requires_grad).stop == len(flat.vector)
    with pytest.raises(TypeError, match="the actors of policies a, b share parameters"):
        FlatParameters(module, {"a": module["one"], "b": module["one"]})


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("max_grad_norm", [0.5, 1e9])
def test_equals_adam_on_separate_parameters(max_grad_norm: float, unseen: bool) -> None:
    module, reference = TwoPart(), TwoPart()
    flat = FlatParameters(module, {"p": module.actor})
    adam = FlatAdam(flat.vector, flat.gradient, 0.01, max_grad_norm, Adam(eps=1e-5))
    adam._on_cpu = not unseen
    plain = torch.optim.Adam(reference.parameters(), lr=0.01, eps=1e-5)
    for step in range(20):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step))
        flat.gradient.zero_()
        module(x).backward()
        norm = adam.step()
        plain.zero_grad()
        reference(x).backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), max_grad_norm)
        plain.step()
        assert float(norm) == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(poison: float, unseen: bool) -> None:
    module = TwoPart()
    flat = FlatParameters(module, {"p": module.actor})
    adam = FlatAdam(flat.vector, flat.gradient, 0.01, 1.0)
    adam._on_cpu = not unseen
    flat.gradient.fill_(0.1)
    adam.step()
    before = [flat.vector.clone(), adam.moment_1.clone(), adam.moment_2.clone(), adam.steps.clone()]
    flat.gradient[3] = poison
    adam.step()
    for old, new in zip(before, [flat.vector, adam.moment_1, adam.moment_2, adam.steps], strict=True):
        assert torch.equal(old, new)


def test_only_float32() -> None:
    with pytest.raises(TypeError, match="float32"):
        FlatParameters(TwoPart().double(), {"p": nn.Identity()})
