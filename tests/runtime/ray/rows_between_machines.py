"""Trains on a cluster of three nodes, and prints how many bytes came to each: see `benchmarks.two_machines`.

A process of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys

from benchmarks.two_machines import measure, three_nodes
from tests.forked_workers import closed_template, forked_workers

if __name__ == "__main__":
    with closed_template() as template, forked_workers(template), three_nodes():
        json.dump(measure(rounds=3), sys.stdout)
