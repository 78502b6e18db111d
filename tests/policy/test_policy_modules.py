"""Modules by policy, whatever a policy is called."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from marlflow.policy.policy_modules import PolicyModules

NAMES = [
    "team",
    "train",
    "values",
    "a.b",
    "a",
    "",
    "policy a.b",
    "policy a%2Eb",
    "_modules",
    "_policies",
    "rot 1",
    "b%2Ec",
]


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actors = PolicyModules({name: nn.Linear(1, 1) for name in NAMES})

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([actor(rows) for actor in self.actors.values()]).sum(0)


def test_each_name_has_its_own_module_in_order() -> None:
    modules = Sum().actors
    assert ([*modules], [*modules.keys()]) == (NAMES, NAMES)
    assert [name for name, _ in modules.items()] == NAMES
    assert [modules[name] for name in NAMES] == [*modules.values()]
    assert len({id(module) for module in modules.values()}) == len(modules) == len(NAMES)
    assert "a.b" in modules
    assert "pop" not in modules
    with pytest.raises(KeyError):
        modules["pop"]


def test_states_and_functional_calls_go_through_any_name() -> None:
    one, other = Sum(), Sum()
    rows = torch.ones(3, 1)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(rows), other(rows))
    zeros = {name: torch.zeros_like(value) for name, value in one.named_parameters()}
    assert functional_call(one, zeros, (rows,)).abs().sum() == 0
    assert torch.equal(copy.deepcopy(one)(rows), one(rows))


def test_usual_names_are_those_of_torchs_own_dict() -> None:
    """So that states saved with it can be loaded."""
    names = ["team", "agent_0", "Ünïcode", "with space"]
    ours, torchs = (kind({name: nn.Linear(1, 1) for name in names}) for kind in (PolicyModules, nn.ModuleDict))
    assert list(ours.state_dict()) == list(torchs.state_dict())
