"""The Algorithm protocol, its capabilities, and the base classes of learning algorithms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from itertools import product
from types import NoneType
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, runtime_checkable

from gymnasium import spaces as gym

from marlflow.algorithms.part import Part, Point, added_by, part_problems, scheduled_parts, with_stage
from marlflow.base.errors import Problem, ProblemKind
from marlflow.base.info_columns import At
from marlflow.base.ranges import CountOrZero, LearningRate, Threshold
from marlflow.base.schedules import OrSchedule, Schedule, initial_value, scheduled
from marlflow.base.spaces import Spaces, describe_space
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticSees, critic_input_problems
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.flow.relocate import Where
from marlflow.learner.compiled_updates import Compile
from marlflow.learner.compute import Compute
from marlflow.learner.extra_losses import ExtraLosses, extra_loss_problems, scheduled_coefficients
from marlflow.learner.learner import LearnsOn, TorchLearner
from marlflow.learner.loss import LossFunction
from marlflow.learner.loss_groups import LossGroup, as_groups
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.policy.actor import Actor, EvaluationMode
from marlflow.policy.normalized import ValueCritic
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.policy.torso import TorsoConfig, normalizes
from marlflow.replay.protocol import Replay, SavedReplay

Memory: TypeAlias = Literal["refused", "optional", "needed"]


def memory_problems(name: str, memory: Memory, joint: bool, model: TorsoConfig) -> Iterator[Problem]:
    """Yield why an algorithm, `joint` or not, cannot learn with a model: memory refused, or needed."""
    is_recurrent, kind = isinstance(model, RecurrentTorsoConfig), type(model).__name__
    if is_recurrent and memory == "refused":
        others = "vdn or qmix" if joint else "recurrent_ppo, r2d2, vdn or qmix"
        remedy = f"use {others}, or a model without memory, such as mlp"
        yield Problem(
            f"cannot learn with {kind}, which has memory", name, "it does not look at rows in their order", remedy
        )
    if not is_recurrent and memory == "needed":
        remedy = "or use ppo or dqn, which need none"
        yield Problem(f"needs a model with memory, gru or lstm, not {kind}", name, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Member:
    """One policy of a learner: its spaces, the model of its network, and the columns of infos that its rows have."""

    spaces: Spaces
    model: TorsoConfig
    infos: Mapping[str, At] = field(default_factory=dict, hash=False)


def infos_of(members: Mapping[str, Member]) -> dict[str, At]:
    """Return the columns of infos of a learner's rows, which a replay stores."""
    return {column: at for member in members.values() for column, at in member.infos.items()}


STOCHASTIC_ACTIONS = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
"""The action spaces of policy gradients with a softmax or Gaussian policy."""

# Is in the annotation of a field whose value may be a schedule.
_MAY_BE_SCHEDULED: Final = r"\b(ScheduledFloat|OrSchedule|Schedule)\b"


def may_be_scheduled(setting: Field[Any]) -> bool:
    """Return whether a field of an algorithm or a part takes a schedule, so that its value may change in a run."""
    return re.search(_MAY_BE_SCHEDULED, str(setting.type)) is not None


