"""Reads recorded fragments instead of sampling.

Fragments are dealt to environments in turn, independent of the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from marlflow.base.errors import CheckpointUnusable, RecordsDamaged
from marlflow.base.serialization import Tree
from marlflow.batches.batch import MEMORY_COLUMNS, Batch
from marlflow.offline.dataset import Dataset
from marlflow.sampling.protocol import NOTHING_NEW, EvaluationRequest, FrozenPolicy, Request, Worker
from marlflow.sampling.receipts import Evaluated, Fault, PolicyReceipt, Receipt
from marlflow.sampling.sampler_config import WorkerStages
from marlflow.sampling.saved_state import ResumeReport

_POSITIONS = "fragments"


class DatasetReader:
    """A policy's dataset on a worker: environment c of `of` reads every `of`-th fragment from c on.

    `memory_shape` is of the network that learns, None without memory. Memory of the recorded network means nothing to
    it, so that all memory is zero, which burn-in changes (Kapturowski et al., 2019, section 3).
    """

    def __init__(
        self,
        dataset: Dataset,
        env_indices: Sequence[int],
        of: int,
        next_fragments: Mapping[int, int] | None = None,
        memory_shape: tuple[int, ...] | None = None,
    ) -> None:
        self._dataset = dataset
        self._of = of
        self._memory_shape = memory_shape
        self.positions = {env_index: (next_fragments or {}).get(env_index, 0) for env_index in env_indices}
        self._nothing: Batch | None = None

    @property
    def size(self) -> int:
        """The number of fragments."""
        return len(self._dataset.fragments)

    @property
    def mark(self) -> int:
        return self._dataset.mark

    @property
    def env_steps(self) -> int:
        """The env steps of all fragments, over all passes."""
        return sum(fragment.env_steps for fragment in self._dataset.fragments) * self._dataset.passes

    def take(self, env_steps: int) -> tuple[Batch, int]:
        """Return the next fragments, of `env_steps` or more if available, and their env steps.

        Raises RecordsDamaged for a reward or an observation that is not finite: all updates would be skipped.
        """
        batches: list[Batch] = []
        taken = 0
        while taken < env_steps and (env_index := self._next_env()) is not None:
            numbers = range(env_index, self.size, self._of)
            # The position counts over all passes.
            fragment = self._dataset.fragments[numbers[self.positions[env_index] % len(numbers)]]
            batches.append(batch := self._dataset.read(fragment))
            _verify_finite(batch, f"{self._dataset.folder}/{self._dataset.policy}/{fragment.file}", fragment.group)
            self.positions[env_index] += 1
            taken += fragment.env_steps
        return (Batch.concat(batches) if batches else self._no_rows()), taken

    def as_learned(self, batch: Batch, version: int) -> Batch:
        """Return `batch` with the version and the memory of the policy that learns, in place of the recorded ones."""
        columns = {name: column for name, column in batch.columns.items() if name not in MEMORY_COLUMNS}
        segments = {name: column for name, column in batch.segments.items() if name not in MEMORY_COLUMNS}
        columns["version"] = np.full_like(columns["version"], version)
        if (shape := self._memory_shape) is not None:
            count = len(segments["length"])
            columns["memory"] = np.zeros((batch.rows, *shape), np.float32)
            segments["memory"] = segments["bootstrap_memory"] = np.zeros((count, *shape), np.float32)
            segments["memory_version"] = np.full(count, version, columns["version"].dtype)
        return Batch(columns, segments)

    def _next_env(self) -> int | None:
        passes = self._dataset.passes
        left = [
            env_index
            for env_index, position in self.positions.items()
            if position < len(range(env_index, self.size, self._of)) * passes
        ]
        # The environment that has read least, so that all advance alike, for any number of workers.
        return min(left, key=lambda env_index: (self.positions[env_index], env_index), default=None)

    def _no_rows(self) -> Batch:
        if self._nothing is None:
            self._nothing = self._dataset.nothing()
        return self._nothing


def next_fragments(tree: Tree, env_indices: Collection[int]) -> dict[str, dict[int, int]]:
    """Return counts of fragments read, by policy and environment, from workers' states."""
    counts: dict[str, dict[int, int]] = {}
    for env in tree["envs"]:
        if env["env"] in env_indices:
            for policy, position in env.get(_POSITIONS, {}).items():
                counts.setdefault(policy, {})[env["env"]] = position["next"]
    return counts


def _verify_finite(batch: Batch, file: str, fragment: int) -> None:
    for columns, names in ((batch.columns, ("obs", "reward")), (batch.segments, ("bootstrap_obs",))):
        for name in names:
            column = columns.get(name)
            if column is not None and column.dtype.kind == "f" and not np.isfinite(column).all():
                raise RecordsDamaged(f"{file}, fragment {fragment}: {name} has a number that is not finite")


