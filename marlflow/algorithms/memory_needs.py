"""Whether an algorithm can learn with a recurrent model, or needs one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from marlflow.base.errors import Problem
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.policy.torso import TorsoConfig

Memory: TypeAlias = Literal["refused", "optional", "needed"]


def memory_problems(name: str, memory: Memory, joint: bool, model: TorsoConfig) -> Iterator[Problem]:
    """Yield why an algorithm, `joint` or not, cannot learn with a model: memory refused, or needed."""
    is_recurrent, kind = isinstance(model, RecurrentTorsoConfig), type(model).__name__
    if is_recurrent and memory == "refused":
        others = "vdn or qmix" if joint else "recurrent_ppo, r2d2, vdn or qmix"
        remedy = f"use {others}, or a model without memory, such as mlp"
        yield Problem(
            f"cannot learn with {kind}, which has memory", name, "it does not look at rows in their order", remedy
        )
    if not is_recurrent and memory == "needed":
        remedy = "or use ppo or dqn, which need none"
        yield Problem(f"needs a model with memory, gru or lstm, not {kind}", name, remedy=remedy)
