"""The in-process replay: segments in rings, n-step windows summed when they come in, rows chosen by a sampler."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.errors import InvalidInput
from marlflow.base.items import Inserted
from marlflow.flow import Place
from marlflow.replay.n_step import windows
from marlflow.replay.protocol import ReplayState
from marlflow.replay.sampling import Sampling
from marlflow.replay.segments import SegmentStore, newest_that_fit


class ReplayBuffer:
    """The newest whole segments, at most `capacity_agent_steps` rows of them, drawn from as n-step transitions.

    A window stops at its segment's end and bootstraps there with `discount`**k for the k steps it has, with 0 after
    termination. Neighbouring segments of one lane are not joined. Draws are with replacement; `seed` fixes them.
    `stale_priorities` counts priorities that came for rows no longer held. Wrong input raises InvalidInput.
    """

    __slots__ = ("_generator", "_sampler", "_store", "_terms", "name", "place", "stale_priorities")

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
        rules = {
            f"capacity_agent_steps is at least 1, not {capacity_agent_steps}": capacity_agent_steps >= 1,
            f"n_step is at least 1, not {n_step}": n_step >= 1,
            f"discount is in [0, 1], not {discount}": 0.0 <= discount <= 1.0,
        }
        if broken := [f"replay {name!r}: {rule}" for rule, holds in rules.items() if not holds]:
            raise InvalidInput(broken)
        self.name, self.place = name, place
        self.stale_priorities = 0
        self._terms = (n_step, discount)
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
        newest = newest_that_fit(batch, self._store.capacity)
        segments = newest.segments
        spans = windows(newest.columns["reward"], segments["length"], segments["terminated"], *self._terms)
        self._sampler.evicted(*self._store.make_room(newest.rows, batch.rows - newest.rows))
        self._sampler.added(*self._store.append(newest, spans))
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

    def state(self) -> ReplayState:
        """Everything, copied; a buffer that loads it goes on bit for bit."""
        store, sampler = self._store, self._sampler.state(self._store.first, self._store.stop)
        values = {
            "n_step": self._terms[0],
            "discount": self._terms[1],
            "first": store.first,
            "stop": store.stop,
            "first_segment": store.first_segment,
            "stale_priorities": self.stale_priorities,
            "generator": self._generator.bit_generator.state,
            "sampler": dict(sampler.values),
        }
        return ReplayState(store.arrays() | {f"sampler.{name}": a for name, a in sampler.arrays.items()}, values)

    def load_state(self, state: ReplayState) -> None:
        """Go on from `state`, of a buffer with the same terms and sampling that held no more than this one can."""
        values = state.values
        if (values["n_step"], values["discount"]) != self._terms:
            kept = f"n_step={values['n_step']} and discount={values['discount']}"
            here = f"n_step={self._terms[0]} and discount={self._terms[1]}"
            raise InvalidInput([f"replay {self.name!r} was kept with {kept}, not {here}"])
        if (rows := values["stop"] - values["first"]) > self._store.capacity:
            raise InvalidInput(
                [f"the {rows} agent steps kept do not fit replay {self.name!r} of {self._store.capacity}"]
            )
        if values["sampler"].keys() != self._sampler.state(0, 0).values.keys():
            raise InvalidInput([f"replay {self.name!r} was kept with another kind of sampling"])
        ours = {name.removeprefix("sampler."): a for name, a in state.arrays.items() if name.startswith("sampler.")}
        self._store.load(state.arrays, values["first"], values["first_segment"])
        self._sampler.load_state(ReplayState(ours, values["sampler"]), values["first"], values["stop"])
        self._generator.bit_generator.state = values["generator"]
        self.stale_priorities = values["stale_priorities"]
