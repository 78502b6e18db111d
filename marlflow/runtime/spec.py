"""Specifications of a run, its policies, learners and resource requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from marlflow.algorithms.algorithm import Algorithm, Member, needs_state
from marlflow.algorithms.from_run import Imported, InitialParameters
from marlflow.algorithms.info_columns import columns_of_rows, info_columns
from marlflow.base.arrays import Array
from marlflow.base.info_columns import InfoColumn, InfoColumns
from marlflow.base.limits import ClockLimit, Limit
from marlflow.base.random import key, named_seed
from marlflow.base.ranges import CPUs, CustomResources, GPUs, Processes
from marlflow.base.schedules import ScheduledFloat
from marlflow.base.spaces import Spaces
from marlflow.batches.items import as_it_is
from marlflow.flow.relocate import Where
from marlflow.learner.compute import Compute
from marlflow.learner.learner import TorchLearner
from marlflow.learner.optimizer import entries_of
from marlflow.offline.dataset import Dataset
from marlflow.offline.dataset_reader import DatasetReader, DatasetWorker, OfflineWorker
from marlflow.offline.dataset_writer import DatasetTarget
from marlflow.policy.actor import Actor, AskedMode, EvaluationMode, memory_shape_of
from marlflow.policy.tensors import seeded
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import SavedReplay, first_row_of, replay_names
from marlflow.runtime.relocation import RelocatedStages
from marlflow.runtime.sampling_worker import sampling_worker
from marlflow.sampling.population import WORKER_MEMBERS
from marlflow.sampling.protocol import Worker
from marlflow.sampling.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Resources:
    """Resource request of one process."""

    num_cpus: CPUs | None = None  #: CPUs, may be a fraction; None: an equal share of what is free
    num_gpus: GPUs = 0.0  #: GPUs, may be a fraction below 1
    resources: Mapping[str, CustomResources] = field(default_factory=dict)  #: amounts of custom Ray resources, by name
    node: str | None = None  #: address of the required machine; None: any

    @property
    def process(self) -> Resources:
        """The request alone, without the settings of a subclass."""
        return Resources(self.num_cpus, self.num_gpus, self.resources, self.node)


@dataclass(frozen=True, slots=True)
class ComputeResources(Resources):
    """Resource request of a process that runs networks."""

    device: str | None = None  #: torch device: cpu, cuda; None: cuda if num_gpus is above 0, else cpu

    @property
    def torch_device(self) -> str:
        """The device, with the default filled in."""
        return self.device or ("cuda" if self.num_gpus > 0 else "cpu")


@dataclass(frozen=True, slots=True)
class LearnerPlacement(ComputeResources):
    """Resources of each of a learner's `num_learners` data-parallel processes."""

    num_learners: Processes = 1  #: processes of one learner, which train together
    #: process of the replay: with_learner, or own, where a prioritized draw may precede the last update of priorities
    replay: Literal["with_learner", "own"] = "with_learner"
    #: dtype of forward passes: float32, bfloat16; parameters are float32
    precision: Literal["float32", "bfloat16"] = "float32"
    #: stages to run elsewhere, <stage>: learner, worker or driver
    stages: Mapping[str, Where] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferencePlacement(ComputeResources):
    """Resources of the actor that acts for all rollout workers."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy, which acts; its learner, if any, has the same `algorithm`."""

    name: str
    algorithm: Algorithm
    model: TorsoConfig
    spaces: Spaces
    seed: int
    columns: Mapping[str, Literal["credited", "info"]] = field(default_factory=dict)
    """Info columns of its rows, in addition to the columns that its algorithm needs (see `Policy.row_columns`)."""
    reward_from: Mapping[str, ScheduledFloat] = field(default_factory=dict)
    """The columns that are added to rewards, with their coefficients."""

    @property
    def member(self) -> Member:
        """The policy as its learner sees it."""
        return Member(self.spaces, self.model, columns_of_rows(self.algorithm, self.columns))

    def actor(self) -> Actor:
        """Make an actor; published weights replace its parameters before it acts."""
        seed = named_seed(self.seed, "actor", self.name)
        with seeded(seed):
            return self.algorithm.actor(self.spaces, self.model, seed)

    def mode(self, asked: AskedMode) -> EvaluationMode:
        """Return how it acts in an evaluation that asks for `asked`."""
        if asked != "as_learned":
            return asked
        acting = self.algorithm.algorithm if isinstance(self.algorithm, Imported) else self.algorithm
        return acting.capabilities.as_learned

    def has_network_of(self, other: PolicySpec) -> bool:
        """Return whether it can take over another policy's parameters: algorithm, model and spaces are equal."""
        return (self.algorithm.name, self.model, self.spaces) == (other.algorithm.name, other.model, other.spaces)


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """A learner, which trains `policies` with one algorithm; it has a plan, a queue and replays."""

    name: str
    policies: tuple[PolicySpec, ...]
    algorithm: Algorithm
    seed: int
    placement: LearnerPlacement = LearnerPlacement()
    others: tuple[str, ...] = ()
    """The policies whose rows it learns from, if these are not its own."""
    begins_with: Mapping[str, InitialParameters] = field(default_factory=dict)
    """The parameters of other runs that its policies begin with."""
    update_limit: Limit = field(default_factory=ClockLimit)
    """Ends its updates, in each of its processes; a runtime sets it."""

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The policies whose rows it learns from."""
        return self.others or self.members

    @property
    def is_joint(self) -> bool:
        """Whether it trains on joint rows of its policies."""
        return self.algorithm.capabilities.joint

    @property
    def members(self) -> tuple[str, ...]:
        """The names of its policies."""
        return tuple(policy.name for policy in self.policies)

    @property
    def on_workers(self) -> bool:
        """Whether it has a replica on each rollout worker, and no process of its own."""
        return self.algorithm.capabilities.learns_on == "workers"

    @property
    def compute(self) -> Compute:
        """The device and the precision of its own process."""
        return Compute(self.placement.torch_device, self.placement.precision)

    @property
    def publishes_critic(self) -> bool:
        """Whether published weights end with the critic, for relocated stages."""
        return any(where != "learner" for where in self.stages.values())

    def learner(self, acting: Sequence[Array] = ()) -> TorchLearner:
        """Make the learner; its actors begin with the published parameters `acting` [P] of each policy, if given."""
        learner = self._learner(self.compute)
        if self.publishes_critic:
            learner.publish_all()
        for policy, initial in self.begins_with.items():
            learner.parameters.load_named(policy, initial.tensors)
        for policy, flat in zip(self.members, acting, strict=False):
            learner.parameters.load_actor(policy, flat)
        learner.loop.limit = self.update_limit
        return learner

    def form(self) -> Mapping[str, object]:
        """Return by name what another learner must have in common with it to continue with its state."""
        optimizer = getattr(self.algorithm, "optimizer", None)
        # Torch's optimizers make their state at the first step.
        entries = [] if optimizer is None else sorted(entries_of(optimizer))
        return {**self._learner(replace(self.compute, device="cpu")).form(), "optimizer": entries}

    def with_fresh_seed(self, reset: int) -> LearnerSpec:
        """Return the spec with the random initial parameters of its `reset`-th reset, none of another run."""
        return replace(self, seed=key(self.seed, *b"reset", *self.name.encode(), reset) >> 33, begins_with={})

    def _learner(self, compute: Compute) -> TorchLearner:
        seed = named_seed(self.seed, "learner", self.name)
        with seeded(seed):
            return self.algorithm.learner(self.name, self._members, seed, compute)

    @property
    def _members(self) -> dict[str, Member]:
        return {policy.name: policy.member for policy in self.policies}

    @property
    def trains_on(self) -> type:
        """The type of batch that its loss takes."""
        return self.algorithm.trains_on(self._members)

    @property
    def loss_groups(self) -> Mapping[str, type]:
        """The loss groups that its stages train apart, with the type of batch of each."""
        return self.algorithm.capabilities.loss_groups

    @property
    def seats(self) -> dict[str, tuple[int, ...]]:
        """The agent slots of each of its policies, sorted."""
        return {policy.name: policy.spaces.seats for policy in self.policies}

    @property
    def relocated_stages(self) -> RelocatedStages:
        """The stages that run elsewhere than at the learner or its replays."""
        # The copies run on workers and the driver, which have no share of a GPU.
        return RelocatedStages(
            self.name,
            self.members,
            self.algorithm,
            self.stages,
            partial(self._learner, replace(self.compute, device="cpu")),
        )

    @property
    def stages(self) -> Mapping[str, Where]:
        """Placement overrides by stage name: the algorithm's defaults, updated by the placement's."""
        return {**self.algorithm.stages, **self.placement.stages}

    @property
    def replays(self) -> tuple[str, ...]:
        """The replays' names: the learner's, or with shards `prey@0`, `prey@1`, ..."""
        return replay_names(self.name, self.algorithm.replay_shards)

    @property
    def replays_apart(self) -> bool:
        """Whether its replays have processes of their own, as shards always do."""
        return self.placement.replay == "own" or self.algorithm.replay_shards > 1

    def replay(self, shard: int = 0) -> SavedReplay:
        """Make a shard's replay, if the algorithm has replays."""
        name = self.replays[shard]
        replay = self.algorithm.replay(name, self._members, named_seed(self.seed, "replay", name))
        if shard:
            # The row numbers tell the shard, so that priorities are sent to the right one.
            replay.begin_at(first_row_of(shard))
        return replay


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that a runtime needs to start a run.

    A policy is trained by one of `learners`, or does not learn. Only rows of learning policies leave the workers.

    Args:
        mapping: policy by agent, or a callable if agents appear later; None if matchups assign them per episode.
        tolerated_faults: episodes per worker that may break by environment errors, or by steps and resets that take
            longer than `step_timeout_s` (seconds).
        history_env_steps: length of the history of running episodes, for replay on resume.
        compiled_rollouts: whether fragments are compiled calls (see SamplerConfig.compiled).
        inference: resources of an actor that acts for all workers; None if each worker acts.
        spread: use the most machines possible, instead of the fewest.
        records: datasets that replace a policy's sampled rows. With `offline`, nothing is sampled.
        recording: the dataset to write.
        opponents: policies for evaluation episodes only.
        worker_members: frozen versions of a policy that a worker holds ready without seating them.
        num_referees: processes for matches of a league, numbered as workers after all rollout workers; without
            processes, workers play them.
        metrics: numbers in infos that are figures of episodes.
        round_limit: ends rounds and evaluations between two env steps; a runtime sets it.
    """

    policies: Mapping[str, PolicySpec]
    learners: Mapping[str, LearnerSpec]
    mapping: Mapping[str, str] | Callable[[str], str | None] | None
    make_env: Callable[[], Any]
    num_envs: int
    num_workers: int
    fragment_env_steps: int
    seed: int
    compiled_rollouts: bool | Literal["auto"] = "auto"
    rollout_placement: Resources = Resources()
    tolerated_faults: int = 0
    step_timeout_s: float | None = None
    history_env_steps: int = 10_000
    spread: bool = False
    inference: InferencePlacement | None = None
    records: Mapping[str, Dataset] = field(default_factory=dict)
    offline: bool = False
    recording: DatasetTarget | None = None
    opponents: Mapping[str, PolicySpec] = field(default_factory=dict)
    worker_members: int = WORKER_MEMBERS
    num_referees: int = 0
    metrics: Sequence[InfoColumn] = ()
    round_limit: Limit = field(default_factory=ClockLimit)

    @property
    def with_state(self) -> tuple[str, ...]:
        """Policies whose rows include the environment's global state."""
        return tuple(name for name, policy in self.policies.items() if needs_state(policy.algorithm))

    @property
    def columns(self) -> InfoColumns:
        """The numbers that are read from infos: columns of policies' rows, `metrics`, and usual figures."""
        return info_columns(
            {name: (policy.algorithm, policy.columns) for name, policy in self.policies.items()}, self.metrics
        )

    @property
    def learning(self) -> tuple[str, ...]:
        """Policies that learn."""
        return tuple(name for name in self.policies if self.learner_of(name) is not None)

    def learner_of(self, policy: str) -> LearnerSpec | None:
        """Return a policy's learner; None if it does not learn."""
        return next((learner for learner in self.learners.values() if policy in learner.members), None)

    def env_indices_of(self, worker: int) -> tuple[int, ...]:
        """Return a worker's environments: every `num_workers`-th, and none of a referee."""
        if worker >= self.num_workers:
            return ()
        return tuple(range(worker, self.num_envs, self.num_workers))

    @property
    def actors(self) -> dict[str, Callable[[], Actor]]:
        """Actor factories by policy."""
        return {name: policy.actor for name, policy in {**self.policies, **self.opponents}.items()}

    def modes(self, asked: AskedMode) -> dict[str, EvaluationMode]:
        """Return how each policy acts in an evaluation that asks for `asked`."""
        return {name: policy.mode(asked) for name, policy in {**self.policies, **self.opponents}.items()}

    @property
    def publishing_critics(self) -> tuple[str, ...]:
        """Policies whose published weights end with the critic."""
        learners = [learner for learner in self.learners.values() if learner.publishes_critic]
        return tuple(name for learner in learners for name in learner.members)

    def watchdog(self, end_process_after_s: float | None = None) -> Watchdog:
        """Make the watchdog of a worker."""
        return Watchdog(self.step_timeout_s, end_process_after_s, self.round_limit)

    def worker(
        self,
        number: int,
        actors: Mapping[str, Callable[[], Actor]] | None = None,
        next_episodes: Mapping[int, int] | None = None,
        watchdog: Watchdog | None = None,
        fetch: Callable[[Any], Array] = as_it_is,
        next_fragments: Mapping[str, Mapping[int, int]] | None = None,
    ) -> Worker:
        """Make a worker and its environments.

        Environments start at `next_episodes`, datasets at `next_fragments`. `fetch` dereferences published weights.
        `actors` defaults to `self.actors`.
        """
        env_indices = self.env_indices_of(number)
        relocated = [learner.relocated_stages.on_worker(fetch) for learner in self.learners.values()]
        worker_stages = {stages.policy: stages for stages in relocated if stages is not None}
        make = partial(sampling_worker, self, number, actors, next_episodes, watchdog or self.watchdog())
        if not self.records:
            return make(env_indices, worker_stages)
        readers = {
            name: DatasetReader(
                records,
                env_indices,
                self.num_envs,
                (next_fragments or {}).get(name),
                memory_shape_of((actors or self.actors)[name]()),
            )
            for name, records in self.records.items()
        }
        # Stages of recorded policies are run by the DatasetWorker, on the recorded rows.
        of_sampled = {name: stages for name, stages in worker_stages.items() if name not in self.records}
        worker = (
            # One environment is enough for evaluation, and none is opened before.
            OfflineWorker(number, env_indices, partial(make, env_indices[:1], {}))
            if self.offline
            else make(env_indices, of_sampled)
        )
        return DatasetWorker(worker, readers, worker_stages, len(env_indices))

    @property
    def ticks(self) -> int:
        """Env steps per environment and collect, for at least `fragment_env_steps` per worker."""
        return -(-self.fragment_env_steps * self.num_workers // self.num_envs)

    @property
    def round_env_steps(self) -> int:
        """Env steps of a collect by all workers."""
        return self.ticks * self.num_envs
