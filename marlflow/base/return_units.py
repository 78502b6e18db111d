"""The units of returns: per agent, or summed over agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

Units: TypeAlias = Literal["mean", "sum"]
"""How the returns of a policy's agents in an episode are one number: their mean, or their sum."""

RETURN: Final[Mapping[Units, str]] = {"mean": "return per agent and episode", "sum": "sum over its agents, per episode"}
"""The names of the return of a policy, on axes and above tables."""
