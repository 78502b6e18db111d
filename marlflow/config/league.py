"""Check a league before it starts: its sides, who plays what, and its snapshots; and make the dealer of matchups."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from marlflow.base.errors import MatchmakerFailed, Problems
from marlflow.base.sentences import enumerated, meant
from marlflow.base.serialization import to_bytes
from marlflow.batches.items import Weights
from marlflow.config.checked import CheckedExperiment
from marlflow.config.comments import files
from marlflow.config.experiment import Experiment, Policy
from marlflow.config.imported_policies import added_members
from marlflow.config.opponents import only_opponents
from marlflow.config.policy_assignment import TRIAL_EPISODES, PolicyAssignment, failure_problem, policy_settings
from marlflow.config.target_nodes import TARGET
from marlflow.env import EnvAdapter
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.league import League, StoreSettings
from marlflow.league.members import Members
from marlflow.league.modes import (
    PFSP,
    DeltaUniform,
    Fictitious,
    LatestPast,
    LeagueMode,
)
from marlflow.league.nfsp import NFSP
from marlflow.league.payoffs import Payoffs, scores_by, trial_result
from marlflow.league.ratings import Ratings
from marlflow.league.sides import Sides, sides_of
from marlflow.matchmaking.dealer import Dealer
from marlflow.matchmaking.matchmakers import (
    TRIAL,
    AllowedSeats,
    EpisodeId,
    MatchmakerFunction,
    change_of,
    deal_one,
    matches_of,
    matchmaker_name,
)
from marlflow.sampling.mapping import group
from marlflow.sampling.population import FrozenStore, Population

# Modes that seat snapshots; without any they would only ever seat live policies.
_OF_THE_PAST = (LatestPast, DeltaUniform, Fictitious, PFSP)


def assign_league(experiment: Experiment, league: League, adapter: EnvAdapter, problems: Problems) -> PolicyAssignment:
    """Assign the agents that each policy can play in a league; append what prevents the league to `problems`.

    A policy plays the group of its name, or else all agents, unless `league.players` names them. `default_policy`
    plays the groups that are left.
    """
    if experiment.mapping is not None:
        problems.append("league: it decides who plays whom, and mapping does too; set mapping=null, or league=none")
    if not adapter.declared:
        problems.append(
            "league: the environment does not declare its agents, so nobody can be seated before an episode; give it "
            "possible_agents, or choose league=none"
        )
        return PolicyAssignment(experiment.policies, {}, None)
    found: Problems = []
    sides, side_problems = sides_of(league.sides, adapter.agents)
    found += side_problems
    seating = _Seating(experiment, league, adapter)
    policies, agents = seating.assigned(found)
    if not side_problems:
        found += _role_problems(sides, agents)
        found += _symmetry_problems(league, sides, adapter)
    live = [name for name, policy in policies.items() if policy.acts_by.capabilities.learns]
    found += _share_problems(league, live)
    found += _snapshot_problems(league)
    found += _store_problems(league, sides)
    found += _match_problems(league)
    if not side_problems:
        found += _outcome_problems(league, sides)
    if not found and not problems and live:
        found += _trial_problems(league, sides, agents, live, experiment.seed) or _imitation_problems(league, policies)
    problems += found
    return PolicyAssignment(policies, agents, None)


def league_matchmaker(
    league: League, sides: Sides, fits: Mapping[str, Sequence[str]], live: Sequence[str], seed: int
) -> LeagueMatchmaker:
    """Return the matchmaker of a league, in its initial state; `fits` has the agents that each policy can play."""
    counted, rated = league.payoffs, league.ratings
    return LeagueMatchmaker(
        Members(
            sides, fits, live, league.pool.newest, league.pool.best, [name for name in league.members if name in fits]
        ),
        # Copied, because a mode may have state, and an experiment is data and may be run again.
        copy.deepcopy(league.matchmaker),
        Payoffs(sides, live, counted.decay, counted.prior_games, league.symmetric),
        Ratings(live, rated.beta, rated.tau),
        league.snapshots,
        {policy: league.share(policy) for policy in live},
        league.teammates,
        seed,
        league.matches,
        league.outcome,
    )


def mode_name(mode: LeagueMode) -> str:
    """Return the name of a mode in conf/league; of a user's own, its class's."""
    kind = type(mode)
    for name, file in files("league").items():
        targets = [entry.value for entry in file.entries if entry.path == ("matchmaker", TARGET)]
        if targets == [f"marlflow.league.{kind.__name__}"] and kind.__module__.startswith("marlflow.league."):
            return name
    return kind.__name__


@dataclass(frozen=True, slots=True)
class _Seating:
    """Find the agents of each policy."""

    experiment: Experiment
    league: League
    adapter: EnvAdapter

    def assigned(self, problems: Problems) -> tuple[dict[str, Policy], dict[str, list[str]]]:
        """Return the policies of the league and the agents of each; append to `problems`."""
        given, players = self.experiment.policies, self.league.players
        opponents = only_opponents(self.experiment) - set(players) - set(self._groups())
        policies = {name: policy for name, policy in given.items() if name not in opponents}
        agents = {name: self._agents_of(name, problems) for name in policies}
        played = {agent for names in agents.values() for agent in names}
        for name, of_group in self._groups().items():
            if name not in given and not played.issuperset(of_group):
                policies[name] = policy_settings(self.experiment, name)
                agents[name] = self._agents_of(name, problems)
        added = added_members(self.experiment, {*given, *policies}, self.adapter, problems)
        for name, (policy, fitting) in added.items():
            policies[name], agents[name] = policy, self._agents_of_added(name, fitting, problems)
        for name in players:
            if name not in policies and name not in self.league.members:
                known = meant(name, policies, "the policies are")
                problems.append(f"league.players: there is no policy {name!r}{known}")
        return policies, {name: names for name, names in agents.items() if names}

    def _groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for agent in self.adapter.agents:
            groups.setdefault(group(agent), []).append(agent)
        return groups

    def _agents_of(self, policy: str, problems: Problems) -> list[str]:
        player = self.league.players.get(policy)
        if player is not None and player.plays is not None:
            return self._matching(policy, player.plays, problems)
        if policy in self._groups():
            return self._groups()[policy]
        if len({_spaces(self.adapter, agent) for agent in self.adapter.agents}) > 1:
            groups = ", ".join(self._groups())
            problems.append(
                f"league: policy {policy!r} cannot play all agents, whose spaces differ; say which ones it plays, "
                f"league.players.{policy}.plays=[...], or name it like their group: {groups}"
            )
            return []
        return list(self.adapter.agents)

    def _agents_of_added(self, member: str, fitting: Sequence[str], problems: Problems) -> list[str]:
        if len(fitting) == len(self.adapter.agents):
            return self._agents_of(member, problems)
        player = self.league.players.get(member)
        if player is None or player.plays is None:
            return list(fitting)
        plays = self._matching(member, player.plays, problems)
        if others := [agent for agent in plays if agent not in fitting]:
            problems.append(
                f"league.players.{member}.plays: the spaces of {enumerated(others)} are others than those of "
                f"{member!r}; it can play {enumerated(fitting)}"
            )
        return plays

    def _matching(self, policy: str, patterns: Sequence[str], problems: Problems) -> list[str]:
        agents = self.adapter.agents
        where = f"league.players.{policy}.plays"
        for pattern in patterns:
            if not any(fnmatchcase(agent, pattern) for agent in agents):
                problems.append(f"{where}: {pattern!r} matches no agent; the agents are {enumerated(agents)}")
        if not patterns:
            problems.append(f"{where} is empty; name agents, or set it to null")
        return [agent for agent in agents if any(fnmatchcase(agent, pattern) for pattern in patterns)]


def _spaces(adapter: EnvAdapter, agent: str) -> tuple[str, str]:
    # Spaces cannot be hashed, so they are compared as text.
    return str(adapter.observation_space(agent)), str(adapter.action_space(agent))


def _role_problems(sides: Sides, agents: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for role in sides.roles:
        if not any(set(role.agents) <= set(names) for names in agents.values()):
            yield (
                f"league: no policy can play role {role.name!r} ({enumerated(role.agents)}), all of whose agents one "
                "policy has to play; add one, widen league.players.<id>.plays, or divide the role in league.sides"
            )
    for policy, names in agents.items():
        if not any(set(role.agents) <= set(names) for role in sides.roles):
            yield (
                f"league: policy {policy!r} can play no role: it plays {enumerated(names)}, and no role has only such "
                "agents; widen its league.players.<id>.plays, or remove it"
            )


def _symmetry_problems(league: League, sides: Sides, adapter: EnvAdapter) -> Iterator[str]:
    if not league.symmetric:
        return
    first, *others = ([sides.roles[role] for role in sides.of_side(side)] for side in range(len(sides.names)))
    for name, roles in zip(sides.names[1:], others, strict=True):
        one, other = ([[_spaces(adapter, agent) for agent in role.agents] for role in of] for of in (first, roles))
        if one != other:
            yield (
                f"league.symmetric: sides {sides.names[0]!r} and {name!r} are not interchangeable, since their agents "
                "differ in number or in their spaces; set league.symmetric=false"
            )


def _share_problems(league: League, live: Sequence[str]) -> Iterator[str]:
    if league.matchmaker.seats_all_roles:
        name = mode_name(league.matchmaker)
        for policy, player in league.players.items():
            if player.share != 1.0:
                yield f"league.players.{policy}.share is not used: {name} decides who plays how often; leave it out"
        if league.teammates != "self":
            yield f"league.teammates is not used: {name} seats all roles of a game itself; leave it at self"
        return
    if live and not any(league.share(policy) for policy in live):
        yield "league.players: the share of every policy that learns is 0, so nobody's turn ever comes; raise one"


def _snapshot_problems(league: League) -> Iterator[str]:
    rules, mode = league.snapshots, league.matchmaker
    by_steps = rules.every_agent_steps is not None or rules.timeout_agent_steps is not None
    if rules.at_start or by_steps or mode.has_snapshot_rules:
        return
    if rules.win_rate is not None:
        yield (
            "league.snapshots: win_rate needs a snapshot to win against, and there will never be a first one; set "
            "at_start=true, or every_agent_steps"
        )
    elif isinstance(mode, _OF_THE_PAST):
        yield (
            f"league.snapshots: no rule ever takes a snapshot, and {mode_name(mode)} plays against snapshots; set "
            "at_start=true or every_agent_steps, or choose league=self_play"
        )


def _imitation_problems(league: League, policies: Mapping[str, Policy]) -> list[str]:
    """Return why policies of NFSP's pairs cannot have their parts."""
    if not isinstance(league.matchmaker, NFSP):
        return []
    problems = []
    for response, average in league.matchmaker.average_of.items():
        if not (algorithm := policies[average].acts_by).capabilities.imitates:
            problems.append(
                f"league.matchmaker: policy {average!r} ({algorithm.name}) has to imitate {response!r}, the best "
                f"response; use policy@policies.{average}=clone"
            )
        if (algorithm := policies[response].acts_by).capabilities.imitates:
            problems.append(
                f"league.matchmaker: policy {response!r} ({algorithm.name}) has to learn a best response; use "
                f"policy@policies.{response}=dqn"
            )
    return problems


