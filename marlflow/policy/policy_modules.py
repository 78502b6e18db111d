"""Modules by policy, of a network for several policies, and the columns of its minibatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from torch import nn

Prefix: TypeAlias = Literal["", "next_"]
"""The prefix of columns of JointTransitions: none for the decisions, `next_` for what follows them."""


class PolicyModules(nn.ModuleDict):
    """A ModuleDict whose keys are the names of policies: any text, also that of a method, or with a dot.

    >>> modules = PolicyModules({"train": nn.Linear(1, 1), "prey": nn.Linear(1, 1)})
    >>> list(modules.keys()), "train" in modules
    (['train', 'prey'], True)
    """

    def __init__(self, modules: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        # By the names of torch's attributes, which saved states have, too: the policies' own, where torch allows it.
        self._policies: dict[str, str] = {}
        for policy, module in (modules or {}).items():
            self[policy] = module

    def __setitem__(self, policy: str, module: nn.Module) -> None:
        self._policies[_attribute(policy)] = policy
        super().__setitem__(_attribute(policy), module)

    def __getitem__(self, policy: str) -> nn.Module:
        return super().__getitem__(_attribute(policy))

    def __contains__(self, policy: object) -> bool:
        return policy in self._policies.values()

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies.values())

    def keys(self) -> Any:
        return list(self)

    def items(self) -> Any:
        return list(zip(self, self.values(), strict=True))


_EMPTY = PolicyModules()


def _attribute(policy: str) -> str:
    """Return the name of an attribute for a policy; no two policies have the same."""
    if not policy or "." in policy or policy.startswith("policy ") or hasattr(_EMPTY, policy):
        return f"policy {policy}".replace("%", "%25").replace(".", "%2E")
    return policy
