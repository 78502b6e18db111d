"""The public names of marlflow, with the modules that give them, and their earlier names."""

from __future__ import annotations

from collections.abc import Mapping

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
    "marlflow.algorithms.ppo": "PPO",
    "marlflow.algorithms.ppo_loss": "Coefficients PPOLoss",
    "marlflow.algorithms.qmix": "QMIX",
    "marlflow.algorithms.r2d2": "R2D2",
    "marlflow.algorithms.recurrent_ppo": "RecurrentPPO",
    "marlflow.algorithms.sac": "SAC",
    "marlflow.algorithms.scripted": "Random Scripted",
    "marlflow.algorithms.td3": "TD3",
    "marlflow.algorithms.vdn": "VDN",
    "marlflow.batches.batch": "Batch Decisions EstimatedBatch Transitions",
    "marlflow.base.errors": (
        "ActorLost BudgetExceeded CheckpointFailed CheckpointUnusable ColumnMissing ConfigInvalid "
        "EnvironmentFailed EnvironmentHung InvalidInput MarlflowError MatchmakerFailed PlanInvalid RecordsDamaged "
        "RuntimeFailed SnapshotLost StageFailed Stalled UserCodeFailed WeightsMismatch"
    ),
    "marlflow.batches.items": "Fragment Gradients JointFragment Update",
    "marlflow.batches.joint": "EstimatedJointBatches JointBatch JointBatches",
    "marlflow.batches.joint_segments": "JointSegments",
    "marlflow.batches.joint_sequence_transitions": "JointSequenceTransitions",
    "marlflow.batches.joint_transitions": "JointTransitions",
    "marlflow.base.problems": "Problem",
    "marlflow.base.random": "RowRandom",
    "marlflow.base.ranges": "Range",
    "marlflow.base.schedules": "CosineDecay Linear PiecewiseConstant ScheduledFloat initial_value",
    "marlflow.batches.train_batch": "TrainBatch",
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
    "marlflow.learner.distributed.shards": "ShardedBatch",
    "marlflow.observe.callback": "Callback EvaluateNow EvaluationEvent FaultEvent RunEnd StopRun",
    "marlflow.observe.early_stop": "EarlyStop",
    "marlflow.observe.mlflow": "MlflowSink",
    "marlflow.observe.report": "Report RunInfo",
    "marlflow.observe.trackio": "TrackioSink",
    "marlflow.observe.wandb": "WandbSink",
    "marlflow.policy.actor": "Actor",
    "marlflow.policy.q": "QNetwork",
    "marlflow.policy.recurrent": "GRU LSTM RecurrentTorso RecurrentTorsoConfig",
    "marlflow.policy.torso": "CNN MLP NestedTorsoConfig TorsoConfig",
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
        "JointAdvantages Learn LearnInOrder MetaLearn NStep Normalize Publish Reprioritize Shards "
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
