"""The population of frozen policy versions, for self-play, and the driver's store of their weights.

Freezing keeps a reference to published weights, which never change, so nothing is copied.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.sentences import meant
from marlflow.base.serialization import Tree
from marlflow.batches.items import Weights
from marlflow.sampling.protocol import FrozenPolicy

# The most frozen entries that a worker holds, unless more play in its episodes; the least recently dealt are evicted.
WORKER_MEMBERS = 64


@dataclass(frozen=True, slots=True)
class PopulationChange:
    """A matchmaker's change before the next round: new ids to `freeze` by policy, entries to `forget`.

    Each id is used once in a run.

    >>> PopulationChange(freeze={"main@3": "main"}, forget=["main@1"])
    PopulationChange(freeze={'main@3': 'main'}, forget=['main@1'])
    """

    freeze: Mapping[str, str] = field(default_factory=dict)
    forget: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """A decision that a policy begins again: `to` its `initial` parameters, `fresh` random ones, or a frozen entry's.

    >>> Reset("exploiter", to="main@3")
    Reset(policy='exploiter', to='main@3')
    """

    policy: str
    to: str


class Population:
    """The frozen entries of a run; `fits` has the agents that each policy can play.

    A frozen entry is a version of a policy that a matchmaker froze under an id; a league's snapshots are frozen
    entries. Each of `num_workers` workers holds the entries that play in its running episodes, and others up to
    `worker_members` in all.
    """

    def __init__(
        self,
        fits: Mapping[str, Collection[str]],
        num_workers: int = 1,
        worker_members: int = WORKER_MEMBERS,
        store: FrozenStore | None = None,
    ) -> None:
        self._fits, self._worker_members = fits, worker_members
        self.store: FrozenStore = MemoryStore() if store is None else store
        # The policy of each entry that is dealt, and the agents that it can play.
        self._frozen: dict[str, str] = {}
        self._frozen_fits: dict[str, Collection[str]] = {}
        # Entries that are no longer dealt, each with the workers whose running episodes may use it.
        self._leaving: dict[str, set[int]] = {}
        # By worker: the entries that it may hold, the least recently dealt first.
        self._held: list[dict[str, None]] = [{} for _ in range(num_workers)]
        self._used: set[str] = set()

    @property
    def fits(self) -> Mapping[str, Collection[str]]:
        """The agents that each policy and frozen entry can play, as they change."""
        # A view, because there may be thousands.
        return ChainMap(self._frozen_fits, cast("dict[str, Collection[str]]", self._fits))

    @property
    def entries(self) -> Mapping[str, str]:
        """The policy of each entry that is dealt."""
        return MappingProxyType(self._frozen)

    def send(self, matchups: Iterable[Mapping[str, str]], workers: Iterable[int] | None = None) -> StoredEntries:
        """Return the frozen entries in `matchups`, for workers that play these; None: for all."""
        seated = dict.fromkeys(name for matchup in matchups for name in matchup.values())
        names = [name for name in seated if name in self._frozen]
        for worker in range(len(self._held)) if workers is None else workers:
            held = self._held[worker]
            for name in names:
                held.pop(name, None)
                held[name] = None
        self.store.mark_dealt(names)
        return StoredEntries(self.store, names)

    def take_leaving(
        self, sent: Collection[str], running: Iterable[Mapping[str, str]], worker: int = 0
    ) -> tuple[str, ...]:
        """Return the entries that a worker is to forget, given the entries just `sent` to it.

        The matchmaker's forgotten entries are named in each request until none of the worker's `running` episodes uses
        them. If the worker holds too many, the least recently dealt entries that no episode uses are named too; they
        are sent again when they are dealt again.
        """
        seated, held = {name for matchup in running for name in matchup.values()}, self._held[worker]
        unused = [name for name in held if name not in seated and name not in sent]
        evicted = unused[: max(0, len(held) - self._worker_members)]
        for name in evicted:
            del held[name]
        leaving = [name for name, workers in self._leaving.items() if worker in workers]
        for name in leaving:
            # If no episode uses the entry any more, this request is the last one to name it.
            if name not in seated:
                self._leaving[name].discard(worker)
                if not self._leaving[name]:
                    del self._leaving[name]
                    self.store.remove(name)
        return (*leaving, *evicted)

    def problems(self, change: Any, published: Collection[str]) -> Iterator[str]:
        """Yield why a change cannot be applied."""
        if not isinstance(change, PopulationChange):
            yield f"it gave {change!r}, not a PopulationChange"
            return
        for entry, policy in change.freeze.items():
            if not entry or entry in self._fits:
                yield f"it froze policy {policy!r} as {entry!r}, which is no id of its own; name it {policy}@1, say"
            elif entry in self._used:
                yield f"it froze policy {policy!r} as {entry!r}, and there was such an entry before: use an id once"
            if policy not in self._fits:
                known = meant(str(policy), self._fits, "the policies are")
                yield f"it froze policy {policy!r}, and there is no such policy{known}"
            elif policy not in published:
                yield f"it froze policy {policy!r}, which learns nothing, so it never changes; seat it as it is"
        for entry in change.forget:
            if entry not in self._frozen:
                known = meant(str(entry), self._frozen, "there are")
                yield f"it forgot {entry!r}, and there is no such frozen entry{known}"

    def reset_problems(self, resets: Any, may_reset: Collection[str]) -> Iterator[str]:
        """Yield why `resets` cannot be made."""
        if not isinstance(resets, Sequence) or not all(isinstance(reset, Reset) for reset in resets):
            yield f"it gave {resets!r}, not a sequence of Reset"
            return
        names = [reset.policy for reset in resets]
        for reset in resets:
            if reset.policy not in may_reset:
                known = meant(str(reset.policy), may_reset, "its reset_policies are")
                yield f"it reset policy {reset.policy!r}, which is not among its reset_policies{known}"
            elif names.count(reset.policy) > 1:
                yield f"it reset policy {reset.policy!r} twice at once"
            if reset.to not in ("initial", "fresh", *self._frozen):
                known = meant(str(reset.to), ["initial", "fresh", *self._frozen], "there are")
                yield f"it reset policy {reset.policy!r} to {reset.to!r}, and there is no such frozen entry{known}"

    def apply(
        self, change: PopulationChange, weights: Mapping[str, Weights], schedules: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Apply a change without `problems`, given the current `weights` and `schedules`."""
        for entry in dict.fromkeys(change.forget):
            del self._frozen[entry], self._frozen_fits[entry]
            self._leaving[entry] = set(range(len(self._held)))
            for held in self._held:
                held.pop(entry, None)
        for entry, policy in change.freeze.items():
            self._frozen[entry], self._frozen_fits[entry] = policy, self._fits[policy]
            self.store.add(entry, FrozenPolicy(policy, weights[policy], dict(schedules.get(policy, {}))))
        self._used.update(change.freeze)

    def state(self) -> Tree:
        """Return the ids of all entries, without weights."""
        return {
            "frozen": list(self._frozen),
            "leaving": [[name, *sorted(workers)] for name, workers in self._leaving.items()],
            "held": [list(held) for held in self._held],
            "used": sorted(self._used),
        }

    def load_state(self, tree: Tree) -> None:
        """Restore what `state` returned; `store` has the entries already.

        Raises CheckpointUnusable if one is missing or its policy is not in this run.
        """
        leaving = {name: workers for name, *workers in tree["leaving"]}
        names: Sequence[str] = [*tree["frozen"], *leaving]
        policies = {name: self.store.policy_of(name) for name in names if name in self.store}
        problems = [f"it has no weights of the frozen entry {name!r}" for name in names if name not in policies]
        problems += [
            f"its frozen entry {name!r} is of policy {policy!r}, which this run has not"
            for name, policy in policies.items()
            if policy not in self._fits
        ]
        if problems:
            raise CheckpointUnusable(problems)
        for name in set(self.store).difference(names):
            self.store.remove(name)
        # Changed in place: there are views of them.
        self._frozen.clear()
        self._frozen_fits.clear()
        for name in tree["frozen"]:
            self._frozen[name], self._frozen_fits[name] = policies[name], self._fits[policies[name]]
        workers, saved = range(len(self._held)), [dict.fromkeys(held) for held in tree["held"]]
        same = len(saved) == len(workers)
        self._leaving = {name: set(of_entry if same else workers) for name, of_entry in leaving.items()}
        # The number of workers has changed: each may hold the entries that any worker held.
        merged = {name: None for held in saved for name in held}
        self._held = [
            {name: None for name in (saved[worker] if same else merged) if name in self._frozen} for worker in workers
        ]
        # Ids of forgotten entries too: an id is used once in a run.
        self._used = set(tree["used"])


