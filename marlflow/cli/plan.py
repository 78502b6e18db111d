"""`marlflow plan`: draws and checks what `marlflow train` would run, and runs nothing."""

from __future__ import annotations

import sys

from marlflow.cli.arguments import split
from marlflow.cli.job import prepared
from marlflow.experiment.plans import drawn_plan
from marlflow.experiment.ready import Ready
from marlflow.experiment.schema import read
from marlflow.experiment.train import check

_MERMAID = "--mermaid"


def run_plan(words: list[str]) -> int:
    """Prints the plan as a tree, or with --mermaid as a Mermaid flowchart; returns 0, raises InvalidInput."""
    found = split(words, "plan", own=[_MERMAID], hydra=False)
    job = prepared(found)
    problems = list(job.problems)
    experiment = read(job.config, problems)
    made = check(experiment, problems)
    plan = drawn_plan(made.experiment, made.spec)
    for remark in made.remarks:
        print(f"note: {remark}", file=sys.stderr)
    print(plan.mermaid() if _MERMAID in found.own_flags else f"{_players(made)}\n\n{plan}")
    return 0


def _players(made: Ready) -> str:
    """Who plays whom, one line for each policy."""
    lines = []
    for name, policy in made.spec.policies.items():
        agents = ", ".join(made.players[name])
        lines.append(f"policy {name} ({policy.algorithm.name}) plays {agents}")
    return "\n".join(lines)