Experience: TypeAlias = Literal["on-policy", "off-policy", "offline", "none"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The uses and needs of an algorithm."""

    actions: tuple[str, ...]
    """The gymnasium spaces that it can act in, by name."""
    experience: Experience
    """On-policy rows, off-policy rows of any age, recorded (offline) rows, or none."""
    trains_on: type = NoneType
    """The item type of its loss; NoneType if it does not learn."""
    loss_groups: Mapping[str, type] = field(default_factory=dict, hash=False)
    """The loss groups that stages train apart, by `Learn(groups=...)`, with their item types; empty: none are apart."""
    replay: bool = False
    """Whether it has a replay buffer."""
    state: bool = False
    """Whether it needs the column `state`, the environment's global state."""
    tasks: bool = False
    """Whether it needs an environment with tasks."""
    critic: bool = False
    """Whether its network has critics of states (ValueCritic), which parts may change."""
    memory: Memory = "refused"
    """Whether recurrent models are refused, allowed or needed."""
    learns_on: LearnsOn = "learner"
    """In a learner process, or in a replica on every rollout worker."""
    joint: bool = False
    """Whether one learner trains several policies, on joint rows of all."""
    matchmaking: bool = False
    """Whether a joint algorithm learns in episodes that a matchmaker or a league seats, as all others do."""
    imitates: bool = False
    """Whether it learns to act as the policies whose rows it sees."""
    as_learned: EvaluationMode = "sampled"
    """How evaluation has its policies act by default: `sampled` from the distribution that they learn, or `greedy` as
    value-based ones. An actor without a distribution acts greedily in both."""

    @property
    def learns(self) -> bool:
        """False for policies that only act: no learner, plan or rows."""
        return self.trains_on is not NoneType


@runtime_checkable
class Algorithm(Protocol):
    """An algorithm: settings, and factories of its parts.

    The configuration names its class, marlflow's or a user's, by `_target_`. Derive from LearningAlgorithm (one policy)
    or JointAlgorithm (several), which lack only a network, losses and a plan.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    stages: ClassVar[Mapping[str, Where]]
    """Default placement overrides, stage name to place; the user's `placement.stages` wins."""

    actor_only_settings: ClassVar[frozenset[str]]
    """Settings that may be scheduled and that only the actor uses, not the learner or replay."""

    @property
    def replay_shards(self) -> int:
        """Number of replay buffers."""
        ...

    def validate(self, spaces: Spaces, model: TorsoConfig) -> Sequence[Problem | str]:
        """Return why it cannot be used with these spaces, model or settings; empty if it can.

        Sentences are prefixed with the policy's name.
        """
        ...

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """Make a policy's actor, which runs on the rollout workers."""
        ...

    def learner(self, name: str, members: Mapping[str, Member], seed: int, compute: Compute) -> TorchLearner:
        """Make the learner of the policies `members`, one unless `capabilities.joint`; called in its process."""
        ...

    def trains_on(self, members: Mapping[str, Member]) -> type:
        """Return the type of batch that its loss takes: `capabilities.trains_on`, unless it depends on the models."""
        ...

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> SavedReplay:
        """Make the replay buffer of the policies `members`, or one shard; called in its process."""
        ...

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        """Make the dataflow from experience to weights."""
        ...

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Return the scheduled settings after `agent_steps` of all the learner's policies.

        Sent to actor, learner and replays before each round.
        """
        ...


@dataclass(frozen=True)
class LossSettings:
    """The settings that all learning algorithms have."""

    #: terms of your own added to the loss, by name, {<name>: {_target_: my_module.EntropyFloor, coefficient: 0.01}}:
    #: functions (module, minibatch) -> scalar; see ExtraLoss
    extra_losses: ExtraLosses = field(default_factory=dict, kw_only=True, hash=False)

    #: parts in addition to its own, by name, such as {<name>: {_target_: marlflow.CostLimit, limit: 0.25}}, a limit on
    #: costs; None leaves one out
    parts: Mapping[str, Part | None] = field(default_factory=dict, kw_only=True, hash=False)

    #: whether updates are compiled by XLA: auto, True, or False; auto: from 1,000 optimizer steps on, where they can be
    compile: Compile = field(default="auto", kw_only=True)


class TorchAlgorithm(LossSettings):
    """Settings, their checks, and the learner, for LearningAlgorithm and JointAlgorithm.

    A field declares the range of its numbers by its annotation: `Annotated[float, Range(0, 1)]`; see base.ranges.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    has_target: ClassVar[bool] = False
    """Whether the learner keeps a target network, updated by SyncTarget."""
    plan_needs_environment: ClassVar[bool] = False
    """Whether its stages cannot be tried on made-up rows before a run."""

    learning_rate: OrSchedule[LearningRate]  #: step size of the optimizer
    max_grad_norm: OrSchedule[Threshold] = float("inf")  #: maximum gradient norm; larger gradients are scaled down
    optimizer: Optimizer = Adam()  #: Adam, or a torch.optim class with its settings
    # Defaults of algorithms without these settings.
    #: input of the critic: state (of the environment), obs (of its agent), agent (id)
    critic_sees: Sequence[str] = OWN_OBSERVATION
    shared_torso: bool = False  #: whether actor and critic share all layers but the last
    bootstrap_at_death: bool = False  #: after a death, the mean value of the survivors, not 0; for common rewards
    max_staleness: CountOrZero = 0  #: weight versions by which a row may lag the learner

    stages: ClassVar[Mapping[str, Where]] = {}
    actor_only_settings: ClassVar[frozenset[str]] = frozenset({"epsilon", "exploration_noise"})

    @property
    def replay_shards(self) -> int:
        return int(self.capabilities.replay)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = [*action_problems(self.name, self.capabilities, spaces), *self._setting_problems()]
        problems += self._minibatch_problems()
        problems += part_problems(self, self.used_parts, spaces, model)
        problems += extra_loss_problems(self.name, self.extra_losses, self.capabilities.learns)
        problems += [
            *critic_problems(self, spaces),
            *memory_problems(self.name, self.capabilities.memory, self.capabilities.joint, model),
        ]
        if normalizes(model) and not self.learner_sees_every_row:
            reason, remedy = "its learner does not see all rows", "leave it off, or use ppo"
            problems.append(Problem("cannot do normalize_observations", self.name, reason, remedy))
        return problems

    @property
    def used_parts(self) -> dict[str, Part]:
        """The parts that are not None, by name: the class's own, and those added."""
        # As in YAML, `parts` adds to the default; only None takes one of these away.
        own: Any = next(setting.default_factory for setting in fields(self) if setting.name == "parts")
        return {name: part for name, part in {**own(), **self.parts}.items() if part is not None}

    def with_stages(self, point: Point, flow: Flow[Any], learner: Learner) -> Flow[Any]:
        """Return `flow` with the stages that parts have at this point of the plan; for use in `plan()`."""
        for name, part in self.used_parts.items():
            for stage in part.stages(self).get(point, ()):
                flow = with_stage(flow, stage, learner, added_by(name, point))
        return flow

    def _network_of(self, members: Mapping[str, Member], seed: int) -> Any:
        raise NotImplementedError

    def _losses_of(self, members: Mapping[str, Member]) -> LossFunction | Sequence[LossGroup]:
        raise NotImplementedError

    def whole_network(self, members: Mapping[str, Member], seed: int) -> Any:
        """Make the network of a learner, with the modules and changes of its parts."""
        network = self._network_of(members, seed)
        for part in self.used_parts.values():
            part.extend(network, self, members, seed)
        for part, module in product(self.used_parts.values(), network.modules()):
            if isinstance(module, ValueCritic):
                part.change_critic(module)
        return network

    def whole_losses(self, members: Mapping[str, Member]) -> Sequence[LossGroup]:
        """Make the loss groups of a learner, the groups of its parts included."""
        groups = as_groups(self._losses_of(members))
        for part in self.used_parts.values():
            groups = part.losses(groups, self, members)
        return groups

    def learner(self, name: str, members: Mapping[str, Member], seed: int, compute: Compute) -> TorchLearner:
        parts = self.used_parts.values()
        extra_losses = dict(self.extra_losses)
        for part in parts:
            extra_losses |= part.extra_losses()
        return TorchLearner(
            name,
            self.whole_network(members, seed),
            self.whole_losses(members),
            policies=tuple(members),
            seats={policy: member.spaces.seats for policy, member in members.items()},
            trains_on=self.trains_on(members),
            learning_rate=initial_value(self.learning_rate),
            max_grad_norm=initial_value(self.max_grad_norm),
            optimizer=self.optimizer,
            seed=seed,
            compute=compute,
            target=self.has_target,
            part_states=[state for part in parts if (state := part.state()) is not None],
            learns_on=self.capabilities.learns_on,
            loss_groups=self.capabilities.loss_groups,
            extra_losses=extra_losses,
            compile=self.compile,
        )

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        raise NotImplementedError

    def trains_on(self, members: Mapping[str, Member]) -> type:
        return self.capabilities.trains_on

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> SavedReplay:
        raise TypeError(f"{self.name} has no replay")

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        values = {**scheduled(self, agent_steps), **scheduled_parts(self.used_parts.values(), agent_steps)}
        for losses in (self.extra_losses, *(part.extra_losses() for part in self.used_parts.values())):
            values |= scheduled_coefficients(losses, agent_steps)
        return values

    @property
    def learner_sees_every_row(self) -> bool:
        """Whether the learner itself receives every row it learns from, as running statistics require."""
        return True

    def _setting_problems(self) -> Iterator[Problem]:
        owners: dict[str, Any] = {"": self, **{f"parts.{name}.": part for name, part in self.used_parts.items()}}
        for path, owner in owners.items():
            for setting in fields(owner) if is_dataclass(owner) else ():
                value = getattr(owner, setting.name)
                # Annotations are often strings; a field that may be scheduled is annotated as a setting.
                if isinstance(value, Schedule) and not may_be_scheduled(setting):
                    message = f"cannot change {path}{setting.name} while it learns"
                    yield Problem(message, self.name, remedy="give it a number")

    def _minibatch_problems(self) -> Iterator[Problem]:
        batch, minibatch = (getattr(self, f"{kind}_agent_steps", 0) for kind in ("batch", "minibatch"))
        if 1 <= batch < minibatch:
            message = f"cannot cut batches of {batch} agent steps into minibatches of {minibatch}"
            yield Problem(message, self.name, remedy="lower minibatch_agent_steps")


class LearningAlgorithm(TorchAlgorithm):
    """Base of algorithms of one policy: frozen dataclasses that add `network`, `losses` and `plan`.

    Sizes are in agent steps of the policy. The fields `learning_rate` (required), `max_grad_norm` and `optimizer` are
    the learner's. With a replay buffer, add `replay`.
    """

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Any:
        """Make a torch module with an `actor`, whose parameters are published, and optionally a `critic`.

        `critic` maps observations [N, ...], and memories [N, ...] if recurrent, to values [N], for stages that estimate
        values.
        """
        raise NotImplementedError(f"{type(self).__name__} has no network(spaces, model, seed)")

    def losses(self, spaces: Spaces) -> LossFunction | Sequence[LossGroup]:
        """Make the loss of all parameters, or a loss per parameter group."""
        raise NotImplementedError(f"{type(self).__name__} has no losses(spaces)")

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        # Nothing here uses the critic, so it need not see a state, which the spaces of opponents do not have.
        has_central_critic = tuple(self.critic_sees) != OWN_OBSERVATION
        acting = replace(self, critic_sees=OWN_OBSERVATION) if has_central_critic else self  # type: ignore[call-arg]
        actor: Actor = acting.network(spaces, model, seed).actor
        return actor

    def _network_of(self, members: Mapping[str, Member], seed: int) -> Any:
        (member,) = members.values()
        return self.network(member.spaces, member.model, seed)

    def _losses_of(self, members: Mapping[str, Member]) -> LossFunction | Sequence[LossGroup]:
        (member,) = members.values()
        return self.losses(member.spaces)


class JointAlgorithm(TorchAlgorithm):
    """Base of algorithms that train several policies on joint rows: add `network`, `losses` and `plan`.

    Capabilities need `joint=True`. The plan's `experience` is the joint stream, gathered by a `Concat` and made joint
    rows by a `Join` at the learner (`trains_on=JointBatch`), or by `JoinSegments` for a replay
    (`trains_on=JointTransitions`, see JointOffPolicyAlgorithm). HAPPO keeps rows by policy (`EstimatedJointBatches`).
    """

    def network(self, members: Mapping[str, Member], seed: int) -> Any:
        """Make a torch module with `actors`: an actor per policy of `members`, with its own published parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no network(members, seed)")

    def losses(self, members: Mapping[str, Member]) -> LossFunction | Sequence[LossGroup]:
        """Make the loss of all parameters, or a loss per parameter group."""
        raise NotImplementedError(f"{type(self).__name__} has no losses(members)")

    def member_problems(self, members: Mapping[str, Member]) -> Iterator[Problem]:
        """Yield why these policies cannot have one learner, though each could be trained alone."""
        yield from ()

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """Make one policy's actor, in a network of it alone: its shape must not depend on the others."""
        actor: Actor = self.network({"policy": Member(spaces, model)}, seed).actors["policy"]
        return actor

    def _network_of(self, members: Mapping[str, Member], seed: int) -> Any:
        return self.network(members, seed)

    def _losses_of(self, members: Mapping[str, Member]) -> LossFunction | Sequence[LossGroup]:
        return self.losses(members)


def parts_of(algorithm: object) -> dict[str, Part]:
    """Return the parts of an algorithm, by name."""
    return algorithm.used_parts if isinstance(algorithm, TorchAlgorithm) else {}


def action_problems(name: str, capabilities: Capabilities, spaces: Spaces) -> Iterator[Problem]:
    """Yield why an algorithm cannot act in the action space."""
    action, *others = spaces.action, *capabilities.actions
    supported = " or ".join([*filter(None, [", ".join(others[:-1])]), others[-1]])
    remedy = f"it needs {supported} actions"
    if isinstance(action, gym.Dict | gym.Tuple):
        yield cannot_act(name, spaces, remedy=f"{remedy}, which wrappers=flatten_actions may make of it")
    elif type(action).__name__ not in capabilities.actions:
        yield cannot_act(name, spaces, remedy=remedy)
    # Networks output floats; a Box of integers would need rounding. Policies that only act may still use one.
    elif isinstance(action, gym.Box) and action.dtype.kind != "f" and capabilities.learns:
        yield cannot_act(name, spaces, remedy=f"{remedy}, and a Box of floats, not of {action.dtype}")


def cannot_act(name: str, spaces: Spaces, reason: str = "", remedy: str = "") -> Problem:
    """Return the problem of an unsupported action space."""
    message = f"cannot act in {describe_space(spaces.action)}"
    return Problem(message, name, reason, remedy, kind=ProblemKind.CANNOT_ACT)


def critic_sees(algorithm: Algorithm | TorchAlgorithm) -> tuple[CriticSees, ...]:
    """Return what the algorithm's critic sees; its own observation unless `critic_sees` says otherwise."""
    sees: Any = algorithm.critic_sees if isinstance(algorithm, TorchAlgorithm) else OWN_OBSERVATION
    return tuple(sees)


def needs_state(algorithm: Algorithm) -> bool:
    """Return whether the algorithm needs the column `state`, the environment's global state."""
    mixer_sees = getattr(algorithm, "mixer_sees", None)
    return algorithm.capabilities.state or "state" in critic_sees(algorithm) or mixer_sees == "state"


def critic_problems(algorithm: Algorithm | TorchAlgorithm, spaces: Spaces) -> Iterator[Problem]:
    """Yield why the critic cannot see what `critic_sees` names."""
    sees = critic_sees(algorithm)
    for problem, remedy in critic_input_problems(spaces, sees):
        yield Problem(f"has a critic that {problem}", algorithm.name, remedy=remedy)
    if sees != OWN_OBSERVATION and isinstance(algorithm, TorchAlgorithm) and algorithm.shared_torso:
        message = f"cannot share layers of an actor, which sees obs, with a critic that sees {', '.join(sees)}"
        yield Problem(message, algorithm.name, remedy="set shared_torso=false")
