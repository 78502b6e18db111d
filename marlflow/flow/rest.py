"""The pause between rounds, with nothing in flight, when a run can be checkpointed."""

from __future__ import annotations

from collections.abc import Callable


class Rest:
    """Decides whether a plan pauses before its next round.

    `between_rounds()` is called once per round: None lets the round start; a returned function is called at rest first.
    """

    def __init__(self, between_rounds: Callable[[], Callable[[], None] | None] | None) -> None:
        self._between_rounds = between_rounds
        self._has_asked = False
        self._then: Callable[[], None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a pause is pending, so sources must not start new items."""
        return self._then is not None

    def permits_round(self) -> bool:
        """Return whether the next round may start now."""
        if self._between_rounds is not None and not self._has_asked:
            self._has_asked = True
            self._then = self._between_rounds()
        return self._then is None

    def has_begun(self) -> None:
        """Note that the round has started."""
        self._has_asked = False

    def reached(self) -> None:
        """Call the pending function, at rest."""
        then, self._then = self._then, None
        if then is not None:
            then()
