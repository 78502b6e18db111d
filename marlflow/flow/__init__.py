"""Dataflow graphs: plans as values, and the executor that runs them."""

from marlflow.flow.executor import Executor
from marlflow.flow.flow import Flow, Rotation, merge, source
from marlflow.flow.meters import Hook, StageId
from marlflow.flow.pace import AgentSteps, AtMost, Freely, InTurn, Pace
from marlflow.flow.plan import AnyPlan, Feed, Plan, RoundPace, Together, WorkBetweenRounds, together
from marlflow.flow.protocols import (
    EndOfFlow,
    GatherOperator,
    Located,
    OperatorRaised,
    Outcome,
    Place,
    StageCall,
    StageTimes,
)
from marlflow.flow.traits import Traits

__all__ = [
    "AgentSteps",
    "AnyPlan",
    "AtMost",
    "EndOfFlow",
    "Executor",
    "Feed",
    "Flow",
    "Freely",
    "GatherOperator",
    "Hook",
    "InTurn",
    "Located",
    "OperatorRaised",
    "Outcome",
    "Pace",
    "Place",
    "Plan",
    "Rotation",
    "RoundPace",
    "StageCall",
    "StageId",
    "StageTimes",
    "Together",
    "Traits",
    "WorkBetweenRounds",
    "merge",
    "source",
    "together",
]
