"""Hands out recorded fragments in place of what is played: what a rollout worker is to a policy that learns from files.

The fragments of a policy are dealt to all copies in turn, so that which one is handed out by which copy does not depend
on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from marlflow.base.batch import Batch
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.items import Weights
from marlflow.base.kept import Tree
from marlflow.policy.actor import EvaluationMode
from marlflow.rollout.finishing import Finishing
from marlflow.rollout.fragment import Evaluated, Fault, PolicyReceipt, Receipt
from marlflow.rollout.kept import ResumeReport
from marlflow.rollout.protocol import FrozenPolicy, Matchup, Worker
from marlflow.rollout.records.reading import Records

_POSITIONS = "fragments"


class Playback:
    """One policy's records as the worker of `copies` hands them out: copy c of `of` has every `of`-th from c on."""

    def __init__(
        self, records: Records, copies: Sequence[int], of: int, begun: Mapping[int, int] | None = None
    ) -> None:
        self._records, self._of = records, of
        self.positions = {copy: (begun or {}).get(copy, 0) for copy in copies}
        self._nothing: Batch | None = None

    @property
    def size(self) -> int:
        """How many fragments there are, over all copies."""
        return len(self._records.fragments)

    @property
    def mark(self) -> int:
        """What tells these records from others."""
        return self._records.mark

    def take(self, env_steps: int) -> tuple[Batch, int]:
        """The next fragments, of at least `env_steps` if there are so many left, as one batch; and their env steps.

        Of the copies the one that has handed out fewest goes first.
        """
        found: list[Batch] = []
        taken = 0
        while taken < env_steps and (copy := self._next_copy()) is not None:
            own = range(copy, self.size, self._of)
            fragment = self._records.fragments[own[self.positions[copy] % len(own)]]
            found.append(self._records.read(fragment))
            self.positions[copy] += 1
            taken += fragment.env_steps
        return (Batch.concat(found) if found else self._no_rows()), taken

    def _next_copy(self) -> int | None:
        left = [copy for copy in self.positions if self.positions[copy] < self._share(copy)]
        return min(left, key=lambda copy: (self.positions[copy], copy), default=None)

    def _share(self, copy: int) -> int:
        return len(range(copy, self.size, self._of)) * self._records.passes

    def _no_rows(self) -> Batch:
        if self._nothing is None:
            self._nothing = self._records.nothing()
        return self._nothing


def next_fragments(tree: Tree, copies: Collection[int]) -> dict[str, dict[int, int]]:
    """How many recorded fragments of each policy each of `copies` has handed out, from what is kept of workers."""
    found: dict[str, dict[int, int]] = {}
    for one in tree["copies"]:
        if one["copy"] in copies:
            for policy, kept in one.get(_POSITIONS, {}).items():
                found.setdefault(policy, {})[one["copy"]] = kept["next"]
    return found


