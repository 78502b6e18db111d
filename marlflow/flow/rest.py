"""The moment between two rounds at which nothing is on its way: then, and only then, a run's state can be kept."""

from __future__ import annotations

from collections.abc import Callable


class Rest:
    """Whether a plan is to come to rest before its next round.

    `between_rounds()` is asked once, when the next round could begin: None lets it begin; anything else is called when
    everything under way has landed and nothing can move, and then the round begins.
    """

    def __init__(self, between_rounds: Callable[[], Callable[[], None] | None] | None) -> None:
        self._between_rounds = between_rounds
        self._has_asked = False
        self._then: Callable[[], None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether no source may begin anything new."""
        return self._then is not None

    def permits_round(self) -> bool:
        """Whether the round that could begin now may."""
        if self._between_rounds is not None and not self._has_asked:
            self._has_asked = True
            self._then = self._between_rounds()
        return self._then is None

    def has_begun(self) -> None:
        """The round has begun; before the next it is asked again."""
        self._has_asked = False

    def reached(self) -> None:
        """Nothing moves: does what is to be done."""
        then, self._then = self._then, None
        if then is not None:
            then()
