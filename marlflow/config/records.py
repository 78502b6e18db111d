"""Find and check the recorded experience that policies learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.base.near import meant
from marlflow.base.problems import Problems
from marlflow.base.spaces import Spaces
from marlflow.config.environment import environment_maker, opened
from marlflow.config.experiment import Env, Experiment, OfflineData, Policy
from marlflow.config.folders import folder_problems
from marlflow.env import EnvAdapter, open_adapter
from marlflow.env.spaces_only import SpacesOnlyEnv
from marlflow.offline.dataset import Dataset, find_dataset
from marlflow.offline.environment import known_environment, recorded_environment
from marlflow.offline.manifest import Manifest, read_manifest, wrappers_of

_OFFLINE = f"{recorded_environment.__module__}.{recorded_environment.__qualname__}"
_OFFLINE_ALGORITHMS = "bc, marwil, dqn or another off-policy algorithm"


def offline_records(env: Env) -> OfflineData | None:
    """Return the records that replace an environment in an offline run; else None."""
    if env.factory not in (_OFFLINE, recorded_environment):
        return None
    return OfflineData(str(env.arguments["folder"]), passes=int(env.arguments.get("passes", 1)))


def maker(env: Env) -> Callable[[], Any]:
    """Return the environment factory, with the folder of records as an absolute path."""
    # Processes of Ray have other working directories.
    return environment_maker(with_absolute_records(env))


def with_absolute_records(env: Env) -> Env:
    """Return an environment whose folder of records, if it has one, does not depend on the working directory."""
    if (source := offline_records(env)) is None:
        return env
    return replace(env, arguments={**env.arguments, "folder": str(Path(source.folder).resolve())})


def played_environment(env: Env) -> Env:
    """Return the environment that is played: of an offline run, the recorded one. Raises ConfigInvalid if unknown."""
    if (source := offline_records(env)) is None:
        return env
    recorded = known_environment(Path(source.folder))
    return replace(env, factory=recorded.factory, arguments=recorded.arguments, wrappers=tuple(wrappers_of(recorded)))


@contextmanager
def inspected_environment(experiment: Experiment, problems: Problems) -> Iterator[EnvAdapter]:
    """Open an adapter on the environment, or on the recorded spaces in an offline run.

    Appends to `problems` if episodes cannot be evaluated. Raises ConfigInvalid if neither can be opened.
    """
    source = offline_records(experiment.env)
    if source is None:
        with opened(environment_maker(experiment.env), experiment.env) as adapter:
            yield adapter
        return
    manifest = read_manifest(Path(source.folder))
    if experiment.evaluation.is_wanted:
        instead = "set evaluation.episodes=0 to do without it"
        problems += [f"{problem}; {instead}" for problem in unlike_the_records(experiment.env)]
    adapter = open_adapter(SpacesOnlyEnv(manifest.agents), name=f"recorded in {source.folder}")
    try:
        yield adapter
    finally:
        adapter.close()


def unlike_the_records(env: Env) -> Iterator[str]:
    """Yield why the policies of an offline run cannot play: the environment cannot be made, or has other spaces."""
    if (source := offline_records(env)) is None:
        return
    manifest = read_manifest(Path(source.folder))
    try:
        with opened(maker(env), env) as adapter:
            played = {
                a: Spaces(adapter.observation_space(a), adapter.action_space(a), adapter.masked(a))
                for a in adapter.agents
            }
    except ConfigInvalid as error:
        yield from error.problems
        return
    for agent, spaces in manifest.agents.items():
        if agent not in played:
            yield f"agent {agent!r} was recorded, and is not in the environment as it is now made"
        elif played[agent] != spaces:
            yield f"agent {agent!r} was recorded with {spaces}, and now has {played[agent]}"


def sources(experiment: Experiment, policies: Mapping[str, Policy]) -> dict[str, OfflineData]:
    """Return the records of each policy that learns from any."""
    everybody = offline_records(experiment.env)
    data = {name: policy.experience or everybody for name, policy in policies.items()}
    learns = {name for name, policy in policies.items() if policy.acts_by.capabilities.learns}
    return {name: source for name, source in data.items() if source is not None and name in learns}


def records_of(
    experiment: Experiment, policies: Mapping[str, Policy], spaces: Mapping[str, Spaces], problems: Problems
) -> dict[str, Dataset]:
    """Open the records of each policy that learns from any; append errors to `problems`."""
    datasets = {}
    data_by_policy = sources(experiment, policies)
    problems += _unsuited_experience(policies, data_by_policy)
    for name, source in data_by_policy.items():
        try:
            manifest = read_manifest(Path(source.folder))
            recorded = _recorded_policy(name, source, manifest)
            if name in spaces and manifest.policies[recorded] != spaces[name]:
                problems.append(
                    f"policy {name!r} sees and does {spaces[name]}, but {recorded!r} in {source.folder} was recorded "
                    f"with {manifest.policies[recorded]}; give it records of the same spaces"
                )
            datasets[name] = find_dataset(Path(source.folder).resolve(), recorded, source.passes)
        except ConfigInvalid as error:
            problems += [f"policy {name!r}: {problem}" for problem in error.problems]
    return datasets


def _unsuited_experience(policies: Mapping[str, Policy], data_by_policy: Mapping[str, OfflineData]) -> Iterator[str]:
    for name, policy in policies.items():
        algorithm = policy.acts_by
        kind = algorithm.capabilities.experience
        if name in data_by_policy and kind == "on-policy":
            yield (
                f"policy {name!r} ({algorithm.name}) learns from what it has just done itself, not from records; "
                f"use {_OFFLINE_ALGORITHMS}"
            )
        elif name not in data_by_policy and kind == "offline":
            yield (
                f"policy {name!r} ({algorithm.name}) learns from records; set policies.{name}.experience="
                "{folder: <records>}, or env=offline env.folder=<records>"
            )


def _recorded_policy(name: str, source: OfflineData, manifest: Manifest) -> str:
    # The configured policy, else the one of the same name, else the only one.
    recorded, known = source.policy or name, tuple(manifest.policies)
    if recorded in known:
        return recorded
    if source.policy is None and len(known) == 1:
        return known[0]
    which = f"{source.folder} has no records of a policy {recorded!r}{meant(recorded, known, 'it has those of')}"
    raise ConfigInvalid([f"{which}; say which with policies.{name}.experience={{folder: ..., policy: ...}}"])


def record_problems(experiment: Experiment, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield why rows cannot be recorded: unknown policies, an offline run, no folder."""
    record = experiment.record
    if record is None:
        return
    for name in record.policies or ():
        if name not in policies:
            yield f"record.policies: there is no policy {name!r}{meant(name, policies, 'the policies are')}"
    if record.policies is not None and not record.policies:
        yield "record.policies is empty, so nothing would be recorded; name some, or set record=null"
    if offline_records(experiment.env) is not None:
        yield "record: nobody plays in this run, so there is nothing to record; leave it out"
    if record.folder is not None:
        yield from folder_problems("record.folder", Path(record.folder))
