"""The policies and parameters that a run took from other runs; every checkpoint has a copy of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from marlflow.algorithms.from_run import FromRun, Frozen, Imported, with_copies
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment, Policy
from marlflow.config.imported_policies import COPY, FROM
from marlflow.config.warm_start import initial_file
from marlflow.league.league import League
from marlflow.runs.checkpoint_format import notes_of, tensors_file
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runs.saved_policies import import_file, to_export
from marlflow.runs.saved_runs import newest


def with_saved_members(experiment: Experiment, run_dir: Path) -> Experiment:
    """Return an experiment that takes everything of other runs from a run's checkpoint; their folders may be gone.

    These are members of its league, frozen policies, and parameters that policies began with. Raises CheckpointUnusable
    if there are any, and no checkpoint.
    """
    everybody = {**experiment.policies, "": experiment.default_policy}
    of_others = [name for name, one in everybody.items() if one.init is not None or isinstance(one.algorithm, Frozen)]
    if of_others:
        checkpoint = newest(run_dir)
        copied = {name: _with_copies(name, everybody[name], checkpoint) for name in of_others}
        default = copied.pop("", experiment.default_policy)
        experiment = replace(experiment, policies={**experiment.policies, **copied}, default_policy=default)
    league = experiment.league
    return experiment if league is None or not league.members else _with_saved_league(experiment, league, run_dir)


def _with_copies(name: str, policy: Policy, checkpoint: Checkpoint) -> Policy:
    if policy.init is not None:
        policy = replace(policy, init=with_copies(policy.init, checkpoint.path))
    if isinstance(frozen := policy.algorithm, Frozen):
        files = [import_file(one) for one in ([name] if name else notes_of(checkpoint).identity["policies"])]
        # Without a name, `policy` is default_policy: any of its policies has the same copy.
        if saved := [file for file in files if file in checkpoint.names]:
            policy = replace(policy, algorithm=with_copies(frozen, checkpoint.path / tensors_file(saved[0])))
    return policy


def _with_saved_league(experiment: Experiment, league: League, run_dir: Path) -> Experiment:
    checkpoint, members = newest(run_dir), dict(league.members)
    for name, given in members.items():
        if (file := import_file(name)) in checkpoint.names and FROM in given:
            members[name] = {**given, COPY: str(checkpoint.path / tensors_file(file))}
    return replace(experiment, league=replace(league, members=members))


def files_of_other_runs(checked: CheckedExperiment) -> dict[str, Callable[[], bytes]]:
    """Return the files of checkpoints with parameters of other runs: by name, a function that makes the contents."""
    algorithms = {name: policy.algorithm for name, policy in checked.spec.policies.items()}
    files: dict[str, Callable[[], bytes]] = {
        import_file(name): partial(to_export, algorithm.saved)
        for name, algorithm in algorithms.items()
        if isinstance(algorithm, Imported)
    }
    for learner in checked.spec.learners.values():
        files |= {initial_file(policy): initial.to_bytes for policy, initial in learner.begins_with.items()}
    return files


def source_of(checked: CheckedExperiment, policy: str) -> dict[str, Any]:
    """Return the source of a policy's parameters, if it is another run."""
    experiment, league = checked.experiment, checked.experiment.league
    if league is not None and policy in league.members:
        return {}
    settings = experiment.policies.get(policy, experiment.default_policy)
    if isinstance(frozen := settings.algorithm, Frozen) and (sha256 := hash_of(checked, policy)):
        return {"source": {**_asked(frozen), **sha256}}
    learner = checked.spec.learner_of(policy)
    # A learner of several policies does not take `init` from default_policy.
    if settings.init is None or learner is None or policy not in learner.begins_with:
        return {}
    parts = None if settings.init.parts is None else list(settings.init.parts)
    return {"init": {**_asked(settings.init), "parts": parts, "sha256": learner.begins_with[policy].sha256}}


def _asked(source: FromRun | Frozen) -> dict[str, Any]:
    return {"run": str(source.run), "policy": source.policy, "checkpoint": source.checkpoint}


def hash_of(checked: CheckedExperiment, member: str) -> dict[str, str]:
    """Return the SHA-256 of an imported policy's parameters, by the name under which the identity has it."""
    algorithm = checked.spec.policies[member].algorithm
    return {"sha256": algorithm.saved.sha256} if isinstance(algorithm, Imported) else {}
