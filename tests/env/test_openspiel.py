import copy
import pickle
import sys

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test

from marlflow.base.errors import ConfigInvalid
from marlflow.env import make_environment
from marlflow.env.simulators import openspiel, openspiel_game
from tests.env.odd_game import NAME as ODD

GAMES = [
    "kuhn_poker",
    "kuhn_poker(players=3)",
    "leduc_poker",
    "tic_tac_toe",
    "connect_four",
    "matrix_mp",  # matching pennies
    "goofspiel(num_cards=5)",
    "liars_dice",
    "backgammon",
    "hex",
    "go(board_size=5)",
    "coop_box_pushing",  # rewards at every step, of simultaneous choices, with chance after each
    "cliff_walking",  # one player
    "turn_based_simultaneous_game(game=goofspiel(num_cards=4))",
    "negotiation",  # draws chance events itself
    "python_tic_tac_toe",
    ODD,
]


def play(env, seed, choose=0):
    """One game of random legal actions: (agent, view, mask, action) of each decision, and what each agent received."""
    generator = np.random.default_rng(choose)
    env.reset(seed=seed)
    decisions, received = [], dict.fromkeys(env.possible_agents, 0.0)
    while env.agents:
        decisions += decide(env, generator)
        for agent, reward in env.rewards.items():
            received[agent] += reward
    return decisions, received


def decide(env, generator):
    """One step, of the living or of the dead; the decision that it was, if any."""
    agent = env.agent_selection
    observation, _, terminated, truncated, _ = env.last()
    if terminated or truncated:
        env.step(None)
        return []
    action = int(generator.choice(np.flatnonzero(observation["action_mask"])))
    env.step(action)
    return [(agent, observation["observation"], observation["action_mask"], action)]


def same(decisions, others):
    assert len(decisions) == len(others)
    for one, other in zip(decisions, others, strict=True):
        np.testing.assert_equal(one, other)
    return True


# The tests of PettingZoo expect arrays, not the dicts that they go on to test; the view of a matrix game is one zero.
@pytest.mark.filterwarnings("ignore:Observation:UserWarning")
@pytest.mark.parametrize("game", GAMES)
def test_pettingzoos_own_tests_pass(game):
    api_test(openspiel.env(game), num_cycles=100)
    seed_test(lambda: openspiel.env(game), num_cycles=100)


@pytest.mark.parametrize("game", ["leduc_poker", "goofspiel(num_cards=5)", "negotiation"])
def test_a_seed_says_everything_and_another_one_something_else(game):
    env, other = openspiel.env(game), openspiel.env(game)
    assert same(play(env, 3)[0], play(other, 3)[0])
    assert env.moves() == other.moves()
    firsts = set()
    for seed in range(20):
        play(env, seed)
        firsts.add(str(env.moves()))
    assert len(firsts) > 10


def test_games_without_a_seed_go_on_with_the_generator():
    env, other = openspiel.env("leduc_poker"), openspiel.env("leduc_poker")
    games = []
    for one in (env, other):
        play(one, 3)
        games.append([(play(one, None)[0], one.moves()) for _ in range(5)])
    for (decisions, moves), (others, other_moves) in zip(*games, strict=True):
        assert same(decisions, others)
        assert moves == other_moves
    assert len({str(moves) for _, moves in games[0]}) > 1


def test_chance_has_the_probabilities_of_the_game():
    env = openspiel.env("backgammon")
    outcomes = dict(env._game.new_initial_state().chance_outcomes())
    drawn = dict.fromkeys(outcomes, 0)
    games = 6000
    for seed in range(games):
        env.reset(seed=seed)
        drawn[env.moves()[0]] += 1
    chi_square = sum((drawn[one] - games * p) ** 2 / (games * p) for one, p in outcomes.items())
    freedom = len(outcomes) - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def test_nobody_sees_what_the_others_choose_at_the_same_time():
    env = openspiel.env("goofspiel(num_cards=4)")
    for choice in range(4):
        env.reset(seed=0)
        before = [env.observe(agent)["observation"] for agent in env.agents], env.state()
        assert env.agent_selection == "player_0"
        env.step(choice)
        assert env.agent_selection == "player_1"
        np.testing.assert_equal(([env.observe(agent)["observation"] for agent in env.agents], env.state()), before)
        assert env.observe("player_1")["action_mask"].all()
        assert not env.observe("player_0")["action_mask"].any()
        assert not any(env.rewards.values())


