"""Which algorithms can play a group of agents, and an untrained network for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.scripted import Random
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import Actor
from marlflow.policy.recurrent import GRU
from marlflow.policy.torso import CNN, MLP, TorsoConfig

_RANDOM = Random()
LEARNING = tuple(algorithm.name for algorithm in SHIPPED)


@dataclass(frozen=True)
class Suitable:
    """The reason why each algorithm cannot be used, by name ("" if it can), and an untrained `actor`.

    `network` describes the actor's model. `actor` is None if no learning algorithm can be used.
    """

    reasons: Mapping[str, str]
    actor: Actor | None
    network: str


def suitable(spaces: Spaces, has_tasks: bool) -> Suitable:
    """Check every algorithm; `has_tasks`: whether the environment is a family of tasks."""
    reasons = {algorithm.name: _problems(algorithm, spaces, has_tasks) for algorithm in (*SHIPPED, _RANDOM)}
    usable = [algorithm for algorithm in SHIPPED if not reasons[algorithm.name]]
    if not reasons[_RANDOM.name]:
        reasons[_RANDOM.name] = _unbuildable(spaces)
    if not usable:
        return Suitable(reasons, None, "random actions")
    models: dict[str, TorsoConfig] = {"CNN": CNN(), "MLP 64x64": MLP()} if _is_image(spaces) else {"MLP 64x64": MLP()}
    # Only one algorithm's network is built: spaces that no network supports rule out all of them.
    for network, model in models.items():
        try:
            return Suitable(reasons, usable[0].actor(spaces, model, 0), network)
        except ConfigInvalid as error:
            reason = "; ".join(error.problems)
    return Suitable({**reasons, **{algorithm.name: reason for algorithm in usable}}, None, "random actions")


def _problems(algorithm: Algorithm, spaces: Spaces, has_tasks: bool) -> str:
    if algorithm.capabilities.tasks and not has_tasks:
        return 'adapts to tasks, and the environment has none (metadata["tasks"])'
    model = GRU() if algorithm.capabilities.memory == "needed" else MLP()
    problems = algorithm.validate(spaces, model)
    return "; ".join(problem if isinstance(problem, str) else str(replace(problem, subject="")) for problem in problems)


def _unbuildable(spaces: Spaces) -> str:
    try:
        _RANDOM.actor(spaces, MLP(), 0)
    except ConfigInvalid as error:
        return "; ".join(error.problems)
    return ""


def _is_image(spaces: Spaces) -> bool:
    space = spaces.observation
    return isinstance(space, gym.Box) and space.dtype == np.uint8 and len(space.shape) == 3
