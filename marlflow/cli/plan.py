"""`marlflow plan`: draw and check the dataflow and placement of `marlflow train`; run nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import yaml

from marlflow.algorithms.algorithm import parts_of
from marlflow.algorithms.from_run import Imported
from marlflow.base.errors import ConfigInvalid, Problem, ProblemKind
from marlflow.checks.commands import check, compiles_rollouts, machines_to_plan_for
from marlflow.cli.arguments import MACHINES, MERMAID, split
from marlflow.cli.job import ALL_OUTPUT, TRUST, output_shown, prepared, with_trusted_records
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment
from marlflow.config.imported_policies import described_member, described_source
from marlflow.config.placement import described_machines, drawn_placement
from marlflow.config.plans import drawn_plan, with_league
from marlflow.config.schema import read
from marlflow.runtime.resources import Machines


def run_plan(words: list[str]) -> int:
    """Print the plan as a tree, or with --mermaid as a flowchart; return 0. Raises InvalidInput."""
    parsed = split(words, "plan", own=[MERMAID, ALL_OUTPUT, TRUST], own_with_value=[MACHINES], hydra=False)
    job = with_trusted_records(parsed, prepared(parsed))
    problems = list(job.problems)
    experiment = read(job.config, problems)
    described = parsed.own_values.get(MACHINES)
    machines = _machines(experiment, described)
    try:
        with output_shown(parsed):
            checked = check(experiment, problems, machines)
    except ConfigInvalid as error:
        if described is not None:
            raise
        raise ConfigInvalid([_with_machines_hint(problem) for problem in error.found]) from error
    drawn = drawn_plan(checked.experiment, checked.spec, compiles_rollouts(checked.spec))
    plan = with_league(drawn, checked)
    for remark in checked.remarks:
        print(f"note: {remark}", file=sys.stderr)
    if MERMAID in parsed.own_flags:
        print(plan.mermaid())
    else:
        print(f"{_assignments(checked)}\n\n{plan}\n\n{drawn_placement(checked, machines)}")
    return 0


def _machines(experiment: Experiment | None, described: str | None) -> Machines | None:
    if described is None:
        return machines_to_plan_for(experiment)
    if experiment is not None and experiment.runtime.name == "inline":
        raise ConfigInvalid(
            [f"{MACHINES} is for runtime=ray, and runtime=inline is one process here; leave one of the two out"]
        )
    try:
        entries = yaml.safe_load(described)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigInvalid(
            [f"{MACHINES} cannot be read ({reason}); is it whole, and quoted for the shell?"]
        ) from error
    return described_machines(entries, MACHINES)


def _with_machines_hint(problem: Problem | str) -> Problem | str:
    # These machines may lack resources that the run has elsewhere.
    if isinstance(problem, str) or problem.kind is not ProblemKind.LACKS_RESOURCES:
        return problem
    return f"{problem}; to plan for other machines, describe them: {MACHINES} '[{{CPU: 16, GPU: 2, count: 4}}]'"


def _groups_by_default(checked: CheckedExperiment) -> Iterator[str]:
    """Yield which groups of agents have no policy of their own, and how they get one."""
    experiment = checked.experiment
    listed = {member for learner in experiment.learners.values() for member in learner.policies}
    added = {} if experiment.league is None else experiment.league.members
    groups = [name for name in checked.spec.policies if name not in {*experiment.policies, *listed, *added}]
    if groups and not experiment.mapping:
        noun = "group" if len(groups) == 1 else "groups"
        yield (
            f"{noun} {' and '.join(groups)} {'has' if len(groups) == 1 else 'have'} default_policy; for another, "
            f"policy@policies.{groups[0]}=<name>"
        )


def _assignments(checked: CheckedExperiment) -> str:
    lines = []
    league = checked.experiment.league
    added = {} if league is None else league.members
    for name, policy in checked.spec.policies.items():
        agents = ", ".join(checked.players[name])
        learner = checked.spec.learner_of(name)
        others = f", and learns from rows of {', '.join(learner.others)}" if learner and learner.others else ""
        lines.append(f"policy {name} ({policy.algorithm.name}) plays {agents}{others}")
        if learner is not None and name in learner.begins_with:
            lines.append(f"policy {name} begins with {learner.begins_with[name].described}")
        if isinstance(policy.algorithm, Imported) and name not in added:
            lines.append(f"policy {name} is {described_source(policy.algorithm)}")
    lines += _groups_by_default(checked)
    for name, learner in checked.spec.learners.items():
        if learner.members != (name,):
            lines.append(f"learner {name} ({learner.algorithm.name}) trains {' and '.join(learner.members)}")
        if parts := parts_of(learner.algorithm):
            # Some have no stages that the drawn plan would show.
            described = ", ".join(f"{part} ({type(one).__name__})" for part, one in parts.items())
            lines.append(f"learner {name} has {'the part' if len(parts) == 1 else 'the parts'} {described}")
    lines += [described_member(name, checked.spec.policies[name].algorithm) for name in added]
    return "\n".join(lines)
