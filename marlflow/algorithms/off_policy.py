"""Bases of off-policy algorithms: replay buffer, target network, and random actions before learning starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import (
    JointAlgorithm,
    LearningAlgorithm,
    Member,
    TorchAlgorithm,
    cannot_act,
    infos_of,
)
from marlflow.base.errors import Problem
from marlflow.base.ranges import Discount, LearningRate, SmallCount, SomeShare, Steps, StepsOrZero, Threshold
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Fragment, Update
from marlflow.batches.joint_segments import JointSequenceTransitions, JointTransitions, TeamReward
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learner.protocol import Learner
from marlflow.policy.actor import WeightedActor
from marlflow.policy.box import box_problem
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.policy.torso import TorsoConfig
from marlflow.policy.warmup import WarmupActor
from marlflow.replay.buffer import ReplayBuffer, Store, StoredReplay
from marlflow.replay.joint import JointSequenceStore, JointStore
from marlflow.replay.protocol import Replay
from marlflow.replay.sampling import Prioritized, Uniform
from marlflow.stages import (
    Concat,
    Draw,
    Insert,
    JoinSegments,
    Learn,
    NStep,
    Publish,
    Reprioritize,
    SplitSegments,
    SyncTarget,
)

JointReplay: TypeAlias = StoredReplay[JointTransitions] | StoredReplay[JointSequenceTransitions]


@dataclass(frozen=True)
class ReplaySettings(TorchAlgorithm):
    """The settings of algorithms that learn from a replay in an exact ratio to the rows stored."""

    batch_agent_steps: Steps = 256  #: agent steps drawn from the replay for an update
    train_every_agent_steps: Steps = 1  #: agent steps stored per update, exactly
    learning_starts_agent_steps: StepsOrZero = 1_000  #: agent steps stored before the first update
    store_agent_steps: Steps = 1  #: minimum agent steps stored at a time, in whole rounds; more means fewer calls
    replay_agent_steps: Steps = 100_000  #: agent steps that the replay holds
    learning_rate: OrSchedule[LearningRate] = 3e-4


class ReplayPlan(ReplaySettings):
    """The plan of such algorithms with a target network; they have these settings, too."""

    reprioritizes: ClassVar[bool] = False
    """Whether the replay may be prioritized: it gets the errors of rows just learned from."""

    discount: Discount  #: discount factor per decision of an agent
    n_step: SmallCount  #: decisions whose rewards are summed before the bootstrap
    tau: OrSchedule[SomeShare]  #: share of the trained network in an update of the target network; 1 copies it
    target_every_updates: Steps  #: updates from one target network update to the next
    publish_every_updates: Steps  #: updates from one publication of the weights to the next

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        (replay,) = replays
        rows = experience.gather(Concat(agent_steps=self.store_agent_steps))
        store = self.windows(rows, learner, replay).then(Insert(), at=replay)
        # Adjacent learner stages are fused into one call, so that target updates and published versions come after the
        # same optimizer steps, whichever process the replay is in.
        train = (
            self.learned(source(Draw(self.batch_agent_steps, gives=learner.trains_on), at=replay), learner)
            .then(self.sync(), at=learner)
            .then(Publish(every=self.publish_every_updates), at=learner)
        )
        output = train.then(Reprioritize(), at=replay) if self.reprioritizes else train
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan(self.name, output=output, also={"store": store}, pace=ratio)

    def windows(self, rows: Flow[Any], learner: Learner, replay: Replay) -> Flow[Any]:
        """Return what the replay stores of `rows`."""
        return rows.then(NStep(self.n_step, self.discount), at=replay)

    def learned(self, drawn: Flow[Any], learner: Learner) -> Flow[Update]:
        """Return the updates of the learner by rows drawn."""
        rows = self.with_stages("before_learning", drawn, learner)
        return self.with_stages("after_update", rows.then(Learn(), at=learner), learner)

    def sync(self) -> SyncTarget:
        """Return the stage that updates the target network."""
        return SyncTarget(every=self.target_every_updates, tau=initial_value(self.tau))


class OffPolicySettings(TorchAlgorithm):
    """The settings that off-policy algorithms share, and their checks."""

    has_target: ClassVar[bool] = True

    learning_starts_agent_steps: StepsOrZero
    replay_agent_steps: Steps
    discount: Discount
    n_step: SmallCount = 1

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        # Learning has to start before the replay buffer is full.
        if self.learning_starts_agent_steps > self.replay_agent_steps:
            starts, holds = self.learning_starts_agent_steps, self.replay_agent_steps
            message = f"would start learning after {starts} agent steps, but its replay holds {holds}"
            problems.append(Problem(message, self.name, remedy="raise replay_agent_steps"))
        # Windows of a subclass may have priorities of their own.
        own: Any = type(self)
        is_plain = isinstance(self, ReplayPlan) and own.plan is ReplayPlan.plan and own.windows is ReplayPlan.windows
        if is_plain and not getattr(self, "reprioritizes", False) and not isinstance(self.sampling(), Uniform):
            message, remedy = "draws by priorities that nothing updates", "set reprioritizes = True in its class"
            problems.append(Problem(message, self.name, remedy=remedy))
        return problems

    def sampling(self) -> Uniform | Prioritized:
        """Return how rows are drawn from the replay buffer."""
        return Uniform()

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        epsilon = getattr(self, "epsilon", None)
        # A constant epsilon is sent too, because the actor has no epsilon of its own.
        constant = {} if epsilon is None else {"epsilon": initial_value(epsilon)}
        return {**constant, **super().schedules(agent_steps)}


class OffPolicyAlgorithm(OffPolicySettings, LearningAlgorithm):
    """Base of algorithms of one policy with a replay buffer and a target network.

    A frozen dataclass derives from it, defines the fields `learning_starts_agent_steps`, `replay_agent_steps`,
    `discount` and perhaps `n_step`, and adds `network()`, `losses()` and `plan()`.
    """

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> ReplayBuffer:
        # Rounded up, so that shards together hold at least `replay_agent_steps`.
        capacity = -(-self.replay_agent_steps // self.replay_shards)
        settings = capacity, self.n_step, self.discount, seed, self.sampling(), name
        return ReplayBuffer(*settings, infos=infos_of(members))


class JointOffPolicyAlgorithm(OffPolicySettings, JointAlgorithm):
    """Base of algorithms that train several policies on joint rows from a replay buffer, with a target network.

    A frozen dataclass derives from it, defines the fields of an OffPolicyAlgorithm, and adds `network()`, `losses()`
    and `plan()`. Capabilities need `joint=True`, `replay=True` and `trains_on=JointTransitions`. The plan inserts joint
    segments, and draws from them:

        experience.gather(Concat(agent_steps=...)).then(JoinSegments(learner.seats, self.team_reward), at=replay)
        .then(NStep(self.n_step, self.discount), at=replay).then(Insert(), at=replay)

        source(Draw(self.batch_agent_steps, gives=learner.trains_on), at=replay).then(Learn(), at=learner)

    Sizes are in agent steps of all its policies. Where recurrent models are allowed and used, `learner.trains_on` is
    JointSequenceTransitions, of sequences of up to `sequence_agent_steps` steps of each agent, and the plan needs
    SplitSegments(self.sequence_agent_steps, self.burn_in_agent_steps) before NStep.
    """

    team_reward: TeamReward = "mean"
    sequence_agent_steps: Steps = 20
    burn_in_agent_steps: StepsOrZero = 10

    def trains_on(self, members: Mapping[str, Member]) -> type:
        is_recurrent = any(isinstance(member.model, RecurrentTorsoConfig) for member in members.values())
        return JointSequenceTransitions if is_recurrent else JointTransitions

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> JointReplay:
        seats = {policy: len(member.spaces.seats) for policy, member in members.items()}
        infos = {policy: member.infos for policy, member in members.items()}
        capacity, length, burn_in = self.replay_agent_steps, self.sequence_agent_steps, self.burn_in_agent_steps
        store: Store[Any] = (
            JointStore(capacity, seats, infos)
            if self.trains_on(members) is JointTransitions
            else JointSequenceStore(capacity, seats, length, burn_in, infos)
        )
        return StoredReplay(store, self.n_step, self.discount, seed, self.sampling(), name)


class JointReplayPlan(ReplayPlan, JointOffPolicyAlgorithm):
    """The plan on joint rows; of sequences of them, if the learner is recurrent."""

    discount: Discount  #: discount factor per env step
    n_step: SmallCount  #: env steps whose rewards are summed before the bootstrap

    def windows(self, rows: Flow[Any], learner: Learner, replay: Replay) -> Flow[Any]:
        joined = rows.then(JoinSegments(learner.seats, self.team_reward), at=replay)
        if learner.trains_on is JointTransitions:
            return super().windows(joined, learner, replay)
        split = SplitSegments(self.sequence_agent_steps, self.burn_in_agent_steps)
        # Lambda returns are made of one-step rewards, by the loss.
        return joined.then(split, at=replay).then(NStep(1, self.discount), at=replay)

    def learned(self, drawn: Flow[Any], learner: Learner) -> Flow[Update]:
        return drawn.then(Learn(), at=learner)


class UniformWarmup(OffPolicySettings):
    """Acts uniformly at random until learning starts."""

    #: maximum gradient norm of each network; larger gradients are scaled down
    max_grad_norm: OrSchedule[Threshold] = float("inf")

    actor_only_settings: ClassVar[frozenset[str]] = frozenset({"acts_uniformly", "exploration_noise"})

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        # Random actions are drawn between the bounds of a Box.
        if isinstance(spaces.action, gym.Box) and (problem := box_problem(spaces.action)):
            problems.append(cannot_act(self.name, spaces, reason=problem))
        return problems

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> WarmupActor:
        return WarmupActor(cast(WeightedActor, super().actor(spaces, model, seed)), spaces.action)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        # Sent as a schedule, so that workers switch when the first round after the warm-up starts.
        acts_uniformly = float(agent_steps < self.learning_starts_agent_steps)
        return {"acts_uniformly": acts_uniformly, **super().schedules(agent_steps)}


class OffPolicyActorCritic(UniformWarmup, OffPolicyAlgorithm):
    """An OffPolicyAlgorithm that acts uniformly at random until learning starts."""


class ReplayActorCritic(ReplayPlan, OffPolicyActorCritic):
    """Base of DDPG, TD3 and SAC: actor-critics that learn from every row of a replay."""

    #: agent steps stored before the first update; until then actions are random
    learning_starts_agent_steps: StepsOrZero


class JointOffPolicyActorCritic(UniformWarmup, JointOffPolicyAlgorithm):
    """A JointOffPolicyAlgorithm whose policies act uniformly at random until learning starts."""