def test_who_cannot_act_is_passed_over_and_what_chance_brings_is_received():
    env = openspiel.env(ODD)
    env.reset(seed=0)
    given = env.moves()[0] + 1.0
    assert env.agent_selection == "player_0"
    env.step(1)
    assert env.rewards == {"player_0": 0.0, "player_1": 0.0, "player_2": 0.0}
    assert env.agent_selection == "player_2"
    env.step(0)
    assert env.rewards == {"player_0": 10.0 + given, "player_1": 0.0, "player_2": 0.0}
    assert env.agent_selection == "player_2"
    with pytest.raises(ValueError, match="its legal actions are 1"):
        env.step(0)
    env.step(1)
    assert env.rewards == {"player_0": 0.0, "player_1": 5.0, "player_2": 0.0}
    assert env._cumulative_rewards == {"player_0": 10.0 + given, "player_1": 5.0, "player_2": 0.0}
    assert env.moves() == [given - 1, [1, 0, 0], [0, 0, 0], 1, 0]
    assert all(env.terminations.values())


def test_the_state_is_what_all_players_see():
    for game in ("leduc_poker", "matrix_mp", "kuhn_poker(players=3)", ODD):
        env = openspiel.env(game)
        env.reset(seed=1)
        while env.agents:
            seen = [env.observe(agent)["observation"] for agent in env.possible_agents]
            np.testing.assert_array_equal(env.state(), np.concatenate(seen))
            assert env.state_space.contains(env.state())
            decide(env, np.random.default_rng(0))


def test_an_observation_belongs_to_its_receiver():
    env = openspiel.env("tic_tac_toe")
    env.reset(seed=0)
    kept = env.observe("player_0")
    before = copy.deepcopy(kept)
    env.step(4)
    env.observe("player_0")
    np.testing.assert_equal(kept, before)
    kept["action_mask"][:] = 0
    kept["observation"][:] = 9
    assert env.observe("player_1")["action_mask"].sum() == 8
    assert env.observe("player_0")["observation"].max() == 1


def test_either_tensor_can_be_observed():
    views = {}
    for tensor in ("information_state", "observation"):
        env = openspiel.env("leduc_poker", observation=tensor)
        env.reset(seed=0)
        state = env._state
        views[tensor] = env.observe("player_0")["observation"].tolist()
        assert views[tensor] == getattr(state, f"{tensor}_tensor")(0)
    assert len(views["information_state"]) > len(views["observation"])
    best = openspiel.env("leduc_poker")
    best.reset(seed=0)
    assert best.observe("player_0")["observation"].tolist() == views["information_state"]


@pytest.mark.parametrize("action", [9, -1, 4, 0.5, None, "0", np.float32(1.0)])
def test_an_illegal_action_is_an_error_and_changes_nothing(action):
    env = openspiel.env("tic_tac_toe")
    env.reset(seed=0)
    env.step(4)
    with pytest.raises(ValueError, match=r"openspiel/tic_tac_toe, after 1 env steps: action .* of 'player_1' is"):
        env.step(action)
    assert env.moves() == [4]
    env.step(np.int64(0))
    assert env.moves() == [4, 0]


