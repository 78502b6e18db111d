"""Check `policies.<id>.learns_from`: policies that learn from rows of other policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.info_columns import columns_of_rows
from marlflow.base.sentences import enumerated, meant
from marlflow.base.spaces import Spaces
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
from marlflow.config.placement import placements
from marlflow.runtime.spec import LearnerPlacement


def with_sources_of_mode(experiment: Experiment) -> Experiment:
    """Return a copy in which policies without `learns_from` have the default of the league's mode, if any."""
    mode = None if experiment.league is None else experiment.league.matchmaker
    if mode is None or not (sources_of := mode.learns_from()):
        return experiment
    defaults = {name: tuple(sources) for name, sources in sources_of.items()}
    policies = {
        name: replace(policy, learns_from=defaults.get(name)) if policy.learns_from is None else policy
        for name, policy in experiment.policies.items()
    }
    return replace(experiment, policies=policies)


def others_of(policies: Mapping[str, Policy], learner: LearnerConfig) -> tuple[str, ...]:
    """Return the policies whose rows a learner learns from, if these are not its own."""
    (first, *more) = learner.policies
    sources = tuple(policies[first].learns_from or ())
    return () if more or sources == (first,) else sources


def shared_row_problems(
    experiment: Experiment,
    policies: Mapping[str, Policy],
    learners: Mapping[str, LearnerConfig],
    spaces: Mapping[str, Spaces],
) -> Iterator[str]:
    """Yield why policies cannot learn from the rows that they are to learn from."""
    learner_of = {name: key for key, learner in learners.items() for name in learner.policies}
    placed = placements(experiment.placement, learners)
    on_workers = {name: _on_workers(learners[key].algorithm, placed[key]) for name, key in learner_of.items()}
    for name, policy in policies.items():
        sources, key = policy.learns_from, f"{_path(experiment, name)}.learns_from"
        imitates, subject = policy.acts_by.capabilities.imitates, f"policy {name!r} ({policy.acts_by.name})"
        if imitates and sources is None:
            yield f"{subject} would imitate only itself; set {key} to the policies that it imitates, such as [response]"
        if sources is None or list(sources) == [name]:
            continue
        wrong = list(_name_problems(key, sources, policies))
        wrong = wrong or list(_learner_problems(key, subject, policy, on_workers.get(name)))
        if not wrong:
            for source in sources:
                wrong += _source_problems(key, source, policies[source], on_workers.get(source))
                if source != name and spaces.get(source) != spaces.get(name):
                    wrong.append(
                        f"{key}: {name!r} and {source!r} have other spaces: {_text(spaces.get(name))} and "
                        f"{_text(spaces.get(source))}; a policy learns from rows of equal spaces"
                    )
            wrong += [*_state_problems(key, sources, policies), *_column_problems(key, sources, policies)]
            if not imitates:
                wrong += [_added(key, subject, source) for source in sources if policies[source].reward_from]
        yield from wrong


def _path(experiment: Experiment, policy: str) -> str:
    return f"policies.{policy}" if policy in experiment.policies else "default_policy"


def _name_problems(key: str, sources: Sequence[str], policies: Mapping[str, Policy]) -> Iterator[str]:
    if not sources:
        yield f"{key} is empty; name the policies whose rows it learns from, or set it to null for its own"
    for source in dict.fromkeys(sources):
        if source not in policies:
            yield f"{key}: there is no policy {source!r}{meant(source, policies, 'the policies are')}"
        if list(sources).count(source) > 1:
            yield f"{key} has {source!r} more than once; name each policy once"


def _learner_problems(key: str, subject: str, policy: Policy, on_workers: Sequence[str] | None) -> Iterator[str]:
    capabilities = policy.acts_by.capabilities
    null = f"or set {key}=null, for its own rows"
    if on_workers is None:
        yield f"{key}: {subject} does not learn; give it an off-policy algorithm, {null}"
    elif capabilities.joint:
        yield f"{key} must be null: {subject} learns from joint rows of all policies of its learner"
    elif policy.experience is not None:
        yield f"{key}: {subject} learns from recorded rows, its experience; leave one of the two out"
    elif capabilities.experience == "on-policy":
        yield (
            f"{key}: {subject} is on-policy, and rows of other policies would bias its gradient; use an off-policy "
            f"algorithm, such as dqn or sac, {null}"
        )
    elif capabilities.experience == "offline":
        yield f"{key}: {subject} learns from recorded rows; use clone, to imitate others while they play, {null}"
    elif capabilities.memory == "needed":
        yield f"{key}: {subject} has memory, which rows of other policies are without; use dqn, {null}"
    elif on_workers:
        yield (
            f"{key}: {subject} has stages on the workers ({', '.join(on_workers)}), which see its own rows alone; use "
            f"dqn, {null}"
        )


def _source_problems(key: str, source: str, policy: Policy, on_workers: Sequence[str] | None) -> Iterator[str]:
    subject = f"{key}: policy {source!r} ({policy.acts_by.name})"
    if on_workers is None:
        yield f"{subject} does not learn, so it leaves no rows; name a policy that does"
    elif policy.experience is not None:
        yield f"{subject} learns from recorded rows, so it leaves none of its own; name another policy"
    elif policy.acts_by.capabilities.memory == "needed":
        yield f"{subject} has memory, so its rows are of another kind; name a policy without memory"
    elif on_workers:
        yield (
            f"{subject} has stages on the workers ({', '.join(on_workers)}), which change its rows; name a policy that "
            "has none, such as one that learns with dqn or ppo"
        )


def _state_problems(key: str, sources: Sequence[str], policies: Mapping[str, Policy]) -> Iterator[str]:
    needs = {source: policies[source].acts_by.capabilities.state for source in sources}
    if len(set(needs.values())) > 1:
        having, lacking = (", ".join(repr(s) for s in needs if needs[s] is kind) for kind in (True, False))
        yield f"{key}: rows of {having} have the environment's state, rows of {lacking} have not; name one kind only"


def _column_problems(key: str, sources: Sequence[str], policies: Mapping[str, Policy]) -> Iterator[str]:
    columns = {name: columns_of_rows(policies[name].acts_by, policies[name].row_columns) for name in sources}
    for column in sorted({column for found in columns.values() for column in found}):
        if lacking := [name for name in sources if column not in columns[name]]:
            having = [name for name in sources if name not in lacking]
            yield (
                f"{key}: rows of {enumerated([repr(name) for name in having])} have info[{column!r}], rows of "
                f"{enumerated([repr(name) for name in lacking])} have not; name one kind only"
            )


def _added(key: str, subject: str, source: str) -> str:
    return (
        f"{key}: policy {source!r} adds numbers to the rewards of its rows (policies.{source}.reward_from), and "
        f"{subject} would learn from these rewards, too; name a policy that adds none, or use clone, to imitate it"
    )


def _on_workers(algorithm: Algorithm, placement: LearnerPlacement) -> list[str]:
    if algorithm.capabilities.learns_on == "workers":
        return ["all"]
    stages = {**algorithm.stages, **placement.stages}
    return [stage for stage, where in stages.items() if where == "worker"]


def _text(spaces: Spaces | None) -> str:
    if spaces is None:
        return "unknown"
    return f"{spaces.observation} to {spaces.action}{', masked' if spaces.masked else ''}"
