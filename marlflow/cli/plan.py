"""`marlflow plan`: draws and checks what `marlflow train` would run, and runs nothing."""

from __future__ import annotations

from marlflow.cli.arguments import split
from marlflow.cli.job import prepared
from marlflow.experiment.plans import drawn_plan
from marlflow.experiment.ready import Ready, ready
from marlflow.experiment.schema import from_config

_MERMAID = "--mermaid"


def run_plan(words: list[str]) -> int:
    """Prints the plan as a tree, or with --mermaid as a Mermaid flowchart; returns 0, raises InvalidInput."""
    found = split(words, "plan", own=[_MERMAID], hydra=False)
    job = prepared(found)
    made = ready(from_config(job.config, job.problems))
    plan = drawn_plan(made.experiment, made.spec)
    plan.check()
    print(plan.mermaid() if _MERMAID in found.own_flags else f"{_players(made)}\n\n{plan}")
    return 0


def _players(made: Ready) -> str:
    """Who plays whom, one line for each policy."""
    lines = []
    for name, policy in made.spec.policies.items():
        agents = ", ".join(made.players[name])
        lines.append(f"policy {name} ({policy.algorithm.name}) plays {agents}")
    return "\n".join(lines)
