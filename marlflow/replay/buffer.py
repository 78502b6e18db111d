"""The replay buffer: ring buffers of segments with n-step windows, and a uniform or prioritized sampler.

n-step windows: Sutton and Barto, "Reinforcement Learning", 2nd edition, section 7.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable, InvalidInput
from marlflow.base.info_columns import At
from marlflow.base.serialization import Tree
from marlflow.batches.batch import Batch, Transitions
from marlflow.batches.items import Inserted
from marlflow.flow import Place
from marlflow.replay.sampling import Sampling
from marlflow.replay.segments import TransitionStore, row_type

Drawn = TypeVar("Drawn")
Drawn_co = TypeVar("Drawn_co", covariant=True)


class Store(Protocol[Drawn_co]):
    """Row storage; a *unit*, which is drawn and evicted as a whole, is a row, or a sequence of rows."""

    agent_steps: int
    """The agent steps stored: rows, or in joint rows the agents present."""
    capacity: int
    first: int
    stop: int
    first_segment: int
    stop_segment: int

    @property
    def infos(self) -> Mapping[str, At]:
        """The columns of infos that are stored."""
        ...

    @property
    def names(self) -> Collection[str]:
        """The other columns that may be stored."""
        ...

    @property
    def sums(self) -> Sequence[str]:
        """The columns of infos that are stored as n-step sums."""
        ...

    @property
    def terms(self) -> Mapping[str, int]:
        """Settings that saved rows depend on, in addition to the settings of their windows."""
        ...

    @property
    def units(self) -> tuple[int, int]:
        """The range [first, stop) of stored units."""
        ...

    def units_of(self, row_ids: Array) -> Array:
        """Return the units of stored rows, [B]."""
        ...

    def units_in(self, agent_steps: int) -> int:
        """Return the number of units in a draw."""
        ...

    def check(self, batch: Batch) -> None:
        """Raise InvalidInput unless `batch` can be stored."""
        ...

    def newest(self, batch: Batch) -> Batch:
        """Return the newest segments of `batch` that fit."""
        ...

    def make_room(self, rows: int, skipped: int = 0) -> tuple[int, int]:
        """Evict the oldest until `rows` more fit; return the units [first, stop) evicted."""
        ...

    def append(self, batch: Batch) -> tuple[int, int]:
        """Store segments that fit; return their units [first, stop)."""
        ...

    def take(self, units: Array, weight: Array) -> Drawn_co:
        """Return units, [B], with importance weights."""
        ...

    def rows(self, first: int) -> Tree:
        """Return a copy of the rows from `first` on; {} if there are none."""
        ...

    def begin_at(self, first: int, first_segment: int) -> None:
        """Empty the store; number the next row and segment."""
        ...

    def load(self, saved: Sequence[Tree]) -> None:
        """Restore what `rows` returned."""
        ...


class StoredReplay(Generic[Drawn]):
    """Holds the newest whole segments that fit `store`; draws units with replacement.

    Batches need windows by NStep with the same `n_step` and `discount`. Saved rows depend on these and on the
    store's terms. `stale_priorities` counts priorities of evicted rows. Raises InvalidInput.
    """

    __slots__ = (
        "_build_sampler",
        "_discounts",
        "_generator",
        "_sampler",
        "_store",
        "_terms",
        "name",
        "place",
        "stale_priorities",
    )

    def __init__(
        self,
        store: Store[Drawn],
        n_step: int,
        discount: float,
        seed: int,
        sampling: Sampling,
        name: str = "replay",
        place: Place | None = None,
    ) -> None:
        broken = terms_problems(n_step, discount)
        if store.capacity < 1:
            broken.append(f"capacity_agent_steps is at least 1, not {store.capacity}")
        if broken:
            raise InvalidInput([f"replay {name!r}: {problem}" for problem in broken])
        self.name, self.place = name, place
        self.stale_priorities = 0
        self._terms = {"n_step": n_step, "discount": discount, **store.terms}
        self._discounts = np.power(discount, np.arange(n_step + 1.0)).astype(np.float32)
        self._generator = np.random.default_rng(seed)
        self._store = store
        self._build_sampler = partial(sampling.build, store.capacity, self._generator)
        self._sampler = self._build_sampler()

    @property
    def capacity(self) -> int:
        return self._store.capacity

    @property
    def stored(self) -> int:
        """The agent steps stored."""
        return self._store.agent_steps

    @property
    def draws_uniformly(self) -> bool:
        """Whether draws depend neither on priorities nor on updates by a subclass between them."""
        own = type(self)
        is_plain = own.draw is StoredReplay.draw and own.reprioritize is StoredReplay.reprioritize
        return is_plain and not self.draws_by_priority

    @property
    def draws_by_priority(self) -> bool:
        """Whether rows are drawn by their priorities."""
        return not self._sampler.is_uniform

    def insert(self, batch: Batch) -> Inserted:
        # All checks come first: a rejected batch changes nothing.
        self._store.check(batch)
        if not self._are_windows(batch.columns["window_steps"], batch.columns["window_discount"]):
            expected = f"n_step={self._terms['n_step']} and discount={self._terms['discount']}"
            text = f"replay {self.name!r} expects windows of {expected}, but others came"
            raise InvalidInput([f"{text}: give NStep the same settings"])
        if "priority" in batch.columns:
            self._check_priorities(batch.columns["priority"])
        newest = self._summed(self._store.newest(batch))
        self._sampler.evicted(*self._store.make_room(newest.count, batch.count - newest.count))
        first, stop = self._store.append(newest)
        self._sampler.added(first, stop)
        if "priority" in newest.columns:
            self._sampler.reprioritize(np.arange(first, stop), newest.columns["priority"].astype(np.float64))
        left = int(batch.segments["seats_left_early"].sum()) if "seats_left_early" in batch.segments else 0
        return Inserted(batch.rows, self.stored, left)

    def _summed(self, batch: Batch) -> Batch:
        """Replace columns that add up, as rewards do, by their n-step sums, float32."""
        n_step, discount, length = len(self._discounts) - 1, self._terms["discount"], batch.segments["length"]
        sums = {name: window_sums(batch.columns[name], length, n_step, discount) for name in self._store.sums}
        return batch.with_columns(**{name: column.astype(np.float32) for name, column in sums.items()})

    def draw(self, agent_steps: int) -> Drawn:
        if agent_steps < 1:
            raise InvalidInput([f"a draw takes at least 1 agent step, not {agent_steps}"])
        if not self.stored:
            raise InvalidInput([f"replay {self.name!r} is empty: insert before drawing, or raise learning_starts"])
        return self._store.take(*self._sampler.draw(self._store.units_in(agent_steps), *self._store.units))

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """Set priorities >= 0, [B], of drawn rows; the last of duplicate ids counts."""
        if row_ids.shape != priorities.shape:
            raise InvalidInput([f"{row_ids.shape} row ids came with {priorities.shape} priorities"])
        self._check_priorities(priorities)
        # Row numbers are never reused, so the range tells which rows are still stored.
        held = (row_ids >= self._store.first) & (row_ids < self._store.stop)
        self.stale_priorities += len(row_ids) - int(np.count_nonzero(held))
        self._sampler.reprioritize(self._store.units_of(row_ids[held]), priorities[held].astype(np.float64))

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self._sampler.set_schedule(values)

    def state(self) -> Tree:
        """Return a copy of everything but the rows."""
        store = self._store
        return {
            **self._terms,
            "first": store.first,
            "stop": store.stop,
            "first_segment": store.first_segment,
            "stop_segment": store.stop_segment,
            "stale_priorities": self.stale_priorities,
            "generator": self._generator.bit_generator.state,
            "sampler": self._sampler.state(*store.units),
        }

    def rows(self, first: int) -> Tree:
        """Return a copy of the rows from `first` (the `stop` of an earlier state, or 0) on.

        A dict with their range, `first` and `stop`; empty if there are none.
        """
        return self._store.rows(first)

    def load_state(self, state: Tree, rows: Sequence[Tree]) -> None:
        """Restore `state`, with all results of `rows` up to then, in order; without rows, empty.

        Raises CheckpointUnusable if terms or sampling differ, or rows are unfit or missing.
        """
        held = [part for part in rows if part and part["stop"] > state["first"]]
        if problems := [*self._other_terms(state), *self._other_rows(state, held)]:
            raise CheckpointUnusable([f"replay {self.name!r}: {problem}" for problem in problems])
        if held:
            self._store.begin_at(state["first"], state["first_segment"])
            self._store.load(held)
        else:
            # Numbering continues, so that late priorities of lost rows are recognized as stale.
            self._store.begin_at(state["stop"], state["stop_segment"])
        self._sampler.load_state(state["sampler"], *self._store.units)
        self._generator.bit_generator.state = state["generator"]
        self.stale_priorities = state["stale_priorities"]

    def clear(self) -> None:
        """Empty the buffer, and forget priorities; row numbers continue, so that earlier priorities are stale."""
        self._store.begin_at(self._store.stop, self._store.stop_segment)
        self._sampler = self._build_sampler()

    def begin_at(self, first_row_id: int) -> None:
        """Empty the buffer; number new rows from `first_row_id`, so that earlier priorities are stale."""
        self._sampler.evicted(*self._store.units)
        self._store.begin_at(first_row_id, 0)

    def _check_priorities(self, priorities: Array) -> None:
        if not ((priorities >= 0) & (priorities < np.inf)).all():
            raise InvalidInput([f"priorities for replay {self.name!r} must be finite and at least 0"])

    def _are_windows(self, steps: Array, window_discount: Array) -> bool:
        # Terminated windows have discount 0; all others must match this buffer's powers of the discount exactly.
        if steps.max() >= len(self._discounts):
            return False
        return bool(((window_discount == self._discounts.take(steps)) | (window_discount == 0.0)).all())

    def _other_terms(self, state: Tree) -> Iterator[str]:
        for name, expected in self._terms.items():
            if (saved := state.get(name)) != expected:
                yield f"expected {name}={expected}, but it was kept with {name}={saved}"
        kind = self._sampler.state(0, 0)["kind"]
        if (saved := state["sampler"]["kind"]) != kind:
            yield f"expected {kind} sampling, but it was kept with {saved} sampling"

    def _other_rows(self, state: Tree, held: Sequence[Tree]) -> Iterator[str]:
        if not held:
            return
        first, stop = state["first"], state["stop"]
        if stop - first > (capacity := self._store.capacity):
            yield f"expected at most capacity_agent_steps={capacity} rows, but {stop - first} were kept"
        ends = [first, *(part["stop"] for part in held)]
        # Each part must start where the previous one ended; the first may start with evicted rows.
        begins = [max(first, held[0]["first"]), *(part["first"] for part in held[1:]), stop]
        if ends != begins:
            came = ", ".join(f"{part['first']} to {part['stop']}" for part in held)
            yield f"expected the rows {first} to {stop}, but those kept are {came}"
        for name in sorted(set(self._store.infos) - set(held[0]["columns"])):
            yield f"expected the column {name!r} of infos, but the rows that were kept have none"
        for name in sorted(set(held[0]["columns"]) - {*self._store.names, *self._store.infos}):
            yield f"the rows that were kept have the column {name!r} of infos, but no policy names it"
        kinds = [{name: row_type(column) for name, column in part["columns"].items()} for part in held]
        if other := next((kind for kind in kinds if kind != kinds[0]), None):
            yield f"expected rows of {kinds[0]}, as those before, but then came {other}"


class ReplayBuffer(StoredReplay[Transitions]):
    """A replay buffer of n-step transitions, and of the columns `infos` of its rows."""

    __slots__ = ()

    def __init__(
        self,
        capacity_agent_steps: int,
        n_step: int,
        discount: float,
        seed: int,
        sampling: Sampling,
        name: str = "replay",
        place: Place | None = None,
        infos: Mapping[str, At] | None = None,
    ) -> None:
        store = TransitionStore(capacity_agent_steps, infos or {})
        super().__init__(store, n_step, discount, seed, sampling, name, place)


class Windows(NamedTuple):
    """Each row's n-step window, float64 except `steps`, [N] each; `reward` has the rewards' shape.

    `reward` is the discounted sum of `steps` rewards, `discount` the factor of the bootstrap value: of the next row, or
    of the segment's bootstrap observation.
    """

    reward: Array
    discount: Array
    steps: Array


def windows(reward: Array, length: Array, terminated: Array, n_step: int, discount: float) -> Windows:
    """Compute windows of up to `n_step` rows, from each row to at most its segment's end.

    reward: [N, ...], over all segments. length, terminated: [S]. A window of k steps has discount `discount`**k, or 0
    if it reaches the end of a terminated segment.
    """
    last = np.cumsum(length) - 1
    left = np.repeat(last + 1, length) - np.arange(len(reward))
    steps = np.minimum(left, n_step)
    after = np.power(discount, np.arange(n_step + 1.0)).take(steps)
    after[(steps == left) & np.repeat(terminated, length)] = 0.0
    return Windows(window_sums(reward, length, n_step, discount), after, steps)


def window_sums(amounts: Array, length: Array, n_step: int, discount: float) -> Array:
    """Return the discounted sums of `amounts`, [N, ...], over the windows of segments of `length`, float64."""
    # Horner's scheme: a sum of m amounts is the first plus the discounted sum of the next m - 1.
    carry = np.full((len(amounts), *[1] * (amounts.ndim - 1)), discount)
    carry[np.cumsum(length) - 1] = 0.0
    total = amounts.astype(np.float64)
    for _ in range(n_step - 1):
        longer = amounts.astype(np.float64)
        longer[:-1] += carry[:-1] * total[1:]
        total = longer
    return total


def terms_problems(n_step: int, discount: float) -> list[str]:
    """Return problems with these settings."""
    rules = {
        f"n_step is at least 1, not {n_step}": n_step >= 1,
        f"discount is in [0, 1], not {discount}": 0.0 <= discount <= 1.0,
    }
    return [rule for rule, holds in rules.items() if not holds]
