"""Load policies of other runs and of exported files, as frozen policies and as members of a league.

A configuration names classes, which are imported. Only parts of marlflow are, and those that the user trusts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.from_run import FromRun, Frozen, Imported, SavedPolicy
from marlflow.algorithms.scripted import Random
from marlflow.base.errors import CheckpointUnusable, ConfigInvalid, InvalidInput, Problems, WeightsMismatch
from marlflow.base.links import check_links
from marlflow.base.public_names import with_current_names
from marlflow.base.sentences import meant, misspelled_key
from marlflow.base.spaces import Spaces
from marlflow.config import shipped_parts
from marlflow.config.construct import LEFT, fit
from marlflow.config.experiment import Experiment, Policy
from marlflow.config.renamed import with_parts
from marlflow.config.settings import setting_problems
from marlflow.config.target_nodes import TARGET
from marlflow.config.trust import listed, refusal, untrusted
from marlflow.env import EnvAdapter, spaces_of
from marlflow.learner.extra_losses import without_extra_losses
from marlflow.policy.tensors import parameters_of
from marlflow.policy.torso import TorsoConfig
from marlflow.runs.checkpoint_format import as_text
from marlflow.runs.saved_league import SavedRun, saved_run
from marlflow.runs.saved_policies import read_export, saved_policy
from marlflow.runs.saved_runs import EXPERIMENT, RANDOM, Which, chosen, folder, located
from marlflow.sampling.mapping import Rule, group
from marlflow.sampling.mapping import policy_of as policy_of_agent

# Beyond this many parameters, and times those of the actor, a network is not built to compare its size.
_SMALL, _MOST_TIMES = 1_000_000, 16
_TRIES = 3
_SET_TRUST = "set league.trust={names}"


def load_policy(
    source: Path, member: str | None = None, checkpoint: Which = None, default: str | None = None
) -> SavedPolicy:
    """Load a member from a checkpoint of a run, or from an exported file, which has only one.

    `source` may be `gallery:<name>`, a run that comes with marlflow.
    With a `default` and no `member`, it is the one named `default`, or the only one that learned. Raises ConfigInvalid
    if there is no such folder, file or member, and CheckpointUnusable.
    """
    place = located(source)
    if place.is_dir():
        check_links(place)
        if not folder(place).is_dir():
            raise ConfigInvalid([f"{source} is the folder of no run: it has no checkpoints"])
        saved, name = _while_it_runs(lambda: _of_run(place, member, checkpoint, default))
        return replace(saved, source=f"{name} of {source}")
    if checkpoint is not None:
        raise ConfigInvalid([f"{source} has no checkpoint {checkpoint}: it is not the folder of a run"])
    if not source.is_file():
        raise ConfigInvalid([f"there is no {source}; give the folder of a run, or a file of marlflow league --export"])
    saved = read_export(source)
    if member not in (None, saved.description["member"]):
        raise ConfigInvalid([f"{source} has the member {saved.description['member']!r} and no other, not {member!r}"])
    return saved


def _of_run(source: Path, member: str | None, checkpoint: Which, default: str | None) -> tuple[SavedPolicy, str]:
    """Return a member of a run, and its name."""
    run = saved_run(source, chosen(source, checkpoint))
    learned = [name for learner in run.notes.identity["learners"].values() for name in learner["policies"]]
    if member is None:
        only = learned if default is not None else run.names
        member = default if default in run.names else only[0] if len(only) == 1 else None
    if member is None:
        raise ConfigInvalid([f"{source} has several members; name one: {', '.join(run.names)}"])
    return policy_of(run, member), member


def _while_it_runs(load: Callable[[], tuple[SavedPolicy, str]]) -> tuple[SavedPolicy, str]:
    # A run that is still being trained may remove a checkpoint that is being read.
    for _ in range(_TRIES - 1):
        with suppress(CheckpointUnusable):
            return load()
    return load()


def policy_of(run: SavedRun, member: str) -> SavedPolicy:
    """Return a member of a run, with the configuration of its network; raises as `saved_policy`."""
    saved = saved_policy(run, member)
    if "config" in saved.description:
        return saved
    snapshots = _mapping(_mapping(_experiment(run.run_dir).get("league")).get("snapshots"))
    description = {
        **saved.description,
        "config": _config(run.run_dir, saved.description["policy"]),
        "acts": snapshots.get("acts", "auto"),
    }
    return replace(saved, description=description)


def players_of(run: SavedRun, agents: Sequence[str]) -> dict[str, str]:
    """Return who played each agent in a run; raises ConfigInvalid if that was drawn for each episode."""
    policies, rules = run.notes.identity["policies"], _experiment(run.run_dir).get("mapping")
    learning = [name for one in run.notes.identity["learners"].values() for name in one["policies"]]
    if isinstance(rules, list):
        listed = [Rule(str(_mapping(one).get("match")), str(_mapping(one).get("policy"))) for one in rules]
        players = {agent: policy_of_agent(agent, listed) for agent in agents}
    elif rules is None and run.league is None and not run.dealt:
        players = {agent: group(agent) for agent in agents}
    else:
        players = dict.fromkeys(agents, learning[0] if len(learning) == 1 else None)
    found = {agent: name for agent, name in players.items() if name is not None and name in policies}
    if len(found) < len(agents):
        raise ConfigInvalid(
            [
                f"{run.run_dir}: who played {next(agent for agent in agents if agent not in found)!r} is not known; "
                f"name a member, {run.run_dir}:{next(iter(run.names), 'main')}, say"
            ]
        )
    return found


def recorded(run_dir: Path, file: str, key: str = "") -> dict[str, Any]:
    """Return a part of what a run from the command line recorded, as plain data, unresolved; empty without it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        values = OmegaConf.to_container(OmegaConf.load(run_dir / ".hydra" / file), resolve=False)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException):
        return {}
    for name in key.split(".") if key else ():
        values = values.get(name) if isinstance(values, dict) else None
    return {str(name): value for name, value in values.items()} if isinstance(values, dict) else {}