def seated_in(tree: Tree, frozen: Mapping[str, FrozenPolicy]) -> dict[str, FrozenPolicy]:
    """Return the entries of `frozen` in running episodes of the workers' state."""
    running = [env["running"] for env in tree["envs"] if env["running"] is not None]
    names = {entry for episode in running for entry in episode["matchup"].values()}
    # Looked up one by one: the others need not be loaded.
    return {name: frozen[name] for name in frozen if name in names}


class FrozenStore(Mapping[str, FrozenPolicy]):
    """The frozen entries of a run, with weights that are loaded when they are asked for."""

    @abstractmethod
    def add(self, entry: str, frozen: FrozenPolicy) -> None:
        """Add an entry."""

    @abstractmethod
    def remove(self, entry: str) -> None:
        """Remove an entry."""

    def policy_of(self, entry: str) -> str:
        """Return the policy of which an entry is a version."""
        return self[entry].policy

    def mark_dealt(self, entries: Iterable[str]) -> None:
        """Record that entries were dealt, so that other weights are removed from memory first."""
        del entries

    def reload(self, entry: str) -> FrozenPolicy:
        """Return an entry, with weights read from disk if they are there, because weights in memory may be lost."""
        return self[entry]


class MemoryStore(dict[str, FrozenPolicy], FrozenStore):
    """A FrozenStore that keeps all weights in memory."""

    def add(self, entry: str, frozen: FrozenPolicy) -> None:
        self[entry] = frozen

    def remove(self, entry: str) -> None:
        del self[entry]


class StoredEntries(Mapping[str, FrozenPolicy]):
    """Some entries of a store; an entry is loaded when it is looked up."""

    def __init__(self, store: FrozenStore, names: Collection[str]) -> None:
        self._store, self._names = store, dict.fromkeys(names)

    def __getitem__(self, entry: str) -> FrozenPolicy:
        if entry not in self._names:
            raise KeyError(entry)
        return self._store[entry]

    def __contains__(self, entry: object) -> bool:
        return entry in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def reload(self, entry: str) -> FrozenPolicy:
        """Return an entry whose weights may be lost; see `FrozenStore`."""
        return self._store.reload(entry)
