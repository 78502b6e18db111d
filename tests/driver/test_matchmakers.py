"""Runs in which a matchmaker seats the policies, one episode at a time: what is checked before, and what is played."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.cli.main import failure
from marlflow.config.schema import read_values
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.matchmaking.matchmakers import TRIAL, EpisodeId, RandomSeats, deal_one
from marlflow.sampling.mapping import Rule, policy_of
from marlflow.sampling.receipts import EpisodeResult
from tests.driver.watching import Seen, standing
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO, policies, small_run, without_times
from tests.sentences import wrong_with

SEATS = RandomSeats(["hunters", "prey"])


class InTurns:
    """The leader of the last episode follows in the next one, so the number and order of its calls matter."""

    def __init__(self) -> None:
        self.asked: list[EpisodeId] = []

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        self.asked.append(episode)
        names = ("hunters", "prey") if len(self.asked) % 2 else ("prey", "hunters")
        return {agent: names[number % 2] for number, agent in enumerate(agents)}


def all_hunt(episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
    return dict.fromkeys(agents, "hunters")


def leads(
    episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator, leader: str, follower: str = "prey"
) -> dict[str, str]:
    return {agent: follower if number else leader for number, agent in enumerate(agents)}


def forgetful(episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
    if episode.env == TRIAL:
        return SEATS(episode, agents, generator)
    raise LookupError(f"nobody is left for {episode.episode}")


# -- before a run ---------------------------------------------------------------------------------------------------


def test_a_method_that_nobody_would_call_is_refused_where_it_is_written() -> None:
    class Learning(InTurns):
        def observe(self, results: object) -> None:
            raise AssertionError

    problem = r"mapping: .*Learning has a method observe and is no matchmaker; derive it from marlflow.Matchmaker"
    with pytest.raises(mf.ConfigInvalid, match=problem):
        small_run(mapping=Learning())


def test_each_policy_has_the_agents_that_it_may_be_seated_as() -> None:
    made = ready(small_run(mapping=SEATS))
    everybody = ["cart_0", "cart_1", "cart_2", "cart_3"]
    assert made.players == {"hunters": everybody, "prey": everybody}
    assert made.spec.mapping is None


class Odd(CartPoleTeam):
    """The last cart is pushed with a force."""

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (1,)) if agent == self.possible_agents[-1] else super().action_space(agent)


class Undeclared(ParallelEnv[str, Any, int]):
    """Says who is there only once it is reset; `cart_3` comes at the second env step."""

    metadata: ClassVar[dict[str, Any]] = {"name": "undeclared"}

    def __init__(self) -> None:
        self._team = CartPoleTeam(max_cycles=20)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self._team.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self._team.action_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = self._team.reset(seed)
        del observations["cart_3"], infos["cart_3"]
        self.agents = [*observations]
        return observations, infos

    def step(self, actions: dict[str, int]) -> Any:
        made = self._team.step({"cart_3": 0, **actions})
        self.agents = self._team.agents[:]
        return made


class Locked:
    """Cannot be copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        return {}


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        (all_hunt, "policy 'prey' plays no agent: all_hunt seated it in none of 200 trial episodes"),
        (
            RandomSeats(["pray"]),
            "mapping: matchmaker RandomSeats, trial, episode 0: it seated 'pray' as agent 'cart_0', and there is no "
            "such policy; did you mean 'prey'?",
        ),
        (
            lambda *_: {"cart_0": "prey"},
            "mapping: matchmaker <lambda>, trial, episode 0: it seated no policy as agent 'cart_1'",
        ),
        (
            Locked(),
            "mapping: matchmaker Locked: it cannot be copied, to be tried before the run "
            "(TypeError: cannot pickle '_thread.lock' object)",
        ),
    ],
)
def test_a_matchmaker_that_cannot_seat_everybody_is_refused(mapping: Any, problem: str) -> None:
    [said] = wrong_with(small_run(mapping=mapping))
    assert said.split("; it seated")[0] == problem


