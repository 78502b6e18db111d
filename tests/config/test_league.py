"""Leagues as they are configured: what each choice gives, who plays what, and what is refused before a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import marlflow as mf
from marlflow import conf
from marlflow.checks.validation import ready
from marlflow.config.construct import fit
from marlflow.config.description import plain
from marlflow.config.league import dealer_of, mode_name
from marlflow.config.placement import drawn_placement
from marlflow.config.plans import league_work
from marlflow.driver.checkpointing import identity
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.runtime.resources import Machines, requests_of
from marlflow.sampling.receipts import EpisodeResult
from tests.config.composition import algorithms, experiment_of, prepared, ready_of
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.sentences import wrong_with

MODES = {
    "self_play": mf.NaiveSelfPlay,
    "latest_past": mf.LatestPast,
    "delta_uniform": mf.DeltaUniform,
    "fictitious": mf.Fictitious,
    "pfsp": mf.PFSP,
    "alphastar": mf.AlphaStar,
    "psro": mf.PSRO,
    "nfsp": mf.NFSP,
}
PAIR = mf.Env(RockPaperScissors, num_envs=4)
SELF = {"player_0": "player", "player_1": "player"}
NEVER = mf.SnapshotRules(at_start=False, every_agent_steps=None)
BY_MODE = mf.SnapshotRules(every_agent_steps=None)


class Teams(RockPaperScissors):
    """Two on each side; those of `wide` see more than the others."""

    wide: Sequence[str] = ("red_0", "red_1")

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["red_0", "red_1", "blue_0", "blue_1"]

    def observation_space(self, agent: str) -> Any:
        return Box(0.0, 1.0, (2 if agent in self.wide else 1,))


class EqualTeams(Teams):
    wide = ()


TEAMS, EQUAL_TEAMS = mf.Env(Teams, num_envs=4), mf.Env(EqualTeams, num_envs=4)


def run(env: mf.Env = PAIR, league: mf.League | None = None, **changes: Any) -> mf.Experiment:
    return mf.Experiment(env, league=mf.League() if league is None else league, **changes)


# -- conf/league ----------------------------------------------------------------------------------------------------


def test_the_choices_are_the_modes_and_none() -> None:
    assert {path.stem for path in (Path(conf.__path__[0]) / "league").glob("*.yaml")} == {*MODES, "none"}


@pytest.mark.parametrize("name", MODES)
def test_each_choice_has_the_defaults_of_the_classes(name: str) -> None:
    league = experiment_of("env=rps", f"league={name}").league
    rules = {"self_play": NEVER, "alphastar": BY_MODE, "psro": BY_MODE, "nfsp": NEVER}.get(name, mf.SnapshotRules())
    assert league == mf.League(MODES[name](), snapshots=rules)
    assert mode_name(MODES[name]()) == name


@pytest.mark.parametrize(
    ("overrides", "snapshots", "matches"),
    [
        ((), 10_000, 20_000),
        (("stop.env_steps=2000",), 1_000, 2_000),
        (("stop.env_steps=1e7",), 50_000, 100_000),
        (("stop.env_steps=null", "stop.time_s=9"), 50_000, 100_000),
        (("league.snapshots.every_agent_steps=7", "league.matches.every_env_steps=null"), 7, None),
    ],
)
def test_snapshots_and_matches_scale_with_the_run(
    overrides: Sequence[str], snapshots: int, matches: int | None
) -> None:
    league = ready_of("env=rps", "league=pfsp", *overrides).experiment.league
    assert league is not None
    assert (league.snapshots.every_agent_steps, league.matches.every_env_steps) == (snapshots, matches)


def test_matches_are_played_by_the_rules_of_the_configuration() -> None:
    checked = ready_of("env=rps", "league=fictitious", "league.matches.every_env_steps=50", "league.matches.games=6")
    matchmaker = dealer_of(checked).matchmaker
    matchmaker.change_population({"player": 1}, {"player": 0})
    matchmaker.observe([EpisodeResult(0, n, 30, dict.fromkeys(SELF, 0.0), 0, SELF) for n in range(2)])
    batch = matchmaker.matches_due()
    assert len(batch.matchups) == 6
    assert {frozenset(matchup.values()) for matchup in batch.matchups} == {frozenset({"player", "player@1"})}


def test_referees_have_processes_over_ray_and_none_in_one_process() -> None:
    words = ["env=rps", "league=pfsp", "league.matches.workers=2", "rollouts.num_workers=3"]
    checked = ready_of(*words, "runtime=ray")
    names = [request.name for request in requests_of(checked.spec)]
    assert names == [*(f"rollout worker {n}" for n in range(3)), "referee 0", "referee 1", "learner player"]
    table = drawn_placement(checked, Machines([{"CPU": 6.0}], here=False))
    assert "rollout workers 0 to 2  1 CPU each" in table
    assert "referees 0, 1           1 CPU each" in table
    assert league_work(checked.experiment.league, checked).rows[1][2].endswith(", by 2 referees, beside rounds")
    # Three workers, two referees and a learner need six CPUs if each has one.
    asked = experiment_of(*words, "runtime=ray", "rollouts.placement.num_cpus=1")
    assert any("5 CPU" in text for text in wrong_with(asked, Machines([{"CPU": 4.0}], here=False)))
    inline = ready_of(*words, "runtime=inline")
    assert drawn_placement(inline, None) == "placement: one process, without Ray; learner player on cpu"
    assert "referee" not in league_work(inline.experiment.league, inline).rows[1][2]


def test_psro_by_nash_is_refused_where_there_are_more_than_two_sides() -> None:
    three = [["red_0"]], [["red_1"]], [["blue_0", "blue_1"]]
    league = mf.League(mf.PSRO(), sides=dict(zip("abc", three, strict=True)), snapshots=BY_MODE)
    assert any("the solver 'nash' is for two sides of one role each" in text for text in wrong_with(run(TEAMS, league)))


def test_without_a_choice_there_is_none() -> None:
    assert experiment_of("env=rps").league is None
    assert experiment_of("env=rps", "league=none").league is None


def test_all_keys_can_be_set_from_the_command_line() -> None:
    league = experiment_of(
        "env=connect_four",
        "league=pfsp",
        "league.matchmaker.weighting=variance",
        "league.snapshots.win_rate=0.7",
        "league.pool.newest=3",
        "league.payoffs.decay=1",
        "league.players.player.share=2",
        "league.sides={first: [[player_0]], second: [[player_1]]}",
        "league.symmetric=true",
    ).league
    assert league is not None
    assert league.matchmaker == mf.PFSP(weighting="variance")
    assert (league.snapshots.win_rate, league.pool, league.payoffs.decay) == (0.7, mf.Pool(3), 1.0)
    assert league.players == {"player": mf.LeaguePlayer(share=2.0)}
    assert league.sides == {"first": (("player_0",),), "second": (("player_1",),)}
    assert league.symmetric


def test_another_mode_replaces_the_chosen_one_and_its_keys() -> None:
    league = experiment_of("env=rps", "league=pfsp", "league.matchmaker={_target_: marlflow.league.LatestPast}").league
    assert league is not None
    assert league.matchmaker == mf.LatestPast()


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["league=pfps"], "there is no league 'pfps'; did you mean 'pfsp'?"),
        (
            ["league=pfsp", "league.matchmaker={_target_: marlflow.league.PSFP}"],
            "league.matchmaker._target_: module marlflow.league has no 'PSFP'; did you mean 'PFSP'?",
        ),
        (["league=pfsp", "league.matchmaker.passt=0.5"], "did you mean 'league.matchmaker.past'?"),
        (["league=pfsp", "league.matchmaker.past=1.5"], "league.matchmaker.past must be at most 1, not 1.5"),
        (["league=pfsp", "league.matchmaker.weighting=herd"], "did you mean 'hard'?"),
        (["league=pfsp", "league.snapshots.every_agent_steps=0"], "every_agent_steps must be at least 1, not 0"),
        (
            ["league=pfsp", "league.matchmaker={_target_: builtins.set}"],
            "league.matchmaker must be LeagueMode, not set()",
        ),
        (["league.snapshots.min_games=3"], "choose a league first, such as league=pfsp"),
    ],
)
def test_a_wrong_choice_or_value_is_said(overrides: list[str], problem: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        ready_of("env=rps", *overrides)
    assert problem in str(caught.value)


def test_a_league_written_to_the_log_is_the_same_when_it_is_read() -> None:
    league = mf.League(mf.LatestPast(0.25, 3), players={"main": mf.LeaguePlayer(["player_*"])}, pool=mf.Pool(2))
    said: list[str] = []
    assert fit(plain(league), mf.League, "league", said) == dataclasses.replace(
        league, players={"main": mf.LeaguePlayer(("player_*",))}
    )
    assert said == []


def test_a_choice_is_shown_with_its_comments() -> None:
    from marlflow.config.comments import explained

    shown = explained("league:\n  matchmaker:\n    window: 10\n", plainly(prepared("env=rps", "league=latest_past")))
    assert "window: 10" in shown
    assert "# newest snapshots that are met" in shown


def plainly(job: Any) -> Mapping[str, Any]:
    from omegaconf import OmegaConf

    found: Any = OmegaConf.to_container(job.config, resolve=False)
    return found  # type: ignore[no-any-return]


# -- who plays what -------------------------------------------------------------------------------------------------


def test_one_policy_of_the_groups_name_plays_both_seats() -> None:
    made = ready_of("env=connect_four", "league=pfsp")
    assert algorithms(made) == {"player": "ppo"}
    assert made.players == {"player": ["player_0", "player_1"]}
    assert made.spec.mapping is None


def test_each_group_has_a_policy_its_own_or_the_default_one() -> None:
    made = ready_of("env=simple_tag", "league=pfsp", "policy@policies.agent=dqn")
    assert algorithms(made) == {"agent": "dqn", "adversary": "ppo"}
    assert made.players == {"agent": ["agent_0"], "adversary": ["adversary_0", "adversary_1", "adversary_2"]}


def test_policies_with_other_names_play_all_seats() -> None:
    made = ready(run(policies={"main": mf.Policy(mf.PPO()), "exploiter": mf.Policy(mf.DQN())}))
    assert made.players == {"main": ["player_0", "player_1"], "exploiter": ["player_0", "player_1"]}


def test_players_narrow_what_a_policy_plays_and_the_default_policy_plays_what_is_left() -> None:
    league = mf.League(
        mf.NaiveSelfPlay(), players={"main": mf.LeaguePlayer(["*_0"]), "player": mf.LeaguePlayer(["player_1"])}
    )
    made = ready(run(league=league, policies={"main": mf.Policy(mf.PPO())}))
    assert made.players == {"main": ["player_0"], "player": ["player_1"]}


def test_groups_are_kept_apart_even_if_their_spaces_are_equal() -> None:
    made = ready(run(EQUAL_TEAMS))
    assert made.players == {"red": ["red_0", "red_1"], "blue": ["blue_0", "blue_1"]}


def test_an_opponent_of_evaluations_alone_is_no_member() -> None:
    policies = {"main": mf.Policy(mf.PPO()), "weak": mf.Policy(mf.Random())}
    made = ready(run(policies=policies, evaluation=mf.Evaluation(opponents=["weak"])))
    assert list(made.spec.policies) == ["main"]


def test_the_matchmaker_of_a_run_has_what_was_configured() -> None:
    league = mf.League(
        mf.Fictitious(), symmetric=True, players={"main": mf.LeaguePlayer(share=3.0)}, teammates="past", pool=mf.Pool(2)
    )
    dealer = dealer_of(ready(run(league=league, policies={"main": mf.Policy(mf.PPO()), "other": mf.Policy(mf.DQN())})))
    assert dealer is not None
    matchmaker = dealer.matchmaker
    assert isinstance(matchmaker, LeagueMatchmaker)
    assert list(matchmaker.members.incarnations) == ["main", "other"]
    assert matchmaker.payoffs.symmetric
    assert matchmaker._shares == {"main": 3.0, "other": 1.0}
    assert matchmaker._teammates == "past"
    assert matchmaker.matches.payoffs.symmetric


def shorter_is_better(result: EpisodeResult, sides: Mapping[str, Sequence[str]], limit: int = 10) -> dict[str, float]:
    """Who has a positive return within `limit` env steps wins; else it is a draw."""
    return {side: float(result.env_steps <= limit and result.returns[agents[0]] > 0) for side, agents in sides.items()}


class Nobody:
    """No outcome."""


def test_an_outcome_is_a_function_with_settings_or_an_object_that_can_be_called() -> None:
    path = f"{shorter_is_better.__module__}.{{}}"
    words = ["env=connect_four", "league=pfsp"]
    league = experiment_of(*words, f"league.outcome={{_target_: {path.format('shorter_is_better')}, limit: 3}}").league
    assert league is not None
    assert league.outcome is not None
    result = EpisodeResult(0, 0, 3, {"a": 1.0, "b": -1.0})
    assert league.outcome(result, {"one": ["a"], "other": ["b"]}) == {"one": 1.0, "other": 0.0}
    assert league.outcome(dataclasses.replace(result, env_steps=4), {"one": ["a"]}) == {"one": 0.0}
    for word, problem in (
        (f"{{_target_: {path.format('Nobody')}}}", "league.outcome: Nobody is no outcome: it cannot be called with"),
        (f"{{_target_: {path.format('shorter_is_better')}, limits: 3}}", "did you mean 'league.outcome.limit'?"),
        ("{limit: 3}", "league.outcome must be null or {_target_: package.module.function, ...}"),
    ):
        with pytest.raises(mf.ConfigInvalid) as refused:
            experiment_of(*words, f"league.outcome={word}")
        assert problem in str(refused.value)


def test_one_line_says_what_the_league_is() -> None:
    made = ready_of("env=connect_four", "league=pfsp", "policy@policies.main=ppo", "policy@policies.exploiter=dqn")
    assert made.experiment.league is not None
    assert (
        league_work(made.experiment.league, made).title
        == "pfsp over main (ppo), exploiter (dqn); sides player_0 | player_1"
    )


def test_the_identity_of_a_run_has_mode_sides_and_players_but_no_numbers() -> None:
    def of(league: mf.League | None) -> Any:
        return identity(ready(mf.Experiment(PAIR, league=league))).get("league")

    one = of(mf.League(mf.PFSP(past=0.5)))
    assert of(None) is None
    assert one == of(mf.League(mf.PFSP(past=0.9), snapshots=mf.SnapshotRules(every_agent_steps=7), pool=mf.Pool(3)))
    others = [
        of(mf.League(mf.Fictitious())),
        of(mf.League(sides={"a": [["player_1"]], "b": [["player_0"]]})),
        of(mf.League(symmetric=True)),
    ]
    assert all(one != other for other in others)


# -- what is refused ------------------------------------------------------------------------------------------------


class Wrong(mf.LeagueMode):
    """A mode of a user's own that seats somebody whom nobody knows."""

    def rival(self, view: mf.LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        return "mian"


class Raising(mf.LeagueMode):
    """A mode of a user's own that fails."""

    def rival(self, view: mf.LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        raise KeyError(policy)


@pytest.mark.parametrize(
    ("experiment", "problem"),
    [
        (run(mapping=[mf.Rule("*", "main")], policies={"main": mf.Policy()}), "set mapping=null, or league=none"),
        (run(league=mf.League(sides={"a": [["player_0"]]})), "league.sides needs at least two sides"),
        (
            run(league=mf.League(sides={"a": [["player_0"]], "b": [["plaier_1"]]})),
            "league.sides.b: 'plaier_1' matches no agent; the agents are player_0, player_1",
        ),
        (
            run(TEAMS, mf.League(sides={"a": [["red_0", "blue_0"]], "b": [["red_1", "blue_1"]]})),
            "league: no policy can play role 'a' (red_0, blue_0), all of whose agents one policy has to play",
        ),
        (
            run(TEAMS, policies={"main": mf.Policy()}),
            "league: policy 'main' cannot play all agents, whose spaces differ; say which ones it plays, "
            "league.players.main.plays=[...], or name it like their group: red, blue",
        ),
        (run(league=mf.League(players={"plaier": mf.LeaguePlayer()})), "did you mean 'player'?"),
        (
            run(league=mf.League(players={"player": mf.LeaguePlayer(["seat_*"])})),
            "league.players.player.plays: 'seat_*' matches no agent; the agents are player_0, player_1",
        ),
        (run(league=mf.League(players={"player": mf.LeaguePlayer([])})), "league.players.player.plays is empty"),
        (
            run(EQUAL_TEAMS, mf.League(players={"red": mf.LeaguePlayer(["red_0"])})),
            "league: policy 'red' can play no role: it plays red_0",
        ),
        (
            run(TEAMS, mf.League(symmetric=True)),
            "league.symmetric: sides 'red' and 'blue' are not interchangeable, since their agents differ in number or "
            "in their spaces; set league.symmetric=false",
        ),
        (
            run(league=mf.League(store=mf.StoreSettings(distinct_members=1))),
            "league.store.distinct_members: a game has 2 roles",
        ),
        (run(policies={"player": mf.Policy(mf.Random())}), "no policy of this run learns"),
        (
            run(league=mf.League(players={"player": mf.LeaguePlayer(share=0.0)})),
            "league.players: the share of every policy that learns is 0",
        ),
        (run(league=mf.League(snapshots=NEVER)), "no rule ever takes a snapshot, and pfsp plays against snapshots"),
        (
            run(league=mf.League(mf.NaiveSelfPlay(), snapshots=dataclasses.replace(NEVER, win_rate=0.7))),
            "win_rate needs a snapshot to win against, and there will never be a first one",
        ),
        (
            run(league=mf.League(pool=mf.Pool(best=3), matches=mf.MatchRules(every_env_steps=None))),
            "league.pool.best: the best are those with the highest ratings, which come from matches",
        ),
        (
            run(league=mf.League(matches=mf.MatchRules(every_env_steps=None, workers=2))),
            "league.matches.workers: 2 referees would have nothing to do, since league.matches.every_env_steps is "
            "null; set it, or league.matches.workers=0",
        ),
        (run(league=mf.League(matches=mf.MatchRules(workers=-1))), "league.matches.workers must be at least 0, not -1"),
        (
            run(league=mf.League(outcome=lambda result, sides: [0.0, 1.0])),
            "it gave [0.0, 1.0], not a score for each side, such as {'player_0': 1.0, 'player_1': 0.0}",
        ),
        (
            run(league=mf.League(outcome=lambda result, sides: dict.fromkeys(sides, float("nan")))),
            "it gave side 'player_0' the score nan, which is no finite number",
        ),
        (
            run(league=mf.League(outcome=lambda result, sides: result.winner)),  # type: ignore[attr-defined]
            "it raised AttributeError: 'EpisodeResult' object has no attribute 'winner'",
        ),
        (
            run(league=mf.League(mf.NFSP(), players={"player": mf.LeaguePlayer(share=2.0)}, teammates="past")),
            "league.players.player.share is not used: nfsp decides who plays how often; leave it out",
        ),
        (
            run(league=mf.League(mf.NFSP(), teammates="past")),
            "league.teammates is not used: nfsp seats all roles of a game",
        ),
        (run(league=mf.League(Wrong())), "it seated 'mian' as agent 'player_"),
        (run(league=mf.League(Raising())), "it raised KeyError: 'player'"),
    ],
)
def test_what_cannot_be_a_league_is_refused_with_one_sentence(experiment: mf.Experiment, problem: str) -> None:
    found = wrong_with(experiment)
    assert any(problem in one for one in found), found


def test_all_problems_are_said_at_once() -> None:
    league = mf.League(
        snapshots=NEVER, symmetric=True, players={"nobody": mf.LeaguePlayer(), "red": mf.LeaguePlayer(share=0.0)}
    )
    found = wrong_with(run(TEAMS, dataclasses.replace(league, store=mf.StoreSettings(distinct_members=1))))
    for part in ("league.symmetric:", "'nobody'", "league.snapshots:", "league.store.distinct_members"):
        assert sum(part in one for one in found) == 1, found


def test_symmetric_is_accepted_where_sides_are_alike() -> None:
    assert wrong_with(run(EQUAL_TEAMS, mf.League(symmetric=True))) == []


def test_snapshots_may_never_be_taken_where_nobody_plays_against_them() -> None:
    assert wrong_with(run(league=mf.League(mf.NaiveSelfPlay(), snapshots=NEVER))) == []


def test_a_league_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"league is 'pfsp', not a League; write League\(PFSP\(\)\)"):
        mf.Experiment(PAIR, league="pfsp")  # type: ignore[arg-type]


def test_a_mode_that_is_none_is_refused_where_it_is_written() -> None:
    class Choosy:
        def rival(self, *_: object) -> None:
            return None

    problem = r"league.matchmaker: Choosy is no LeagueMode; derive it from marlflow.LeagueMode"
    with pytest.raises(mf.ConfigInvalid, match=problem):
        mf.Experiment(PAIR, league=mf.League(Choosy()))  # type: ignore[arg-type]


def test_an_environment_that_declares_no_agents_has_no_league() -> None:
    class Undeclared(RockPaperScissors):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = self.possible_agents
            del self.possible_agents

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents, self.round = list(self.hidden), 0
            return {agent: np.ones(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

        def action_space(self, agent: str) -> Any:
            return Discrete(3)

    assert any(
        "league: the environment does not declare its agents" in one for one in wrong_with(run(mf.Env(Undeclared)))
    )
