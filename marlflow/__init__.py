"""marlflow: multi-agent reinforcement learning as dataflow.

What an experiment is written with, under one name; each is imported when it is first asked for, so that
`import marlflow` costs nothing:

    import marlflow as mf

    mf.train(mf.Experiment(mf.Env(make_env), {"wolf": mf.Policy(mf.PPO()), "sheep": mf.Policy(mf.DQN())}))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marlflow.algorithms.algorithm import Algorithm
    from marlflow.algorithms.dqn import DQN
    from marlflow.algorithms.ppo import PPO
    from marlflow.algorithms.scripted import Random, Scripted
    from marlflow.base.errors import ConfigInvalid, MarlflowError
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
        Rollouts,
        RunPlacement,
        RuntimeChoice,
        Stop,
    )
    from marlflow.experiment.train import Result, resume, train
    from marlflow.experiment.trial import Trial, check_environment
    from marlflow.flow import Together
    from marlflow.policy.torso import CNN, MLP
    from marlflow.rollout.mapping import Rule
    from marlflow.rollout.matchups import EpisodeId, Matchmaker, RandomSeats
    from marlflow.runtime.spec import Inference, Placement, Reservation

__version__ = "0.1.0"

__all__ = [
    "CNN",
    "DQN",
    "MLP",
    "PPO",
    "Algorithm",
    "Checkpoints",
    "ConfigInvalid",
    "Env",
    "EpisodeId",
    "Evaluation",
    "Experiment",
    "Faults",
    "Inference",
    "Log",
    "MarlflowError",
    "Matchmaker",
    "Placement",
    "Policy",
    "PolicyPlacement",
    "PolicyStop",
    "Random",
    "RandomSeats",
    "Reservation",
    "Result",
    "Rollouts",
    "Rule",
    "RunPlacement",
    "RuntimeChoice",
    "Scripted",
    "Stop",
    "Trial",
    "check_environment",
    "plan",
    "resume",
    "train",
]

# Module to the names that it gives; the imports above say the same to type checkers.
_GIVEN = {
    "marlflow.algorithms.algorithm": ("Algorithm",),
    "marlflow.algorithms.dqn": ("DQN",),
    "marlflow.algorithms.ppo": ("PPO",),
    "marlflow.algorithms.scripted": ("Random", "Scripted"),
    "marlflow.base.errors": ("ConfigInvalid", "MarlflowError"),
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
        "Rollouts",
        "RunPlacement",
        "RuntimeChoice",
        "Stop",
    ),
    "marlflow.experiment.train": ("Result", "resume", "train"),
    "marlflow.experiment.trial": ("Trial", "check_environment"),
    "marlflow.policy.torso": ("CNN", "MLP"),
    "marlflow.rollout.mapping": ("Rule",),
    "marlflow.rollout.matchups": ("EpisodeId", "Matchmaker", "RandomSeats"),
    "marlflow.runtime.spec": ("Inference", "Placement", "Reservation"),
}
_MODULE_OF = {name: module for module, names in _GIVEN.items() for name in names}


def plan(experiment: Experiment) -> Together:
    """The plan that `train` would run, checked and ready to be printed or drawn; nothing runs.

    Opens the environment once. Raises ConfigInvalid or PlanInvalid, with every problem.
    """
    from marlflow.experiment.plans import drawn_plan
    from marlflow.experiment.ready import ready

    drawn = drawn_plan(experiment, ready(experiment).spec)
    drawn.check()
    return drawn


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'marlflow' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
