"""The population of frozen policy versions, for self-play.

Freezing keeps published weights, which never change, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.items import Weights
from marlflow.base.near import meant
from marlflow.base.serialization import Tree
from marlflow.sampling.protocol import FrozenPolicy

# Entries that workers hold at most, besides those that are seated: the least recently dealt ones make room.
MOST_HELD = 64


@dataclass(frozen=True, slots=True)
class PopulationChange:
    """A matchmaker's change before the next round: new ids to `freeze` by policy, entries to `forget`.

    Each id is used once in a run.

    >>> PopulationChange(freeze={"main@3": "main"}, forget=["main@1"])
    PopulationChange(freeze={'main@3': 'main'}, forget=['main@1'])
    """

    freeze: Mapping[str, str] = field(default_factory=dict)
    forget: Collection[str] = ()


@runtime_checkable
class PopulationMatchmaker(Protocol):
    """A matchmaker that also freezes versions of policies."""

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        """Return what to freeze and forget, given learning policies' versions and sampled agent steps."""
        ...


@dataclass(frozen=True, slots=True)
class Reset:
    """A decision that a policy begins again: `to` its `initial` parameters, `fresh` random ones, or a frozen entry's.

    >>> Reset("exploiter", to="main@3")
    Reset(policy='exploiter', to='main@3')
    """

    policy: str
    to: str


@runtime_checkable
class ResettingMatchmaker(Protocol):
    """A matchmaker that also lets policies begin again."""

    def reset_policies(self) -> Collection[str]:
        """Return the policies that it may ever reset, which are checked before the run."""
        ...

    def resets(self) -> Sequence[Reset]:
        """Return what to reset before the next round.

        Called before each round, after `change_population`, if any: a version frozen there is of before the reset.
        """
        ...


class Population:
    """The frozen entries of a run; `fits` has the agents that each policy can play."""

    def __init__(self, fits: Mapping[str, Collection[str]], most_held: int = MOST_HELD) -> None:
        self._fits, self._most_held = fits, most_held
        self._frozen: dict[str, FrozenPolicy] = {}
        # No longer dealt, but running episodes may use them.
        self._leaving: dict[str, FrozenPolicy] = {}
        # Entries that some worker may have, the least recently dealt first.
        self._held: dict[str, None] = {}
        self._used: set[str] = set()

    @property
    def fits(self) -> dict[str, Collection[str]]:
        """The agents that each policy and frozen entry can play."""
        return {**self._fits, **{entry: self._fits[frozen.policy] for entry, frozen in self._frozen.items()}}

    @property
    def entries(self) -> dict[str, FrozenPolicy]:
        """All frozen entries in use."""
        return {**self._frozen, **self._leaving}

    def send(self, matchups: Iterable[Mapping[str, str]]) -> dict[str, FrozenPolicy]:
        """Return the frozen entries in `matchups`, for workers that play these."""
        names = dict.fromkeys(name for matchup in matchups for name in matchup.values())
        sent = {name: self._frozen[name] for name in names if name in self._frozen}
        for name in sent:
            self._held.pop(name, None)
            self._held[name] = None
        return sent

    def take_leaving(self, sent: Collection[str], running: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
        """Return the entries that workers are to forget, given the entries just `sent`.

        These are forgotten ones, until no episode in `running` uses them, and the least recently dealt of those that no
        episode uses, if workers hold too many. The latter are sent again when they are dealt again.
        """
        seated = {name for matchup in running for name in matchup.values()}
        unused = [name for name in self._held if name not in seated and name not in sent]
        evicted = unused[: max(0, len(self._held) - self._most_held)]
        for name in evicted:
            del self._held[name]
        forget = (*self._leaving, *evicted)
        # This request is the last to name the others: no episode uses them any more.
        self._leaving = {name: frozen for name, frozen in self._leaving.items() if name in seated}
        return forget

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
            self._leaving[entry] = self._frozen.pop(entry)
            self._held.pop(entry, None)
        for entry, policy in change.freeze.items():
            self._frozen[entry] = FrozenPolicy(policy, weights[policy], dict(schedules.get(policy, {})))
        self._used.update(change.freeze)

    def state(self) -> Tree:
        """Return the ids of all entries, without weights."""
        return {
            "frozen": list(self._frozen),
            "leaving": list(self._leaving),
            "held": list(self._held),
            "used": sorted(self._used),
        }

    def load_state(self, tree: Tree, entries: Mapping[str, FrozenPolicy]) -> None:
        """Restore what `state` returned, with its `entries`.

        Raises CheckpointUnusable if one is missing or its policy is not in this run.
        """
        names: Sequence[str] = [*tree["frozen"], *tree["leaving"]]
        problems = [f"it has no weights of the frozen entry {name!r}" for name in names if name not in entries]
        problems += [
            f"its frozen entry {name!r} is of policy {entries[name].policy!r}, which this run has not"
            for name in names
            if name in entries and entries[name].policy not in self._fits
        ]
        if problems:
            raise CheckpointUnusable(problems)
        self._frozen = {name: entries[name] for name in tree["frozen"]}
        self._leaving = {name: entries[name] for name in tree["leaving"]}
        self._held = {name: None for name in tree["held"] if name in self._frozen}
        # Ids of forgotten entries too: an id is used once in a run.
        self._used = set(tree["used"])


def seated_in(tree: Tree, frozen: Mapping[str, FrozenPolicy]) -> dict[str, FrozenPolicy]:
    """Return the entries of `frozen` in running episodes of the workers' state."""
    running = [env["running"] for env in tree["envs"] if env["running"] is not None]
    names = {entry for episode in running for entry in episode["matchup"].values()}
    return {name: policy for name, policy in frozen.items() if name in names}