def _store_problems(league: League, sides: Sides) -> Iterator[str]:
    distinct, roles = league.store.distinct_members, len(sides.roles)
    if distinct is not None and distinct < roles:
        yield (
            f"league.store.distinct_members: a game has {roles} roles, each of which another snapshot may play, and a "
            f"worker is dealt {distinct} at most; set it to {roles} or more, or to null"
        )


def _match_problems(league: League) -> Iterator[str]:
    if league.matches.workers and league.matches.every_env_steps is None and not is_meta_game(league):
        yield (
            f"league.matches.workers: {league.matches.workers} referees would have nothing to do, since "
            "league.matches.every_env_steps is null; set it, or league.matches.workers=0"
        )
    if league.pool.best is not None and league.matches.every_env_steps is None and not is_meta_game(league):
        yield (
            "league.pool.best: the best are those with the highest ratings, which come from matches, and there are "
            "none; set league.matches.every_env_steps, or league.pool.best=null"
        )


def _outcome_problems(league: League, sides: Sides) -> Iterator[str]:
    if league.outcome is not None:
        try:
            scores_by(league.outcome, sides, trial_result(sides))
        except MatchmakerFailed as error:
            yield failure_problem("league.outcome", error)


def num_referees(experiment: Experiment) -> int:
    """Return the number of processes that play the matches of a league."""
    return 0 if experiment.league is None else experiment.league.matches.workers


