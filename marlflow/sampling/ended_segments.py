"""The segments that ended since the last cut, by policy: one by one, or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from marlflow.base.batch import Array
from marlflow.sampling.step_buffer import Segments


class EndedSegment(NamedTuple):
    """An ended segment: `values` are the first fields of Segments."""

    values: tuple[int, int, int, bool, bool, bool, int]
    lane: int
    bootstrap: dict[str, Array]


class EndedSegments:
    """The ended segments of all policies."""

    def __init__(self) -> None:
        self._single: dict[str, list[EndedSegment]] = {}
        # Segments that ended in one step, with their lanes.
        self._together: dict[str, list[tuple[Segments, Array]]] = {}

    def add(self, policy: str, segment: EndedSegment) -> None:
        """Add a segment of `policy`."""
        self._single.setdefault(policy, []).append(segment)

    def add_together(self, policy: str, segments: Segments, lanes: Array) -> None:
        """Add segments of `policy`, with the lane of each, [S]."""
        self._together.setdefault(policy, []).append((segments, lanes))

    def take(self, policy: str, like: Segments) -> list[Segments]:
        """Return and forget the segments of `policy`, with columns of the dtypes of `like`."""
        parts = [segments for segments, _ in self._together.pop(policy, [])]
        if single := self._single.pop(policy, []):
            parts.append(_stacked(single, like))
        return parts

    def discard(self, policy: str, lanes: slice, episode: int) -> int:
        """Forget the segments of an episode in `lanes`; return the number of their rows."""
        lost, single, together = 0, [], []
        for segment in self._single.pop(policy, []):
            _, start, stop, *_, of_episode = segment.values
            if lanes.start <= segment.lane < lanes.stop and of_episode == episode:
                lost += stop - start
            else:
                single.append(segment)
        for segments, of_lanes in self._together.pop(policy, []):
            is_lost = (of_lanes >= lanes.start) & (of_lanes < lanes.stop) & (segments.episode == episode)
            lost += int((segments.stop - segments.start)[is_lost].sum())
            together.append((segments.take(~is_lost), of_lanes[~is_lost]))
        self._single[policy], self._together[policy] = single, together
        return lost


def _stacked(ended: Sequence[EndedSegment], like: Segments) -> Segments:
    values = zip(*(segment.values for segment in ended), strict=True)
    return Segments.of(
        [np.array(column, kind.dtype) for column, kind in zip(values, like[:7], strict=True)],
        {name: np.stack([segment.bootstrap[name] for segment in ended]) for name in like.bootstrap},
    )
