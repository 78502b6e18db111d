"""Find and check the recorded experience that policies learn from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid, Problems
from marlflow.base.sentences import meant
from marlflow.base.spaces import Spaces
from marlflow.config.construct import LEFT, fit
from marlflow.config.environment import environment_maker, opened
from marlflow.config.experiment import Env, Experiment, OfflineData, Policy
from marlflow.config.folders import folder_problems
from marlflow.config.policy_assignment import listed_policies
from marlflow.config.trust import RECORDED, UNSIGNED, listed, refusal, untrusted_records
from marlflow.env import EnvAdapter, open_adapter, spaces_of
from marlflow.env.spaces_only import SpacesOnlyEnv
from marlflow.offline.dataset import Dataset, find_dataset
from marlflow.offline.environment import code_of, known_environment, recorded_environment
from marlflow.offline.manifest import Manifest, read_manifest, wrappers_of

_OFFLINE_ALGORITHMS = "bc, marwil, dqn or another off-policy algorithm"


def offline_records(env: Env) -> OfflineData | None:
    """Return the records that replace an environment in an offline run, with any wrong values; else None."""
    if env.factory not in (RECORDED, recorded_environment) or "folder" not in env.arguments:
        return None
    source = OfflineData(env.arguments["folder"], passes=env.arguments.get("passes", 1))
    passes = fit(source.passes, int, "env.passes", [])
    return source if passes is LEFT else replace(source, passes=passes)


def maker(env: Env) -> Callable[[], Any]:
    """Return the environment factory, with what other processes need to make a recorded environment."""
    return environment_maker(with_absolute_records(env))


def with_absolute_records(env: Env, trust: Collection[str] | None = ()) -> Env:
    """Return an environment whose records, if it has any, are found and trusted in other folders and processes.

    Its records may name what `trust` (None: anything) and its own `trust` list, and marlflow's parts.
    """
    if (source := offline_records(env)) is None:
        return env
    folder, own = Path(source.folder), _trusted(env)
    if trust is None or not untrusted_records(folder, [*own, *trust]):
        with suppress(ConfigInvalid):  # reported where the records are read
            own = code_of(read_manifest(folder).environment)
    return replace(env, arguments={**env.arguments, "folder": str(folder.resolve()), "trust": list(own)})


def _trusted(env: Env) -> list[str]:
    trust = env.arguments.get("trust")
    # Other values are reported where the types of arguments are.
    return [str(name) for name in trust] if isinstance(trust, list | tuple) else []


def played_environment(env: Env) -> Env:
    """Return the environment that is played: of an offline run, the recorded one.

    Raises ConfigInvalid if it is not known, or not trusted.
    """
    if (source := offline_records(env)) is None:
        return env
    if problems := list(untrusted_problems(env)):
        raise ConfigInvalid(problems)
    recorded = known_environment(Path(source.folder), with_absolute_records(env).arguments["trust"])
    return replace(env, factory=recorded.factory, arguments=recorded.arguments, wrappers=tuple(wrappers_of(recorded)))


def untrusted_problems(env: Env) -> Iterator[str]:
    """Yield why the environment in whose records an offline run learns may not be imported."""
    if (source := offline_records(env)) is None:
        return
    if found := untrusted_records(Path(source.folder), _trusted(env)):
        remedy = f"set env.trust={listed(found)}, or add --trust"
        yield refusal(f"{source.folder} {UNSIGNED}", found, remedy)


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


def recorded_mapping(experiment: Experiment) -> Mapping[str, str]:
    """Return which policy played each agent in the records of an offline run, if all of them can learn or play here."""
    if (source := offline_records(experiment.env)) is None:
        return {}
    manifest = read_manifest(Path(source.folder))
    known = {*manifest.policies, *experiment.policies, *listed_policies(experiment)}
    return manifest.mapping if known.issuperset(manifest.mapping.values()) else {}


def unlike_the_records(env: Env) -> Iterator[str]:
    """Yield why the policies of an offline run cannot play: the environment cannot be made, or has other spaces."""
    if (source := offline_records(env)) is None:
        return
    manifest = read_manifest(Path(source.folder))
    if problems := list(untrusted_problems(env)):
        yield from problems
        return
    try:
        with opened(maker(env), env) as adapter:
            played = {agent: spaces_of(adapter, agent) for agent in adapter.agents}
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
