"""Games of a team: videos against a naive loop of PettingZoo, windows without a screen, and people."""

import importlib
import json
import sys
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.env.functional.own import batched_env
from marlflow.env.games import cartpole_team, matrix_games
from marlflow.env.simulators import openspiel
from marlflow.offline.dataset import find_dataset
from marlflow.trained import terminal
from marlflow.trained.play import PlayOptions, play
from tests.env.functional_games import MOST_TURNS, HotPotato
from tests.trained.people import DrawnTeam, Typed

av = pytest.importorskip("av")
pygame = pytest.importorskip("pygame")

CARTS = {"num_agents": 2, "max_cycles": 12}


def tictactoe(**arguments):
    return importlib.import_module("pettingzoo.classic.tictactoe_v3").env(**arguments)


@pytest.fixture(autouse=True)
def screenless(monkeypatch):
    """No display, and no window stays open."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    yield
    pygame.display.quit()


def played(team, said=None, **options):
    return play(team, PlayOptions(**options), (said if said is not None else []).append)


def frames_in(path):
    with av.open(str(path)) as file:
        return sum(1 for _ in file.decode(video=0)), float(file.streams.video[0].average_rate)


def naive_parallel(team, seed, episode):
    env, steps = team.make_env(), 0
    observations, _ = env.reset(seed=team.reset(seed, episode))
    returns = dict.fromkeys(env.agents, 0.0)
    while env.agents:
        actions = {agent: team.act(agent, observations[agent], {}, "greedy", None) for agent in env.agents}
        observations, rewards, *_ = env.step(actions)
        steps += 1
        returns = {agent: returns[agent] + rewards.get(agent, 0.0) for agent in returns}
    return steps, returns


def naive_aec(team, seed, episode):
    env, steps = team.make_env(), 0
    env.reset(seed=team.reset(seed, episode))
    returns = dict.fromkeys(env.agents, 0.0)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        returns[agent] += reward
        over = terminated or truncated
        mask = {"action_mask": observation["action_mask"]}
        env.step(None if over else team.act(agent, None, mask, "greedy", None))
        steps += not over
    return steps, returns


@pytest.mark.parametrize(
    ("factory", "arguments", "naive", "kind", "fps"),
    [(cartpole_team.parallel_env, CARTS, naive_parallel, "mp4", 50), (tictactoe, {}, naive_aec, "webm", 1)],
)
def test_a_video_has_a_frame_for_each_reset_and_env_step(tmp_path, factory, arguments, naive, kind, fps):
    team, path = DrawnTeam(factory, arguments), tmp_path / f"out.{kind}"
    result = played(team, episodes=2, seed=5, video=path)
    wanted = [naive(team, 5, episode) for episode in range(2)]
    assert [(one.env_steps, one.returns) for one in result.episodes] == wanted
    assert frames_in(path) == (sum(steps + 1 for steps, _ in wanted), fps)
    written = json.loads((tmp_path / f"out.{kind}.json").read_text())
    assert (written["frames"], written["fps"], written["seed"]) == (result.frames, fps, 5)
    assert [(one["env_steps"], one["returns"]) for one in written["episodes"]] == wanted
    assert [one["seed"] for one in written["episodes"]] == [team.reset(5, episode) for episode in range(2)]


def test_a_new_seed_is_drawn_and_said(tmp_path):
    team = DrawnTeam(cartpole_team.parallel_env, CARTS)
    one, other = (played(team, episodes=1, video=tmp_path / f"{name}.gif") for name in "ab")
    assert one.seed != other.seed
    again = played(team, episodes=1, seed=one.seed, video=tmp_path / "c.gif")
    assert again.episodes[0].returns == one.episodes[0].returns
    assert (tmp_path / "c.gif").read_bytes() == (tmp_path / "a.gif").read_bytes()


def test_an_environment_that_renders_text_only_is_drawn_as_text(tmp_path):
    result = played(DrawnTeam(openspiel.env, {"game": "tic_tac_toe"}), episodes=1, seed=1, video=tmp_path / "out.mp4")
    assert frames_in(tmp_path / "out.mp4") == (result.episodes[0].env_steps + 1, 10)
    assert result.size == (640, 480)


def test_text_is_shown_in_the_terminal():
    said = []
    result = played(DrawnTeam(openspiel.env, {"game": "tic_tac_toe"}), said, episodes=1, seed=1)
    boards = [line for line in said if line.count("\n") == 2 and set(line) <= set(".xo\n")]
    assert len(boards) == result.episodes[0].env_steps + 1
    assert any(line.startswith("player_0: x(") for line in said)


def test_a_public_board_is_shown_in_the_terminal_if_one_asks_for_it():
    said = []
    result = played(DrawnTeam(tictactoe), said, episodes=1, seed=1, view="terminal")
    assert sum(line.count("\n") == 2 for line in said) == result.episodes[0].env_steps + 1


class Fickle(ParallelEnv):
    """Three steps; renders what it is told to, one entry after each reset and step."""

    metadata = {"name": "fickle", "render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012
    possible_agents = ["a_0"]  # noqa: RUF012

    def __init__(self, rendered=(), render_mode=None):
        self.rendered, self.render_mode = list(rendered), render_mode

    def observation_space(self, agent):
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = self.possible_agents[:], 0
        return {"a_0": np.zeros(1, np.float32)}, {"a_0": {}}

    def step(self, actions):
        self.steps += 1
        over = {"a_0": self.steps == 3}
        if over["a_0"]:
            self.agents = []
        return {"a_0": np.zeros(1, np.float32)}, {"a_0": 1.0}, over, {"a_0": False}, {"a_0": {}}

    def render(self):
        return self.rendered.pop(0)


PICTURE = np.zeros((4, 4, 3), np.uint8)


def test_where_nothing_is_rendered_the_last_frame_is_repeated(tmp_path):
    team = DrawnTeam(Fickle, {"rendered": [PICTURE, None, [PICTURE, PICTURE + 99], []]})
    result = played(team, episodes=1, video=tmp_path / "out.gif")
    assert (result.frames, result.repeated_frames) == (4, 2)
    assert frames_in(tmp_path / "out.gif") == (4, pytest.approx(8, rel=0.05))


@pytest.mark.parametrize(
    ("rendered", "problem"),
    [(None, "returned nothing in its render mode 'rgb_array'"), (7, r"returned an array of shape \(\), not")],
)
def test_what_cannot_be_drawn_is_an_error(tmp_path, rendered, problem):
    with pytest.raises(MarlflowError, match=problem):
        played(DrawnTeam(Fickle, {"rendered": [rendered]}), episodes=1, video=tmp_path / "out.mp4")
    assert not list(tmp_path.iterdir())


def test_after_an_interruption_the_frames_and_finished_episodes_are_kept(tmp_path):
    team = DrawnTeam(Fickle, {"rendered": [PICTURE] * 20})
    act = team.act

    def interrupted(*arguments):
        if len(team.asked) == 5:
            raise KeyboardInterrupt
        return act(*arguments)

    team.act = interrupted
    with pytest.raises(KeyboardInterrupt):
        played(team, episodes=3, video=tmp_path / "out.mp4")
    written = json.loads((tmp_path / "out.mp4.json").read_text())
    # Three steps of the first episode, two of the second.
    assert frames_in(tmp_path / "out.mp4")[0] == written["frames"] == 4 + 3
    assert [one["env_steps"] for one in written["episodes"]] == [3]


@pytest.mark.parametrize(
    ("factory", "options", "problem"),
    [
        (cartpole_team.parallel_env, {}, "there is no display for a window .*: --video out.mp4"),
        (matrix_games.parallel_env, {}, "cannot be drawn: its metadata.* are none, and human or rgb_array is needed"),
        (cartpole_team.parallel_env, {"view": "terminal"}, "cannot be shown as text"),
        (cartpole_team.parallel_env, {"episodes": 0}, "episodes must be at least 1"),
        (cartpole_team.parallel_env, {"clock_s": 3.0}, "clock is for a person: say which agent you play"),
        (cartpole_team.parallel_env, {"person": "cart_9"}, "no agent 'cart_9' to play as; did you mean 'cart_"),
        (cartpole_team.parallel_env, {"person": "cart_0", "view": "window"}, "has no keys of its own"),
    ],
)
def test_what_cannot_be_played_is_refused(factory, options, problem):
    with pytest.raises(ConfigInvalid, match=problem):
        played(DrawnTeam(factory), **options)


def test_a_missing_pygame_names_the_extra(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    team = DrawnTeam(cartpole_team.parallel_env, CARTS)
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ConfigInvalid, match=r"pip install 'marlflow\[video\]'"):
        played(team)


def test_frames_are_shown_in_a_window(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    team, shown = DrawnTeam(cartpole_team.parallel_env, CARTS), []
    monkeypatch.setattr(
        pygame.display, "flip", lambda: shown.append(pygame.surfarray.array3d(pygame.display.get_surface()))
    )
    result = played(team, episodes=1, seed=2, fps=240)
    assert len(shown) == result.episodes[0].env_steps + 1
    assert shown[0].shape == (600, 800, 3)  # width first, two carts below each other
    assert not pygame.display.get_init()


@pytest.mark.parametrize("event", [pygame.QUIT, pygame.KEYDOWN])
def test_a_window_that_is_closed_ends_the_games(monkeypatch, event):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    team = DrawnTeam(cartpole_team.parallel_env, CARTS)
    act = team.act

    def act_and_close(*arguments):
        if len(team.asked) == 6:
            pygame.event.post(pygame.event.Event(event, {"key": pygame.K_ESCAPE} if event == pygame.KEYDOWN else {}))
        return act(*arguments)

    team.act = act_and_close
    result = played(team, seed=2, fps=240)
    assert result.stopped
    assert result.episodes == []
    assert len(team.asked) == 8


def test_against_plays_the_other_sides_and_seats_single_agents():
    team = DrawnTeam(openspiel.env, {"game": "tic_tac_toe"}, policies=("main", "main@3"))
    assert played(team, episodes=1, seed=1, against="random").seating == {"player_0": "main", "player_1": "random"}
    assert {policy for agent, policy, _ in team.asked if agent == "player_1"} == {"random"}
    seats = {"player_0": "main@3"}
    assert played(team, episodes=1, seats=seats).seating == {"player_0": "main@3", "player_1": "main"}
    for wrong, problem in (
        ({"player_7": "main"}, "no agent 'player_7'"),
        ({"player_0": "veteran"}, "no policy 'veteran'"),
    ):
        with pytest.raises(ConfigInvalid, match=problem):
            played(team, episodes=1, seats=wrong)


def test_a_person_plays_in_the_terminal_and_is_recorded(monkeypatch, tmp_path, capsys):
    typed = Typed(*[str(cell) for cell in range(9)] * 9)
    monkeypatch.setattr(terminal, "StandardInput", lambda: typed)
    team = DrawnTeam(tictactoe)
    result = played(team, episodes=2, seed=3, person="player_2", record=tmp_path / "played", mode="sampled")
    assert {(agent, mode) for agent, _, mode in team.asked} == {("player_1", "sampled")}
    dataset = find_dataset(tmp_path / "played", "policy")
    batches = [dataset.read(fragment) for fragment in dataset.fragments]
    assert sum(batch.rows for batch in batches) == result.rows
    for batch, episode in zip(batches, result.episodes, strict=True):
        assert batch["action_mask"][np.arange(batch.rows), batch["action"]].all()
        # The person has every second turn, and each of its stones lies where it was put.
        assert batch["t_env"].tolist() == list(range(1, episode.env_steps, 2))
        stones = batch.segments["bootstrap_obs"].reshape(9, 2)[:, 0]
        assert np.flatnonzero(stones).tolist() == sorted(batch["action"].tolist())
        assert batch["reward"].sum() == episode.returns["player_2"]
        assert batch.segments["terminated"].tolist() == [True]
    assert "you are O" in capsys.readouterr().out


def test_a_person_plays_a_functional_environment(monkeypatch, capsys):
    typed = Typed(*"01" * 200)
    monkeypatch.setattr(terminal, "StandardInput", lambda: typed)
    team = DrawnTeam(partial(batched_env, 1, HotPotato, max_env_steps=MOST_TURNS))
    result = played(team, episodes=1, seed=3, person="player_1")
    assert {agent for agent, _, _ in team.asked} == {"player_0", "player_2"}
    assert len(result.episodes) == 1
    assert "you are player_1" in capsys.readouterr().out


def test_a_game_that_a_person_left_is_not_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(terminal, "StandardInput", lambda: Typed("0", "quit"))
    result = played(DrawnTeam(openspiel.env, {"game": "tic_tac_toe"}), person="player_0", record=tmp_path / "played")
    assert result.stopped
    assert result.rows == 0
    assert not list((tmp_path / "played").glob("*/*.parquet"))


def pistonball(**arguments):
    return importlib.import_module("pettingzoo.butterfly.pistonball_v6").parallel_env(
        n_pistons=8, max_cycles=4, **arguments
    )


@pytest.mark.parametrize(("continuous", "up", "still"), [(True, 1.0, 0.0), (False, 2, 1)])
def test_a_person_plays_by_keys_in_a_window(monkeypatch, tmp_path, continuous, up, still):
    pytest.importorskip("pymunk")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    team, said = DrawnTeam(pistonball, {"continuous": continuous}), []
    act = team.act

    def act_and_press(agent, *arguments):
        # Before the second env step: Backspace, which would reset the environment, and `w`.
        if sum(asked == "piston_0" for asked, *_ in team.asked) == 1 and agent == "piston_0":
            for key in (pygame.K_BACKSPACE, pygame.K_w):
                pygame.event.post(pygame.event.Event(pygame.KEYDOWN, {"key": key}))
        return act(agent, *arguments)

    team.act = act_and_press
    result = played(team, said, episodes=1, seed=1, person="piston_1", record=tmp_path / "played", fps=240)
    # The ball may arrive before the last of four steps.
    steps = result.episodes[0].env_steps
    assert steps >= 2
    dataset = find_dataset(tmp_path / "played", "policy")
    assert dataset.read(dataset.fragments[0])["action"].ravel().tolist() == [still, up, still, still][:steps]
    assert "you are piston_1; your keys: w, s; Escape ends the games" in said
