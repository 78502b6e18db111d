"""simple_speaker_listener with a listener that hears nothing: a control, whose best return is that of the center."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpe2 import simple_speaker_listener_v4
from pettingzoo.utils import BaseParallelWrapper

_WORDS = 3


class Deaf(BaseParallelWrapper):
    """Replaces what the listener hears, the last entries of its observation, by zeros. State is unchanged."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return _silenced(observations), infos

    def step(self, actions: dict[str, Any]) -> Any:
        observations, *others = self.env.step(actions)
        return (_silenced(observations), *others)


def _silenced(observations: dict[str, Any]) -> dict[str, Any]:
    if "listener_0" not in observations:
        return observations
    heard = observations["listener_0"]
    return {**observations, "listener_0": np.concatenate([heard[:-_WORDS], np.zeros(_WORDS, heard.dtype)])}


def parallel_env() -> Deaf:
    """Make the environment."""
    return Deaf(simple_speaker_listener_v4.parallel_env(max_cycles=25))
