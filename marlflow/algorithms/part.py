"""A part adds to an algorithm what the algorithm's own file does not have, such as a limit on costs.

`algorithm.parts` has them by name. Shipped parts have no other means than these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from marlflow.base.errors import Problem
from marlflow.base.schedules import initial_value, scheduled
from marlflow.base.sentences import overrides_nothing
from marlflow.env.episode_location import raised
from marlflow.flow import Flow, Plan
from marlflow.flow.protocols import name_of
from marlflow.learner.extra_losses import ExtraLosses
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.part_state import PartState
from marlflow.learner.protocol import Scheduled
from marlflow.policy.normalized import ValueCritic

if TYPE_CHECKING:
    from marlflow.algorithms.algorithm import Member, TorchAlgorithm

Point: TypeAlias = Literal["fresh", "estimated", "before_learning", "after_update"]
"""Where a plan runs stages of parts: on rows as they were collected, on rows with advantages, on what Learn gets, and
on the report of an update."""


class Part:
    """Base of parts, frozen dataclasses whose fields are settings; a method that is not overridden does nothing.

    A field annotated `ScheduledFloat` may be a schedule. An algorithm has one part of a kind, the class that derives
    from Part.
    """

    credited: ClassVar[tuple[str, ...]] = ()
    """Keys of numbers in infos that rows have as columns, added up like rewards."""

    def validate(self, algorithm: TorchAlgorithm, spaces: Any, model: Any) -> Iterable[Problem]:
        """Return why the part cannot be used with an algorithm, spaces, and a model; empty if it can."""
        return ()

    def extend(self, network: Any, algorithm: TorchAlgorithm, members: Mapping[str, Member], seed: int) -> None:
        """Add modules to the learner's network, which trains them; actors must stay as they are."""

    def change_critic(self, critic: ValueCritic) -> None:
        """Change a critic of states, such as the unit of its values (`returns`); called for each, also of parts."""

    def losses(
        self, groups: Sequence[LossGroup], algorithm: TorchAlgorithm, members: Mapping[str, Member]
    ) -> Sequence[LossGroup]:
        """Return the learner's loss groups; `groups` are of the algorithm and earlier parts; see `beside`."""
        return groups

    def extra_losses(self) -> ExtraLosses:
        """Return terms to add to the loss, or to report only, by name; see ExtraLoss."""
        return {}

    def state(self) -> PartState | None:
        """Make what the part keeps at the learner."""
        return None

    def stages(self, algorithm: TorchAlgorithm) -> Mapping[Point, Sequence[Callable[..., Any]]]:
        """Return operators of (item) or (item, learner), by the point of the plan where they run at the learner."""
        return {}

    def now(self, setting: str, learner: Scheduled) -> float:
        """Return the present value of a setting, which may be scheduled, for use in a stage."""
        return learner.scheduled.get(f"{kind_of(self)}.{setting}", initial_value(getattr(self, setting)))


def kind_of(part: Part) -> str:
    """Return the name of the class that derives from Part: settings are scheduled as `<kind>.<setting>`."""
    return next(one for one in reversed(type(part).__mro__) if issubclass(one, Part) and one is not Part).__name__


def added_by(name: str, point: str) -> str:
    """Return how a plan's stages say which part, by name, added them at which point."""
    return f"{name}, {point}"


def with_stage(flow: Flow[Any], operator: Callable[..., Any], learner: Any, origin: str) -> Flow[Any]:
    """Return `flow` with a stage of a part, under a name of its own: operators of two parts may have the same."""
    taken, own = {stage.name for stage in flow.upstream()}, name_of(operator)
    names = chain([own, f"{own} ({origin})"], (f"{own} ({origin}, {number})" for number in count(2)))
    stage = flow.then(operator, at=learner, name=next(name for name in names if name not in taken))
    return replace(stage, added_by=origin)


def scheduled_parts(parts: Iterable[Part], agent_steps: int) -> dict[str, float]:
    """Return the scheduled settings of parts after `agent_steps`, as they are sent to learners."""
    return {
        f"{kind_of(part)}.{name}": value
        for part in parts
        # A part without settings need not be a dataclass.
        for name, value in (scheduled(part, agent_steps) if hasattr(part, "__dataclass_fields__") else {}).items()
    }


def part_problems(algorithm: TorchAlgorithm, parts: Mapping[str, Part], spaces: Any, model: Any) -> Iterator[Problem]:
    """Yield why an algorithm cannot have these parts."""
    by_kind: dict[str, str] = {}
    terms = dict.fromkeys(algorithm.extra_losses, "extra_losses")
    states: dict[str, str] = {}
    for name, part in parts.items():
        if idle := overrides_nothing(part, Part):
            yield Problem(f"has a part {name!r} without effect: {idle}", algorithm.name)
            continue
        try:
            unfit = list(part.validate(algorithm, spaces, model) or ())
            state, extra_losses = (None, ()) if unfit else (part.state(), tuple(part.extra_losses()))
        except Exception as error:  # noqa: BLE001  a part of the user's own may raise anything
            yield Problem(f"has a part {name!r} ({type(part).__name__}) that fails: {raised(error)}", algorithm.name)
            continue
        if unfit:
            yield from unfit
            continue
        if (other := by_kind.setdefault(kind_of(part), name)) != name:
            message = f"has two parts of the kind {kind_of(part)}, {other!r} and {name!r}"
            yield Problem(message, algorithm.name, remedy=f"set parts.{name}=null")
            continue
        yield from _state_problems(algorithm, name, state, states)
        for term in extra_losses:
            if (owner := terms.setdefault(term, f"parts.{name}")) != f"parts.{name}":
                message = f"has two terms {term!r}, of parts.{name} and of {owner}"
                yield Problem(message, algorithm.name, remedy="rename one of them")


def _state_problems(
    algorithm: TorchAlgorithm, name: str, state: PartState | None, owners: dict[str, str]
) -> Iterator[Problem]:
    """Yield why a learner cannot keep the state of the part `name`; `owners` has the part of each state before."""
    if state is None:
        return
    if not (isinstance(own := getattr(state, "name", None), str) and own):
        yield Problem(
            f"has a state of the part {name!r} without a name", algorithm.name, remedy="give its class a name"
        )
    elif (other := owners.setdefault(own, name)) != name:
        message = f"has two states named {own!r}, of the parts {other!r} and {name!r}"
        yield Problem(message, algorithm.name, remedy="rename one of them")
    elif algorithm.capabilities.learns_on == "workers" and not state.is_constant:
        message = f"cannot keep the state {own!r} of the part {name!r}"
        reason = "it learns on the workers, each of which would have its own"
        yield Problem(message, algorithm.name, reason, f"set parts.{name}=null, or use ppo")


def unplanned_stages(algorithm: TorchAlgorithm, plan: Plan) -> Iterator[str]:
    """Yield why an algorithm cannot have parts whose stages its plan has no point for, so that they never run."""
    planned = {flow.added_by for flow in plan.stages()}
    for name, part in algorithm.used_parts.items():
        for point, operators in part.stages(algorithm).items():
            if operators and added_by(name, point) not in planned:
                is_point = point in get_args(Point)
                lacks = f"whose plan has no point {point!r}" if is_point else f"and {point!r} is no point of a plan"
                remedy = f"set parts.{name}=null, or have plan() call with_stages({point!r}, ...), as PPO's does"
                subject = f"cannot have the part {name!r} ({type(part).__name__})"
                yield f"{subject}, {lacks} for its stage {name_of(operators[0])}; {remedy}"
