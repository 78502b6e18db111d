"""marlflow: multi-agent reinforcement learning as dataflow.

What an experiment is written with, under one name; each is imported when it is first asked for, so that
`import marlflow` costs nothing:

    import marlflow as mf

    mf.train(mf.Experiment(mf.Env(make_env), {"wolf": mf.Policy(mf.PPO()), "sheep": mf.Policy(mf.DQN())}))
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marlflow.algorithms.a2c import A2C
    from marlflow.algorithms.a3c import A3C
    from marlflow.algorithms.algorithm import Algorithm, Capabilities, LearningAlgorithm
    from marlflow.algorithms.apex import ApeX
    from marlflow.algorithms.appo import APPO
    from marlflow.algorithms.bc import BC
    from marlflow.algorithms.ddpg import DDPG
    from marlflow.algorithms.ddppo import DDPPO
    from marlflow.algorithms.dqn import DQN
    from marlflow.algorithms.impala import IMPALA
    from marlflow.algorithms.maml import MAML
    from marlflow.algorithms.marwil import MARWIL
    from marlflow.algorithms.ppo import PPO
    from marlflow.algorithms.r2d2 import R2D2
    from marlflow.algorithms.recurrent_ppo import RecurrentPPO
    from marlflow.algorithms.sac import SAC
    from marlflow.algorithms.scripted import Random, Scripted
    from marlflow.algorithms.td3 import TD3
    from marlflow.base.errors import ConfigInvalid, MarlflowError
    from marlflow.base.schedules import Cosine, Linear, Step
    from marlflow.experiment.experiment import (
        Checkpoints,
        Env,
        Evaluation,
        Experiment,
        Faults,
        Log,
        Policy,
        PolicyPlacement,
        PolicyStop,
        Record,
        Recorded,
        Rollouts,
        RunPlacement,
        RuntimeChoice,
        Stop,
    )
    from marlflow.experiment.train import Result, resume, train
    from marlflow.experiment.trial import Trial, check_environment
    from marlflow.flow import Together
    from marlflow.learn.optimiser import Adam
    from marlflow.policy.recurrent import GRU, LSTM
    from marlflow.policy.torso import CNN, MLP
    from marlflow.rollout.mapping import Rule
    from marlflow.rollout.matchups import EpisodeId, Matchmaker, RandomSeats
    from marlflow.runtime.spec import Inference, Placement, Reservation

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "A3C",
    "APPO",
    "BC",
    "CNN",
    "DDPG",
    "DDPPO",
    "DQN",
    "GRU",
    "IMPALA",
    "LSTM",
    "MAML",
    "MARWIL",
    "MLP",
    "PPO",
    "R2D2",
    "SAC",
    "TD3",
    "Adam",
    "Algorithm",
    "ApeX",
    "Capabilities",
    "Checkpoints",
    "ConfigInvalid",
    "Cosine",
    "Env",
    "EpisodeId",
    "Evaluation",
    "Experiment",
    "Faults",
    "Inference",
    "LearningAlgorithm",
    "Linear",
    "Log",
    "MarlflowError",
    "Matchmaker",
    "Placement",
    "Policy",
    "PolicyPlacement",
    "PolicyStop",
    "Random",
    "RandomSeats",
    "Record",
    "Recorded",
    "RecurrentPPO",
    "Reservation",
    "Result",
    "Rollouts",
    "Rule",
    "RunPlacement",
    "RuntimeChoice",
    "Scripted",
    "Step",
    "Stop",
    "Trial",
    "check_environment",
    "plan",
    "resume",
    "train",
]

# Module to the names that it gives; the imports above say the same to type checkers.
_GIVEN = {
    "marlflow.algorithms.a2c": ("A2C",),
    "marlflow.algorithms.a3c": ("A3C",),
    "marlflow.algorithms.algorithm": (
        "Algorithm",
        "Capabilities",
        "LearningAlgorithm",
    ),
    "marlflow.algorithms.apex": ("ApeX",),
    "marlflow.algorithms.appo": ("APPO",),
    "marlflow.algorithms.bc": ("BC",),
    "marlflow.algorithms.ddpg": ("DDPG",),
    "marlflow.algorithms.ddppo": ("DDPPO",),
    "marlflow.algorithms.dqn": ("DQN",),
    "marlflow.algorithms.impala": ("IMPALA",),
    "marlflow.algorithms.maml": ("MAML",),
    "marlflow.algorithms.marwil": ("MARWIL",),
    "marlflow.algorithms.ppo": ("PPO",),
    "marlflow.algorithms.r2d2": ("R2D2",),
    "marlflow.algorithms.recurrent_ppo": ("RecurrentPPO",),
    "marlflow.algorithms.sac": ("SAC",),
    "marlflow.algorithms.scripted": (
        "Random",
        "Scripted",
    ),
    "marlflow.algorithms.td3": ("TD3",),
    "marlflow.base.errors": (
        "ConfigInvalid",
        "MarlflowError",
    ),
    "marlflow.base.schedules": (
        "Cosine",
        "Linear",
        "Step",
    ),
    "marlflow.experiment.experiment": (
        "Checkpoints",
        "Env",
        "Evaluation",
        "Experiment",
        "Faults",
        "Log",
        "Policy",
        "PolicyPlacement",
        "PolicyStop",
        "Record",
        "Recorded",
        "Rollouts",
        "RunPlacement",
        "RuntimeChoice",
        "Stop",
    ),
    "marlflow.experiment.train": (
        "Result",
        "resume",
        "train",
    ),
    "marlflow.experiment.trial": (
        "Trial",
        "check_environment",
    ),
    "marlflow.learn.optimiser": ("Adam",),
    "marlflow.policy.recurrent": (
        "GRU",
        "LSTM",
    ),
    "marlflow.policy.torso": (
        "CNN",
        "MLP",
    ),
    "marlflow.rollout.mapping": ("Rule",),
    "marlflow.rollout.matchups": (
        "EpisodeId",
        "Matchmaker",
        "RandomSeats",
    ),
    "marlflow.runtime.spec": (
        "Inference",
        "Placement",
        "Reservation",
    ),
}
_MODULE_OF = {name: module for module, names in _GIVEN.items() for name in names}


def plan(experiment: Experiment, machines: Sequence[Mapping[str, float | str]] | None = None) -> Together:
    """The plan that `train` would run, checked and ready to be printed or drawn; nothing runs.

    Opens the environment once, and holds what the run asks for against what there is: this machine, or the cluster at
    `runtime.address`, which is joined for a moment. `machines` describes others instead, by Ray's names of resources:
    `[{"CPU": 16, "GPU": 2, "count": 4}]`. Raises ConfigInvalid or PlanInvalid, with every problem.
    """
    from marlflow.experiment.placing import described_machines
    from marlflow.experiment.plans import drawn_plan
    from marlflow.experiment.train import check, machines_to_plan_for

    found = machines_to_plan_for(experiment) if machines is None else described_machines(machines, "machines")
    return drawn_plan(experiment, check(experiment, machines=found).spec)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'marlflow' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
