"""A running plan's stage metrics, its checkpoint state, and its restart, which drops all queued items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from marlflow.base.errors import CheckpointUnusable
from marlflow.flow.cells import Cell, Edge
from marlflow.flow.compile import Network
from marlflow.flow.flow import Kind, Rotation
from marlflow.flow.meters import Meter
from marlflow.flow.protocols import HoldsItems


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


def queued_items(network: Network) -> dict[str, int]:
    """Return the number of items that wait in each queue and branch of a fork, by `plan/stage`."""
    return {str(edge.stage): len(edge.items) for edge in network.edges if edge.stage is not None}


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


def restart_plan(network: Network, plan: str) -> int:
    """Drop (and count) all items in a plan's queues and gathers, and restart its paces; return the agent steps.

    The plan is at rest. A gather that does not have its items in `held` keeps them.
    """
    cells = network.by_plan[plan]
    assert not any(cell.in_flight for cell in cells), f"plan {plan!r} is not at rest"
    edges = {id(edge): edge for cell in cells for edge in cell.inboxes}
    rows = sum(edge.empty() for edge in edges.values()) + sum(cell.drop_held() for cell in cells)
    # The shared split may have items that do not fit into the plan's queue.
    rows += sum(cell.drop_pending(edges) for cell in network.cells)
    for ledger in network.ledgers_of(plan):
        ledger.restart()
    return rows


ConvertItem = Callable[[Any], Any]
"""Converts an item to its saved form, or back."""


def network_state(network: Network, save_item: ConvertItem) -> dict[str, Any]:
    """Return paces, buffered items (by `save_item`), and positions of merges and splits, at rest."""
    edges, cells = dict(_edges(network)), dict(_cells(network))
    names = {id(edge): name for name, edge in edges.items()}
    return {
        "paces": {name: dict(ledger.state()) for name, ledger in network.ledgers.items()},
        "waiting": {name: [save_item(item) for item in edge.items] for name, edge in edges.items() if edge.items},
        "undelivered": {
            name: [[names[id(edge)], save_item(item)] for edge, item in cell.pending]
            for name, cell in cells.items()
            if cell.pending
        },
        "held": {name: [save_item(item) for item in held] for name, held in _held(network).items() if held},
        "next_inbox": {name: cell.next_inbox for name, cell in cells.items() if cell.next_inbox},
        "next_branch": {name: split.next_branch for name, split in _rotations(network).items()},
        "exhausted": [name for name, cell in cells.items() if cell.exhausted],
    }


def load_network_state(network: Network, state: Mapping[str, Any], restore_item: ConvertItem) -> None:
    """Restore `network_state`; raises CheckpointUnusable for another plan's."""
    edges, cells, held = dict(_edges(network)), dict(_cells(network)), _held(network)
    rotations = _rotations(network)
    _check(state, edges=edges, cells=cells, held=held, rotations=rotations, paces=network.ledgers)
    for name, pace in state["paces"].items():
        network.ledgers[name].load_state(pace)
    for name, items in state["waiting"].items():
        edges[name].items.extend(restore_item(item) for item in items)
    for name, undelivered in state["undelivered"].items():
        cells[name].pending.extend((edges[edge], restore_item(item)) for edge, item in undelivered)
    for name, items in state["held"].items():
        held[name][:] = [restore_item(item) for item in items]
    for name, number in state["next_inbox"].items():
        cells[name].next_inbox = number
    for name, number in state.get("next_branch", {}).items():
        rotations[name].next_branch = number
    for name in state["exhausted"]:
        cells[name].exhausted = True


def _check(state: Mapping[str, Any], **here: Mapping[str, Any]) -> None:
    # Every saved entry needs a counterpart. Paces must match both ways: they identify the plan even if nothing waits.
    places = {"waiting": "edges", "undelivered": "cells", "held": "held", "next_inbox": "cells", "exhausted": "cells"}
    places["next_branch"] = "rotations"
    unmatched = {
        name for kind, counterparts in places.items() for name in state.get(kind, ()) if name not in here[counterparts]
    }
    unmatched |= set(state["paces"]) ^ set(here["paces"])
    if unmatched:
        raise CheckpointUnusable([f"it is of another plan: {', '.join(sorted(unmatched))} is not in both"])


# Edges and cells are named after stages, so that a checkpoint does not depend on which stages are fused.
def _edges(network: Network) -> Iterator[tuple[str, Edge]]:
    seen: Counter[str] = Counter()
    for cell in network.cells:
        for branch, edge in cell.outs.items():
            name = str(cell.stages[-1]) if branch is None else f"{cell.stages[-1]}[{branch}]"
            seen[name] += 1
            yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), edge


def _cells(network: Network) -> Iterator[tuple[str, Cell]]:
    seen: Counter[str] = Counter()
    for cell in network.cells:
        name = str(cell.stages[0])
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), cell


def _rotations(network: Network) -> dict[str, Rotation]:
    return {
        str(cell.stages[0]): call.operator
        for cell in network.cells
        for call in cell.calls
        if isinstance(call.operator, Rotation)
    }


def _held(network: Network) -> dict[str, list[Any]]:
    return {
        str(stage): call.operator.held
        for cell in network.cells
        if cell.kind is Kind.GATHER
        for stage, call in zip(cell.stages, cell.calls, strict=True)
        if isinstance(call.operator, HoldsItems)
    }
