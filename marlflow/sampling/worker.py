"""The rollout worker (RLlib's EnvRunner): steps vectorized environments and returns the rows of each policy.

A referee is a worker that only plays matches, so that games of a league do not hold up sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from time import perf_counter, time

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointFailed, ConfigInvalid, FaultKind, NotCompiled
from marlflow.base.info_columns import coefficient_name
from marlflow.base.serialization import Tree
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch
from marlflow.batches.items import Weights
from marlflow.env.batched.protocol import FUNCTIONAL_ENVIRONMENTS, is_functional
from marlflow.policy.actor import Actor, EvaluationModes, WeightedActor
from marlflow.policy.adapted import AdaptingActor
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.action_history import History
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.env_source import EnvSource
from marlflow.sampling.episodes import TrainingEpisodes
from marlflow.sampling.evaluation import EvaluationEnvs
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.phases import adapting_actors, concat_phases, phase_ticks
from marlflow.sampling.protocol import NOTHING_NEW, EvaluationRequest, FrozenPolicy, Request, RowWriter
from marlflow.sampling.receipts import CompiledCalls, Evaluated, Fault, FaultLog, PolicyReceipt, Receipt
from marlflow.sampling.replayed_state import ReplayedState
from marlflow.sampling.runner import Runner
from marlflow.sampling.sampler_config import SamplerConfig, WorkerStages, policy_spaces
from marlflow.sampling.saved_state import ResumeReport
from marlflow.sampling.segment_builder import SegmentBuilder
from marlflow.sampling.watchdog import Watchdog, close_by
from marlflow.sampling.weights_table import WeightsTable
from marlflow.sampling.worker_state import SavedEpisodesState, WorkerState


class RolloutWorker:
    """Steps the environments of `config` in lockstep, with actors from a table of weights.

        receipt, batches = RolloutWorker(config, actors).collect(ticks=64, weights={"prey": Weights(version, flat)})

    `actors` makes an actor per policy and frozen version; `worker_stages` are applied to a policy's rows, after
    `writer` recorded them. More than `config.tolerated_faults` broken episodes raise EnvironmentFailed. A passed
    deadline ends a collect or an evaluation early.

    Raises ConfigInvalid with every agent without a policy or with other spaces than its policy, and policy without
    actor.
    """

    def __init__(
        self,
        config: SamplerConfig,
        actors: Mapping[str, Callable[[], Actor]],
        watchdog: Watchdog | None = None,
        worker_stages: Mapping[str, WorkerStages] | None = None,
        writer: RowWriter | None = None,
    ) -> None:
        if not config.env_indices:
            name = f"rollout worker {config.worker}"
            raise ConfigInvalid([f"{name} has no environment to step: use fewer workers, or more environments"])
        self._config = config
        self._worker_stages = worker_stages or {}
        self._writer = writer
        self._policy_of = config.policy_of
        self._watchdog, self._faults = watchdog or Watchdog(None), FaultLog(config.tolerated_faults)
        self._envs = self._make_envs(config.env_indices)
        # All environments have the same agents and spaces, so the first one answers for all.
        adapter, count = self._envs.first, len(config.env_indices)
        spaces = config.spaces if config.spaces is not None else policy_spaces(adapter, self._policy_of, actors)
        self._stride = self._envs.stride
        self._returned = set(spaces) if config.recorded is None else set(config.recorded)
        # Datasets may record policies whose rows are not returned.
        self._recorded = {*self._returned, *(writer.policies if writer else ())}
        self._actors = {policy: actors[policy]() for policy in spaces}
        self._scheduled: dict[str, Mapping[str, float]] = {}
        self._adapting = adapting_actors(self._actors.values(), has_phases=isinstance(self._envs, EnvPool))
        self._table = self._make_table(spaces, actors)
        lanes = Lanes(self._stride, count, self._table, self._policy_of, config.columns)
        self._builder = SegmentBuilder(lanes)
        self._episodes = TrainingEpisodes(config.seed, config.env_indices, dealt=config.mapping is None)
        # A replacement of a lost worker starts after the episodes whose rows were delivered.
        self._episodes.resume_at(config.next_episodes)
        # Batched environments are saved by snapshots instead.
        is_replayed = isinstance(self._envs, EnvPool)
        self._history = History(count, self._stride, config.history_env_steps) if is_replayed else None
        self._runner = self._make_runner(lanes)
        self._evaluation = EvaluationEnvs(self._make_envs, self._evaluation_table, self._stride, self._policy_of)

    def _make_envs(self, env_indices: Sequence[int]) -> EnvSource:
        pool = EnvPool if self._config.make_batched is None else BatchedEnvPool
        return pool(self._config, env_indices, self._watchdog, self._faults)

    def _make_table(self, spaces: Mapping[str, Spaces], actors: Mapping[str, Callable[[], Actor]]) -> WeightsTable:
        config, num_lanes = self._config, self._stride * len(self._config.env_indices)
        state = self._envs.first.state_space() if config.with_state else None
        live = []
        for policy, of_policy in spaces.items():
            seen_state = state if policy in config.with_state else None
            acting = ActingPolicy(
                policy, self._actors[policy], of_policy, num_lanes, policy in self._recorded, seen_state
            )
            acting.info_columns = config.columns.of_policy(policy)
            live.append(acting)
        table = WeightsTable(live, actors, config.publishing_critics, config.worker_members)
        for cohort in config.cohorts:
            scheduled = {policy: values for policy, values in cohort.items() if policy not in self._recorded}
            if len(scheduled) > 1:
                table.join(scheduled, num_lanes)
        return table

    def _make_runner(self, lanes: Lanes) -> Runner:
        """Return the loop for training episodes; raises ConfigInvalid if it cannot be compiled but must."""
        config, envs, episodes, builder = self._config, self._envs, self._episodes, self._builder
        functional = envs if isinstance(envs, BatchedEnvPool) and is_functional(envs.env) else None
        reason = ""
        if config.compiled is not False:
            try:
                if functional is None:
                    raise NotCompiled(f"the environment is no functional one ({FUNCTIONAL_ENVIRONMENTS})")
                if envs.watchdog.timeout_s is not None:
                    raise NotCompiled(
                        "env.step_timeout_s is set, and in a compiled call there are no single steps to time"
                    )
                # Imports JAX, as the environment has.
                from marlflow.sampling.compiled.runner import CompiledRunner

                return CompiledRunner(functional, lanes, episodes, builder, config.seed, config.evaluation_only)
            except NotCompiled as error:
                reason = str(error)
                if config.compiled is True:
                    raise ConfigInvalid(
                        [f"rollouts.compiled=true, but {reason}; set rollouts.compiled=auto"]
                    ) from error
        runner = Runner(envs, lanes, episodes, builder, self._history)
        if reason and functional is not None:
            runner.compiled = CompiledCalls(note=f"rollouts are not compiled: {reason}")
        return runner

    def _evaluation_table(self, num_envs: int, modes: EvaluationModes) -> WeightsTable:
        return self._table.for_evaluation(self._stride * num_envs, modes)

    def collect(self, ticks: int, request: Request = NOTHING_NEW) -> tuple[Receipt, dict[str, Batch]]:
        began = perf_counter()
        # At the start of a collect the driver has the receipts of all earlier rows, so no recorded row is collected
        # twice.
        try:
            if self._writer is not None:
                self._writer.write_full()
        except OSError as error:
            self._faults.report(self._write_fault(error))
        self.drop_unfinished(request.reset)
        self.remove_frozen(request.forget)
        self._table.trim(self._runner.lanes.entry_of, self._runner.lanes.row_of)
        self._add_frozen(request.frozen)
        self._load(request.weights)
        for policy, worker_stages in self._worker_stages.items():
            if policy in request.weights:
                worker_stages.published = {policy: request.weights[policy]}
            worker_stages.scheduled = request.schedules.get(policy, worker_stages.scheduled)
            worker_stages.actor = self._actors[policy]
        for policy, values in request.schedules.items():
            self._actors[policy].set_schedule(values)
            self._scheduled[policy] = values
        if request.matchups is not None:
            self._episodes.deal(request.matchups)
        runner = self._runner
        # One cell more than ticks: the open row of the last collect is in cell 0.
        self._builder.widen(ticks + 1)
        counts = self._envs.counts
        runner.clear()
        results = self._collect_phases(ticks) if self._adapting else self._collect_ticks(ticks, self._worker_stages)
        receipt = self._receipt({name: cut for name, (cut, _) in results.items()}, self._envs.counts - counts, began)
        return receipt, {policy: batch for policy, (_, batch) in results.items()}

    def _add_frozen(self, frozen: Mapping[str, FrozenPolicy]) -> None:
        if frozen:
            self._table.add(frozen, len(self._runner.lanes.entry_of))
            self._builder.renumber()

    def remove_frozen(self, entries: Collection[str]) -> None:
        """Remove frozen entries that no running episode uses."""
        lanes = self._runner.lanes
        # Finished episodes keep their matchup until the next reset, so only running ones count.
        seated = {entry for index in self._runner.running for entry in lanes.matchups[index].values()}
        leaving = [entry for entry in entries if entry in self._table and entry not in seated]
        self._table.remove(leaving)

    def drop_unfinished(self, policies: Collection[str]) -> None:
        # Open rows have actions of the weights before the reset, and memories were computed by them.
        for policy in policies:
            if (acting := self._table.live.get(policy)) is not None:
                lanes = np.flatnonzero(self._runner.lanes.entry_of == self._table.acting_policies.index(acting))
                self._builder.drop_open(lanes)
                if acting.memory is not None:
                    acting.memory.begin(lanes)

    def _write_fault(self, error: OSError) -> Fault:
        where = f"records of rollout worker {self._config.worker}"
        return Fault(FaultKind.RECORDS_FAILED, where, self._write_failure(error), "", 0)

    def _collect_ticks(self, ticks: int, staged: Collection[str]) -> dict[str, tuple[PolicyReceipt, Batch]]:
        runner = self._runner
        before = runner.env_steps
        with self._watchdog.on_guard():
            runner.begin()
            # Adapting actors need all of their phases, so a deadline does not end them early.
            runner.run(ticks, lambda: not self._adapting and self._watchdog.is_late)
        cuts = self._builder.cut(runner.lanes.episode)
        if self._history is not None:
            self._history.prune(runner.running)
        results = {policy: (cut, self._with_global_lanes(batch)) for policy, (cut, batch) in cuts.items()}
        if self._writer is not None:
            # Recorded before any stage runs: a dataset has the sampled rows, unchanged.
            self._writer.write({policy: batch for policy, (_, batch) in results.items()}, runner.env_steps - before)
        returned = {
            policy: (cut, self._with_added_infos(policy, batch))
            for policy, (cut, batch) in results.items()
            if policy in self._returned
        }
        return {name: self._apply_stages(name, *cut) if name in staged else cut for name, cut in returned.items()}

    def _with_added_infos(self, policy: str, batch: Batch) -> Batch:
        """Add the columns that have a coefficient (`Policy.reward_from`) to the rewards of rows."""
        scheduled, reward = self._scheduled.get(policy, {}), batch["reward"]
        for column in self._config.columns.of_policy(policy):
            coefficient = scheduled.get(coefficient_name(policy, column))
            reward = reward if coefficient is None else reward + coefficient * batch[column]
        return batch if reward is batch["reward"] else batch.with_columns(reward=reward)

    def _collect_phases(self, ticks: int) -> dict[str, tuple[PolicyReceipt, Batch]]:
        # Each environment keeps one task over all phases, and no episode is in two phases.
        self._episodes.begin_tasks()
        phases = []
        # Adapting actors need each phase's rows at once; for the other policies all phases are one fragment.
        between = {policy for policy in self._worker_stages if isinstance(self._actors[policy], AdaptingActor)}
        for ticks_of_phase in phase_ticks(ticks, self._adapting):
            phases.append(self._collect_ticks(ticks_of_phase, between))
            self._abandon_episodes()
        for actor in self._adapting:
            actor.restart()
        total = concat_phases(phases)
        return total | {
            name: self._apply_stages(name, *total[name]) for name in self._worker_stages if name not in between
        }

    def _abandon_episodes(self) -> None:
        # After a cut: only open rows are discarded.
        for index in self._runner.running:
            self._runner.abandon(index)
        self._runner.halt()

    def _apply_stages(self, policy: str, cut: PolicyReceipt, batch: Batch) -> tuple[PolicyReceipt, Batch]:
        batch, times = self._worker_stages[policy](batch)
        return replace(cut, rows=batch.rows, stage_times=times), batch

    def state(self) -> Tree:
        tree = self._worker_state().state()
        if self._writer is not None:
            try:
                self._writer.finish()
            except OSError as error:
                raise CheckpointFailed(self._write_failure(error)) from error
            tree["recorded"] = self._writer.finished
        return tree

    def _write_failure(self, error: OSError) -> str:
        assert self._writer is not None, "only what records fails to"
        rows = f"recorded rows of rollout worker {self._config.worker}"
        return (
            f"{rows} could not be written to {self._writer.folder}: {error}; "
            "free space there, or see that it can be written to"
        )

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        self._add_frozen(frozen or {})
        with self._watchdog.on_guard():
            return self._worker_state().load_state(tree, replay_max_env_steps)

    def _worker_state(self) -> WorkerState:
        self._builder.widen(1)
        parts = self._builder, self._episodes, self._runner
        if isinstance(self._envs, BatchedEnvPool):
            return SavedEpisodesState(self._envs, *parts)
        assert isinstance(self._envs, EnvPool)
        assert self._history is not None, "episodes of these environments are replayed"
        return ReplayedState(self._envs, *parts, self._history)

    def _receipt(self, policies: Mapping[str, PolicyReceipt], counts: Array, began_s: float) -> Receipt:
        runner, spent_s = self._runner, perf_counter() - began_s
        calls, runner.compiled = runner.compiled, CompiledCalls()
        return Receipt(
            worker=self._config.worker,
            env_steps=runner.env_steps,
            agent_steps=runner.agent_steps,
            episodes=tuple(runner.results),
            policies=policies,
            agents_vanished=int(counts[0]),
            actions_corrected=int(counts[1]),
            env_s=self._envs.env_s,
            policy_s=runner.policy_s,
            bookkeeping_s=spent_s - self._envs.env_s - runner.policy_s - calls.compile_s,
            next_episodes=self._episodes.next_episodes,
            faults=self._faults.take(),
            began_s=time() - spent_s,
            compiled=calls,
        )

    def _with_global_lanes(self, batch: Batch) -> Batch:
        index, agent = np.divmod(batch.segments["lane"], self._stride)
        # A lane is the environment's position in this worker * stride + agent slot; the returned one uses its global
        # number.
        env_indices = np.array(self._envs.env_indices)[index]
        names = {"agent": agent, "env": env_indices, "lane": env_indices * self._stride + agent}
        if self._adapting:
            names["task"] = np.array(self._episodes.tasks)[index]
        return Batch(batch.columns, {**batch.segments, **names})

    def _load(self, weights: Mapping[str, Weights]) -> None:
        for policy, new in weights.items():
            acting = self._table.live.get(policy)
            if acting is not None and acting.version != new.version:
                # Live entries only: a frozen entry has the version that it was frozen with.
                acting.load(new, policy in self._config.publishing_critics)

    def evaluate(self, request: EvaluationRequest) -> Evaluated:
        self._add_frozen(request.frozen)
        # Evaluation uses the actors of training, so their weights are restored afterwards.
        live = [slots for policy in request.weights if (slots := self._table.live.get(policy)) is not None]
        training = {p.policy: Weights(p.version, p.actor.flat()) for p in live if isinstance(p.actor, WeightedActor)}
        for fault in self._evaluation.widen(len(request.episodes)):
            self._faults.report(fault)
        self._load(request.weights)
        with self._watchdog.on_guard():
            evaluated = self._evaluation.play_episodes(self._config.seed, request, lambda: self._watchdog.is_late)
        self._load(training)
        return replace(evaluated, faults=self._faults.take())

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        deadline_s = close_by(timeout_s)
        # Environment faults left here belong to a collect that raised and has reported them.
        faults = [fault for fault in self._faults.take() if not fault.kind.of_environment]
        try:
            if self._writer is not None:
                self._writer.finish()
        except OSError as error:
            faults.append(self._write_fault(error))
        return (*faults, *self._envs.close(deadline_s), *self._evaluation.close(deadline_s))


def worker_name(number: int, num_workers: int) -> str:
    """Return the name of a worker's process; workers from `num_workers` on are referees.

    >>> worker_name(1, num_workers=2), worker_name(2, num_workers=2)
    ('rollout worker 1', 'referee 0')
    """
    return f"rollout worker {number}" if number < num_workers else f"referee {number - num_workers}"


class Referee:
    """Plays evaluation episodes by `worker`, and samples nothing.

    Frozen entries are removed after each call, because the next matches mostly have others.
    """

    def __init__(self, worker: RolloutWorker) -> None:
        self._worker = worker

    def evaluate(self, request: EvaluationRequest) -> Evaluated:
        """Play evaluation episodes; see `Worker.evaluate`."""
        try:
            return self._worker.evaluate(request)
        finally:
            self._worker.remove_frozen(request.frozen)

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Close all environments, within `timeout_s` seconds if given; return faults."""
        return self._worker.close(timeout_s)
