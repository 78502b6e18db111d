"""Which seeds a report may use: those on which no setting was chosen, and on which nothing was reported before.

Settings are chosen on seeds 0 to 4. A seed that was reported on is retired, because settings are changed after what a
report shows, and so are chosen on its seeds as well. Whoever reports adds the seeds to RETIRED, in the same change.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

CHOICE: Final = range(5)  # settings are chosen on these
RETIRED: Final = frozenset({*CHOICE, *range(10, 16), *range(20, 69), *range(71, 239)})


def fresh_seeds(count: int) -> list[int]:
    """Return the lowest `count` seeds that are not retired, from 20 on, so that reports are easily told apart."""
    seed, found = 20, list[int]()
    while len(found) < count:
        if seed not in RETIRED:
            found.append(seed)
        seed += 1
    return found


def add_seeds(parser: argparse.ArgumentParser, count: int) -> None:
    """Add the option --seeds; without it there are `count` fresh ones, or given retired ones are named in a line."""
    parser.add_argument(
        "--seeds",
        type=lambda text: _announced([int(seed) for seed in text.split(",")]),
        default=fresh_seeds(count),
        help="separated by commas; default: seeds that nobody has reported on",
    )


def _announced(seeds: Sequence[int]) -> Sequence[int]:
    if retired := sorted(RETIRED.intersection(seeds)):
        print(f"seeds {retired} are retired: this repeats a report, or chooses settings", flush=True)
    return seeds
