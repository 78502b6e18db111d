"""`marlflow play`: a game on a terminal, videos, and one clear error for whatever is wrong."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.offline.dataset import find_dataset
from tests.cli.conftest import Marlflow, trained_in

av = pytest.importorskip("av")
pexpect = pytest.importorskip("pexpect")

SMALL = ("runtime=inline", "log.console=plain", "evaluation.episodes=0", "env.num_envs=1", "rollouts.num_workers=1")
TICTACTOE = ("env=tictactoe", *SMALL, "stop.env_steps=30", "rollouts.fragment_env_steps=16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of tictactoe."""
    return trained_in(tmp_path_factory.mktemp("trained"), ["train", *TICTACTOE, "hydra.run.dir=board"]) / "board"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, where no display is."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(trained, tmp_path / "board")
    return tmp_path / "board"


@pytest.mark.usefixtures("run")
def test_a_video_and_its_description_are_written(marlflow: Marlflow, tmp_path: Path) -> None:
    said = marlflow("play", "board", "--video", "out.webm", "episodes=2", "--seed=4", "against=random")
    assert (said.code, said.err) == (0, "")
    written = json.loads((tmp_path / "out.webm.json").read_text(encoding="utf-8"))
    steps = [episode["env_steps"] for episode in written["episodes"]]
    with av.open(str(tmp_path / "out.webm")) as video:
        assert sum(1 for _ in video.decode(video=0)) == sum(steps) + 2 == written["frames"]
    assert written["seating"] == {"player_1": "player", "player_2": "random"}
    assert "player plays player_1; random plays player_2" in said.out.splitlines()[0]
    assert said.out.splitlines()[-1] == "to see the same games again: seed=4"
    again = marlflow("play", "board", "--video", "again.webm", "episodes=2", "--seed=4", "against=random")
    assert again.out.replace("again.", "out.") == said.out


def test_a_game_on_a_terminal_is_recorded_and_learned_from(marlflow: Marlflow, run: Path) -> None:
    words = ["play", "board", "--as", "player_1", "--against", "random", "--record", "episodes=2"]
    # Neither Ray nor Hydra is needed.
    program = (
        "import sys; sys.modules['ray'] = sys.modules['hydra'] = sys.modules['omegaconf'] = None\n"
        "from marlflow.cli.main import main; sys.exit(main())"
    )
    game = pexpect.spawn(sys.executable, ["-c", program, *words], cwd=str(run.parent), encoding="utf-8", timeout=120)
    asked = 0
    try:
        game.expect("you are X")
        game.expect("your action> ")
        game.sendline("9")
        game.expect("9 is not legal now; legal are 0, 1, 2, 3, 4, 5, 6, 7, 8")
        free, found = "0", 0
        while not found:
            game.expect("your action> ")
            game.sendline(free)
            asked += 1
            # The list of legal actions comes after the board, whose free cells have numbers too.
            found = game.expect([r"\n(\d)(?:   \d)*\s*\r\n", "of your decisions in .*played", pexpect.EOF])
            free = "" if found else game.match[1]
        assert found == 1
        game.expect(pexpect.EOF)
    finally:
        game.close()
    assert game.exitstatus == 0
    dataset = find_dataset(run / "played", "player")
    rows = [dataset.read(fragment) for fragment in dataset.fragments]
    assert sum(batch.rows for batch in rows) == asked
    said = marlflow(
        *("train", "env=offline", "env.folder=board/played", "env.passes=100", *SMALL, "hydra.run.dir=clone"),
        *("policy@policies.player=bc", "policies.player.algorithm.learning_rate=1e-2"),
        *("policies.player.algorithm.batch_agent_steps=4", "policies.player.algorithm.minibatch_agent_steps=4"),
    )
    assert said.code == 0, said.err
    clone = mf.load(run.parent / "clone")["player"]
    for batch in rows:
        assert clone.act(batch["obs"], batch["action_mask"]).tolist() == batch["action"].tolist()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "there is no display for a window (neither DISPLAY nor WAYLAND_DISPLAY is set); write a video instead: "
             "--video out.mp4"),
        (("vidoe=a.mp4",), "marlflow play has no option 'vidoe'; did you mean 'video'?"),
        (("video=a.avi",), "a.avi is no video: its name must end in .mp4, .webm, .gif, .webp, not '.avi'"),
        (("--video", "there/a.gif"), "there is no folder there to write a.gif to; make it first"),
        (("as=player_3",), "there is no agent 'player_3' to play as; did you mean 'player_"),
        (("seats=player_1",), "seats needs an agent and who plays it, with a colon between them (player_0:random), not "
                              "'player_1'"),
        (("as=player_1", "seats=player_1:random"), "seats: you play player_1 yourself, so 'random' cannot"),
        (("against=veteran", "view=terminal"), "veteran"),
        (("checkpoint=first",), "checkpoint must be best, or the env steps of a checkpoint, not 'first'"),
        (("checkpoint=1", "view=terminal"), "1"),
        (("episodes=0",), "episodes must be a whole number of at least 1, not 0"),
        (("--record",), "record is for a person: say which agent you play, as=<agent>"),
        (("clock=3",), "clock is for a person: say which agent you play, as=<agent>"),
        (("as=player_1", "clock=0"), "clock must be above 0 seconds, not 0"),
        (("mode=best",), "mode must be one of as_learned, greedy, sampled, not 'best'"),
        (("video=a.mp4", "view=terminal"), "view=terminal shows games, and a video is written without"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_clear_error(marlflow: Marlflow, words: tuple[str, ...], problem: str) -> None:
    marlflow("play", "board", *words).assert_refused(problem)


def test_no_run_is_an_error(marlflow: Marlflow, tmp_path: Path) -> None:
    os.mkdir(tmp_path / "empty")
    for folder in ("nothing", "empty"):
        marlflow("play", folder).assert_refused(folder)
