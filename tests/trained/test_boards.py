"""Boards show a person what its agent knows: where the free cells are, and nothing that only others know."""

import importlib
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from marlflow.env.simulators import openspiel
from marlflow.trained.boards import Board, OwnBoard, RenderedBoard, board_of

pytest.importorskip("rlcard")


def games(name, seed=0, **arguments):
    """A game in progress: yields the board, the deciding agent and its legal actions at each turn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = importlib.import_module(f"pettingzoo.classic.{name}").env(**arguments)
        env.reset(seed=seed)
    board, generator = board_of(env), np.random.default_rng(seed)
    for agent in env.agent_iter():
        observation, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            break
        legal = np.flatnonzero(observation["action_mask"])
        yield board, agent, legal.tolist(), env
        env.step(int(generator.choice(legal)))


def test_a_free_cell_of_tictactoe_shows_its_action():
    for board, agent, legal, env in games("tictactoe_v3"):
        text = board.text(agent, None)
        assert text.startswith(f"you are {'X' if agent == 'player_1' else 'O'}")
        cells = text.split("\n", 1)[1].split()
        assert sorted(int(cell) for cell in cells if cell.isdecimal()) == legal
        # Literal: the environment numbers its cells down the columns.
        squares = env.unwrapped.board.squares
        wanted = [" XO"[squares[3 * column + row]] for row in range(3) for column in range(3)]
        assert [" " if cell.isdecimal() else cell for cell in cells] == wanted


def test_stones_of_connect_four_lie_where_they_fell():
    for board, agent, _, env in games("connect_four_v3"):
        cells = board.text(agent, None).split("\n", 1)[1].split()[:42]
        assert cells == [".XO"[stone] for stone in env.unwrapped.board]


def test_connect_four_of_pgx_is_drawn_from_what_is_observed():
    for board, agent, _, env in games("connect_four_v3"):
        batch = SimpleNamespace(metadata={"name": "pgx_connect_four"}, possible_agents=env.possible_agents)
        seen = env.observe(agent)["observation"]
        assert board_of(batch).text(agent, seen) == board.text(agent, None)


def test_moves_of_go_have_their_coordinates():
    board, agent, legal, _ = next(games("go_v5", board_size=5))
    names = [board.action(agent, action) for action in legal]
    assert (names[0], names[4], names[20], names[24], names[25]) == ("A5", "E5", "A1", "E1", "pass")


def test_stones_of_go_have_the_color_of_who_placed_them():
    env = importlib.import_module("pettingzoo.classic.go_v5").env(board_size=5)
    env.reset(seed=0)
    for action in (0, 12, 24):  # black A5, white C3, black E1
        env.step(action)
    drawn = "5  #  .  .  .  .\n4  .  .  .  .  .\n3  .  .  o  .  .\n2  .  .  .  .  .\n1  .  .  .  .  #\n   A  B  C  D  E"
    for agent, sign in (("black_0", "#"), ("white_0", "o")):
        assert board_of(env).text(agent, None) == f"you are {sign} (# is black, o is white)\n{drawn}"
    assert board_of(env).for_all() == drawn


def test_moves_of_chess_are_written_as_players_do():
    turns = games("chess_v6")
    for turn, (board, agent, legal, env) in enumerate(turns):
        names = [board.action(agent, action) for action in legal]
        assert sorted(names) == sorted(move.uci() for move in env.unwrapped.board.legal_moves)
        rows = [line.split() for line in board.text(agent, None).splitlines()[1:]]
        assert [row[1:] for row in rows[:8]] == [line.split() for line in str(env.unwrapped.board).splitlines()]
        assert rows[0][0] == "8"
        assert rows[8] == list("abcdefgh")
        if turn == 5:
            return


def test_a_hand_of_leduc_is_ones_own():
    cards = set()
    for seed in range(20):
        for board, agent, _, env in games("leduc_holdem_v4", seed=seed):
            player = env.unwrapped.env.game.players[env.unwrapped.possible_agents.index(agent)]
            assert board.text(agent, None).startswith(f"your card: {player.hand.rank};")
            assert f"yours {player.in_chips}," in board.text(agent, None)
            assert not board.public
            cards.add(player.hand.rank)
    assert cards == set("JQK")


def test_cards_of_texas_holdem_are_ones_own_and_those_on_the_table():
    for board, agent, _, env in games("texas_holdem_v4", seed=3):
        game = env.unwrapped.env.game
        mine = game.players[env.unwrapped.possible_agents.index(agent)].hand
        shown = board.text(agent, None).splitlines()[0].partition(": ")[2].split()
        assert sorted(shown) == sorted(card.rank + card.suit for card in [*mine, *game.public_cards])


@pytest.mark.parametrize("game", ["kuhn_poker", "leduc_poker"])
def test_a_poker_player_of_openspiel_is_told_its_own_card_only(game):
    first = set()
    for seed in range(12):
        env = openspiel.env(game)
        env.reset(seed=seed)
        cards = [move for move in env.moves() if isinstance(move, int)][:2]
        text = board_of(env).text("player_0", None)
        first.add((cards[0], text))
        # What is written is a function of one's own card: the other's has no influence.
        assert len({shown for card, shown in first if card == cards[0]}) == 1
        assert not board_of(env).public
    assert len({shown for _, shown in first}) > 1


def test_openspiels_own_names_and_boards_are_used():
    env = openspiel.env("tic_tac_toe")
    env.reset(seed=0)
    board = board_of(env)
    assert isinstance(board, OwnBoard)
    assert board.public
    assert board.action("player_0", 4) == "x(1,1)"
    env.step(4)
    assert board.text("player_1", None).split() == ["...", ".x.", "..."]
    assert board.for_all().split() == ["...", ".x.", "..."]


def test_simultaneous_choices_are_not_public():
    env = openspiel.env("matrix_rps")
    env.reset(seed=0)
    assert not board_of(env).public
    assert [board_of(env).action("player_0", action) for action in range(3)] == ["Rock", "Paper", "Scissors"]


class Silent:
    """An environment that says nothing of itself."""

    render_mode = "ansi"

    def __init__(self):
        self.unwrapped = self

    def render(self):
        return "a picture of text"


class Speaking(Silent):
    possible_agents = ("a_0",)

    def observation_text(self, agent):
        return f"only for {agent}"


def test_other_environments_are_shown_as_they_render_themselves_or_as_numbers():
    board = board_of(Silent())
    assert isinstance(board, RenderedBoard)
    assert board.text("a_0", None) == board.for_all() == "a picture of text"
    silent = Silent()
    silent.render_mode = None
    numbers = board_of(silent)
    assert type(numbers) is Board
    assert numbers.text("a_0", {"place": np.array([0.5, 2.0]), "pair": (1, 2)}) == "place: [0.5 2. ]\npair: 1\n2"
    assert numbers.for_all() == ""


def test_an_environment_may_say_itself_what_an_agent_sees():
    board = board_of(Speaking())
    assert board.text("a_0", None) == "only for a_0"
    assert not board.public
    assert board.for_all() == ""