def test_what_it_raises_on_trial_comes_with_its_own_lines() -> None:
    def breaks(episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        raise KeyError("rating")

    [problem] = wrong_with(small_run(mapping=breaks))
    said, first, second, *_ = problem.splitlines()
    assert said.endswith("breaks, trial, episode 0: it raised KeyError: 'rating'")
    assert first.strip() == "Traceback (most recent call last):"
    assert __file__ in second


def test_agents_that_one_policy_is_seated_as_need_the_same_spaces() -> None:
    [problem] = wrong_with(
        small_run(mapping=SEATS, env=mf.Env(Odd, num_envs=4), policies=policies(hunters=mf.PPO(), prey=mf.PPO()))
    )[:1]
    assert problem == (
        "policy 'hunters' plays 'cart_0' and 'cart_3', which do Discrete(2) and Box(1,); "
        "agents of one policy need the same spaces, so give them policies of their own"
    )


def test_agents_that_nobody_declared_cannot_be_seated() -> None:
    assert wrong_with(small_run(mapping=SEATS, env=mf.Env(Undeclared, num_envs=4))) == [
        "mapping: RandomSeats cannot seat the agents of an environment that does not declare them; "
        "give it possible_agents, or map by rules"
    ]


# -- from a configuration -------------------------------------------------------------------------------------------


def read(mapping: Any, problems: list[str]) -> mf.Experiment:
    env = {"_target_": "marlflow.env.games.cartpole_team.parallel_env"}
    chosen = {
        name: {"algorithm": {"_target_": f"marlflow.algorithms.{kind.name}.{kind.__name__}"}}
        for name, kind in (("hunters", mf.PPO), ("prey", mf.DQN))
    }
    experiment = read_values({"env": env, "policies": chosen, "mapping": mapping}, problems)
    assert experiment is not None
    return experiment


@pytest.mark.parametrize(
    "mapping",
    [
        {"_target_": "marlflow.matchmaking.matchmakers.RandomSeats", "policies": ["hunters", "prey"]},
        {"_target_": f"{__name__}.InTurns"},
        {"_target_": f"{__name__}.leads", "leader": "hunters"},
    ],
)
def test_a_target_is_a_class_to_make_or_a_function_to_ask(mapping: Any) -> None:
    problems: list[str] = []
    made = ready(read(mapping, problems))
    assert not problems
    assert set(made.players) == {"hunters", "prey"}


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        (
            {"_target_": "marlflow.matchmaking.matchmakers.RandomSeat"},
            "mapping._target_: module marlflow.matchmaking.matchmakers has no 'RandomSeat'; "
            "did you mean 'RandomSeats'?",
        ),
        (
            {"_target_": "marlflow.matchmaking.matchmakers.RandomSeats", "polices": ["hunters"]},
            "there is no mapping.polices; did you mean 'mapping.policies'?",
        ),
        ({"_target_": f"{__name__}.leads"}, "mapping.leader is missing: leads needs it"),
        (
            {"_target_": "builtins.dict"},
            "mapping: dict is no matchmaker: it cannot be called with an episode's id, the agents and a generator",
        ),
        (
            {"cart_*": "hunters"},
            "mapping must be a list of rules [{match: <agents>, policy: <id>}, ...], or a matchmaker "
            "{_target_: package.module.Class, ...}, not {'cart_*': 'hunters'}",
        ),
        ([{"match": "cart_*"}], "mapping[0].policy is missing: Rule needs it"),
    ],
)
def test_a_mapping_that_cannot_be_made_is_all_that_is_said_of_it(mapping: Any, problem: str) -> None:
    problems: list[str] = []
    experiment = read(mapping, problems)
    assert [*problems, *wrong_with(experiment)] == [problem]


# -- what is played -------------------------------------------------------------------------------------------------


def played(episodes: Sequence[EpisodeResult]) -> dict[EpisodeId, Mapping[str, str]]:
    return {EpisodeId(episode.env, episode.episode): episode.matchup for episode in episodes}


