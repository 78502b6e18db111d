"""The entrants of an evaluation: members of runs, exported files, `random`, and the mixture of a PSRO run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.algorithms.from_run import Imported, SavedPolicy
from marlflow.algorithms.scripted import Random
from marlflow.base.errors import CheckpointUnusable, ConfigInvalid
from marlflow.base.links import check_links
from marlflow.base.spaces import Spaces
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Policy
from marlflow.config.imported_policies import (
    fitting_policy,
    load_policy,
    players_of,
    policy_of,
    size_problem,
)
from marlflow.config.recorded import recorded_run
from marlflow.league.modes import pick
from marlflow.league.sides import Sides
from marlflow.policy.actor import AskedMode
from marlflow.runs.saved_league import SavedRun, saved_run
from marlflow.runs.saved_policies import import_file, saved_policy
from marlflow.runs.saved_runs import EXPORTED, MIXTURE, PREFIX, RANDOM, TEAM, chosen, located, no_member
from marlflow.runtime.spec import PolicySpec

_REMEDY = "add --trust, or give trust=[...] from Python"


@dataclass(frozen=True)
class Entrant:
    """An entrant that can be seated, named `label`: a policy, a mixture of several, or a team.

    `policies` has the policy that plays each agent; agents that it cannot play are missing. A mixture has none, but
    `parts` by label, and the weight of each by role. `about` is plain data for a report, and `source` says which file
    or checkpoint it comes from.
    """

    label: str
    policies: Mapping[str, PolicySpec] = field(default_factory=dict)
    mode: AskedMode = "as_learned"
    about: Mapping[str, Any] = field(default_factory=dict)
    mixture: Sequence[Mapping[str, float]] = ()
    parts: Mapping[str, Entrant] = field(default_factory=dict)
    is_team: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)

    def plays(self, agents: Collection[str]) -> bool:
        """Return whether the entrant can play all of `agents`."""
        return bool(self.mixture) or all(agent in self.policies for agent in agents)

    def shown(self, agent: str) -> str:
        """Return the name that reports show for the player of an agent: in a team, the name of its policy."""
        return self.policies[agent].name if self.is_team else self.label

    def drawn(self, role: int, generator: np.random.Generator) -> Entrant:
        """Return the entrant that plays a role in one game: itself, or a part of a mixture."""
        if not self.mixture:
            return self
        weights = self.mixture[role]
        return self.parts[pick(list(weights), generator, np.array(list(weights.values())))]

    @property
    def everybody(self) -> Sequence[Entrant]:
        """All entrants that may be drawn."""
        return tuple(self.parts.values()) if self.mixture else (self,)


def _fixed_policies(checked: CheckedExperiment, seats: Mapping[str, Spaces]) -> dict[str, dict[str, PolicySpec]]:
    """Return the run's policies that do not learn: by name, the policy for each agent that they can play.

    Opponents of the run's evaluation are among them, which have a policy for each kind of seat.
    """
    found: dict[str, dict[str, PolicySpec]] = {}
    for name, spec in checked.spec.policies.items():
        if not spec.algorithm.capabilities.learns:
            found[name] = {agent: spec for agent in seats if agent in checked.players[name]}
    for spec in checked.spec.opponents.values():
        name, _, _ = spec.name.partition("/")
        fitting = {agent: spec for agent, spaces in seats.items() if spaces == spec.spaces}
        # `random` need not be a policy of the run.
        if name in checked.experiment.policies and fitting:
            found.setdefault(name, {}).update(fitting)
    return found


def _source(run: SavedRun) -> dict[str, Any]:
    return {"folder": str(run.run_dir), "checkpoint": run.checkpoint.env_steps}


class Entrants:
    """Finds entrants by label for the environment of a run.

    A label is a member or policy of the run, `random`, `mixture`, `team`, the folder of a run, `<folder>:<member>`, or
    an exported file. Policies that only play in the run's evaluation are among its policies. Paths begin at `base`.
    Mixtures need `sides`. Classes of others are marlflow's or in `trust`; None trusts all. For other runs, the newest
    whole checkpoint plays; if `strict`, a damaged newest checkpoint is refused.
    """

    def __init__(
        self,
        checked: CheckedExperiment,
        run: SavedRun,
        sides: Sides | None,
        base: Path,
        trust: Collection[str] | None,
        strict: bool = False,
    ) -> None:
        self._checked, self._run, self._sides = checked, run, sides
        self._base, self._trust, self._strict = base, trust, strict
        policies = checked.spec.policies
        players = {agent: name for name, agents in checked.players.items() for agent in agents if name in policies}
        self.seats: dict[str, Spaces] = {agent: policies[players[agent]].spaces for agent in checked.agents}
        """The spaces of each agent."""
        self._fixed = _fixed_policies(checked, self.seats)
        self._runs: dict[Path, SavedRun] = {}
        # Policies of the run that were read before they were asked for.
        self._read: dict[str, SavedPolicy] = {}

    @property
    def names(self) -> list[str]:
        """The players of the run: members or policies, frozen versions, and policies that only play in evaluation."""
        return list(dict.fromkeys([*self._run.names, *self._fixed]))

    def read(self, labels: Iterable[str]) -> None:
        """Read these policies of the run from its checkpoint; raises CheckpointUnusable."""
        self._read.update({label: saved_policy(self._run, label) for label in labels})

    def find(self, label: str) -> Entrant:
        """Return an entrant; raises InvalidInput if there is none or it cannot play here."""
        if label in self._fixed:
            return self._unlearning(label)
        if label in self._run.names:
            return self._own(label)
        if label == RANDOM:
            return self._random(label)
        if label == MIXTURE:
            return self._mixture(label, self._run, self.find)
        if label == TEAM:
            return self.own_team()
        if (path := self._folder(label)) is not None:
            return self._team_of(label, path)
        source, colon, member = label.rpartition(":")
        if colon:
            return self._of_run(label, source, member)
        if label.endswith(EXPORTED) or (self._base / label).is_file():
            return self._saved(label, load_policy(self._base / label), self._trust, {"file": str(self._base / label)})
        known = [*self.names, RANDOM, TEAM, *([MIXTURE] if self._has_mixture(self._run) else [])]
        raise ConfigInvalid([no_member(label, list(dict.fromkeys(known)))])

    def _folder(self, label: str) -> Path | None:
        """Return the folder that a label names without a member in it, if it names one."""
        if label.startswith(PREFIX):
            return None if ":" in label.removeprefix(PREFIX) else located(label)
        return self._base / label if (self._base / label).is_dir() else None

    def _unlearning(self, label: str) -> Entrant:
        policies = self._fixed[label]
        spec = next(iter(policies.values()))
        about = self._described(spec.algorithm.saved) if isinstance(spec.algorithm, Imported) else {}
        acts = spec.mode(self._acts)
        return Entrant(label, policies, self._acts, {"algorithm": spec.algorithm.name, **about, "acts": acts})

    def _own(self, label: str) -> Entrant:
        policies = self._checked.spec.policies
        saved = self._read.get(label) or saved_policy(self._run, label)
        name = saved.description["policy"]
        spec = policies[name]
        algorithm = Imported(saved, spec.algorithm)
        if problem := size_problem(Policy(algorithm, spec.model), spec.spaces):
            raise ConfigInvalid([problem])
        seats = self._checked.players[name]
        own = replace(spec, algorithm=algorithm)
        return self._entrant(label, own, seats, self._acts, self._described(saved), _source(self._run))

    def own_team(self) -> Entrant:
        """Return the policies of the run as a team; raises ConfigInvalid if a matchmaker assigns agents."""
        mapping, learning = self._checked.spec.mapping, self._checked.spec.learning
        if not isinstance(mapping, Mapping) and len(learning) == 1:
            mapping = {agent: name for name in learning for agent in self._checked.players[name]}
        if not isinstance(mapping, Mapping):
            names = ", ".join(self._run.names)
            raise ConfigInvalid(
                [f"{TEAM}: who plays whom was drawn for each episode of {self._run.run_dir}; name one of {names}"]
            )
        own = {name: self.find(name) for name in dict.fromkeys(mapping.values())}
        policies = {agent: own[name].policies[agent] for agent, name in mapping.items()}
        return Entrant(TEAM, policies, self._acts, {name: dict(one.about) for name, one in own.items()}, is_team=True)

    def _team_of(self, label: str, path: Path) -> Entrant:
        if path.resolve() == self._run.run_dir.resolve():
            return replace(self.own_team(), label=label)
        run = self._other(path)
        names = players_of(run, tuple(self.seats))
        theirs = {name: self._of_run(f"{label}:{name}", label, name) for name in dict.fromkeys(names.values())}
        if lacking := [agent for agent, name in names.items() if agent not in theirs[name].policies]:
            problem = f"{label}: its policy {names[lacking[0]]!r} cannot play agent {lacking[0]!r}"
            raise ConfigInvalid([f"{problem}; name a run of this environment, or one member of it"])
        policies = {agent: theirs[name].policies[agent] for agent, name in names.items()}
        mode = next(iter(theirs.values())).mode
        about = {name: dict(one.about) for name, one in theirs.items()}
        return Entrant(label, policies, mode, about, is_team=True)

    @property
    def _acts(self) -> AskedMode:
        league = self._checked.experiment.league
        return "as_learned" if league is None else league.snapshots.asked_mode

    def _random(self, label: str) -> Entrant:
        seed = self._checked.spec.seed
        model = Policy().model
        # Agents of equal spaces share a policy, named after the first of them.
        first = {agent: next(one for one, of in self.seats.items() if of == own) for agent, own in self.seats.items()}
        policies = {
            agent: PolicySpec(f"{label}/{first[agent]}", Random(), model, spaces, seed)
            for agent, spaces in self.seats.items()
        }
        return Entrant(label, policies, about={"algorithm": RANDOM})

    def _of_run(self, label: str, source: str, member: str) -> Entrant:
        path = located(source, self._base)
        if not path.is_dir():
            raise ConfigInvalid([f"{label}: there is no directory {source}; before the colon comes that of a run"])
        if member == MIXTURE:
            return self._mixture(label, self._other(path), lambda part: self.find(f"{source}:{part}"))
        if member == RANDOM or self._is_random(path, member):
            return self._random(label)
        run = self._other(path)
        trust = self._trust_in(run, member)
        try:
            saved = policy_of(run, member)
        except CheckpointUnusable:
            # A running training may have removed the checkpoint since it was read.
            del self._runs[path]
            run = self._other(path)
            saved = policy_of(run, member)
        return self._saved(label, saved, trust, _source(run))

    def _trust_in(self, run: SavedRun, member: str) -> Collection[str] | None:
        """Trust the records of a run of this user, but not a member's file that the run imported."""
        with suppress(ConfigInvalid):
            if import_file(member) not in run.checkpoint.names and recorded_run(run.run_dir).is_own:
                return None
        return self._trust

    def _is_random(self, path: Path, member: str) -> bool:
        about = self._other(path).notes.identity["policies"].get(member, {})
        return bool(about.get("algorithm") == RANDOM)

    def _other(self, path: Path) -> SavedRun:
        if path not in self._runs:
            check_links(path)
            self._runs[path] = saved_run(path, chosen(path, strict=self._strict))
        return self._runs[path]

    def _saved(
        self, label: str, saved: SavedPolicy, trust: Collection[str] | None, source: Mapping[str, Any]
    ) -> Entrant:
        policy, seats = fitting_policy(saved, self.seats, trust, _REMEDY)
        spec = PolicySpec(label, policy.acts_by, policy.model, self.seats[seats[0]], self._checked.spec.seed)
        return self._entrant(label, spec, seats, saved.acts, self._described(saved), source)

    def _entrant(
        self,
        label: str,
        spec: PolicySpec,
        seats: Collection[str],
        mode: AskedMode,
        about: Mapping[str, Any],
        source: Mapping[str, Any],
    ) -> Entrant:
        policies = {agent: replace(spec, name=label) for agent in self.seats if agent in seats}
        return Entrant(label, policies, mode, {**about, "acts": spec.mode(mode)}, source=source)

    def _described(self, saved: SavedPolicy) -> dict[str, Any]:
        shown = ("member", "policy", "algorithm", "version", "env_steps", "agent_steps", "run")
        return {**{name: saved.description.get(name) for name in shown}, "sha256": saved.sha256}

    @staticmethod
    def _has_mixture(run: SavedRun) -> bool:
        return run.league is not None and bool(run.league.meta)

    def _mixture(self, label: str, run: SavedRun, find: Callable[[str], Entrant]) -> Entrant:
        if run.league is None or not run.league.meta:
            raise ConfigInvalid(
                [f"{label}: {run.run_dir} has no meta-strategy; a run with league=psro has one after its first matches"]
            )
        roles = [role.agents for role in self._sides.roles] if self._sides is not None else []
        theirs = [role.agents for role in run.league.members.sides.roles]
        if roles != theirs:
            raise ConfigInvalid(
                [f"{label}: the roles of {run.run_dir} are {theirs}, and the roles of this run are {roles}"]
            )
        mixture = [{name: weight for name, weight in of_role.items() if weight > 0} for of_role in run.league.meta]
        names = dict.fromkeys(name for of_role in mixture for name in of_role)
        return Entrant(label, mixture=mixture, parts={name: find(name) for name in names}, about={"meta": mixture})
