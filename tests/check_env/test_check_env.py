"""What is found out about an environment before anything is trained in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.check_env.api import SameSpaces
from marlflow.check_env.play import Played, play
from marlflow.check_env.seats import Seats, seats_of
from marlflow.check_env.summary import unbalanced
from marlflow.env import open_adapter
from marlflow.env.games.cartpole_family import CartPoleFamily
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.env.games.cartpole_team import env as cartpole_team_aec
from tests.check_env.trial_environments import (
    Compass,
    Copies,
    Drifting,
    Endless,
    Forked,
    Knockout,
    Levers,
    Lingering,
    ListedInfos,
    Moody,
    Outside,
    PaidInArrays,
    Quits,
    Relay,
    ReturnsNothing,
    Revived,
    Strangers,
    Tires,
    Unpaid,
    copies_aec,
    unpaid_aec,
)

SEED = 3


def tried(factory: Callable[..., Any], episodes: int = 6, **arguments: Any) -> mf.Trial:
    return mf.check_environment(mf.Env(factory, arguments, num_envs=2), episodes, SEED)


def test_a_good_environment_is_ready_and_its_figures_agree() -> None:
    trial = tried(CartPoleTeam, num_agents=3)
    assert trial.ready
    assert [(test.name, test.verdict) for test in trial.tests] == [
        ("parallel_api_test", "passed"),
        ("parallel_seed_test", "passed"),
    ]
    (group,), episodes = trial.groups, trial.episodes
    assert (trial.kind, trial.agents, group.agents) == ("Parallel", ("cart_0", "cart_1", "cart_2"), trial.agents)
    assert (episodes.played, episodes.conserved, episodes.zero_sum, trial.reproducible) == (6, True, False, True)
    # Each decision is paid 1, and an episode lasts as long as its last cart stands.
    assert group.decisions == group.returns
    assert group.decisions.high == episodes.length.high
    assert group.terminated + group.truncated == 18
    assert group.common_reward is True
    assert "always equal" in str(trial)
    assert list(group.algorithms) == [*(algorithm.name for algorithm in SHIPPED), "random"]
    assert {name for name, reason in group.algorithms.items() if reason} == {
        "td3",
        "ddpg",
        "maml",
        "mappo",
        "happo",
        "qmix",
        "archer",
    }
    assert "add wrappers=joint_state" in group.algorithms["mappo"]
    assert group.algorithms["maml"] == 'adapts to tasks, and the environment has none (metadata["tasks"])'
    shares = trial.speed.env_share + trial.speed.policy_share + trial.speed.bookkeeping_share
    assert shares == pytest.approx(1.0)


def test_both_kinds_of_an_environment_come_to_the_same() -> None:
    parallel, aec = tried(CartPoleTeam, num_agents=2), tried(cartpole_team_aec, num_agents=2)
    assert aec.kind == "AEC"
    assert aec.ready
    assert aec.groups[0].returns == parallel.groups[0].returns


def test_masks_and_a_zero_sum_are_seen() -> None:
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    trial = tried(tictactoe.env)
    (group,) = trial.groups
    assert trial.ready
    assert trial.episodes.zero_sum
    assert group.common_reward is False
    assert (group.masks, group.num_actions) == ("in the observation", 9)
    assert 5 <= group.legal_mean <= 7  # 9, 8, ... are legal, for 5 to 9 turns
    assert (group.decisions.low >= 2, group.decisions.high <= 5) == (True, True)


def test_reward_without_a_decision_is_counted_and_told() -> None:
    trial = tried(Knockout, episodes=30)
    lost = [-0.1 for _ in range(30)]
    (group,) = trial.groups
    assert trial.ready, str(trial)
    assert trial.episodes.conserved
    assert trial.episodes.zero_sum
    assert sum(lost) < group.reward_unattributed < 0
    assert group.reward_unattributed == pytest.approx(round(group.reward_unattributed, 1))
    assert any("before a first decision or after an end" in note for note in trial.notes)


def test_agents_that_come_back_after_their_end_are_noted_and_not_refused() -> None:
    trial = tried(Revived)
    assert {test.name: test.verdict for test in trial.tests}["parallel_api_test"] == "failed"
    assert trial.ready, str(trial)
    assert any(note.startswith("agents come back after their end in the same episode") for note in trial.notes)


def test_agents_that_nobody_declared_are_followed_by_their_names() -> None:
    trial = tried(Relay)
    (group,) = trial.groups
    assert trial.episodes.conserved
    assert group.name == "runner"
    assert group.agents == tuple(f"runner_{number}" for number in range(5))
    assert trial.episodes.agents_vanished == 6  # runner_0, in each episode
    assert any("neither terminated nor truncated" in note for note in trial.notes)


def test_agents_of_one_name_that_nobody_declared_may_have_different_spaces() -> None:
    trial = tried(Strangers)
    assert trial.ready, str(trial)
    assert [group.agents for group in trial.groups] == [("cart_0",), ("cart_1", "cart_2")]
    assert trial.episodes.conserved
    assert not any(group.never_acted for group in trial.groups)
    # Rewards of a hundred-thousandth in each of four env steps are not shown as none.
    assert "4e-05" in str(trial)


def test_an_info_that_is_no_mapping_is_a_problem_in_one_sentence() -> None:
    trial = tried(ListedInfos)
    assert not trial.ready
    assert "an info is a mapping, and that which came is a list" in " ".join(str(trial).split())


def test_a_wrapper_that_mends_an_environment_is_named_beside_mending_it() -> None:
    outside, unpaid = tried(Outside), tried(Unpaid)
    (problem,) = outside.problems
    assert "wrappers=clip_observations" in problem.what
    assert problem.remedy == "or mend it in the environment"
    assert unpaid.problems[0].remedy == "mend it in the environment"


def test_agents_that_are_listed_after_their_end_do_not_act() -> None:
    trial = tried(Lingering, num_agents=2)
    assert trial.speed is not None, trial.notes


def test_what_differs_between_two_plays_of_one_seed_is_named() -> None:
    trial = tried(Moody)
    assert trial.reproducible is False
    assert "env step 0: the observation of 'cart_0'" in trial.differs
    assert trial.ready  # it can be trained in; it cannot be repeated
    assert any("not reproducible" in note for note in trial.notes)


@pytest.mark.parametrize(
    ("factory", "methods"),
    [(Copies, "observation_space(agent) and action_space(agent)"), (copies_aec, "action_space(agent)")],
)
def test_spaces_that_are_made_anew_are_a_note_and_all_else_is_tested(factory: Callable[..., Any], methods: str) -> None:
    trial = tried(factory, episodes=2)
    assert trial.ready
    assert {test.verdict for test in trial.tests if "api_test" in test.name or "seed_test" in test.name} == {"passed"}
    (note,) = [note for note in trial.notes if "returned a new object" in note]
    assert note.startswith(f"{methods} returned a new object at each call. Training compares spaces by value")


def test_spaces_that_differ_at_each_call_are_a_problem() -> None:
    spaces = SameSpaces()
    made = spaces.of(Drifting())
    assert made.action_space("cart_0") != made.action_space("cart_0")
    assert spaces.note() == ""
    assert not tried(Drifting, episodes=1).ready


def test_an_environment_that_never_ends_is_told_so() -> None:
    trial = mf.check_environment(mf.Env(Endless, num_envs=1), 2, SEED, budget_s=0.05)
    assert trial.episodes.out_of_time_s == 0.05
    (problem,) = [problem for problem in trial.problems if problem.what.startswith("time ran out after 0.05 s and ")]
    assert "if they have no limit, truncate its agents" in problem.remedy
    assert "stopped after 0.05 s" in str(trial)


def test_what_was_played_before_a_failure_is_kept() -> None:
    trial = tried(Tires, episodes=20)
    (problem,) = [problem for problem in trial.problems if "PettingZoo" not in problem.what]
    assert "step() raised RuntimeError: out of breath" in problem.what
    assert problem.user_traceback.count("File ") == 1
    assert 1 < trial.episodes.failed_in < 20
    assert trial.episodes.played < trial.episodes.failed_in
    assert trial.episodes.conserved
    assert (trial.reproducible, trial.speed) == (None, None)


def test_rewards_may_be_arrays_of_one_number() -> None:
    trial = tried(PaidInArrays, episodes=2)
    assert (trial.ready, trial.reproducible, trial.episodes.conserved) == (True, True, True)
    assert trial.groups[0].returns == trial.groups[0].decisions


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (Quits, "step() raised SystemExit: 0"),
        (ReturnsNothing, "step() returned a NoneType; a ParallelEnv returns"),
    ],
)
def test_a_step_that_ends_the_process_or_returns_nothing_is_a_problem(factory: Callable[..., Any], said: str) -> None:
    trial = tried(factory, episodes=2)
    assert said in trial.problems[0].what


def test_a_family_of_tasks_is_for_maml_too() -> None:
    (group,) = tried(CartPoleFamily, episodes=1).groups
    assert group.algorithms["maml"] == ""


@pytest.mark.parametrize("factory", [Unpaid, unpaid_aec])
def test_a_living_agent_without_a_reward_is_a_problem(factory: Callable[..., Any]) -> None:
    trial = tried(factory)
    assert not trial.ready
    problem = next(problem for problem in trial.problems if "PettingZoo" not in problem.what)
    assert "agent 'cart_1'" in problem.what
    assert "give 0.0 where there is none" in problem.what
    others = [one.what for one in trial.problems if one is not problem]
    # PettingZoo's own words are those of the opposite: that an agent should not be given one.
    assert all("give each of them one (0.0 where there is none)" in other for other in others)
    assert len(others) == (factory is unpaid_aec)


def test_agents_of_one_name_with_different_spaces_are_told_apart() -> None:
    trial = tried(Forked, num_agents=3)
    assert [group.agents for group in trial.groups] == [("cart_0",), ("cart_1", "cart_2")]
    assert trial.groups[0].algorithms["dqn"].startswith("cannot act in Box(2,)")
    assert any("mapping=[{match: cart_0, policy: one}, ...]" in note for note in trial.notes)
    assert trial.ready


def test_actions_that_no_algorithm_learns_in_are_a_problem() -> None:
    trial = tried(Levers)
    assert trial.groups[0].algorithms["random"] == ""
    assert [problem.what.partition(":")[0] for problem in trial.problems] == ["no algorithm that learns can play cart"]


def test_actions_that_nobody_can_choose_are_a_problem_before_anything_is_played() -> None:
    trial = tried(Compass)
    assert trial.episodes is None
    assert any("the actions of cart are Dict" in problem.what for problem in trial.problems)


def test_what_cannot_be_made_is_invalid() -> None:
    with pytest.raises(mf.ConfigInvalid, match="num_agents and max_cycles must be at least 1"):
        tried(CartPoleTeam, num_agents=0)


def test_no_episodes_are_invalid() -> None:
    with pytest.raises(mf.ConfigInvalid, match="episodes must be at least 1, not 0"):
        tried(CartPoleTeam, episodes=0)


# -- the check of the rewards can fail --------------------------------------------------------------------------------


@pytest.fixture(params=[CartPoleTeam, Knockout, Relay])
def balanced(request: pytest.FixtureRequest) -> tuple[Played, Seats]:
    env = request.param()
    seats = seats_of(open_adapter(env), env)
    played = play(request.param, seats, SEED, 5, 60.0, None)
    assert played.failure is None
    assert len(played.results) == 5
    assert unbalanced(played, played.ledger, seats, SEED) is None
    return played, seats


def test_a_reward_too_many_in_the_rows_is_found(balanced: tuple[Played, Seats]) -> None:
    played, seats = balanced
    next(iter(played.rewards.values())).append(0.5)
    assert unbalanced(played, played.ledger, seats, SEED) is not None


def test_a_reward_in_the_wrong_episode_is_found(balanced: tuple[Played, Seats]) -> None:
    played, seats = balanced
    policy = next(policy for _, policy in played.rewards)
    played.rewards[1, policy].append(0.25)
    played.rewards[2, policy].append(-0.25)
    assert "its rows have" in str(unbalanced(played, played.ledger, seats, SEED))


def test_a_lost_row_is_found(balanced: tuple[Played, Seats]) -> None:
    played, seats = balanced
    played.decisions[next(iter(played.decisions))] -= 1
    assert "rows" in str(unbalanced(played, played.ledger, seats, SEED))


def test_unattributed_reward_that_was_never_issued_is_found(balanced: tuple[Played, Seats]) -> None:
    played, seats = balanced
    policy = next(policy for _, policy in played.rewards)
    played.unattributed[policy].append(0.5)
    assert "unattributed" in str(unbalanced(played, played.ledger, seats, SEED))


class NeverReturns(CartPoleTeam):
    def step(self, actions: dict[str, int]) -> Any:
        while self._cycles == 3:
            pass
        return super().step(actions)


def test_a_step_that_does_not_return_fails_pettingzoos_test_too() -> None:
    trial = mf.check_environment(mf.Env(NeverReturns, step_timeout_s=0.2), episodes=3)
    assert not trial.ready
    [first, *_] = trial.tests
    assert (first.verdict, first.why) == ("failed", "a step or reset took longer than env.step_timeout_s")
    assert any("step() took longer than env.step_timeout_s (0.2 s)" in str(problem) for problem in trial.problems)
