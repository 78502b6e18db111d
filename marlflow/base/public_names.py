"""The public names of marlflow, with the modules that give them, and names and import paths of earlier versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

NAMES_BY_MODULE: Mapping[str, str] = {
    "marlflow.algorithms.a2c": "A2C",
    "marlflow.algorithms.a3c": "A3C",
    "marlflow.algorithms.algorithm": "Algorithm Capabilities JointAlgorithm LearningAlgorithm Member",
    "marlflow.algorithms.apex": "ApeX",
    "marlflow.algorithms.appo": "APPO",
    "marlflow.algorithms.archer": "ArCHer",
    "marlflow.algorithms.bc": "BC",
    "marlflow.algorithms.clone": "Clone",
    "marlflow.algorithms.cost_limit": "CostLimit",
    "marlflow.algorithms.ddpg": "DDPG",
    "marlflow.algorithms.ddppo": "DDPPO",
    "marlflow.algorithms.dqn": "DQN",
    "marlflow.algorithms.from_run": "FromRun Frozen",
    "marlflow.algorithms.happo": "HAPPO",
    "marlflow.algorithms.impala": "IMPALA",
    "marlflow.algorithms.kl_to_reference": "KLToReference",
    "marlflow.algorithms.maddpg": "MADDPG",
    "marlflow.algorithms.maml": "MAML",
    "marlflow.algorithms.mappo": "MAPPO",
    "marlflow.algorithms.marwil": "MARWIL",
    "marlflow.algorithms.masac": "MASAC",
    "marlflow.algorithms.matd3": "MATD3",
    "marlflow.algorithms.off_policy": (
        "JointOffPolicyActorCritic JointOffPolicyAlgorithm OffPolicyActorCritic OffPolicyAlgorithm"
    ),
    "marlflow.algorithms.part": "Part",
    "marlflow.algorithms.pop_art": "PopArt",
    "marlflow.algorithms.ppo": "PPO",
    "marlflow.algorithms.ppo_loss": "Coefficients PPOLoss",
    "marlflow.algorithms.qmix": "QMIX",
    "marlflow.algorithms.r2d2": "R2D2",
    "marlflow.algorithms.recurrent_ppo": "RecurrentPPO",
    "marlflow.algorithms.reward_unit": "RewardUnit",
    "marlflow.algorithms.sac": "SAC",
    "marlflow.algorithms.scripted": "Random Scripted",
    "marlflow.algorithms.td3": "TD3",
    "marlflow.algorithms.vdn": "VDN",
    "marlflow.batches.batch": "Batch Decisions EstimatedBatch TrainBatch Transitions",
    "marlflow.base.errors": (
        "ActorLost BudgetExceeded CheckpointFailed CheckpointUnusable ColumnMissing ConfigInvalid EnvironmentFailed "
        "EnvironmentHung InvalidInput MarlflowError MatchmakerFailed PlanInvalid Problem RecordsDamaged "
        "RuntimeFailed SnapshotLost StageFailed Stalled UserCodeFailed WeightsMismatch"
    ),
    "marlflow.batches.items": "Fragment Gradients JointFragment Update",
    "marlflow.batches.joint": "EstimatedJointBatches JointBatch JointBatches",
    "marlflow.batches.joint_segments": "JointSegments JointSequenceTransitions JointTransitions",
    "marlflow.base.random": "RowRandom",
    "marlflow.base.ranges": "Range",
    "marlflow.base.schedules": "CosineDecay Linear PiecewiseConstant ScheduledFloat initial_value",
    "marlflow.config.experiment": (
        "CheckpointConfig Env Evaluation Experiment Faults InfoMetric LearnerConfig Log OfflineData PlacementOverrides "
        "Policy PolicyStop Record Rollouts RunPlacement RuntimeConfig Stop"
    ),
    "marlflow.driver.evaluate": "EvaluationResult evaluate",
    "marlflow.driver.train": "Result resume train",
    "marlflow.env.batched": "BatchedEnv BatchedStep SnapshotEnv",
    "marlflow.env.functional_protocol": "FunctionalEnv FunctionalStep FunctionalWrapper",
    "marlflow.check_env": "Trial check_environment",
    "marlflow.flow": (
        "AgentSteps AtMost EndOfFlow Flow Freely InTurn Located OperatorRaised Place Plan Rotation Traits merge source"
    ),
    "marlflow.league.alphastar": "AlphaStar",
    "marlflow.league.league": (
        "League LeaguePlayer MatchRules PayoffSettings Pool RatingSettings SnapshotRules StoreSettings"
    ),
    "marlflow.league.modes": "DeltaUniform Fictitious LatestPast LeagueMode LeagueView NaiveSelfPlay PFSP",
    "marlflow.league.nfsp": "NFSP",
    "marlflow.league.payoffs": "GameOutcome",
    "marlflow.league.psro": "PSRO",
    "marlflow.learner.extra_losses": "ExtraLoss",
    "marlflow.learner.learner": "TorchLearner",
    "marlflow.learner.loss": "LossFunction LossTerms",
    "marlflow.learner.optimizer": "Adam Optimizer TorchOptimizer",
    "marlflow.learner.loss_groups": "LossGroup",
    "marlflow.learner.part_state": "PartState",
    "marlflow.learner.protocol": "Learner",
    "marlflow.learner.distributed.replicas": "ShardedBatch",
    "marlflow.observe.callback": (
        "Callback ChangePolicy EvaluateNow EvaluationEvent FaultEvent MayChange RoundEvent RunEnd StopRun"
    ),
    "marlflow.observe.early_stop": "EarlyStop",
    "marlflow.observe.mlflow": "MlflowSink",
    "marlflow.observe.population": "PopulationBasedTraining",
    "marlflow.observe.report": "Report RunInfo",
    "marlflow.observe.trackio": "TrackioSink",
    "marlflow.observe.wandb": "WandbSink",
    "marlflow.watch.run_films": "RunFilms",
    "marlflow.watch.run_page": "RunPage",
    "marlflow.policy.actor": "Actor NetworkActor",
    "marlflow.policy.normalized": "ValueCritic",
    "marlflow.policy.q": "QNetwork",
    "marlflow.policy.recurrent": "GRU LSTM RecurrentTorso RecurrentTorsoConfig",
    "marlflow.policy.torso": "CNN MLP LeafReader NestedTorsoConfig TorsoConfig",
    "marlflow.policy.transformer": "Transformer",
    "marlflow.replay.buffer": "ReplayBuffer StoredReplay",
    "marlflow.replay.protocol": "Replay",
    "marlflow.replay.reservoir": "Reservoir",
    "marlflow.replay.sampling": "Prioritized Uniform",
    "marlflow.sampling.mapping": "Rule",
    "marlflow.matchmaking.matchmakers": "EpisodeId Matchmaker RandomSeats",
    "marlflow.sampling.population": "PopulationChange Reset",
    "marlflow.runtime.spec": "InferencePlacement LearnerPlacement Resources",
    "marlflow.stages": (
        "Adapt Advantages ApplyGradients Average ByPolicy ByShard ByTask Collect CollectNext ComputeGradients "
        "Concat CostAdvantages CutSequences Draw DropStale EachPolicy InitialPriorities Insert Join JoinSegments "
        "JointAdvantages Learn LearnInOrder MetaLearn NStep Normalize NormalizeShards Publish Reprioritize Shards "
        "SplitSegments SyncTarget UpdateMultiplier UtteranceAdvantage Utterances VTrace"
    ),
    "marlflow.trained.export": "Exported export",
    "marlflow.trained.team": "Team TrainedPolicy load",
}
"""Module to the names that it gives; the imports of `marlflow/__init__.py` say the same to type checkers."""

MODULE_OF = {name: module for module, names in NAMES_BY_MODULE.items() for name in names.split()}


RENAMED: Mapping[str, str] = {
    "Checkpoints": "CheckpointConfig",
    "Cosine": "CosineDecay",
    "Inference": "InferencePlacement",
    "KeptMatchmaker": "Matchmaker",
    "MetricsRecord": "Report",
    "Normalise": "Normalize",
    "Optimiser": "Optimizer",
    "Placement": "LearnerPlacement",
    "PolicyPlacement": "PlacementOverrides",
    "PopulationMatchmaker": "Matchmaker",
    "Recorded": "OfflineData",
    "Reservation": "Resources",
    "ResettingMatchmaker": "Matchmaker",
    "ResultsMatchmaker": "Matchmaker",
    "RuntimeChoice": "RuntimeConfig",
    "Setting": "ScheduledFloat",
    "StatefulMatchmaker": "Matchmaker",
    "Step": "PiecewiseConstant",
    "TorchOptimiser": "TorchOptimizer",
    "at_start": "initial_value",
}
"""Public names of earlier versions, so that scripts and saved configurations get an error that names the new one."""


_ROOMS: Final = {
    "games": "cartpole_family cartpole_team cliff gridworld guess_number matrix_games pendulum_team recall relay "
    "sacrifice sign token_signal toll",
    "simulators": "gymnasium_team lbf openspiel pettingzoo_registry rware",
    "wrappers": "automaton automaton_task managed reward_scale shield",
}
_SHIPPED: Final = (
    "agent_indicator black_death clip_observations flatten_actions gray joint_state last_action mask_in_info "
    "named_agents pad_actions pad_observations random_opening resize reward_scale widen_bounds"
)
_ROOM_OF: Final = {module: room for room, modules in _ROOMS.items() for module in modules.split()}
_MOVED: Final = re.compile(
    rf"(?<![\w.])marlflow\.(?:env\.(?P<module>{'|'.join(_ROOM_OF)})(?=\.\w+(?![\w.])|(?![\w.]))"
    rf"|env\.wrappers\.(?P<wrapper>{'|'.join(_SHIPPED.split())})(?![\w.])"
    r"|(?P<room>[a-z_.]+)\.(?P<public>[A-Z]\w*)(?![\w.]))"
)


def current_name(path: str) -> str:
    """Return the current import path of a part that has moved; other paths are returned unchanged.

    >>> current_name("marlflow.env.lbf.parallel_env"), current_name("marlflow.env.wrappers.gray")
    ('marlflow.env.simulators.lbf.parallel_env', 'marlflow.env.wrappers.shipped.gray')
    """
    return _current(found) + path[found.end() :] if (found := _MOVED.match(path)) else path


def with_current_paths(text: str) -> str:
    """Return a text with old import paths replaced by the current ones.

    >>> with_current_paths("shield(safe='marlflow.env.cliff.stays_up')")
    "shield(safe='marlflow.env.games.cliff.stays_up')"
    """
    return _MOVED.sub(_current, text)


def _current(found: re.Match[str]) -> str:
    if module := found["module"]:
        return f"marlflow.env.{_ROOM_OF[module]}.{module}"
    if wrapper := found["wrapper"]:
        return f"marlflow.env.wrappers.shipped.{wrapper}"
    # A public class is known by its name alone, wherever its module was.
    module = MODULE_OF.get(found["public"])
    return found[0] if module is None else f"{module}.{found['public']}"


def with_current_names(values: Any) -> Any:
    """Return plain data in which all old import paths are replaced by the current ones."""
    if isinstance(values, str):
        return with_current_paths(values)
    if isinstance(values, Mapping):
        return {key: with_current_names(value) for key, value in values.items()}
    return [with_current_names(value) for value in values] if isinstance(values, list) else values


def moved_to(path: str) -> str:
    """Return the end of the error for a path that cannot be imported: its new name; empty if it has not moved."""
    return "" if (name := current_name(path)) == path else f"; it has become {name}"