def is_meta_game(league: League) -> bool:
    """Return whether the mode of a league says itself which matches are played."""
    return league.matchmaker.has_meta_game


def _trial_problems(
    league: League, sides: Sides, agents: Mapping[str, Sequence[str]], live: Sequence[str], seed: int
) -> list[str]:
    """Deal some games as at the start of the run, in case the mode is a user's own."""
    matchmaker, population = league_matchmaker(league, sides, agents, live, seed), Population(agents)
    if found := league.matchmaker.problems(matchmaker.members):
        return [f"league.matchmaker: {problem}" for problem in found]
    try:
        change = change_of(matchmaker, population, dict.fromkeys(live, 0), dict.fromkeys(live, 0))
        population.apply(change, {name: Weights(0, None) for name in live}, {})
        seats = AllowedSeats([agent for role in sides.roles for agent in role.agents], population.fits)
        for episode in range(TRIAL_EPISODES):
            deal_one(matchmaker, seats, EpisodeId(TRIAL, episode), seed)
        matches_of(matchmaker)
        matchmaker.solution()
        to_bytes(matchmaker.state())
    except MatchmakerFailed as error:
        return [failure_problem("league", error)]
    except TypeError as error:
        return [f"league: the state of matchmaker {matchmaker_name(matchmaker)} cannot be saved: {error}"]
    return []