class PlaybackWorker:
    """A rollout worker `player`, but that the policies of `playbacks` are handed what was recorded.

    Where nobody plays (`player` is an OfflineWorker), the env steps and agent steps of a collect are the recorded ones;
    of policies of different records, those of the policy that has most.
    """

    def __init__(
        self, player: Worker, playbacks: Mapping[str, Playback], finishing: Mapping[str, Finishing], copies: int
    ) -> None:
        self._player, self._playbacks, self._finishing, self._copies = player, playbacks, finishing, copies
        self._versions: dict[str, int] = {}

    def collect(
        self,
        ticks: int,
        weights: Mapping[str, Weights] | None = None,
        schedules: Mapping[str, Mapping[str, float]] | None = None,
        matchups: Mapping[int, Sequence[Matchup]] | None = None,
        frozen: Mapping[str, FrozenPolicy] | None = None,
        forget: Collection[str] = (),
    ) -> tuple[Receipt, dict[str, Batch]]:
        """What was played, and recorded fragments of about as many env steps.

        `version` of recorded rows is that of the weights that came with the collect: that of those who chose their
        actions is of another learner.
        """
        receipt, batches = self._player.collect(ticks, weights, schedules, matchups, frozen, forget)
        began = perf_counter()
        policies, batches, env_steps = dict(receipt.policies), dict(batches), 0
        for policy, playback in self._playbacks.items():
            batch, taken = playback.take(ticks * self._copies)
            env_steps = max(env_steps, taken)
            policies[policy], batches[policy] = self._handed(policy, batch, weights or {}, schedules or {})
        rows = sum(policies[policy].rows for policy in self._playbacks)
        return replace(
            receipt,
            policies=policies,
            env_steps=receipt.env_steps or env_steps,
            agent_steps=receipt.agent_steps or rows,
            bookkeeping_s=receipt.bookkeeping_s + perf_counter() - began,
            next_fragments={policy: dict(playback.positions) for policy, playback in self._playbacks.items()},
        ), batches

    def _handed(
        self,
        policy: str,
        batch: Batch,
        weights: Mapping[str, Weights],
        schedules: Mapping[str, Mapping[str, float]],
    ) -> tuple[PolicyReceipt, Batch]:
        if policy in weights:
            self._versions[policy] = weights[policy].version
        version = self._versions.get(policy, 0)
        carried = int(batch.segments["carried"].sum())
        batch = batch.with_columns(version=np.full_like(batch.columns["version"], version))
        receipt = PolicyReceipt(batch.rows, carried, 0.0, version)
        finishing = self._finishing.get(policy)
        if finishing is None:
            return receipt, batch
        if policy in weights:
            finishing.published = {policy: weights[policy]}
        finishing.scheduled = schedules.get(policy, finishing.scheduled)
        batch, times = finishing(batch)
        return replace(receipt, rows=batch.rows, finished=times), batch

    def evaluate(
        self,
        episodes: Sequence[int],
        weights: Mapping[str, Weights] | None = None,
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes, which are played."""
        return self._player.evaluate(episodes, weights, matchups, mode, frozen)

    def state(self) -> Tree:
        """That of the player, and how far each copy has come in the records of each policy."""
        tree = self._player.state()
        for one in tree["copies"]:
            playing = {policy: playback.positions[one["copy"]] for policy, playback in self._playbacks.items()}
            one[_POSITIONS] = {
                p: {"next": at, "of": self._playbacks[p].size, "mark": self._playbacks[p].mark}
                for p, at in playing.items()
            }
        return tree

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        """Goes on from what `state` gave; raises CheckpointUnusable if the records are not as many as they were."""
        for one in tree["copies"]:
            for policy, kept in one.get(_POSITIONS, {}).items():
                self._go_on(policy, one["copy"], kept)
        return self._player.load_state(tree, replay_max_env_steps, frozen)

    def _go_on(self, policy: str, copy: int, kept: Mapping[str, int]) -> None:
        playback = self._playbacks.get(policy)
        if playback is None:
            return
        if kept["of"] != playback.size:
            before = f"policy {policy!r} had {kept['of']} recorded fragments when it was kept"
            raise CheckpointUnusable([f"{before}, and has {playback.size} now; give it the same records"])
        if kept["mark"] != playback.mark:
            before = f"the records of policy {policy!r} are others than those that it was kept with"
            raise CheckpointUnusable([f"{before}; give it the same records"])
        playback.positions[copy] = kept["next"]

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Closes all environments; returns what went wrong."""
        return self._player.close(timeout_s)


class OfflineWorker:
    """Worker `number` of a run in which nobody plays: its copies are only counted.

    `make` makes a worker that plays, when evaluation episodes are first asked for.
    """

    def __init__(self, number: int, copies: Sequence[int], make: Callable[[], Worker]) -> None:
        self._number, self._copies, self._make = number, tuple(copies), make
        self._evaluator: Worker | None = None

    def collect(
        self,
        ticks: int,
        weights: Mapping[str, Weights] | None = None,
        schedules: Mapping[str, Mapping[str, float]] | None = None,
        matchups: Mapping[int, Sequence[Matchup]] | None = None,
        frozen: Mapping[str, FrozenPolicy] | None = None,
        forget: Collection[str] = (),
    ) -> tuple[Receipt, dict[str, Batch]]:
        """Nothing."""
        begun = dict.fromkeys(self._copies, 0)
        return Receipt(self._number, 0, 0, (), {}, 0, 0.0, 0.0, 0.0, next_episodes=begun), {}

    def evaluate(
        self,
        episodes: Sequence[int],
        weights: Mapping[str, Weights] | None = None,
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes in the environment that was recorded."""
        if self._evaluator is None:
            self._evaluator = self._make()
        return self._evaluator.evaluate(episodes, weights, matchups, mode, frozen)

    def state(self) -> dict[str, Any]:
        """Its copies, none of them in an episode."""
        copies = [{"copy": copy, "next_episode": 0, "running": None} for copy in self._copies]
        return {"agents": None, "copies": copies, "tables": {}}

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        """There is nothing to take up."""
        del tree, replay_max_env_steps, frozen
        return ResumeReport()

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Closes the environments of evaluations; returns what went wrong."""
        return () if self._evaluator is None else self._evaluator.close(timeout_s)