class DatasetWorker:
    """Wraps `worker`; the policies of `readers` get recorded rows.

    With an OfflineWorker, env steps and agent steps are the recorded ones.
    """

    def __init__(
        self,
        worker: Worker,
        readers: Mapping[str, DatasetReader],
        worker_stages: Mapping[str, WorkerStages],
        num_envs: int,
    ) -> None:
        self._worker = worker
        self._readers = readers
        # Policies of one environment share its env steps, which count once: for the policy that has the most of them.
        self._counted = max(readers, key=lambda policy: readers[policy].env_steps)
        self._worker_stages = worker_stages
        self._num_envs = num_envs
        self._versions: dict[str, int] = {}

    def collect(self, ticks: int, request: Request = NOTHING_NEW) -> tuple[Receipt, dict[str, Batch]]:
        receipt, batches = self._worker.collect(ticks, request)
        began = perf_counter()
        policies, batches, env_steps = dict(receipt.policies), dict(batches), 0
        for policy, reader in self._readers.items():
            batch, taken = reader.take(ticks * self._num_envs)
            env_steps += taken if policy == self._counted else 0
            policies[policy], batches[policy] = self._process(policy, batch, request)
        rows = sum(policies[policy].rows for policy in self._readers)
        return replace(
            receipt,
            policies=policies,
            # An OfflineWorker samples nothing; other workers count their own steps.
            env_steps=receipt.env_steps or env_steps,
            agent_steps=receipt.agent_steps or rows,
            bookkeeping_s=receipt.bookkeeping_s + perf_counter() - began,
            next_fragments={policy: dict(reader.positions) for policy, reader in self._readers.items()},
        ), batches

    def _process(self, policy: str, batch: Batch, request: Request) -> tuple[PolicyReceipt, Batch]:
        weights, schedules = request.weights, request.schedules
        if policy in weights:
            self._versions[policy] = weights[policy].version
        # The version of the current weights, because the recorded version belongs to another learner.
        version = self._versions.get(policy, 0)
        carried = int(batch.segments["carried"].sum())
        batch = self._readers[policy].as_learned(batch, version)
        receipt = PolicyReceipt(batch.rows, carried, 0.0, version)
        worker_stages = self._worker_stages.get(policy)
        if worker_stages is None:
            return receipt, batch
        if policy in weights:
            worker_stages.published = {policy: weights[policy]}
        worker_stages.scheduled = schedules.get(policy, worker_stages.scheduled)
        batch, times = worker_stages(batch)
        return replace(receipt, rows=batch.rows, stage_times=times), batch

    def drop_unfinished(self, policies: Collection[str]) -> None:
        self._worker.drop_unfinished(policies)

    def evaluate(self, request: EvaluationRequest) -> Evaluated:
        return self._worker.evaluate(request)

    def state(self) -> Tree:
        tree = self._worker.state()
        for env in tree["envs"]:
            # Size and mark tell on resume whether the dataset is still the same.
            env[_POSITIONS] = {
                policy: {"next": reader.positions[env["env"]], "of": reader.size, "mark": reader.mark}
                for policy, reader in self._readers.items()
            }
        return tree

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        for env in tree["envs"]:
            for policy, position in env.get(_POSITIONS, {}).items():
                self._resume(policy, env["env"], position)
        return self._worker.load_state(tree, replay_max_env_steps, frozen)

    def _resume(self, policy: str, env_index: int, position: Mapping[str, int]) -> None:
        reader = self._readers.get(policy)
        # The policy was recorded before, and is sampled now.
        if reader is None:
            return
        if position["of"] != reader.size:
            before = f"policy {policy!r} had {position['of']} recorded fragments when it was kept"
            raise CheckpointUnusable([f"{before}, and has {reader.size} now; give it the same records"])
        if position["mark"] != reader.mark:
            before = f"the records of policy {policy!r} are not the records of the saved state"
            raise CheckpointUnusable([f"{before}; give it the same records"])
        reader.positions[env_index] = position["next"]

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        return self._worker.close(timeout_s)


class OfflineWorker:
    """A worker of a run without sampling; `make` makes one for evaluation."""

    def __init__(self, number: int, env_indices: Sequence[int], make: Callable[[], Worker]) -> None:
        self._number = number
        self._env_indices = tuple(env_indices)
        self._make = make
        self._evaluator: Worker | None = None

    def collect(self, ticks: int, request: Request = NOTHING_NEW) -> tuple[Receipt, dict[str, Batch]]:
        next_episodes = dict.fromkeys(self._env_indices, 0)
        return Receipt(self._number, 0, 0, (), {}, 0, 0.0, 0.0, 0.0, next_episodes=next_episodes), {}

    def drop_unfinished(self, policies: Collection[str]) -> None:
        return

    def evaluate(self, request: EvaluationRequest) -> Evaluated:
        # Environments are opened only when needed: many offline runs never evaluate.
        if self._evaluator is None:
            self._evaluator = self._make()
        return self._evaluator.evaluate(request)

    def state(self) -> dict[str, Any]:
        envs = [
            {"env": env_index, "next_episode": 0, "agents": None, "running": None} for env_index in self._env_indices
        ]
        return {"agents": None, "envs": envs, "tables": {}}

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        del tree, replay_max_env_steps, frozen
        return ResumeReport()

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        return () if self._evaluator is None else self._evaluator.close(timeout_s)