@pytest.mark.parametrize("runtime", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_every_episode_is_played_as_it_was_dealt(
    runtime: Any, tmp_path: Path, seen: Seen, request: pytest.FixtureRequest
) -> None:
    if runtime == "ray":
        request.getfixturevalue("ray_session")
    experiment = small_run(runtime, mapping=SEATS, seed=3, evaluation=mf.Evaluation(600, 6))
    result, made = mf.train(experiment, tmp_path), ready(experiment)
    found = played(seen.episodes)
    assert len(found) == len(seen.episodes) == result.metrics["episodes"] > 20
    assert found == {episode: deal_one(SEATS, made.seats, episode, 3) for episode in found}
    assert len({tuple(matchup.items()) for matchup in found.values()}) > 4
    for evaluated in seen.evaluations:
        expected = [deal_one(SEATS, made.seats, EpisodeId(-1, number), 3) for number in range(6)]
        assert [episode.matchup for episode in evaluated] == expected
    for name in ("hunters", "prey"):
        policy = standing(result.metrics, name)
        assert policy["episodes"] == sum(name in matchup.values() for matchup in found.values())
        assert policy["updates"] > 0
    sampled = sum(policy["agent_steps_sampled"] for policy in result.metrics["policies"].values())
    assert sampled == result.metrics["agent_steps"]


def test_how_copies_are_spread_over_workers_changes_nothing_that_is_dealt_or_played(tmp_path: Path, seen: Seen) -> None:
    """Policies that never learn enough to change; 2 workers make the same env steps in total as 1."""
    late = policies(
        hunters=replace(SMALL_PPO, batch_agent_steps=100_000),
        prey=replace(SMALL_DQN, learning_starts_agent_steps=100_000),
    )
    found = []
    for workers, fragment in ((1, 80), (2, 40), (4, 20)):
        before = len(seen.episodes)
        mf.train(
            small_run(mapping=InTurns(), policies=late, rollouts=mf.Rollouts(workers, fragment), env_steps=800),
            tmp_path / str(workers),
        )
        ended = seen.episodes[before:]
        found.append({(e.env, e.episode): (e.matchup, e.returns, e.env_steps, e.tick) for e in ended})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 10


def test_the_same_run_can_be_asked_for_again(tmp_path: Path) -> None:
    matchmaker = InTurns()
    experiment = small_run(mapping=matchmaker)
    one, again = (mf.train(experiment, tmp_path / name).metrics for name in ("one", "again"))
    assert without_times(one) == without_times(again)
    assert not matchmaker.asked


def test_what_a_matchmaker_raises_in_a_run_ends_it_with_its_own_lines(tmp_path: Path) -> None:
    with pytest.raises(mf.StageFailed) as caught:
        mf.train(small_run(mapping=forgetful), tmp_path)
    assert (caught.value.plan, caught.value.stage) == ("rollouts", "Collect")
    assert isinstance(caught.value.__cause__, mf.MatchmakerFailed)
    lines = failure(caught.value).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert __file__ in lines[1]
    assert not any("marlflow/sampling" in line for line in lines)
    assert lines[-1] == ("error: matchmaker forgetful, env 0, episode 0: it raised LookupError: nobody is left for 0")


# -- where no agents are declared -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "chosen"),
    [
        (None, {"cart": mf.Policy(SMALL_PPO)}),
        ([Rule("cart_0", "cart"), Rule("*", "rest")], {"cart": mf.Policy(SMALL_PPO), "rest": mf.Policy(mf.Random())}),
        (
            [Rule("cart_0", "cart"), Rule("cart_3", "cart"), Rule("*", "rest")],
            {"cart": mf.Policy(SMALL_PPO), "rest": mf.Policy(mf.Random())},
        ),
    ],
)
def test_who_comes_later_is_played_by_the_policy_that_the_rules_or_its_group_say(
    mapping: Any, chosen: Any, tmp_path: Path, seen: Seen
) -> None:
    mf.train(small_run(mapping=mapping, policies=chosen, env=mf.Env(Undeclared, num_envs=4), env_steps=200), tmp_path)
    rules = mapping or [Rule("*", "cart")]
    assert seen.episodes
    for episode in seen.episodes:
        assert "cart_3" in episode.returns
        assert dict(episode.matchup) == {agent: policy_of(agent, rules) for agent in episode.matchup}
        assert episode.returns.keys() <= episode.matchup.keys()


def test_a_rule_for_somebody_who_may_come_needs_a_policy_whose_spaces_are_known() -> None:
    rules = [Rule("cart_3", "late"), Rule("*", "cart")]
    experiment = small_run(
        mapping=rules, policies=policies(late=SMALL_PPO, cart=SMALL_PPO), env=mf.Env(Undeclared, num_envs=4)
    )
    assert wrong_with(experiment) == [
        "mapping rule 1 (match 'cart_3', policy 'late') matches no agent; the agents are cart_0, cart_1, cart_2"
    ]
