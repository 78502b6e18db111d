"""Policies of other runs that act and do not learn: load them, and check that they can play here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.from_run import FromRun, Frozen, Imported, SavedPolicy
from marlflow.algorithms.scripted import Random
from marlflow.base.errors import InvalidInput, Problems
from marlflow.base.spaces import Spaces
from marlflow.config.experiment import Experiment, Policy
from marlflow.config.imports import imported_policy, load_policy, size_problem, space_problem


def with_frozen(experiment: Experiment, problems: Problems) -> Experiment:
    """Return an experiment whose Frozen policies have the networks of their sources; append to `problems`."""
    policies = {
        name: _loaded(policy, name, f"policies.{name}", problems) for name, policy in experiment.policies.items()
    }
    default = _loaded(experiment.default_policy, "", "default_policy", problems)
    return replace(experiment, policies=policies, default_policy=default)


def _loaded(policy: Policy, name: str, path: str, problems: Problems) -> Policy:
    if not isinstance(frozen := policy.algorithm, Frozen):
        return policy
    key = f"{path}.algorithm"
    try:
        saved = load_policy(Path(frozen.copies)) if frozen.copies else source_policy(frozen, name)
        loaded = imported_policy(saved, frozen.trust, f"set {key}.trust={{names}}")
    except InvalidInput as error:
        problems += [f"{key}: {problem}" for problem in error.problems]
        # It acts anyhow, so that no error follows from this one.
        return replace(policy, algorithm=Random())
    return replace(policy, algorithm=loaded.algorithm, model=loaded.model)


def source_policy(source: FromRun | Frozen, name: str) -> SavedPolicy:
    """Load the policy that a source names, by default the one called `name`; raises InvalidInput."""
    return load_policy(Path(source.run), source.policy, source.checkpoint, default=name)


def frozen_problems(
    policies: Mapping[str, Policy], spaces: Mapping[str, Spaces], agents: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """Yield the policies of other runs that cannot play their agents, each with the problem."""
    for name, policy in policies.items():
        if isinstance(policy.algorithm, Imported) and name in spaces:
            problem = unfit_problem(policy.algorithm, policy, spaces[name], agents[name][0])
            if problem is not None:
                yield name, f"policy {name!r}: {problem}"


def unfit_problem(algorithm: Imported, policy: Policy, spaces: Spaces, agent: str) -> str | None:
    """Return why a policy of another run cannot play `agent`, or None."""
    if problem := space_problem(algorithm.saved, spaces, agent):
        return f"{problem}; name a policy of a run of this environment"
    return size_problem(policy, spaces)


def described_source(algorithm: Algorithm) -> str:
    """Return where an imported policy is from, such as `main@12 of runs/c4/a (ppo, version 3, ..., SHA-256 ...)`."""
    if not isinstance(algorithm, Imported):
        return algorithm.name
    return f"{algorithm.saved.source} ({about(algorithm)}, SHA-256 {algorithm.saved.sha256})"


def about(algorithm: Imported) -> str:
    """Return the algorithm, version and size of an imported policy."""
    saved = algorithm.saved
    return f"{algorithm.algorithm.name}, version {saved.description['version']:,}, {len(saved.flat):,} parameters"
