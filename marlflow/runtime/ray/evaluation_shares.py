"""The shares of an evaluation that workers play, also where an episode ends every process that plays it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_MOST_ATTEMPTS = 10
_LOSSES_OF_AN_EPISODE = 2
"""How often an episode is lost that is played by itself, before it is left out."""


class EvaluationShares:
    """Deals the indices of an evaluation's episodes to workers.

    Shares that are lost first are dealt once more, to all workers. Those that are lost again are divided, down to
    single episodes; one that is lost by itself, twice, is left out.
    """

    def __init__(self, episodes: int) -> None:
        self._waiting = list(range(episodes))
        self._most_attempts = _MOST_ATTEMPTS + episodes.bit_length()  # as often as shares can be divided
        # Shares of which one episode may end every process that plays it, and how often single episodes have.
        self._suspects: list[list[int]] = []
        self._losses: Counter[int] = Counter()
        self.has_lost = False
        """Whether any share was lost."""
        self.attempts = 0
        """How often in a row all shares were lost, since an episode was left out."""
        self._left_out = 0  # in a row

    @property
    def left(self) -> int:
        """The number of episodes that are to be played; none while they are dealt."""
        return len(self._waiting) + sum(map(len, self._suspects))

    @property
    def in_vain(self) -> int:
        """How often in a row no worker lived, if that is too often; else 0."""
        is_hopeless = self.attempts >= self._most_attempts or self._left_out >= _MOST_ATTEMPTS
        return max(self.attempts, self._left_out) if is_hopeless else 0

    def deal(self, workers: int) -> list[list[int]]:
        """Return shares for this many workers, or fewer of them; each has to be answered."""
        if self._waiting:
            dealt = [self._waiting[first::workers] for first in range(min(workers, len(self._waiting)))]
            self._waiting = []
        else:
            # The newest first, so that an episode is found before other shares are divided.
            dealt, self._suspects = self._suspects[-workers:], self._suspects[:-workers]
        return dealt

    def answered(self, lost: Sequence[list[int]], all_lost: bool) -> list[int]:
        """Take back the shares that were lost of those dealt, and return the episodes to leave out."""
        self.attempts = self.attempts + 1 if all_lost else 0
        if not self.has_lost:
            self._waiting, self.has_lost = sorted(index for share in lost for index in share), bool(lost)
            return []
        left_out = []
        for share in lost:
            if middle := len(share) // 2:
                self._suspects += [share[:middle], share[middle:]]
                continue
            self._losses.update(share)
            if self._losses[share[0]] < _LOSSES_OF_AN_EPISODE:
                self._suspects.append(share)
            else:
                left_out += share
        self._left_out = self._left_out + len(left_out) if all_lost else 0
        self.attempts = 0 if left_out else self.attempts
        return left_out
