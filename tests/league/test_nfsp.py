"""NFSP: seats, the rows that each policy learns from, and exact resumes, also over Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.env.simulators import openspiel
from marlflow.league.sides import sides_of
from tests.config.composition import ready_of
from tests.driver.kept_runs import kept
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import Seen
from tests.league.population import agents_of, agree, frequencies, matchmaker_of, members_of, view_of
from tests.league.runs import league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN
from tests.sentences import wrong_with

NEVER = mf.SnapshotRules(at_start=False, every_agent_steps=None)
CLONE = mf.Clone(
    batch_agent_steps=16, train_every_agent_steps=4, learning_starts_agent_steps=20, replay_agent_steps=150
)
PAIR = {"response": mf.Policy(SMALL_DQN, SMALL), "average": mf.Policy(CLONE, SMALL)}
PER_ROLE = {"b0": "a0", "b1": "a1"}
HALF, WHOLE = 432, 864


def nfsp_run(env_steps: int, runtime: Literal["inline", "ray"] = "inline", **changes: Any) -> mf.Experiment:
    """Rock, paper, scissors; half of the sides are best responses, so that their rows are many."""
    return league_run(mf.League(mf.NFSP(0.5), snapshots=NEVER), env_steps, runtime, **{"policies": PAIR, **changes})


# -- who is seated --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.1, 0.75, 1.0])
def test_each_side_is_a_response_with_probability_eta_independently(eta: float) -> None:
    members = members_of({"response": 0, "average": 0})
    view, mode = view_of(members), mf.NFSP(eta)
    found = frequencies(lambda generator: tuple(mode.profile(view, generator)))
    chances = {"response": eta, "average": 1.0 - eta}
    assert agree(found, {(a, b): chances[a] * chances[b] for a in chances for b in chances})


def test_the_matchmaker_deals_what_the_mode_says_and_counts_no_turns() -> None:
    members = members_of({"response": 0, "average": 0})
    matchmaker = matchmaker_of(members, mf.NFSP(0.3))
    agents = agents_of(members.sides)
    numbers = iter(range(10_000))
    found = frequencies(
        lambda generator: tuple(matchmaker(mf.EpisodeId(0, next(numbers)), agents, generator).values()), times=2000
    )
    chances = {"response": 0.3, "average": 0.7}
    assert agree(found, {(a, b): chances[a] * chances[b] for a in chances for b in chances})
    assert set(matchmaker._deals.values()) == {0}


def test_the_roles_of_a_side_are_all_of_responses_or_all_of_averages_of_their_pairs() -> None:
    sides, problems = sides_of({"red": [["red_0"], ["red_1"]], "blue": [["blue_0"]]}, ["red_0", "red_1", "blue_0"])
    assert problems == []
    plays = {"b0": ["red_0", "blue_0"], "a0": ["red_0", "blue_0"], "b1": ["red_1"], "a1": ["red_1"]}
    members = members_of(dict.fromkeys(plays, 0), sides, plays)
    mode = mf.NFSP(0.4, PER_ROLE)
    assert mode.problems(members) == []
    found = frequencies(lambda generator: tuple(mode.profile(view_of(members), generator)), times=2000)
    expected = {
        (f"{red}0", f"{red}1", f"{blue}0"): (0.4 if red == "b" else 0.6) * (0.4 if blue == "b" else 0.6)
        for red in "ba"
        for blue in "ba"
    }
    assert agree(found, expected)


# -- what is configured ---------------------------------------------------------------------------------------------

WORDS = ("env=openspiel", "env.game=kuhn_poker", "league=nfsp", "runtime=inline")
BOTH = ("policy@policies.response=dqn", "policy@policies.average=clone")


def test_one_command_is_complete() -> None:
    checked = ready_of(*WORDS, *BOTH)
    assert {name: learner.learns_from for name, learner in checked.spec.learners.items()} == {
        "response": ("response", "average"),
        "average": ("response",),
    }
    assert {name: list(agents) for name, agents in checked.players.items()} == {
        "response": ["player_0", "player_1"],
        "average": ["player_0", "player_1"],
    }


def test_a_pair_per_role_and_sources_of_ones_own() -> None:
    words = [f"policy@policies.{name}={kind}" for name, kind in {"b0": "dqn", "b1": "dqn"}.items()]
    words += [f"policy@policies.{name}=clone" for name in ("a0", "a1")]
    words += [f"+league.players.{name}.plays=[player_{name[1]}]" for name in ("a0", "b0", "a1", "b1")]
    checked = ready_of(*WORDS, *words, "league.matchmaker.pairs={b0: a0, b1: a1}", "policies.b1.learns_from=[b1]")
    assert {name: learner.learns_from for name, learner in checked.spec.learners.items()} == {
        "b0": ("b0", "a0"),
        "a0": ("b0",),
        "b1": ("b1",),
        "a1": ("b1",),
    }


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "league.matchmaker: it needs a policy 'response' that learns"),
        (("policy@policies.respons=dqn", BOTH[1]), "did you mean 'respons'?; add it, policy@policies.response=dqn"),
        (
            (BOTH[0], "policy@policies.average=dqn"),
            "policy 'average' (dqn) has to imitate 'response', the best response",
        ),
        (("policy@policies.response=clone", BOTH[1]), "policy 'response' (clone) has to learn a best response; use"),
        (("policy@policies.response=ppo", BOTH[1]), "policy 'response' (ppo) is on-policy, and rows of other policies"),
        ((*BOTH, "policy@policies.third=dqn"), "policy 'third' is in no pair, so it would never play"),
        ((*BOTH, "league.matchmaker.eta=0"), "league.matchmaker.eta must be more than 0, not 0"),
        ((*BOTH, "league.matchmaker.pairs={}"), "no pair of policies can play role 'player_0'"),
        (
            (*BOTH, "+league.players.average.plays=[player_0]"),
            "policies 'response' and 'average' are a pair, and cannot play the same roles",
        ),
        (
            (*BOTH, "policy@policies.b=dqn", "league.matchmaker.pairs={response: average, b: average}"),
            "policy 'average' is in pairs more than once",
        ),
    ],
)
def test_a_wrong_combination_is_said(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        ready_of(*WORDS, *words)
    assert problem in str(caught.value)


def test_a_response_that_learns_on_policy_has_its_own_rows() -> None:
    policies = {**PAIR, "response": mf.Policy(mf.PPO(), SMALL, learns_from=["response"])}
    assert wrong_with(nfsp_run(WHOLE, policies=policies)) == []


def test_evaluation_samples_the_average_and_is_greedy_for_the_response() -> None:
    spec = ready(nfsp_run(WHOLE, evaluation=mf.Evaluation(opponents=["random"], episodes=4))).spec
    assert spec.modes("as_learned") == {"response": "greedy", "average": "sampled", "random/player_0": "sampled"}


# -- runs -----------------------------------------------------------------------------------------------------------


def sampled(seen: Seen, policy: str) -> int:
    return sum(receipt.policies[policy].rows for receipt in seen.receipts)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Seen, Mapping[str, Any]]:
    """A run that is resumed from its middle with the same results."""
    with pytest.MonkeyPatch.context() as patch:
        seen = Seen(patch)
        resumed = resumes_exactly(nfsp_run(WHOLE), tmp_path_factory.mktemp("nfsp"), HALF, patch.undo)
    return resumed.whole, seen, resumed.metrics


def assert_exact(run_dir: Path, seen: Seen, metrics: Mapping[str, Any]) -> None:
    """Each replay has all rows of its sources, and updates are in the ratio to these."""
    response, average = sampled(seen, "response"), sampled(seen, "average")
    assert min(response, average) > 250
    trees = kept(run_dir)
    assert trees["replay.response"]["stop"] == response + average
    assert trees["replay.average"]["inserted"] == response
    assert len(trees["replay.average"]["numbers"]) == CLONE.replay_agent_steps
    stages, learners = metrics["stages"], metrics["learners"]
    assert stages["response/Insert"]["rows"] == response + average
    assert stages["average/Insert"]["rows"] == response
    for name, algorithm, rows in (("response", SMALL_DQN, response + average), ("average", CLONE, response)):
        updates = (rows - algorithm.learning_starts_agent_steps) // algorithm.train_every_agent_steps
        assert learners[name]["updates"] == updates
        assert learners[name]["agent_steps_trained"] == updates * algorithm.batch_agent_steps
        assert metrics["policies"][name]["agent_steps_sampled"] == sampled(seen, name)
        assert learners[name]["staleness_mean"] is None


def test_each_replay_has_the_rows_of_its_sources_and_each_ratio_is_exact(
    whole: tuple[Path, Seen, Mapping[str, Any]],
) -> None:
    assert_exact(*whole)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_over_ray_too_and_the_driver_opens_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from marlflow.batches.batch import Batch

    def opened(*_: Any) -> Any:
        raise AssertionError("rows were opened on the driver")

    seen = Seen(monkeypatch)
    experiment = replace(nfsp_run(WHOLE, "ray"), evaluation=mf.Evaluation(episodes=0))
    monkeypatch.setattr(Batch, "__setstate__", opened, raising=False)
    assert_exact(tmp_path, seen, mf.train(experiment, tmp_path).metrics)


def test_the_reservoir_has_only_actions_of_the_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response has version 0 only, and the average many: rows say whose they are."""
    late = replace(SMALL_DQN, learning_starts_agent_steps=10_000)
    policies = {
        "response": mf.Policy(late, SMALL),
        "average": mf.Policy(replace(CLONE, publish_every_updates=1), SMALL),
    }
    mf.train(nfsp_run(WHOLE, policies=policies), tmp_path)
    trees = kept(tmp_path)
    assert set(trees["replay.average rows"]["columns"]["version"].tolist()) == {0}
    assert len(set(trees["replay.response rows"]["columns"]["version"].tolist())) > 5


