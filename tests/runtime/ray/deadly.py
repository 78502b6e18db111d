"""Environments and algorithms that end their process on request, once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

import marlflow as mf
from marlflow.env.games.cartpole_team import CartPoleTeam


def kill(actor: Any) -> None:
    """As the kernel does it when memory runs out."""
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


def die_if_told(marker: Path) -> None:
    """Ends this process if the marker is there, which then is gone: so it happens once."""
    try:
        marker.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(CartPoleTeam):
    """A step ends its worker's process, when told to."""

    def __init__(self, marker: Path) -> None:
        super().__init__(max_cycles=30)
        self.marker = marker

    def step(self, actions: dict[str, int]) -> Any:
        if self._cycles == 7:
            die_if_told(self.marker)
        return super().step(actions)


@dataclass(frozen=True)
class DeadlyStage:
    """A stage that ends its learner's process, when told to."""

    marker: Path

    def __call__(self, update: mf.Update) -> mf.Update:
        die_if_told(self.marker)
        return update


@dataclass(frozen=True)
class DeadlyPPO(mf.PPO):
    """PPO that ends its process after it has published; its learner cannot be built once `barred` exists."""

    marker: Path = Path()
    barred: Path = Path()

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replay: mf.Replay | None = None) -> mf.Plan:
        plan = super().plan(experience, learner, replay)
        return replace(plan, output=plan.output.then(DeadlyStage(self.marker), at=learner))

    def learner(self, *arguments: Any, **options: Any) -> mf.TorchLearner:
        if self.barred.is_file():
            raise ValueError("no weights were found")
        return super().learner(*arguments, **options)