def _config(run_dir: Path, policy: str) -> Mapping[str, Any] | None:
    """Return the algorithm and model of a policy as configured; None if that was not recorded."""
    experiment = _experiment(run_dir)
    found = _mapping(experiment.get("policies")).get(policy, experiment.get("default_policy"))
    config = {key: found[key] for key in ("algorithm", "model") if key in found} if isinstance(found, dict) else {}
    for learner in _mapping(experiment.get("learners")).values():
        if isinstance(learner, dict) and policy in (learner.get("policies") or ()):
            config["algorithm"] = learner.get("algorithm")
    return config or None


def _experiment(run_dir: Path) -> dict[str, Any]:
    try:
        return _mapping(with_current_names(json.loads((run_dir / EXPERIMENT).read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError):
        # It is damaged, or missing; the command line's record has the same.
        return recorded(run_dir, "config.yaml")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def imported_policy(saved: SavedPolicy, trust: Collection[str] | None, remedy: str = _SET_TRUST) -> Policy:
    """Return a policy that acts as `saved`, made of marlflow's classes and those in `trust` (None: any).

    Raises ConfigInvalid, with the `remedy`, if it names others, or if its configuration is not valid.
    """
    config, source = saved.description["config"], saved.source
    if not config:
        raise ConfigInvalid(
            [f"{source}: its run recorded no configuration, so the classes of its network are not known"]
        )
    config = with_parts(without_extra_losses(config))
    if found := untrusted(config, trust, shipped_parts.POLICY):
        raise ConfigInvalid([refusal(source, found, remedy.format(names=listed(found)))])
    problems: list[str] = []
    algorithm: Any = fit(config.get("algorithm"), Algorithm | None, f"{source}: algorithm", problems)
    model = fit(config.get("model") or {TARGET: "marlflow.MLP"}, TorsoConfig, f"{source}: model", problems)
    if problems or algorithm is LEFT or model is LEFT:
        raise ConfigInvalid(problems)
    own = Policy(algorithm, model)
    if problems := [f"{source}: {problem}" for problem in setting_problems(own)]:
        raise ConfigInvalid(problems)
    if not own.acts_by.capabilities.learns or own.acts_by.capabilities.tasks:
        raise ConfigInvalid([f"{source}: {own.acts_by.name} does not act by fixed parameters alone"])
    return Policy(Imported(saved, own.acts_by), own.model)


def fitting_policy(
    saved: SavedPolicy, seats: Mapping[str, Spaces], trust: Collection[str] | None, remedy: str = _SET_TRUST
) -> tuple[Policy, list[str]]:
    """Return `imported_policy` and the agents of `seats` that it can play; raises ConfigInvalid if there are none."""
    wrong = {agent: space_problem(saved, spaces, agent) for agent, spaces in seats.items()}
    fitting = [agent for agent, problem in wrong.items() if problem is None]
    if not fitting:
        raise ConfigInvalid([f"{next(iter(wrong.values()))}; name a member of a run of this environment"])
    policy = imported_policy(saved, trust, remedy)
    if problem := size_problem(policy, seats[fitting[0]]):
        raise ConfigInvalid([problem])
    return policy, fitting


def space_problem(saved: SavedPolicy, spaces: Spaces, agent: str) -> str | None:
    """Return why a policy cannot play an agent with other spaces than its own; None if they are equal."""
    theirs = as_text(spaces.observation), as_text(spaces.action)
    if saved.spaces == theirs:
        return None
    return (
        f"{saved.source} observes {saved.spaces[0]} and acts in {saved.spaces[1]}, and agent {agent!r} observes "
        f"{theirs[0]} and acts in {theirs[1]}"
    )


def size_problem(policy: Policy, spaces: Spaces) -> str | None:
    """Return why the parameters of an imported policy do not fit its network; None if they do."""
    algorithm = policy.acts_by
    assert isinstance(algorithm, Imported)
    saved = algorithm.saved
    # Counted without memory, with critics, because a file may describe a network of any size.
    count = parameters_of(functools.partial(algorithm.algorithm.actor, spaces, policy.model, 0))
    try:
        if count is None or count <= _MOST_TIMES * len(saved.flat) + _SMALL:
            algorithm.actor(spaces, policy.model, 0)
            return None
    except WeightsMismatch:
        pass
    return (
        f"{saved.source} has {len(saved.flat):,} parameters, which are not those of the network that it describes; its "
        "configuration was changed, or is of another version of marlflow"
    )


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


FROM, MEMBER, POLICY = "from", "member", "policy"
COPY: Final = "copy"
"""A key that resuming adds: the file of a checkpoint to load the member from, whose source may be gone."""
_KEYS = (FROM, MEMBER, POLICY)
_NOT_IN_NAMES = "@:/"


def added_members(
    experiment: Experiment, taken: Collection[str], adapter: EnvAdapter, problems: Problems
) -> dict[str, tuple[Policy, list[str]]]:
    """Return the policy of each of `league.members` and the agents whose spaces fit; append to `problems`.

    `taken` are the names of the run's policies. A policy that is only renamed fits every agent.
    """
    assert experiment.league is not None
    added = {}
    for name, given in experiment.league.members.items():
        path = f"league.members.{name}"
        if wrong := _wrong(name, given, taken, path):
            problems += wrong
            continue
        if POLICY in given:
            if (policy := _renamed(given[POLICY], experiment, path, problems)) is not None:
                added[name] = policy, list(adapter.agents)
            continue
        try:
            added[name] = _loaded_member(given, experiment.league.trust, adapter)
        except InvalidInput as error:
            problems += [f"{path}: {problem}" for problem in error.problems]
    return added


def _wrong(name: str, given: Mapping[str, str], taken: Collection[str], path: str) -> list[str]:
    if name in taken:
        return [f"{path}: the name is taken by a policy of this run; give the member another one"]
    if not name or any(sign in name for sign in _NOT_IN_NAMES):
        return [f"{path}: a name has none of {' '.join(_NOT_IN_NAMES)}, which mark snapshots and sources"]
    keys = (*_KEYS, COPY)
    if unknown := [misspelled_key(f"{path}.{key}", key, _KEYS, "a member") for key in given if key not in keys]:
        return unknown
    if (FROM in given) == (POLICY in given) or (MEMBER in given and POLICY in given):
        return [
            f"{path} must be {{from: <folder of a run>, member: <id>}}, {{from: <exported file>}} or "
            f"{{policy: <policy>}}, not {dict(given)}"
        ]
    return []


def _renamed(policy: str, experiment: Experiment, path: str, problems: Problems) -> Policy | None:
    policies = experiment.policies
    if policy == RANDOM and RANDOM not in policies:
        return Policy(Random())
    fixed = [name for name, one in policies.items() if not one.acts_by.capabilities.learns]
    if policy not in policies:
        known = meant(policy, [*fixed, RANDOM], "those that never change are")
        problems.append(f"{path}.policy: there is no policy {policy!r}{known}")
        return None
    if policy not in fixed:
        problems.append(f"{path}.policy: {policy!r} learns, so it is a member itself; name one that never changes")
        return None
    return policies[policy]


def _loaded_member(given: Mapping[str, str], trust: Sequence[str], adapter: EnvAdapter) -> tuple[Policy, list[str]]:
    saved = load_policy(Path(given.get(COPY, given[FROM])), None if COPY in given else given.get(MEMBER))
    return fitting_policy(saved, {agent: spaces_of(adapter, agent) for agent in adapter.agents}, trust)


def described_member(name: str, algorithm: Algorithm) -> str:
    """Return one line on a member from elsewhere, such as `member veteran: main@12 of runs/c4/a (ppo, ...)`."""
    return f"member {name}: {described_source(algorithm)}"