def test_steps_out_of_order_are_errors():
    env = openspiel.env("matrix_mp")
    for too_early in (lambda: env.step(0), lambda: env.observe("player_0"), env.state):
        with pytest.raises(ValueError, match=r"openspiel/matrix_mp: no game is running; call reset\(\) first"):
            too_early()
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    with pytest.raises(ValueError, match=r"the game is over, so step\(None\) was expected, not 0"):
        env.step(0)
    env.step(None)
    env.step(None)
    with pytest.raises(ValueError, match="no game is running"):
        env.step(None)


@pytest.mark.parametrize(
    ("game", "limit", "turns"),
    [("tic_tac_toe", 3, 3), ("goofspiel(num_cards=4)", 3, 4), (ODD, 1, 2), ("kuhn_poker", 9, 0), ("matrix_mp", 2, 0)],
)
def test_a_limit_truncates_everybody_but_never_between_simultaneous_choices(game, limit, turns):
    env, generator = openspiel.env(game, max_env_steps=limit), np.random.default_rng(0)
    env.reset(seed=0)
    decisions = 0
    while not (any(env.terminations.values()) or any(env.truncations.values())):
        decisions += len(decide(env, generator))
    assert all(env.truncations.values()) == bool(turns)
    assert any(env.terminations.values()) != bool(turns)
    assert decisions == turns or not turns
    while env.agents:
        env.step(None)


def test_what_is_legal_in_a_game_that_was_cut_is_known_for_the_player_to_move():
    env = openspiel.env("tic_tac_toe", max_env_steps=4)
    env.reset(seed=0)
    for square in (3, 5, 7, 8):
        env.step(square)
    assert all(env.truncations.values())
    legal = {agent: np.flatnonzero(env.observe(agent)["action_mask"]).tolist() for agent in env.agents}
    assert legal == {"player_0": [0, 1, 2, 4, 6], "player_1": []}


def test_what_is_legal_where_a_simultaneous_game_was_cut_is_known_for_all_who_would_move():
    env, generator = openspiel.env("goofspiel(num_cards=4)", max_env_steps=4), np.random.default_rng(0)
    env.reset(seed=0)
    played = {agent: [] for agent in env.agents}
    while not any(env.truncations.values()):
        for agent, _, _, action in decide(env, generator):
            played[agent].append(action)
    for agent, cards in played.items():
        assert np.flatnonzero(env.observe(agent)["action_mask"]).tolist() == sorted({0, 1, 2, 3} - {*cards})


def pickled(env):
    return pickle.loads(pickle.dumps(env))  # noqa: S301  it was made here


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
@pytest.mark.parametrize("game", ["leduc_poker", "goofspiel(num_cards=3)", "coop_box_pushing", "negotiation", ODD])
def test_a_copy_goes_on_as_the_original_from_any_step(game, duplicate):
    env = openspiel.env(game, {"horizon": 6} if game == "coop_box_pushing" else None)
    assert same(play(duplicate(env), 5)[0], play(env, 5)[0])
    for steps in range(8):
        env.reset(seed=8)
        before = np.random.default_rng(1)
        for _ in range(steps):
            if env.agents:
                decide(env, before)
        other, generators = duplicate(env), (np.random.default_rng(2), np.random.default_rng(2))
        while env.agents:
            assert same(decide(env, generators[0]), decide(other, generators[1]))
            assert (env.rewards, env.agents, env.moves()) == (other.rewards, other.agents, other.moves())
        assert not other.agents
        assert same(play(env, None)[0], play(other, None)[0])


def test_a_pickle_keeps_the_configuration():
    env = openspiel.env("goofspiel", {"num_cards": 3, "imp_info": True}, "observation", 7, "ansi")
    other = pickled(env)
    assert other.metadata == env.metadata
    assert env.metadata["name"] == "openspiel/goofspiel(imp_info=True,num_cards=3)"
    assert other.observation_space("player_0") == env.observation_space("player_0")
    assert (other.max_env_steps, other.render_mode) == (7, "ansi")


