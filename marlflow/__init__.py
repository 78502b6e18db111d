"""marlflow: multi-agent reinforcement learning as dataflow.

The names that experiments and custom parts are written with. Each is imported when it is first used, which keeps
`import marlflow` fast:

    import marlflow as mf

    mf.train(mf.Experiment(mf.Env(make_env), {"wolf": mf.Policy(mf.PPO()), "sheep": mf.Policy(mf.DQN())}))
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marlflow.base.public_names import MODULE_OF, RENAMED

if TYPE_CHECKING:
    from marlflow.algorithms.a2c import A2C
    from marlflow.algorithms.a3c import A3C
    from marlflow.algorithms.algorithm import Algorithm, Capabilities, JointAlgorithm, LearningAlgorithm, Member
    from marlflow.algorithms.apex import ApeX
    from marlflow.algorithms.appo import APPO
    from marlflow.algorithms.archer import ArCHer
    from marlflow.algorithms.bc import BC
    from marlflow.algorithms.clone import Clone
    from marlflow.algorithms.cost_limit import CostLimit
    from marlflow.algorithms.ddpg import DDPG
    from marlflow.algorithms.ddppo import DDPPO
    from marlflow.algorithms.dqn import DQN
    from marlflow.algorithms.from_run import FromRun, Frozen
    from marlflow.algorithms.happo import HAPPO
    from marlflow.algorithms.impala import IMPALA
    from marlflow.algorithms.kl_to_reference import KLToReference
    from marlflow.algorithms.maddpg import MADDPG
    from marlflow.algorithms.maml import MAML
    from marlflow.algorithms.mappo import MAPPO
    from marlflow.algorithms.marwil import MARWIL
    from marlflow.algorithms.masac import MASAC
    from marlflow.algorithms.matd3 import MATD3
    from marlflow.algorithms.off_policy import (
        JointOffPolicyActorCritic,
        JointOffPolicyAlgorithm,
        OffPolicyActorCritic,
        OffPolicyAlgorithm,
    )
    from marlflow.algorithms.part import Part
    from marlflow.algorithms.pop_art import PopArt
    from marlflow.algorithms.ppo import PPO
    from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
    from marlflow.algorithms.qmix import QMIX
    from marlflow.algorithms.r2d2 import R2D2
    from marlflow.algorithms.recurrent_ppo import RecurrentPPO
    from marlflow.algorithms.reward_unit import RewardUnit
    from marlflow.algorithms.sac import SAC
    from marlflow.algorithms.scripted import Random, Scripted
    from marlflow.algorithms.td3 import TD3
    from marlflow.algorithms.vdn import VDN
    from marlflow.base.errors import (
        ActorLost,
        BudgetExceeded,
        CheckpointFailed,
        CheckpointUnusable,
        ColumnMissing,
        ConfigInvalid,
        EnvironmentFailed,
        EnvironmentHung,
        InvalidInput,
        MarlflowError,
        MatchmakerFailed,
        PlanInvalid,
        Problem,
        RecordsDamaged,
        RuntimeFailed,
        SnapshotLost,
        StageFailed,
        Stalled,
        UserCodeFailed,
        WeightsMismatch,
    )
    from marlflow.base.random import RowRandom
    from marlflow.base.ranges import Range
    from marlflow.base.schedules import CosineDecay, Linear, PiecewiseConstant, ScheduledFloat, initial_value
    from marlflow.batches.batch import Batch, Decisions, EstimatedBatch, TrainBatch, Transitions
    from marlflow.batches.items import Fragment, Gradients, JointFragment, Update
    from marlflow.batches.joint import EstimatedJointBatches, JointBatch, JointBatches
    from marlflow.batches.joint_segments import JointSegments, JointSequenceTransitions, JointTransitions
    from marlflow.check_env import Trial, check_environment
    from marlflow.config.checked import CheckedExperiment
    from marlflow.config.experiment import (
        CheckpointConfig,
        Env,
        Evaluation,
        Experiment,
        Faults,
        InfoMetric,
        LearnerConfig,
        Log,
        OfflineData,
        PlacementOverrides,
        Policy,
        PolicyStop,
        Record,
        Rollouts,
        RunPlacement,
        RuntimeConfig,
        Stop,
    )
    from marlflow.driver.evaluate import EvaluationResult, evaluate
    from marlflow.driver.train import Result, resume, train
    from marlflow.env.batched import BatchedEnv, BatchedStep, SnapshotEnv
    from marlflow.env.functional_protocol import FunctionalEnv, FunctionalStep, FunctionalWrapper
    from marlflow.flow import (
        AgentSteps,
        AtMost,
        EndOfFlow,
        Flow,
        Freely,
        InTurn,
        Located,
        OperatorRaised,
        Place,
        Plan,
        Rotation,
        Together,
        Traits,
        merge,
        source,
    )
    from marlflow.league.alphastar import AlphaStar
    from marlflow.league.league import (
        League,
        LeaguePlayer,
        MatchRules,
        PayoffSettings,
        Pool,
        RatingSettings,
        SnapshotRules,
        StoreSettings,
    )
    from marlflow.league.modes import PFSP, DeltaUniform, Fictitious, LatestPast, LeagueMode, LeagueView, NaiveSelfPlay
    from marlflow.league.nfsp import NFSP
    from marlflow.league.payoffs import GameOutcome
    from marlflow.league.psro import PSRO
    from marlflow.learner.distributed.replicas import ShardedBatch
    from marlflow.learner.extra_losses import ExtraLoss
    from marlflow.learner.learner import TorchLearner
    from marlflow.learner.loss import LossFunction, LossTerms
    from marlflow.learner.loss_groups import LossGroup
    from marlflow.learner.optimizer import Adam, Optimizer, TorchOptimizer
    from marlflow.learner.part_state import PartState
    from marlflow.learner.protocol import Learner
    from marlflow.matchmaking.matchmakers import EpisodeId, Matchmaker, RandomSeats
    from marlflow.observe.callback import (
        Callback,
        ChangePolicy,
        EvaluateNow,
        EvaluationEvent,
        FaultEvent,
        MayChange,
        RoundEvent,
        RunEnd,
        StopRun,
    )
    from marlflow.observe.early_stop import EarlyStop
    from marlflow.observe.mlflow import MlflowSink
    from marlflow.observe.population import PopulationBasedTraining
    from marlflow.observe.report import Report, RunInfo
    from marlflow.observe.trackio import TrackioSink
    from marlflow.observe.wandb import WandbSink
    from marlflow.policy.actor import Actor, NetworkActor
    from marlflow.policy.normalized import ValueCritic
    from marlflow.policy.q import QNetwork
    from marlflow.policy.recurrent import GRU, LSTM, RecurrentTorso, RecurrentTorsoConfig
    from marlflow.policy.torso import CNN, MLP, LeafReader, NestedTorsoConfig, TorsoConfig
    from marlflow.policy.transformer import Transformer
    from marlflow.replay.buffer import ReplayBuffer, StoredReplay
    from marlflow.replay.protocol import Replay
    from marlflow.replay.reservoir import Reservoir
    from marlflow.replay.sampling import Prioritized, Uniform
    from marlflow.runtime.resources import Machines
    from marlflow.runtime.spec import InferencePlacement, LearnerPlacement, Resources
    from marlflow.sampling.mapping import Rule
    from marlflow.sampling.population import PopulationChange, Reset
    from marlflow.stages import (
        Adapt,
        Advantages,
        ApplyGradients,
        Average,
        ByPolicy,
        ByShard,
        ByTask,
        Collect,
        CollectNext,
        ComputeGradients,
        Concat,
        CostAdvantages,
        CutSequences,
        Draw,
        DropStale,
        EachPolicy,
        InitialPriorities,
        Insert,
        Join,
        JoinSegments,
        JointAdvantages,
        Learn,
        LearnInOrder,
        MetaLearn,
        Normalize,
        NormalizeShards,
        NStep,
        Publish,
        Reprioritize,
        Shards,
        SplitSegments,
        SyncTarget,
        UpdateMultiplier,
        UtteranceAdvantage,
        Utterances,
        VTrace,
    )
    from marlflow.trained.export import Exported, export
    from marlflow.trained.team import Team, TrainedPolicy, load
    from marlflow.watch.run_films import RunFilms
    from marlflow.watch.run_page import RunPage

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "A2C", "A3C", "APPO", "BC", "CNN", "DDPG", "DDPPO", "DQN", "GRU", "HAPPO", "IMPALA", "LSTM", "MADDPG", "MAML",
    "MAPPO", "MARWIL", "MASAC", "MATD3", "MLP", "NFSP", "PFSP", "PPO", "PSRO", "QMIX", "R2D2", "SAC", "TD3", "VDN",
    "Actor", "ActorLost", "Adam", "Adapt", "Advantages", "AgentSteps", "Algorithm", "AlphaStar", "ApeX",
    "ApplyGradients", "ArCHer", "AtMost", "Average", "Batch", "BatchedEnv", "BatchedStep", "BudgetExceeded", "ByPolicy",
    "ByShard", "ByTask", "Callback", "Capabilities", "ChangePolicy", "CheckpointConfig", "CheckpointFailed",
    "CheckpointUnusable", "Clone", "Coefficients", "Collect", "CollectNext", "ColumnMissing", "ComputeGradients",
    "Concat", "ConfigInvalid", "CosineDecay", "CostAdvantages", "CostLimit", "CutSequences", "Decisions",
    "DeltaUniform", "Draw", "DropStale", "EachPolicy", "EarlyStop", "EndOfFlow", "Env", "EnvironmentFailed",
    "EnvironmentHung", "EpisodeId", "EstimatedBatch", "EstimatedJointBatches", "EvaluateNow", "Evaluation",
    "EvaluationEvent", "EvaluationResult", "Experiment", "Exported", "ExtraLoss", "FaultEvent", "Faults", "Fictitious",
    "Flow", "Fragment", "Freely", "FromRun", "Frozen", "FunctionalEnv", "FunctionalStep", "FunctionalWrapper",
    "GameOutcome", "Gradients", "InTurn", "InferencePlacement", "InfoMetric", "InitialPriorities", "Insert",
    "InvalidInput", "Join", "JoinSegments", "JointAdvantages", "JointAlgorithm", "JointBatch", "JointBatches",
    "JointFragment", "JointOffPolicyActorCritic", "JointOffPolicyAlgorithm", "JointSegments",
    "JointSequenceTransitions", "JointTransitions", "KLToReference", "LatestPast", "LeafReader", "League", "LeagueMode",
    "LeaguePlayer", "LeagueView", "Learn", "LearnInOrder", "Learner", "LearnerConfig", "LearnerPlacement",
    "LearningAlgorithm", "Linear", "Located", "Log", "LossFunction", "LossGroup", "LossTerms", "MarlflowError",
    "MatchRules", "Matchmaker", "MatchmakerFailed", "MayChange", "Member", "MetaLearn", "MlflowSink", "NStep",
    "NaiveSelfPlay", "NestedTorsoConfig", "NetworkActor", "Normalize", "NormalizeShards", "OffPolicyActorCritic",
    "OffPolicyAlgorithm", "OfflineData", "OperatorRaised", "Optimizer", "PPOLoss", "Part", "PartState",
    "PayoffSettings", "PiecewiseConstant", "Place", "PlacementOverrides", "Plan", "PlanInvalid", "Policy", "PolicyStop",
    "Pool", "PopArt", "PopulationBasedTraining", "PopulationChange", "Prioritized", "Problem", "Publish", "QNetwork",
    "Random", "RandomSeats", "Range", "RatingSettings", "Record", "RecordsDamaged", "RecurrentPPO", "RecurrentTorso",
    "RecurrentTorsoConfig", "Replay", "ReplayBuffer", "Report", "Reprioritize", "Reservoir", "Reset", "Resources",
    "Result", "RewardUnit", "Rollouts", "Rotation", "RoundEvent", "RowRandom", "Rule", "RunEnd", "RunFilms", "RunInfo",
    "RunPage", "RunPlacement", "RuntimeConfig", "RuntimeFailed", "ScheduledFloat", "Scripted", "ShardedBatch", "Shards",
    "SnapshotEnv", "SnapshotLost", "SnapshotRules", "SplitSegments", "StageFailed", "Stalled", "Stop", "StopRun",
    "StoreSettings", "StoredReplay", "SyncTarget", "Team", "TorchLearner", "TorchOptimizer", "TorsoConfig",
    "TrackioSink", "TrainBatch", "TrainedPolicy", "Traits", "Transformer", "Transitions", "Trial", "Uniform", "Update",
    "UpdateMultiplier", "UserCodeFailed", "UtteranceAdvantage", "Utterances", "VTrace", "ValueCritic", "WandbSink",
    "WeightsMismatch", "check_environment", "evaluate", "export", "initial_value", "load", "merge", "placement", "plan",
    "resume", "source", "train",
]
# fmt: on


def plan(experiment: Experiment, machines: Sequence[Mapping[str, float | str]] | None = None) -> Together:
    """Return the checked plan that `train` would run, ready to be printed or drawn, without running it.

    Opens the environment once, and checks the run's resources against this machine, or the cluster at
    `runtime.address`, which is joined briefly. `machines` describes other machines instead, in Ray's resource names:
    `[{"CPU": 16, "GPU": 2, "count": 4}]`. Raises ConfigInvalid or PlanInvalid with every problem.
    """
    from marlflow.checks.commands import compiles_rollouts
    from marlflow.config.plans import drawn_plan

    spec = _checked(experiment, machines)[0].spec
    return drawn_plan(experiment, spec, compiles_rollouts(spec))


def placement(experiment: Experiment, machines: Sequence[Mapping[str, float | str]] | None = None) -> str:
    """Return the CPU, GPU and machine of each process, as `marlflow plan` prints it; otherwise as `plan`.

    On several machines this is one way to fill them: Ray decides when the run starts.
    """
    from marlflow.config.placement import drawn_placement

    return drawn_placement(*_checked(experiment, machines))


def _checked(
    experiment: Experiment, machines: Sequence[Mapping[str, float | str]] | None
) -> tuple[CheckedExperiment, Machines | None]:
    from marlflow.checks.commands import check, machines_to_plan_for
    from marlflow.config.placement import described_machines

    found = machines_to_plan_for(experiment) if machines is None else described_machines(machines, "machines")
    return check(experiment, machines=found), found


def __getattr__(name: str) -> Any:
    if name in RENAMED:
        # Not an AttributeError: `from marlflow import ...` would replace its message.
        raise ImportError(f"marlflow.{name} has become marlflow.{RENAMED[name]}")
    if name not in MODULE_OF:
        raise AttributeError(f"module 'marlflow' has no attribute {name!r}")
    value = getattr(importlib.import_module(MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
