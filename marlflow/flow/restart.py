"""Restart of a plan: all that waits in it is dropped, and its paces begin again."""

from __future__ import annotations

from marlflow.flow.compile import Network


def restart_plan(network: Network, plan: str) -> int:
    """Drop (and count) all that waits in a plan's queues and gathers, and restart its paces; return the agent steps.

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
