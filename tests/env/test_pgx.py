"""Games of pgx are played by turns as PettingZoo's and OpenSpiel's are: the same actions give the same rows."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.env.optional import is_installed

if not is_installed("pgx"):
    pytest.skip("pgx is not installed: pip install 'marlflow[pgx]'", allow_module_level=True)

import jax
import pgx

import marlflow as mf
from marlflow.env.batched.board_games import ConnectFour
from marlflow.env.functional.pgx import batched_env
from marlflow.env.make import make_environment
from tests.driver.kept_runs import assert_equal
from tests.driver.test_batched_runs import reports
from tests.env.both_versions import compare
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run
from tests.sampling.batched_cases import Case
from tests.sampling.test_batched_worker import collected, worker_of
from tests.sampling.workers import rows_in


def without_state(num_envs):
    env = batched_env(num_envs)
    # PettingZoo's games have no global state to compare.
    env.state_space = None
    return env


def test_connect_four_has_the_numbers_of_pettingzoos():
    pytest.importorskip("pettingzoo.classic")
    random = np.random.default_rng(7)
    make_env = partial(make_environment, "pettingzoo.classic.connect_four_v3.env", {})
    steps = compare(make_env, without_state, range(14), lambda seen, mask, space: random.choice(np.flatnonzero(mask)))
    assert steps > 14 * 7


@pytest.mark.parametrize("mapping", [("all", "all"), ("a", "b")], ids=str)
def test_rows_of_connect_four_are_those_of_the_shipped_simulator(mapping):
    ours, shipped = (
        Case("connect four", None, make, dict(zip(("player_0", "player_1"), mapping, strict=True)), remember=("b",))
        for make in (batched_env, ConnectFour)
    )
    workers = [worker_of(replace(case, make_env=partial(case.make_batched, 1)), True) for case in (ours, shipped)]
    episodes = 0
    for mine, theirs in zip(*(collected(worker, ours, range(6)) for worker in workers), strict=True):
        for policy, batch in mine[1].items():
            # In pgx, all actions are legal once a game is over.
            final, expected = (one.segments.pop("bootstrap_mask") for one in (batch, theirs[1][policy]))
            np.testing.assert_array_equal(final, expected | final.all(axis=1, keepdims=True))
        assert_equal(rows_in(mine[1]), rows_in(theirs[1]))
        assert [one.returns for one in mine[0].episodes] == [one.returns for one in theirs[0].episodes]
        episodes += len(mine[0].episodes)
    assert episodes >= 5


class Alone:
    """A game of pgx, played by its own functions, and which of its players is player_0."""

    def __init__(self, name, seed, first_player):
        self.game, self.time = pgx.make(name), 0
        start, self.key = jax.random.split(jax.random.PRNGKey(seed))
        self.step_one, self.table = jax.jit(self.game.step), jax.jit(self.game.init)(start)
        self.player_0 = int(self.table.current_player) if first_player == "player_0" else 0

    def seat(self):
        return (int(self.table.current_player) - self.player_0) % self.game.num_players

    def step(self, action):
        self.table = self.step_one(self.table, action, jax.random.fold_in(self.key, self.time))
        self.time += 1


@pytest.mark.parametrize("first_player", ["player_0", "drawn"])
@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_holdem", "tic_tac_toe", "sparrow_mahjong"])
def test_games_are_those_of_pgx(name, first_player):
    random, seeds = np.random.default_rng(2), np.arange(30, 34)
    env = batched_env(4, name, first_player=first_player)
    alone = [Alone(name, seed, first_player) for seed in seeds.tolist()]
    step, over, movers = env.reset(np.arange(4), seeds), np.zeros(4, bool), set()
    while not over.all():
        actions = np.zeros((4, len(env.possible_agents)), int)
        for row in np.flatnonzero(~over):
            (seat,) = np.flatnonzero(step.decides["player"][row])
            table = alone[row].table
            assert seat == alone[row].seat()
            np.testing.assert_array_equal(step.observations["player"][row, seat], table.observation)
            np.testing.assert_array_equal(step.action_masks["player"][row, seat], table.legal_action_mask)
            actions[row, seat] = random.choice(np.flatnonzero(table.legal_action_mask))
            alone[row].step(int(actions[row, seat]))
            movers |= {(alone[row].time, int(seat))}
        step = env.step({"player": actions})
        for row in np.flatnonzero(~over):
            table, game = alone[row].table, alone[row].game
            players = (alone[row].player_0 + np.arange(game.num_players)) % game.num_players
            np.testing.assert_array_equal(step.rewards["player"][row], np.asarray(table.rewards)[players])
            assert step.terminated["player"][row].all() == bool(table.terminated)
            assert not step.truncated["player"][row].any()
            over[row] = table.terminated
            if over[row]:
                # All see the end, each for itself.
                with pytest.warns(DeprecationWarning, match="player_id"):
                    final = [game.observe(table, player) for player in players]
                np.testing.assert_array_equal(step.observations["player"][row], np.stack(final))
    assert {seat for time, seat in movers if time == 1} == ({0} if first_player == "player_0" else {0, 1}) or (
        name == "sparrow_mahjong"
    )


def test_the_arguments_of_a_game_are_taken_and_wrong_ones_refused():
    assert batched_env(2, "go_9x9", {"size": 5}).action_space("player_0").n == 26
    for arguments, expected in (
        ({"name": "conect_four"}, "pgx has no game 'conect_four'; did you mean 'connect_four'"),
        ({"name": "hex", "parameters": {"sise": 5}}, "hex of pgx cannot be made with sise=5: TypeError"),
        ({"name": "hex", "parameters": {"size": 5}}, "hex of pgx cannot be made with size=5: TypeError"),
        ({"first_player": "random"}, "there is no first_player 'random'; there are player_0, drawn"),
        ({"render_mode": "human"}, "pgx_connect_four has no render mode 'human'; it has rgb_array"),
    ):
        with pytest.raises(mf.ConfigInvalid, match=expected):
            batched_env(2, **arguments)


def test_check_env_finds_them_ready():
    for name in ("connect_four", "leduc_holdem"):
        trial = mf.check_environment(mf.Env("pgx", {"name": name}), episodes=10)
        assert trial.ready, trial.problems
        assert trial.reproducible


def test_mixed_algorithms_learn_and_a_run_is_resumed_bit_for_bit(tmp_path):
    def until(env_steps):
        rules = (mf.Rule("player_0", "first"), mf.Rule("*", "second"))
        policies = {"first": mf.Policy(SMALL_PPO, SMALL), "second": mf.Policy(SMALL_DQN, SMALL)}
        env = mf.Env("pgx", {"name": "tic_tac_toe"}, num_envs=4)
        return small_run(env=env, policies=policies, mapping=rules, stop=mf.Stop(env_steps=env_steps))

    mf.train(until(400), tmp_path / "two")
    result = mf.resume(until(800), tmp_path / "two")
    mf.train(until(800), tmp_path / "one")
    assert reports(tmp_path / "two")[-1]["policies"] == reports(tmp_path / "one")[-1]["policies"]
    assert (result.metrics["faults"]["episodes_restarted"], result.metrics["faults"]["env_errors"]) == (0, 0)


def test_a_picture_is_pgxs():
    env = batched_env(1, render_mode="rgb_array")
    env.reset(np.zeros(1, np.int64), np.zeros(1, np.int64))
    before = env.render()
    env.step({"player": np.full((1, 2), 3)})
    assert (before.dtype, before.shape) == (np.uint8, (280, 280, 3))
    changed = np.argwhere((before != env.render()).any(axis=2))
    # The first piece falls to the bottom of the fourth of seven columns.
    assert changed[:, 0].max() > 200
    assert changed[:, 1].min() >= 105


def test_games_whose_pictures_have_no_size_have_none():
    assert batched_env(1, "minatar-breakout", render_mode="rgb_array").metadata["render_modes"] == []
    with pytest.raises(mf.ConfigInvalid, match="has no render mode 'human'; it has none"):
        batched_env(1, "minatar-breakout", render_mode="human")


@pytest.mark.parametrize("name", ["leduc_holdem", "connect_four"])
def test_each_player_has_its_own_view_where_an_episode_is_cut_and_in_the_state(name):
    for limit in (3, None):
        env = batched_env(2, name, max_env_steps=limit)
        step = env.reset(np.arange(2), np.array([4, 5]))
        for _ in range(3):
            actions = np.where(step.decides["player"], step.action_masks["player"].argmax(-1), 0)
            step = env.step({"player": actions})
        tables, firsts = env.carry.state
        for row in range(2):
            table = jax.tree_util.tree_map(lambda leaf, row=row: leaf[row], tables)
            players = (int(firsts[row]) + np.arange(2)) % 2
            with pytest.warns(DeprecationWarning, match="player_id"):
                views = np.stack([pgx.make(name).observe(table, int(player)) for player in players])
            assert not np.array_equal(views[0], views[1])
            np.testing.assert_array_equal(env.state()[row], views.astype(np.float32).ravel())
            if limit is not None:
                assert step.truncated["player"][row].all() or table.terminated
                np.testing.assert_array_equal(step.observations["player"][row], views)
