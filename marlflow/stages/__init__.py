"""All operators from which algorithms build plans (execution plans in RLlib Flow).

`Collect`, `CollectNext`, `ByPolicy`, `Concat`, `Shards`, `Average`, `Rotation` and `ByShard` run on the driver, without
opening rows. Others run at a learner or replay: `.then(Learn(), at=learner)`. See docs/stages.md. Names in RLlib Flow:
`Collect` is ParallelRollouts, `Concat` ConcatBatches, `Normalize` StandardizeFields, `Learn` TrainOneStep, `Insert`
StoreToReplayBuffer, `Draw` Replay, `SyncTarget` UpdateTargetNetwork.
"""

from marlflow.flow import Rotation
from marlflow.stages.batches import CutSequences, DropStale, Join
from marlflow.stages.estimates import Advantages, CostAdvantages, Normalize, NormalizeShards, UpdateMultiplier, VTrace
from marlflow.stages.joint_updates import EachPolicy, JointAdvantages, LearnInOrder
from marlflow.stages.replays import (
    ByShard,
    Draw,
    InitialPriorities,
    Insert,
    JoinSegments,
    NStep,
    Reprioritize,
    SplitSegments,
)
from marlflow.stages.sampling import ByPolicy, Collect, CollectNext, Concat, Shards
from marlflow.stages.tasks import Adapt, ByTask, MetaLearn
from marlflow.stages.updates import ApplyGradients, Average, ComputeGradients, Learn, Publish, SyncTarget
from marlflow.stages.utterances import UtteranceAdvantage, Utterances

__all__ = [
    "Adapt",
    "Advantages",
    "ApplyGradients",
    "Average",
    "ByPolicy",
    "ByShard",
    "ByTask",
    "Collect",
    "CollectNext",
    "ComputeGradients",
    "Concat",
    "CostAdvantages",
    "CutSequences",
    "Draw",
    "DropStale",
    "EachPolicy",
    "InitialPriorities",
    "Insert",
    "Join",
    "JoinSegments",
    "JointAdvantages",
    "Learn",
    "LearnInOrder",
    "MetaLearn",
    "NStep",
    "Normalize",
    "NormalizeShards",
    "Publish",
    "Reprioritize",
    "Rotation",
    "Shards",
    "SplitSegments",
    "SyncTarget",
    "UpdateMultiplier",
    "UtteranceAdvantage",
    "Utterances",
    "VTrace",
]
