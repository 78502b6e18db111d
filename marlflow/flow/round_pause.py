"""The pause between rounds, in which a run is checkpointed."""

from __future__ import annotations

from collections.abc import Callable


class RoundPause:
    """Decides whether a plan pauses before its next round.

    `between_rounds()` is called once per round; if it returns a function, that is called at rest before the round.
    """

    def __init__(self, between_rounds: Callable[[], Callable[[], None] | None] | None) -> None:
        self._between_rounds = between_rounds
        self._has_called = False
        self._at_rest: Callable[[], None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a pause is pending, so sources must not start new items."""
        return self._at_rest is not None

    def permits_round(self) -> bool:
        """Return whether the next round may start now."""
        if self._between_rounds is not None and not self._has_called:
            self._has_called = True
            self._at_rest = self._between_rounds()
        return self._at_rest is None

    def has_begun(self) -> None:
        """Note that the round has started."""
        self._has_called = False

    def reached(self) -> None:
        """Call the pending function, at rest."""
        at_rest, self._at_rest = self._at_rest, None
        if at_rest is not None:
            at_rest()
