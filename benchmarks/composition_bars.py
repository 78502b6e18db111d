"""Train under rules and on two time scales, and compare with answers that are known; three seeds each.

    python -m benchmarks.composition_bars                                     the cases and their bars
    python -m benchmarks.composition_bars 'cliff*'                            some of them, by name or pattern
    python -m benchmarks.composition_bars '*' --seeds 10 11 12 --report-only  all of them, without training

Settings were chosen on seeds 0 to 2. Runs are as in benchmarks/team_bars.py, and in the same folder.
"""

from __future__ import annotations

import sys

from benchmarks.composition_cases import CASES
from benchmarks.team_bars import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CASES, __doc__))