def store_of(experiment: Experiment) -> StoreSettings:
    """Return where parameters of frozen entries are held."""
    return StoreSettings() if experiment.league is None else experiment.league.store


def dealer_of(checked: CheckedExperiment, store: FrozenStore | None = None) -> Dealer | None:
    """Return the dealer of a run with a matchmaker or a league, in its initial state; None if its mapping is fixed.

    Frozen entries are held in `store`; None: in memory.
    """
    experiment = checked.experiment
    matchmaker: MatchmakerFunction | None = None
    if experiment.league is not None:
        sides, _ = sides_of(experiment.league.sides, checked.agents)
        matchmaker = dealing = league_matchmaker(
            experiment.league, sides, checked.players, checked.spec.learning, checked.spec.seed
        )
        dealing.matches.modes = checked.spec.modes(experiment.league.snapshots.asked_mode)
    elif callable(experiment.mapping):
        # Copied, because an experiment is data and may be run again.
        matchmaker = copy.deepcopy(experiment.mapping)
    if matchmaker is None:
        return None
    spec, held = checked.spec, store_of(experiment)
    workers = [spec.env_indices_of(worker) for worker in range(spec.num_workers)]
    return Dealer(
        matchmaker, checked.seats, spec.num_envs, spec.seed, workers, store, held.worker_members, held.distinct_members
    )