def test_a_run_of_other_sources_is_not_resumed(whole: tuple[Path, Seen, Mapping[str, Any]], tmp_path: Path) -> None:
    from marlflow.base.errors import CheckpointUnusable

    mf.train(nfsp_run(100), tmp_path)
    other = {**PAIR, "response": replace(PAIR["response"], learns_from=["response"])}
    with pytest.raises(CheckpointUnusable, match="learns_from"):
        mf.resume(nfsp_run(200, policies=other), tmp_path)


def test_a_pair_per_role_keeps_their_rows_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    policies = {name: PAIR["response" if name[0] == "b" else "average"] for name in ("b0", "a0", "b1", "a1")}
    players = {name: mf.LeaguePlayer([f"player_{name[1]}"]) for name in policies}
    league = mf.League(mf.NFSP(0.5, PER_ROLE), players=players, snapshots=NEVER)
    mf.train(replace(nfsp_run(HALF, policies=policies), league=league), tmp_path)
    trees = kept(tmp_path)
    for role in "01":
        both = sampled(seen, f"b{role}") + sampled(seen, f"a{role}")
        assert trees[f"replay.b{role}"]["stop"] == both
        assert trees[f"replay.a{role}"]["inserted"] == sampled(seen, f"b{role}")


def test_a_game_of_openspiel_with_masks(tmp_path: Path) -> None:
    kuhn = mf.Env(openspiel.env, {"game": "kuhn_poker"}, num_envs=4)
    metrics = mf.train(nfsp_run(600, env=kuhn, evaluation=mf.Evaluation(episodes=4)), tmp_path).metrics
    assert metrics["learners"]["average"]["updates"] > 10
    assert metrics["policies"]["average"]["eval_return_mean"] is not None
