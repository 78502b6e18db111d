"""The driver's store of the weights of frozen entries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping

from marlflow.sampling.protocol import FrozenPolicy


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
        """Return an entry with its weights read from disk if they are there, because those in memory may be lost."""
        return self[entry]


class MemoryStore(dict[str, FrozenPolicy], FrozenStore):
    """A FrozenStore that keeps all weights in memory."""

    def add(self, entry: str, frozen: FrozenPolicy) -> None:
        self[entry] = frozen

    def remove(self, entry: str) -> None:
        del self[entry]


class StoredEntries(Mapping[str, FrozenPolicy]):
    """Some entries of a store; only those that are looked up are loaded."""

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
