"""Makes experience: plays its copies of the environment and hands over what each policy decided.

`receipt, batches = RolloutWorker(...).collect(ticks=64, weights={"prey": Weights(version, flat)})`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from marlflow.base.batch import Batch
from marlflow.base.errors import CheckpointFailed, ConfigInvalid
from marlflow.base.items import Weights
from marlflow.base.kept import Tree
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import Actor, EvaluationMode, WeightedActor
from marlflow.policy.adapted import AdaptingActor
from marlflow.rollout import closing
from marlflow.rollout.config import SamplerConfig
from marlflow.rollout.env_pool import EnvPool
from marlflow.rollout.episodes import TrainingEpisodes
from marlflow.rollout.evaluation import EvaluationCopies
from marlflow.rollout.faults import FaultLog
from marlflow.rollout.finishing import Finishing
from marlflow.rollout.fragment import Evaluated, Fault, PolicyReceipt, Receipt
from marlflow.rollout.history import History
from marlflow.rollout.kept import ResumeReport
from marlflow.rollout.lanes import Lanes, lanes_per_copy
from marlflow.rollout.phases import adapting, joined, phase_ticks
from marlflow.rollout.policy_slots import PolicySlots
from marlflow.rollout.policy_spaces import policy_spaces
from marlflow.rollout.protocol import FrozenPolicy, Matchup
from marlflow.rollout.records.writing import RecordWriter
from marlflow.rollout.segment_builder import SegmentBuilder
from marlflow.rollout.state import Parts
from marlflow.rollout.table import Table
from marlflow.rollout.vector_runner import SyncVectorRunner
from marlflow.rollout.watchdog import Watchdog


class RolloutWorker:
    """Plays the copies of its `config` in lockstep, acting by a table of weights.

    `actors` makes a new actor of each policy: one for the policy itself, and one for each frozen version of it. After
    `config.tolerated_faults` episodes that an environment broke, the next raises EnvironmentFailed; a step or reset
    that takes longer than the `watchdog` allows is such a fault (None: any time). When its deadline passes, a collect
    or an evaluation ends early. `finishing` has what is done to the rows of a policy before they leave; `writer`
    records them before that. With actors that adapt, a collect has phases (see `phases`).

    Raises ConfigInvalid with every agent that has no policy, policy that has no actor, and agent whose spaces are not
    its policy's.
    """

    def __init__(
        self,
        config: SamplerConfig,
        actors: Mapping[str, Callable[[], Actor]],
        watchdog: Watchdog | None = None,
        finishing: Mapping[str, Finishing] | None = None,
        writer: RecordWriter | None = None,
    ) -> None:
        if not config.copies:
            name = f"rollout worker {config.worker}"
            raise ConfigInvalid([f"{name} has no copy to play: use fewer workers, or more copies"])
        self._config, self._finishing, self._writer = config, finishing or {}, writer
        self._policy_of = config.policy_of
        self._watchdog, self._faults = watchdog or Watchdog(None), FaultLog(config.tolerated_faults)
        self._copies = self._make_copies(config.copies)
        window, count = self._copies.windows[0], len(config.copies)
        spaces = config.spaces if config.spaces is not None else policy_spaces(window, self._policy_of, actors)
        self._stride = lanes_per_copy(window)
        self._handed_over = set(spaces) if config.recorded is None else set(config.recorded)
        self._actors = {policy: actors[policy]() for policy in spaces}
        self._adapting = adapting(self._actors.values())
        table = self._table = Table(self._make_players(spaces), actors, config.publishing_critics)
        lanes = Lanes(self._stride, count, table, self._policy_of)
        self._recorder = SegmentBuilder(lanes.player_of, len(table.players))
        self._episodes = TrainingEpisodes(config.seed, config.copies, dealt=config.mapping is None)
        self._episodes.go_on(config.next_episodes)
        history = self._history = History(count, self._stride, config.history_env_steps)
        recorder, episodes = self._recorder, self._episodes
        self._runner = SyncVectorRunner(self._copies, table.players, lanes, episodes, "explore", recorder, history)
        self._evaluation = EvaluationCopies(self._make_copies, self._evaluation_table, self._stride, self._policy_of)

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries of the table of weights: the policies that play, then frozen versions of them."""
        return tuple(self._table)

    def _make_copies(self, numbers: Sequence[int]) -> EnvPool:
        config = self._config
        return EnvPool(numbers, config.make_env, self._watchdog, self._faults, bool(config.with_state))

    def _make_players(self, spaces: Mapping[str, Spaces]) -> list[PolicySlots]:
        with_state = frozenset(self._config.with_state)
        state = self._copies.windows[0].state_space() if with_state else None
        recorded = {*self._handed_over, *(self._writer.policies if self._writer else ())}
        return [
            PolicySlots(
                policy,
                self._actors[policy],
                of_policy,
                self._stride * len(self._config.copies),
                policy in recorded,
                state if policy in with_state else None,
            )
            for policy, of_policy in spaces.items()
        ]

    def _evaluation_table(self, copies: int) -> Table:
        """Everybody who may play in an evaluation episode; their rows are not recorded."""
        return self._table.elsewhere(self._stride * copies)

    def collect(
        self,
        ticks: int,
        weights: Mapping[str, Weights] | None = None,
        schedules: Mapping[str, Mapping[str, float]] | None = None,
        matchups: Mapping[int, Sequence[Matchup]] | None = None,
        frozen: Mapping[str, FrozenPolicy] | None = None,
        forget: Collection[str] = (),
    ) -> tuple[Receipt, dict[str, Batch]]:
        """`ticks` env steps of every copy, acting with `weights`: a receipt, and for each policy its complete rows.

        Policies without new weights go on with their last; policies without rows get a batch without rows. `matchups`
        are those of each copy's next episodes; a copy that has used them up waits for the next collect. `frozen` and
        `forget` change the table of weights, as in Request.
        """
        began = perf_counter()
        self._write_records()
        self._forget(forget)
        self._seat(frozen or {})
        self._load(weights or {})
        for policy, finishing in self._finishing.items():
            if weights and policy in weights:
                finishing.published = {policy: weights[policy]}
            finishing.scheduled = (schedules or {}).get(policy, finishing.scheduled)
            finishing.actor = self._actors[policy]
        for policy, values in (schedules or {}).items():
            self._actors[policy].set_schedule(values)
        if matchups is not None:
            self._episodes.deal(matchups)
        runner = self._runner
        self._widen(ticks + 1)
        vanished = self._copies.vanished
        runner.clear()
        made = self._play_phases(ticks) if self._adapting else self._play(ticks, self._finishing)
        receipts = {policy: cut for policy, (cut, _) in made.items()}
        receipt = self._receipt(receipts, self._copies.vanished - vanished, began)
        return receipt, {policy: batch for policy, (_, batch) in made.items()}

    def _seat(self, frozen: Mapping[str, FrozenPolicy]) -> None:
        """Adds the frozen entries that the table does not have."""
        if frozen:
            self._table.add(frozen, len(self._runner.lanes.player_of))
            self._recorder.renumber(len(self._table.players))

    def _forget(self, entries: Collection[str]) -> None:
        """Removes the frozen `entries` that no running episode seats."""
        lanes = self._runner.lanes
        seated = {entry for index in self._runner.running for entry in lanes.matchups[index].values()}
        leaving = [entry for entry in entries if entry in self._table and entry not in seated]
        if leaving:
            lanes.drop(leaving)
            self._history.drop(leaving)
            self._recorder.renumber(len(self._table.players))

    def _write_records(self) -> None:
        """Writes the files that are full. At the start of a collect: the driver has the receipts of all rows so far."""
        try:
            if self._writer is not None:
                self._writer.write_full()
        except OSError as error:
            self._faults.report(self._records_failed(error))

    def _records_failed(self, error: OSError) -> Fault:
        where = f"records of rollout worker {self._config.worker}"
        return Fault("records_failed", where, self._not_recorded(error), "", 0)

    def _play(self, ticks: int, finished: Collection[str]) -> dict[str, tuple[PolicyReceipt, Batch]]:
        runner = self._runner
        before = runner.env_steps
        with self._watchdog.on_guard():
            runner.begin()
            for _ in range(ticks):
                if runner.idle:
                    break
                runner.tick()
                if not self._adapting and self._watchdog.is_late:  # who adapts needs all of its phases
                    break
        cuts = self._recorder.cut(self._table.players, runner.lanes.episode)
        self._history.forget(runner.running)
        made = {policy: (cut, self._named(batch)) for policy, (cut, batch) in cuts.items()}
        if self._writer is not None:
            self._writer.write({policy: batch for policy, (_, batch) in made.items()}, runner.env_steps - before)
        handed_over = {policy: cut for policy, cut in made.items() if policy in self._handed_over}
        return {name: self._finished(name, *cut) if name in finished else cut for name, cut in handed_over.items()}

    def _play_phases(self, ticks: int) -> dict[str, tuple[PolicyReceipt, Batch]]:
        """Each copy has a task of its own from the first phase to the last, and no episode is in two of them."""
        self._episodes.begin_tasks()
        made = []
        # Who adapts does so between phases; of all others the phases are one fragment.
        between = {policy for policy in self._finishing if isinstance(self._actors[policy], AdaptingActor)}
        for ticks_of_phase in phase_ticks(ticks, self._adapting):
            made.append(self._play(ticks_of_phase, between))
            self._leave_episodes()
        for actor in self._adapting:
            actor.restart()
        whole = joined(made)
        return whole | {name: self._finished(name, *whole[name]) for name in self._finishing if name not in between}

    def _leave_episodes(self) -> None:
        """Behind a cut: whatever is open is dropped, and every copy will begin another."""
        lanes = self._runner.lanes
        for index in self._runner.running:
            of_copy = lanes.of(index)
            self._recorder.give_up(of_copy, int(lanes.episode[of_copy.start]), self._table.players)
            lanes.abandon(index)
        self._runner.halt()

    def _finished(self, policy: str, cut: PolicyReceipt, batch: Batch) -> tuple[PolicyReceipt, Batch]:
        batch, times = self._finishing[policy](batch)
        return replace(cut, rows=batch.rows, finished=times), batch

    def state(self) -> Tree:
        """Everything that is carried from one collect to the next, but for weights and scheduled values; by copy.

        `kept.merged` makes one of several workers', and `kept.share` what another number of workers need. Raises
        CheckpointFailed if recorded rows cannot be written: no checkpoint may count on rows that are not in the record.
        """
        tree = self._parts().state()
        if self._writer is not None:
            try:
                self._writer.finish()
            except OSError as error:
                raise CheckpointFailed(self._not_recorded(error)) from error
            tree["recorded"] = self._writer.finished
        return tree

    def _not_recorded(self, error: OSError) -> str:
        assert self._writer is not None, "only what records fails to"
        rows = f"recorded rows of rollout worker {self._config.worker}"
        return (
            f"{rows} could not be written to {self._writer.folder}: {error}; "
            "free space there, or see that it can be written to"
        )

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        """Goes on from what `state` gave of this worker's copies or some of them; on a worker that is new.

        `frozen` has the frozen entries that running episodes seat. Running episodes are played again, with the next
        collect's weights from then on. Those of more env steps than `replay_max_env_steps`, or than the history had
        room for, begin anew; of those that do not come out the same the copy's next begins instead. Raises
        CheckpointUnusable if it is of other agents or policies.
        """
        self._seat(frozen or {})
        with self._watchdog.on_guard():
            return self._parts().load_state(tree, replay_max_env_steps)

    def _parts(self) -> Parts:
        self._widen(1)
        return Parts(self._copies, self._table.players, self._recorder, self._episodes, self._runner, self._history)

    def _receipt(self, policies: Mapping[str, PolicyReceipt], agents_vanished: int, began_s: float) -> Receipt:
        runner = self._runner
        return Receipt(
            worker=self._config.worker,
            env_steps=runner.env_steps,
            agent_steps=runner.agent_steps,
            episodes=tuple(runner.results),
            policies=policies,
            agents_vanished=agents_vanished,
            env_s=runner.env_s,
            policy_s=runner.policy_s,
            bookkeeping_s=perf_counter() - began_s - runner.env_s - runner.policy_s,
            next_episodes=self._episodes.not_begun,
            faults=self._faults.take(),
        )

    def _widen(self, capacity: int) -> None:
        self._recorder.widen(capacity)
        for player in self._table.players:
            if player.columns is not None:
                player.columns.widen(capacity)

    def _named(self, batch: Batch) -> Batch:
        """The worker's own lanes become agent, copy, and lanes that are unique over all workers."""
        index, agent = np.divmod(batch.segments["lane"], self._stride)
        copy = np.array(self._copies.numbers)[index]
        names = {"agent": agent, "copy": copy, "lane": copy * self._stride + agent}
        if self._adapting:
            names["task"] = np.array(self._episodes.tasks)[index]
        return Batch(batch.columns, {**batch.segments, **names})

    def _load(self, weights: Mapping[str, Weights]) -> None:
        for policy, new in weights.items():
            player = self._table.live(policy)
            if player is not None and player.version != new.version:
                player.load(new, policy in self._config.publishing_critics)

    def _snapshot(self, policies: Iterable[str]) -> dict[str, Weights]:
        """What the actors of `policies` act with now."""
        players = [player for policy in policies if (player := self._table.live(policy)) is not None]
        return {p.policy: Weights(p.version, p.actor.flat()) for p in players if isinstance(p.actor, WeightedActor)}

    def evaluate(
        self,
        episodes: Sequence[int],
        weights: Mapping[str, Weights] | None = None,
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes, by number, in environments of their own; the state of training does not change.

        The seed of an episode, and of each agent's choices in it, depends on the run's seed and its number alone.
        `matchups` has one for each, which may seat entries of the table and of `frozen`. Results are in their order,
        without those that an environment broke: faults.
        """
        self._seat(frozen or {})
        training = self._snapshot(weights or {})
        for fault in self._evaluation.widen(len(episodes)):
            self._faults.report(fault)
        self._load(weights or {})
        with self._watchdog.on_guard():
            results, was_cut = self._evaluation.play(
                self._config.seed, episodes, matchups, mode, lambda: self._watchdog.is_late
            )
        self._load(training)
        return Evaluated(tuple(results), self._faults.take(), was_cut=was_cut)

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Writes what it recorded and closes all environments, in CLOSE_TIMEOUT_S or `timeout_s`; returns faults."""
        deadline_s = perf_counter() + (closing.CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)
        # Broken episodes that nobody has received are of a collect that raised.
        found = [fault for fault in self._faults.take() if not fault.kind.startswith("env_")]
        try:
            if self._writer is not None:
                self._writer.finish()
        except OSError as error:
            found.append(self._records_failed(error))
        return (*found, *self._copies.close(deadline_s), *self._evaluation.close(deadline_s))
