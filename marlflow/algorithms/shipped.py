"""All learning algorithms of marlflow with default settings, for suggestions, tables and tests."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from marlflow.algorithms.algorithm import Algorithm
from marlflow.base.public_names import MODULE_OF

_LEARNING: Final = (
    "PPO A2C A3C IMPALA APPO DDPPO MAPPO HAPPO RecurrentPPO DQN ApeX R2D2 VDN QMIX SAC TD3 DDPG MADDPG MATD3 MASAC BC "
    "MARWIL Clone MAML ArCHer"
)
SHIPPED: tuple[Algorithm, ...] = tuple(getattr(import_module(MODULE_OF[name]), name)() for name in _LEARNING.split())
"""The algorithms that learn."""
