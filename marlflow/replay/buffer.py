"""The in-process replay: segments in rings with the n-step windows that came with them, rows chosen by a sampler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.errors import CheckpointUnusable, InvalidInput
from marlflow.base.items import Inserted
from marlflow.base.kept import Tree
from marlflow.flow import Place
from marlflow.replay.n_step import terms_problems
from marlflow.replay.sampling import Sampling
from marlflow.replay.segments import SegmentStore, newest_that_fit, row_type


class ReplayBuffer:
    """The newest whole segments, at most `capacity_agent_steps` rows of them, drawn from as n-step transitions.

    Batches come with their windows, as NStep with the same `n_step` and `discount` sums them. Neighbouring segments of
    one lane are not joined. Draws are with replacement; `seed` fixes them. `stale_priorities` counts priorities that
    came for rows no longer held. Wrong input raises InvalidInput.
    """

    __slots__ = ("_discounts", "_generator", "_sampler", "_store", "_terms", "name", "place", "stale_priorities")

    def __init__(
        self,
        capacity_agent_steps: int,
        n_step: int,
        discount: float,
        seed: int,
        sampling: Sampling,
        name: str = "replay",
        place: Place | None = None,
    ) -> None:
        broken = terms_problems(n_step, discount)
        if capacity_agent_steps < 1:
            broken.append(f"capacity_agent_steps is at least 1, not {capacity_agent_steps}")
        if broken:
            raise InvalidInput([f"replay {name!r}: {problem}" for problem in broken])
        self.name, self.place = name, place
        self.stale_priorities = 0
        self._terms = (n_step, discount)
        self._discounts = np.power(discount, np.arange(n_step + 1.0)).astype(np.float32)
        self._generator = np.random.default_rng(seed)
        self._store = SegmentStore(capacity_agent_steps)
        self._sampler = sampling.build(capacity_agent_steps, self._generator)

    @property
    def stored(self) -> int:
        """How many agent steps it holds."""
        return self._store.stop - self._store.first

    def insert(self, batch: Batch) -> Inserted:
        """Take all segments of `batch`, evicting the oldest first; a batch that is refused changes nothing."""
        self._store.check(batch)
        if not self._are_windows(batch.columns["window_steps"], batch.columns["window_discount"]):
            n_step, discount = self._terms
            text = f"replay {self.name!r} expects windows of n_step={n_step} and discount={discount}, but others came"
            raise InvalidInput([f"{text}: give NStep the same settings"])
        newest = newest_that_fit(batch, self._store.capacity)
        self._sampler.evicted(*self._store.make_room(newest.rows, batch.rows - newest.rows))
        self._sampler.added(*self._store.append(newest))
        return Inserted(batch.rows, self.stored)

    def draw(self, agent_steps: int) -> Transitions:
        """`agent_steps` n-step transitions with replacement; rewards, discounts and weights are float32."""
        if agent_steps < 1:
            raise InvalidInput([f"a draw takes at least 1 agent step, not {agent_steps}"])
        if not self.stored:
            raise InvalidInput([f"replay {self.name!r} is empty: insert before drawing, or raise learning_starts"])
        return self._store.transitions(*self._sampler.draw(agent_steps, self._store.first, self._store.stop))

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """Priorities >= 0, [B], of the rows `row_ids`; of a row named twice the last counts."""
        if row_ids.shape != priorities.shape:
            raise InvalidInput([f"{row_ids.shape} row ids came with {priorities.shape} priorities"])
        if not ((priorities >= 0) & (priorities < np.inf)).all():
            raise InvalidInput([f"priorities for replay {self.name!r} must be finite and at least 0"])
        held = (row_ids >= self._store.first) & (row_ids < self._store.stop)
        self.stale_priorities += len(row_ids) - int(np.count_nonzero(held))
        self._sampler.reprioritize(row_ids[held], priorities[held].astype(np.float64))

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Take the present values of what is scheduled: `beta`, with prioritized sampling."""
        self._sampler.set_schedule(values)

    def state(self) -> Tree:
        """Everything but the rows, copied; with what `rows` gave since, a buffer that loads it goes on bit for bit."""
        store = self._store
        return {
            "n_step": self._terms[0],
            "discount": self._terms[1],
            "first": store.first,
            "stop": store.stop,
            "first_segment": store.first_segment,
            "stop_segment": store.stop_segment,
            "stale_priorities": self.stale_priorities,
            "generator": self._generator.bit_generator.state,
            "sampler": self._sampler.state(store.first, store.stop),
        }

    def rows(self, first: int) -> Tree:
        """The rows numbered `first` and up that are held, copied: `first` is the `stop` of an earlier state, or 0.

        A dict with the numbers `first` and `stop` of its rows; empty if there are none.
        """
        return self._store.rows(first)

    def load_state(self, state: Tree, rows: Sequence[Tree]) -> None:
        """Go on from `state`, with what calls of `rows` gave up to then, in order; rows evicted since are left out.

        Without any it holds nothing, and its rows are numbered on. Raises CheckpointUnusable if the state is of a
        buffer with other terms or sampling, or its rows do not fit, or are not all there.
        """
        held = [part for part in rows if part and part["stop"] > state["first"]]
        if found := [*self._other_terms(state), *self._other_rows(state, held)]:
            raise CheckpointUnusable([f"replay {self.name!r}: {problem}" for problem in found])
        if held:
            self._store.begin_at(state["first"], state["first_segment"])
            self._store.load(held)
        else:
            self._store.begin_at(state["stop"], state["stop_segment"])
        self._sampler.load_state(state["sampler"], self._store.first, self._store.stop)
        self._generator.bit_generator.state = state["generator"]
        self.stale_priorities = state["stale_priorities"]

    def begin_at(self, first_row_id: int) -> None:
        """Hold nothing, and number the rows to come from `first_row_id`: priorities of others' rows are stale here."""
        self._sampler.evicted(self._store.first, self._store.stop)
        self._store.begin_at(first_row_id, 0)

    def _are_windows(self, steps: Array, window_discount: Array) -> bool:
        if steps.max() >= len(self._discounts):
            return False
        return bool(((window_discount == self._discounts.take(steps)) | (window_discount == 0.0)).all())

    def _other_terms(self, state: Tree) -> Iterator[str]:
        here = {"n_step": self._terms[0], "discount": self._terms[1]}
        for name, expected in here.items():
            if state[name] != expected:
                yield f"expected {name}={expected}, but it was kept with {name}={state[name]}"
        kind = self._sampler.state(0, 0)["kind"]
        if (kept := state["sampler"]["kind"]) != kind:
            yield f"expected {kind} sampling, but it was kept with {kept} sampling"

    def _other_rows(self, state: Tree, held: Sequence[Tree]) -> Iterator[str]:
        if not held:
            return
        first, stop = state["first"], state["stop"]
        if stop - first > (capacity := self._store.capacity):
            yield f"expected at most capacity_agent_steps={capacity} rows, but {stop - first} were kept"
        ends = [first, *(part["stop"] for part in held)]
        begins = [max(first, held[0]["first"]), *(part["first"] for part in held[1:]), stop]
        if ends != begins:
            came = ", ".join(f"{part['first']} to {part['stop']}" for part in held)
            yield f"expected the rows {first} to {stop}, but those kept are {came}"
        kinds = [{name: row_type(column) for name, column in part["columns"].items()} for part in held]
        if other := next((kind for kind in kinds if kind != kinds[0]), None):
            yield f"expected rows of {kinds[0]}, as those before, but then came {other}"
