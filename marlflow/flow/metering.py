"""Stage metrics of a running plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marlflow.flow.cells import Cell
from marlflow.flow.compile import Network
from marlflow.flow.meters import Meter


def stage_metrics(network: Network, before: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each stage's metrics by `plan/stage`, added to `before` (of a resumed run)."""
    metrics: dict[str, dict[str, Any]] = {}
    for cell in network.cells:
        if not cell.is_plumbing:
            for position, stage in enumerate(cell.stages):
                metrics[str(stage)] = _stage_meter(cell, position).snapshot()
    for edge in network.edges:
        if edge.stage is not None:
            metrics[str(edge.stage)] = Meter(edge.passed, edge.rows, edge.dropped, edge.rows_dropped).snapshot()
    for name, earlier in before.items():
        now = metrics.get(name, dict.fromkeys(earlier, 0))
        metrics[name] = {metric: now[metric] + value for metric, value in earlier.items()}
    return metrics


def _stage_meter(cell: Cell, position: int) -> Meter:
    meter, clock = cell.meters[position], cell.clock
    busy_s, starved_s, blocked_s, _ = clock.spent_s
    if cell.call is not None:
        busy_s = meter.busy_s
        # While other stages of a fused call run, the first counts as blocked and the others as starved.
        elsewhere_s = max(0.0, clock.called_s - busy_s)
        starved_s += elsewhere_s if position > 0 else 0.0
        blocked_s += elsewhere_s if position == 0 else 0.0
    last = position == len(cell.stages) - 1
    edges = [edge for edge in cell.outs.values() if edge.stage is None]
    dropped = cell.lost + sum(edge.dropped for edge in edges) if last else 0
    rows_dropped = cell.rows_lost + sum(edge.rows_dropped for edge in edges) if last else 0
    return Meter(meter.items, meter.rows, dropped, rows_dropped, busy_s, starved_s, blocked_s)
