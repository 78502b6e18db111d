"""The segments that ended since the last cut, by policy."""

from __future__ import annotations

from marlflow.base.batch import Array
from marlflow.sampling.step_buffer import Segments


class EndedSegments:
    """The ended segments of all policies."""

    def __init__(self) -> None:
        # Segments that ended in one step, with their lanes.
        self._parts: dict[str, list[tuple[Segments, Array]]] = {}

    def add(self, policy: str, segments: Segments, lanes: Array) -> None:
        """Add segments of `policy`, with the lane of each, [S]."""
        self._parts.setdefault(policy, []).append((segments, lanes))

    def take(self, policy: str) -> list[Segments]:
        """Return and forget the segments of `policy`."""
        return [segments for segments, _ in self._parts.pop(policy, [])]

    def discard(self, policy: str, lanes: slice, episode: int) -> int:
        """Forget the segments of an episode in `lanes`; return the number of their rows."""
        lost, kept = 0, []
        for segments, of_lanes in self._parts.pop(policy, []):
            is_lost = (of_lanes >= lanes.start) & (of_lanes < lanes.stop) & (segments.episode == episode)
            lost += int((segments.stop - segments.start)[is_lost].sum())
            kept.append((segments.take(~is_lost), of_lanes[~is_lost]))
        self._parts[policy] = kept
        return lost
