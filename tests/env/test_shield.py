"""A shield's masks are the legal and safe actions, nobody takes another, and what cannot be shielded is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv
from pettingzoo.classic import connect_four_v3
from pettingzoo.test import api_test
from pettingzoo.utils.conversions import parallel_to_aec

import marlflow as mf
from marlflow.env import open_adapter
from marlflow.env.games import cliff, pendulum_team
from marlflow.env.wrappers.shield import SafetyRule, shield
from marlflow.env.wrappers.shipped import mask_in_info, reward_scale
from tests.env.test_conservation import Played, assert_exact
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

FALLS: list[str] = []


class CountedCliff(cliff.CliffWalks):
    """The cliff, which writes down who falls."""

    def step(self, actions: dict[str, Any]) -> Any:
        stepped = super().step(actions)
        FALLS.extend(agent for agent, reward in stepped[1].items() if reward == cliff.FALL)
        return stepped


def on_columns(observation: Any, agent: str) -> np.ndarray:
    """For connect four: player_0 may use the even columns, player_1 those with an empty lowest cell or all but 3."""
    if agent == "player_0":
        return np.arange(7) % 2 == 0
    board = observation["observation"] if isinstance(observation, dict) else observation
    return ~np.any(board[5], axis=-1) | (np.arange(7) != 3)


def play(env: Any, seed: int, look: Any) -> None:
    """Random legal play of an AEC environment for one episode; `look` is shown each decision."""
    random = np.random.default_rng(seed)
    env.reset(seed=seed)
    for agent in env.agent_iter():
        seen, _, terminated, truncated, info = env.last()
        if terminated or truncated:
            env.step(None)
            continue
        mask = seen["action_mask"] if isinstance(seen, dict) else info["action_mask"]
        look(env, agent, mask)
        env.step(int(random.choice(np.flatnonzero(mask))))


@pytest.mark.parametrize("around", [(), (mask_in_info,)], ids=["in the observation", "in the info"])
def test_masks_are_the_legal_actions_that_are_safe(around: Any) -> None:
    env = connect_four_v3.env()
    raw = env
    for wrapper in around:
        env = wrapper(env)
    checked = []

    def look(_: Any, agent: str, mask: Any) -> None:
        seen = raw.observe(agent)
        legal, safe = seen["action_mask"].astype(bool), on_columns(seen, agent)
        expected = legal & safe if (legal & safe).any() else legal
        assert mask.astype(bool).tolist() == expected.tolist()
        checked.append(bool((legal & ~safe).any()))

    for seed in range(5):
        play(shield(env, on_columns, when_none="all"), seed, look)
    assert sum(checked) > 20, "the rule forbids something"


class Still(ParallelEnv):
    """One agent with 3 x 2 actions and infos that are the same object at every step."""

    metadata: dict[str, Any] = {"name": "still"}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["one"], []
        self.infos: dict[str, Any] = {"one": {}}
        self.t, self.taken = 0, []

    def observation_space(self, agent: str) -> Any:
        return _NUMBERS

    def action_space(self, agent: str) -> Any:
        return _PAIRS

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.t = ["one"], 0
        return {"one": np.int64(0)}, self.infos

    def step(self, actions: Any) -> Any:
        self.taken.append(actions["one"])
        self.t += 1
        over = self.t == 6
        self.agents = [] if over else ["one"]
        return {"one": np.int64(self.t)}, {"one": 0.0}, {"one": False}, {"one": over}, self.infos


_NUMBERS, _PAIRS = spaces.Discrete(7), spaces.MultiDiscrete([3, 2])


def one_after_the_other(observation: Any, _: str) -> np.ndarray:
    """In step t, only value t % 3 of the first component, and t % 2 of the second."""
    return np.concatenate([np.arange(3) == observation % 3, np.arange(2) == observation % 2])


@pytest.mark.parametrize("turns", [False, True], ids=["parallel", "aec"])
def test_a_mask_does_not_come_from_the_mask_before_it(turns: bool) -> None:
    """Nor is it written into what a Parallel environment keeps: the next mask would be the intersection of both."""
    inner = Still()
    env = shield(parallel_to_aec(inner) if turns else inner, one_after_the_other)
    adapter = open_adapter(env)
    result = adapter.reset(1)
    for t in range(6):
        assert result.masks[0].tolist() == one_after_the_other(t, "one").astype(int).tolist()
        result = adapter.act([np.array([t % 3, t % 2])])
    (end,) = result.ended
    assert end.truncated, "what is bootstrapped from is shielded too"
    assert end.mask.tolist() == one_after_the_other(6, "one").astype(int).tolist()
    assert turns or inner.infos == {"one": {}}


def test_a_rule_may_look_at_the_environment() -> None:
    env = shield(Still(), lambda env, _: one_after_the_other(env.t, "one"), sees="env")
    _, infos = env.reset()
    assert infos["one"]["action_mask"].tolist() == [1, 0, 0, 1, 0]


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([-1.0, 0.0, 0.5, 2.0, 7.0])), min_size=5, max_size=5),
    st.sampled_from(["error", "all", "least"]),
)
@settings(deadline=None)
def test_what_is_left_if_nothing_is_safe(actions: list[tuple[bool, float]], when_none: Any) -> None:
    legal, risks = np.array([a for a, _ in actions]), np.array([r for _, r in actions])
    rule = SafetyRule(lambda *_: risks, "observation", when_none)
    parts = [list(range(3)), [3, 4]]
    expected, stuck = [], False
    for part in parts:
        safe = [i for i in part if legal[i] and risks[i] <= 0]
        if not safe:
            stuck = True
            possible = [i for i in part if legal[i]]
            least = min((risks[i] for i in possible), default=0)
            safe = possible if when_none == "all" else [i for i in possible if risks[i] == least]
        expected += safe
    if stuck and when_none == "error" and legal.any():
        with pytest.raises(RuntimeError, match="no legal action of 'one' is safe"):
            rule.allowed(None, "one", _PAIRS, legal)
    else:
        got = np.flatnonzero(rule.allowed(None, "one", _PAIRS, legal)).tolist()
        assert got == (expected if legal.any() else [])


def test_joint_actions_are_corrected_and_counted() -> None:
    inner, seen = Still(), []

    def post(observations: Any, actions: Any) -> Any:
        seen.append((int(observations["one"]), actions["one"].tolist()))
        return {"one": np.array([0, 1])}

    env = shield(inner, post=post)
    env.reset()
    chosen = [[0, 1], [2, 1], [0, 0], [0, 1]]
    for action in chosen:
        env.step({"one": np.array(action)})
    assert seen == list(enumerate(chosen)), "it sees what the agents chose, and what they saw"
    assert [action.tolist() for action in inner.taken] == [[0, 1]] * 4
    assert env.actions_corrected == 2


def test_corrections_before_an_environment_is_opened_do_not_count() -> None:
    """A wrapper around the shield may play at random, to find the scale of rewards."""
    shielded = shield(cliff.parallel_env(max_cycles=10), post=not_both_down)
    adapter = open_adapter(reward_scale(shielded, env_steps=200))
    assert shielded.actions_corrected > 0
    assert adapter.actions_corrected == 0


def not_both_down(observations: Any, actions: dict[str, Any]) -> dict[str, Any]:
    """Return the joint action, in which the second walker stays above if both would go down."""
    both = len(actions) == 2 and all(int(action) == 2 for action in actions.values())
    return {**actions, "walker_1": np.int64(0)} if both else actions


def test_rows_keep_the_actions_that_were_chosen() -> None:
    played = Played(collects=(60, 1, 90, 45))
    outcome = assert_exact(lambda: shield(cliff.parallel_env(max_cycles=12), post=not_both_down), played)
    chosen = [
        {agent: account.decisions[t].action for agent, account in episode.accounts.items()}
        for episode in outcome.finished.values()
        for t in range(12)
        if all(len(account.decisions) > t for account in episode.accounts.values())
    ]
    assert {"walker_0": 2, "walker_1": 2} in chosen


def never(observation: Any, agent: str) -> np.ndarray:
    return np.zeros(4, bool)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "set safe, the import path of a function"),
        ({"safe": cliff.stays_up, "sees": "all"}, "sees must be observation or env, not 'all'"),
        ({"safe": cliff.stays_up, "when_none": "none"}, "when_none must be error, all or least, not 'none'"),
        ({"safe": cliff.stays_up, "agents": "fox_*"}, "matches none of walker_0, walker_1"),
        ({"safe": cliff.stays_up, "when_none": "least"}, "safe must return float [4], not bool"),
        ({"safe": lambda *_: [True, False]}, "safe returned bool [2] for agent 'walker_0'; it must return bool [4]"),
        ({"safe": lambda *_: np.ones(4, int)}, "safe returned int64 [4]"),
        ({"safe": lambda *_: np.full(4, np.nan)}, "safe returned NaN"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        shield(cliff.parallel_env(), **settings)
    assert problem in str(caught.value)


def test_joint_corrections_need_a_parallel_environment_and_masks_whole_numbers() -> None:
    with pytest.raises(mf.ConfigInvalid, match="post corrects joint actions, of Parallel environments"):
        shield(cliff.env(), post=lambda _, actions: actions)
    with pytest.raises(mf.ConfigInvalid, match=r"masks are for Discrete.*correct joint actions by post"):
        shield(pendulum_team.parallel_env(), cliff.stays_up)


@pytest.mark.parametrize("corrected", [{}, {"walker_0": 4, "walker_1": 0}, None])
def test_a_correction_must_give_every_agent_an_action(corrected: Any) -> None:
    env = shield(cliff.parallel_env(), post=lambda *_: corrected)
    env.reset(seed=0)
    with pytest.raises(mf.ConfigInvalid, match="post returned"):
        env.step({"walker_0": 0, "walker_1": 0})


def test_a_state_without_a_safe_action_is_an_error_of_the_environment() -> None:
    with pytest.raises(RuntimeError, match="no legal action of 'walker_0' is safe"):
        shield(cliff.parallel_env(), never)


@pytest.mark.filterwarnings("ignore:Observation numpy array is all zeros")
def test_it_passes_pettingzoos_test() -> None:
    api_test(shield(connect_four_v3.env(), on_columns, when_none="all"), num_cycles=60)


def experiment(*wrappers: Any) -> mf.Experiment:
    env = mf.Env(CountedCliff, {"max_cycles": 30}, wrappers, num_envs=4)
    learns = {"ppo": mf.Policy(SMALL_PPO, SMALL), "dqn": mf.Policy(SMALL_DQN, SMALL)}
    mapping = (mf.Rule("walker_0", "ppo"), mf.Rule("walker_1", "dqn"))
    return small_run(env=env, policies=learns, mapping=mapping, env_steps=1_000, evaluation=mf.Evaluation(300, 2))


def test_nobody_falls_in_all_of_training_and_evaluation(tmp_path: Path) -> None:
    """With a policy that masks its choices by probability, and one that does so by value."""
    FALLS.clear()
    result = mf.train(experiment(partial(shield, safe=cliff.stays_up)), tmp_path / "with")
    assert FALLS == []
    assert min(result.metrics["learners"][name]["updates"] for name in ("ppo", "dqn")) > 0
    mf.train(experiment(), tmp_path / "without")
    assert {"walker_0", "walker_1"} <= set(FALLS)
