"""All learning algorithms of marlflow with default settings, for suggestions, tables and tests."""

from __future__ import annotations

from marlflow.algorithms.a2c import A2C
from marlflow.algorithms.a3c import A3C
from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.apex import ApeX
from marlflow.algorithms.appo import APPO
from marlflow.algorithms.archer import ArCHer
from marlflow.algorithms.bc import BC
from marlflow.algorithms.clone import Clone
from marlflow.algorithms.ddpg import DDPG
from marlflow.algorithms.ddppo import DDPPO
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.happo import HAPPO
from marlflow.algorithms.impala import IMPALA
from marlflow.algorithms.maddpg import MADDPG
from marlflow.algorithms.maml import MAML
from marlflow.algorithms.mappo import MAPPO
from marlflow.algorithms.marwil import MARWIL
from marlflow.algorithms.masac import MASAC
from marlflow.algorithms.matd3 import MATD3
from marlflow.algorithms.ppo import PPO
from marlflow.algorithms.qmix import QMIX
from marlflow.algorithms.r2d2 import R2D2
from marlflow.algorithms.recurrent_ppo import RecurrentPPO
from marlflow.algorithms.sac import SAC
from marlflow.algorithms.td3 import TD3
from marlflow.algorithms.vdn import VDN

SHIPPED: tuple[Algorithm, ...] = (
    PPO(),
    A2C(),
    A3C(),
    IMPALA(),
    APPO(),
    DDPPO(),
    MAPPO(),
    HAPPO(),
    RecurrentPPO(),
    DQN(),
    ApeX(),
    R2D2(),
    VDN(),
    QMIX(),
    SAC(),
    TD3(),
    DDPG(),
    MADDPG(),
    MATD3(),
    MASAC(),
    BC(),
    MARWIL(),
    Clone(),
    MAML(),
    ArCHer(),
)
"""The algorithms that learn."""