def test_parameters_stand_in_the_name_or_beside_it():
    written, beside = openspiel.env("goofspiel(num_cards=4)"), openspiel.env("goofspiel", {"num_cards": 4})
    assert str(written) == str(beside) == "openspiel/goofspiel(num_cards=4)"
    assert written.action_space("player_1").n == 4
    nested = openspiel.env("turn_based_simultaneous_game", {"game": "goofspiel(num_cards=4)"})
    assert nested.action_space("player_0").n == 4
    nested = openspiel.env("turn_based_simultaneous_game(game=goofspiel)")
    assert nested.action_space("player_0").n == 13
    assert openspiel_game.game_parameters("add_noise", {"epsilon": 1})["epsilon"].__class__ is float


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"game": "kuhn_pokr"}, "OpenSpiel has no game 'kuhn_pokr'; did you mean 'kuhn_poker'"),
        ({"parameters": {"plyers": 3}}, "game 'kuhn_poker' has no parameter 'plyers'; did you mean 'players'?"),
        ({"game": "tic_tac_toe(size=3)"}, "game 'tic_tac_toe' has no parameter 'size'; it has none"),
        ({"game": "kuhn_poker(players=3)", "parameters": {"players": 3}}, "parameter 'players' is given twice"),
        ({"parameters": {"players": "three"}}, "cannot be loaded with players='three': Wrong type"),
        ({"parameters": {"players": 30}}, "cannot be loaded with players=30: num_players_ <= kGameType.max_num"),
        ({"game": "kuhn_poker(players=3"}, "cannot be read: Missing closing bracket"),
        ({"game": 3}, "game must be the name of a game of OpenSpiel, such as 'kuhn_poker', not 3"),
        ({"parameters": [3]}, "parameters must be {name: value, ...} or null, not [3]"),
        ({"game": "negotiation", "parameters": {"rng_seed": 1}}, "'rng_seed' of game 'negotiation' is set by the seed"),
        ({"game": "mfg_crowd_modelling"}, "is a mean-field game"),
        ({"game": "crossword"}, "has actions that are structures"),
        ({"game": "add_noise(game=negotiation,epsilon=1.0,seed=1)"}, "takes no rng_seed"),
        ({"game": "liars_dice_ir"}, "describes its states to players in words only"),
        ({"game": "python_dynamic_routing"}, "(information_state), but it is empty"),
        ({"game": "nfg_game"}, "game 'nfg_game' cannot be loaded with no parameters"),
        ({"game": "tic_tac_toe", "observation": "information_state"}, "no information_state tensor; leave"),
        ({"observation": "tensor"}, "observation must be one of information_state, observation or null, not 'tensor'"),
        ({"max_env_steps": 0}, "max_env_steps must be a whole number from 1, or null for no limit, not 0"),
        ({"render_mode": "rgb_array"}, "render_mode must be one of ansi, human or null, not 'rgb_array'"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_reason(arguments, problem):
    with pytest.raises(ConfigInvalid) as caught:
        openspiel.env(**arguments)
    assert problem in str(caught.value)


def test_without_open_spiel_the_error_says_what_to_install(monkeypatch):
    for module in ("marlflow.env.simulators.openspiel", "marlflow.env.simulators.openspiel_game"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(ConfigInvalid) as caught:
        make_environment("marlflow.env.simulators.openspiel.env", {})
    assert str(caught.value).endswith("pip install 'marlflow[openspiel]'")


def test_rendering_is_open_spiels_own_text(capsys):
    env = openspiel.env("tic_tac_toe", render_mode="ansi")
    env.reset(seed=0)
    env.step(4)
    assert env.render() == "...\n.x.\n..."
    assert capsys.readouterr().out == ""
    env = openspiel.env("tic_tac_toe", render_mode="human")
    env.reset(seed=0)
    env.step(0)
    assert env.render() is None
    env.close()
    assert capsys.readouterr().out == "...\n...\n...\n" + 2 * "x..\n...\n...\n"
