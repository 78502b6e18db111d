"""Corrects times of another machine's clock by when a call was sent and its answer received."""

from __future__ import annotations

import math
from dataclasses import dataclass

from marlflow.observe.trace import Span


@dataclass(slots=True)
class ClockOffset:
    """Bounds, over all calls, of the seconds to add to another clock; (0, 0) if both clocks agree.

    Work lies between its call and its answer, so `low <= offset <= high`. The midpoint is used as in NTP (RFC 5905).
    """

    low: float = -math.inf
    high: float = math.inf

    def corrected(self, work: Span, sent_s: float, received_s: float) -> Span:
        """Return when work was done by this clock; without a bound on one side, the smallest correction.

        >>> ClockOffset().corrected((1.0, 2.0), 0.5, 2.5)
        (1.0, 2.0)
        >>> ClockOffset().corrected((101.0, 102.0), 0.5, 2.5)
        (1.0, 2.0)
        """
        low, high = sent_s - work[0], received_s - work[1]
        self.low, self.high = max(self.low, low), min(self.high, high)
        if self.low > self.high:
            # A clock was set, or its process is another one now.
            self.low, self.high = min(low, high), max(low, high)
        offset = min(max(0.0, self.low), self.high)
        if offset and math.isfinite(self.low) and math.isfinite(self.high):
            offset = (self.low + self.high) / 2
        return work[0] + offset, work[1] + offset
