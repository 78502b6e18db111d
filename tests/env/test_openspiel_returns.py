"""Games played through the adapter, beside the same games played with OpenSpiel alone."""

import numpy as np
import pyspiel
import pytest

from marlflow.env.simulators import openspiel
from tests.env.odd_game import NAME as ODD
from tests.env.test_openspiel import play

EPISODES = {
    "matrix_mp": 20,  # matching pennies
    "matching_pennies_3p": 20,
    "tic_tac_toe": 50,
    "leduc_poker": 200,
    "leduc_poker(players=3)": 50,
    "goofspiel(num_cards=5)": 50,
    "oshi_zumo(coins=6)": 20,
    "liars_dice": 50,
    "backgammon": 8,
    "coop_box_pushing(horizon=20)": 10,
    "hanabi(max_life_tokens=20)": 10,
    "2048(max_tile=32)": 5,  # what OpenSpiel calls rewards does not sum to its returns here
    "cliff_walking(horizon=20)": 10,
    "python_kuhn_poker": 20,
    ODD: 5,
}


def replayed(game, decisions, moves, tensor):
    """The final state of a game of OpenSpiel's own in which the same decisions were made, and the same chance fell."""
    state = pyspiel.load_game(game).new_initial_state()
    moves, decisions = iter(moves), iter(decisions)

    def decided(player):
        legal = state.legal_actions(player)
        if not legal:
            return 0
        agent, observed, mask, action = next(decisions)
        assert agent == f"player_{player}"
        np.testing.assert_array_equal(observed, np.array(getattr(state, f"{tensor}_tensor")(player), np.float32))
        assert np.flatnonzero(mask).tolist() == legal
        return action

    while not state.is_terminal():
        move = next(moves)
        if state.is_chance_node():
            assert move in [outcome for outcome, probability in state.chance_outcomes() if probability > 0]
            state.apply_action(move)
        elif state.is_simultaneous_node():
            joint = [decided(player) for player in range(state.num_players())]
            assert joint == move
            state.apply_actions(joint)
        else:
            action = decided(state.current_player())
            assert action == move
            state.apply_action(action)
    assert next(decisions, None) is next(moves, None) is None
    return state


@pytest.mark.parametrize("game", EPISODES)
def test_every_player_receives_exactly_what_open_spiel_returns(game):
    env = openspiel.env(game)
    kind = pyspiel.load_game(game).get_type()
    tensor = "information_state" if kind.provides_information_state_tensor else "observation"
    returns = set()
    for episode in range(EPISODES[game]):
        decisions, received = play(env, seed=episode, choose=episode)
        state = replayed(game, decisions, env.moves(), tensor)
        assert list(received.values()) == state.returns()
        if kind.utility == pyspiel.GameType.Utility.ZERO_SUM:
            assert sum(received.values()) == 0
        returns.add(tuple(received.values()))
    assert len(returns) > 1


@pytest.mark.parametrize("game", ["coop_box_pushing(horizon=20)", "2048(max_tile=32)", "hanabi(max_life_tokens=20)"])
def test_rewards_come_when_they_are_earned_and_reach_the_next_decision(game):
    env = openspiel.env(game)
    generator = np.random.default_rng(0)
    env.reset(seed=0)
    received = dict.fromkeys(env.agents, 0.0)
    pending = dict.fromkeys(env.agents, 0.0)
    rewarded = 0
    while not any(env.terminations.values()):
        agent = env.agent_selection
        observation, reward, *_ = env.last()
        assert reward == pending[agent]
        pending[agent] = 0.0
        env.step(int(generator.choice(np.flatnonzero(observation["action_mask"]))))
        for name, part in env.rewards.items():
            received[name] += part
            pending[name] += part
            rewarded += bool(part)
        assert list(received.values()) == env._state.returns()
    assert rewarded > len(env.agents)
