"""`marlflow play`: watch the policies of a run, write a video of them, or play against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import description_of
from marlflow.cli.options import TRUST, Arguments, Command, Option
from marlflow.cli.progress import shown_progress
from marlflow.cli.run_folder import CHECKPOINT, STRICT, checked_run, which_checkpoint

if TYPE_CHECKING:
    from marlflow.trained.play import PlayOptions, PlayResult

_SEATS = "player_0:random"


def run_play(arguments: Arguments) -> int:
    """Play the policies of a run; return 0. Raises InvalidInput."""
    which, seats = which_checkpoint(arguments["checkpoint"]), _seats(arguments["seats"])
    names = [*seats.values(), *([arguments["against"]] if arguments["against"] else [])]
    run_dir = checked_run(arguments.operands[0], "play", which, names, arguments["as"], seats)
    options = _options(arguments, run_dir, seats)
    from marlflow.trained.play import play
    from marlflow.trained.team import load

    team = load(run_dir, which, trust=None if arguments["trust"] else (), strict=arguments["strict"])
    # Where a person looks at a window or types, nothing else may write to the terminal.
    with shown_progress() if options.video is not None and options.person is None else nullcontext():
        played = play(team, options, _say)
    for line in _summary(played):
        print(line)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _options(arguments: Arguments, run_dir: Path, seats: Mapping[str, str]) -> PlayOptions:
    from marlflow.trained.play import PLAYED, PlayOptions

    folder = arguments["record_folder"]
    if folder is None and arguments["record"]:
        folder = run_dir / PLAYED
    options = PlayOptions(
        episodes=arguments["episodes"],
        seed=arguments["seed"],
        mode=arguments["mode"],
        video=None if arguments["video"] is None else Path(arguments["video"]),
        view=arguments["view"],
        person=arguments["as"],
        against=arguments["against"],
        seats=seats,
        clock_s=arguments["clock"],
        record=None if folder is None else Path(folder),
        fps=arguments["fps"],
    )
    if problems := list(options.problems()):
        raise ConfigInvalid(problems)
    return options


def _seats(entries: Sequence[str]) -> dict[str, str]:
    seats, problems = {}, []
    for entry in entries:
        agent, colon, name = entry.partition(":")
        if not (agent and colon and name):
            problems.append(
                f"seats needs an agent and who plays it, with a colon between them ({_SEATS}), not {entry!r}"
            )
        elif agent in seats:
            problems.append(f"seats has {agent!r} more than once")
        seats[agent] = name
    if problems:
        raise ConfigInvalid(problems)
    return seats


def _summary(played: PlayResult) -> list[str]:
    lines = []
    if played.stopped:
        count = len(played.episodes)
        lines.append(f"stopped after {count} {'game' if count == 1 else 'games'}; the last one does not count")
    if played.video is not None:
        if played.frames:
            width, height = played.size
            lines.append(
                f"wrote {played.video}, {played.frames:,} frames of {width} x {height} at {played.fps:g} per second, "
                f"and {description_of(played.video)}"
            )
        if played.repeated_frames:
            lines.append(
                f"{played.repeated_frames:,} frames repeat the one before: the environment rendered nothing there"
            )
    if played.record is not None:
        lines.append(
            f"recorded {played.rows:,} of your decisions in {played.record}" if played.rows else "recorded nothing"
        )
    lines.append(f"to see the same games again: seed={played.seed}")
    return lines


_ABOUT = """
Uses the environment of the run, and the policies of its newest whole checkpoint; the run may be in progress.
Without video=, it opens a window. An environment that renders text only is shown in the terminal.

With as=<agent>, you play an agent: in the terminal, where the board is text and only legal actions are taken, or in a
window with the keys of the environment, if it has any (pistonball, cooperative_pong, knights_archers_zombies,
pursuit).
--record writes your decisions as a dataset that policies learn from: experience={folder: RUN/played}.

who plays, in against= and seats=:
  main, main@3            a policy of the run, or a member of its league
  one_ply                 a policy of the run that does not learn, one of evaluation.opponents for example
  random                  acts uniformly at random
  RUN2:main               a policy or member of another run
  main12.safetensors      a file of marlflow league --export
"""

COMMAND = Command(
    "play",
    run_play,
    (
        Option(
            "video",
            "write a video: .mp4, .webm, .gif or .webp; with the seeds and returns in a .json next to it",
            value="FILE",
        ),
        Option("episodes", "episodes to play", "whole number", "N", 3, low=1),
        Option("seed", "seed of the episodes; by default a new one", "whole number", "N", low=0),
        Option(
            "mode",
            "how policies act: as_learned, drawn from what they learned or by values; or their most likely action",
            value="MODE",
            default="as_learned",
            choices=("as_learned", "greedy", "sampled"),
        ),
        CHECKPOINT,
        STRICT,
        Option("as", "the agent that you play", value="AGENT"),
        Option("against", "who plays the other sides; by default as in training", value="NAME"),
        Option("seats", "who plays single agents", value=_SEATS, several=True),
        Option(
            "clock",
            "seconds that you have for each decision in the terminal; then your last action is repeated",
            "number",
            "S",
        ),
        Option("record", "record your decisions in RUN/played", "switch"),
        Option("record_folder", "record your decisions in another folder", value="FOLDER"),
        Option("view", "where games are shown", value="VIEW", default="auto", choices=("auto", "window", "terminal")),
        Option("fps", "env steps per second; by default as the environment declares, or 10", "number", "N"),
        TRUST,
    ),
    _ABOUT,
    (
        "runs/simple_tag/2026-01-31_12-00-00",
        "runs/simple_tag/2026-01-31_12-00-00 --video tag.mp4 episodes=5 seed=1",
        "runs/connect_four/2026-01-31_12-00-00 --as player_0",
        "runs/tictactoe/2026-01-31_12-00-00 --as player_1 --against random --record",
    ),
)
