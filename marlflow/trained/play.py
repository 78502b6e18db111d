"""Plays the policies of a run: in a window, in the terminal, as a video, or against a person."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.files import description_of, replacing
from marlflow.config.records import played_environment
from marlflow.env.adapter import EnvAdapter, spaces_of
from marlflow.env.opening import open_adapter
from marlflow.offline.manifest import environment_described
from marlflow.policy.actor import AskedMode
from marlflow.trained.boards import Board, RenderedBoard, board_of
from marlflow.trained.games import PERSON, Episode, Player, Stopped, Watcher, play_episode, policy_player, seating
from marlflow.trained.person_rows import PersonDataset
from marlflow.trained.team import Team
from marlflow.trained.terminal import TerminalPerson
from marlflow.trained.video import VideoWriter, check_video_path
from marlflow.trained.views import ADD_RENDERING, RowsWatcher, TextWatcher, VideoWatcher, View, frames_per_second, shown
from marlflow.trained.window import Window, WindowPerson

PLAYED = "played"
"""The folder of a run in which a person's rows are recorded."""


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """How the policies of a run are played.

    `episodes` episodes are played with seeds that follow from `seed` (None: new ones). `mode` is as in an evaluation.
    `video` is the file to write, or None to watch. `view` is `auto`, `window` or `terminal`. `person` is the agent that
    a person plays. `against` plays the other sides, and `seats` says who plays single agents. `clock_s` is the time
    of a person for each decision in the terminal. `record` is the folder of the dataset with the person's rows. `fps`
    is in env steps per second (None: as the environment declares, or 10). A video has at most `most_frames` frames, of
    at most `longest_side` pixels in width and height (None: any).
    """

    episodes: int = 3
    seed: int | None = None
    mode: AskedMode = "as_learned"
    video: Path | None = None
    view: View = "auto"
    person: str | None = None
    against: str | None = None
    seats: Mapping[str, str] = field(default_factory=dict)
    clock_s: float | None = None
    record: Path | None = None
    fps: float | None = None
    most_frames: int | None = None
    longest_side: int | None = None

    def problems(self) -> Iterator[str]:
        """Yield their problems that do not depend on the run."""
        if self.episodes < 1:
            yield f"episodes must be at least 1, not {self.episodes}"
        if self.fps is not None and not 0 < self.fps <= 240:
            yield f"fps must be above 0 and at most 240, not {self.fps:g}"
        if self.clock_s is not None and not self.clock_s > 0:
            yield f"clock must be above 0 seconds, not {self.clock_s:g}"
        for name, value in (("clock", self.clock_s), ("record", self.record)):
            if self.person is None and value is not None:
                yield f"{name} is for a person: say which agent you play, as=<agent>"


@dataclass(slots=True)
class PlayResult:
    """The episodes that were played to their ends, and the files that were written.

    `seating` says who played each agent; `you` is the person. `stopped`: the person, or a full video, ended the games.
    """

    seed: int
    seating: Mapping[str, str]
    episodes: list[Episode] = field(default_factory=list)
    fps: float = 0.0
    video: Path | None = None
    frames: int = 0
    repeated_frames: int = 0
    size: tuple[int, int] = (0, 0)
    record: Path | None = None
    rows: int = 0
    stopped: bool = False


def play(team: Team, options: PlayOptions, say: Callable[[str], None]) -> PlayResult:
    """Play the policies of `team`; lines for a reader go to `say`.

    Also after an interruption or an error, the video has the frames up to then, and its JSON file the episodes that
    were finished. Raises InvalidInput with every problem of `options` before anything is played, EnvironmentFailed if
    the environment breaks, and MarlflowError if it cannot be drawn.
    """
    if problems := list(options.problems()):
        raise ConfigInvalid(problems)
    if options.video is not None:
        check_video_path(options.video)
    if options.video is not None:
        # A video needs no display, and SDL complains if there is none.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    probe = team.played_env()
    how = shown(probe, options.view, options.video is not None, options.person is not None)
    with suppress(Exception):
        probe.close()
    env = _make_env(team, how.render_mode)
    adapter = open_adapter(env)
    agents = tuple(adapter.agents)
    try:
        names = seating(team, options.person, options.against, options.seats, agents)
        seed = secrets.randbits(31) if options.seed is None else options.seed
        played = PlayResult(seed, names, fps=options.fps or frames_per_second(env))
        say(f"checkpoint of {team.checkpoint:,} env steps; {_who_plays(names)}")
        with ExitStack() as stack:
            game = _Game(team, options, env, adapter, played, say, stack)
            if how.view == "window":
                game.open_window()
            elif how.view == "terminal" and options.person is None:
                game.watchers.append(TextWatcher(_everything(env), say))
            if options.person is not None:
                game.seat_person(options.person, by_keys=how.view == "window")
            if options.video is not None:
                game.open_video(options.video)
            game.play()
        return played
    finally:
        adapter.close()


def _everything(env: Any) -> Board:
    """Return the whole board of a game without a person: all that it renders."""
    return RenderedBoard(env, board_of(env)) if getattr(env, "render_mode", None) == "ansi" else board_of(env)


def _make_env(team: Team, render_mode: str | None) -> Any:
    try:
        return team.played_env() if render_mode is None else team.played_env(render_mode=render_mode)
    except InvalidInput as error:
        if render_mode is None:
            raise
        reasons = "; ".join(error.problems)
        raise ConfigInvalid(
            [f"the environment cannot be drawn with render_mode={render_mode!r}: {reasons}; {ADD_RENDERING}"]
        ) from error


class _Game:
    """One call of `play`: its players and watchers."""

    def __init__(
        self,
        team: Team,
        options: PlayOptions,
        env: Any,
        adapter: EnvAdapter,
        played: PlayResult,
        say: Callable[[str], None],
        stack: ExitStack,
    ) -> None:
        self.watchers: list[Watcher] = []
        self._team, self._options, self._played, self._say = team, options, played, say
        self._env, self._adapter, self._stack = env, adapter, stack
        self._players: dict[str, Player] = {}
        self._dataset: PersonDataset | None = None

    def open_window(self) -> None:
        """Show the games in a window."""
        window = Window(self._env, self._played.fps, self._team.run_dir.name)
        self._stack.callback(window.close)
        self.watchers.append(window)

    def open_video(self, path: Path) -> None:
        """Write the games as a video, and a description of them as a JSON file."""
        video = self._stack.enter_context(_described(self._team, self._options, self._played, path))
        self._played.video, self._played.fps = path, video.fps
        self.watchers.append(VideoWatcher(self._env, video, self._options.most_frames))

    def seat_person(self, agent: str, by_keys: bool) -> None:
        """Let a person play `agent`, and record the person's rows if that is asked for."""
        person: WindowPerson | TerminalPerson
        if by_keys:
            person = WindowPerson(self._env, agent, self._adapter.action_space(agent), self._played.fps, self._say)
        else:
            person = TerminalPerson(agent, board_of(self._env), self._played.seating, self._options.clock_s)
        self._players[agent] = person
        self.watchers.append(person)
        if self._options.record is not None:
            self._dataset = self._open_dataset(agent, self._options.record)
            spaces = spaces_of(self._adapter, agent)
            self.watchers.append(RowsWatcher(agent, spaces, self._dataset))

    def play(self) -> None:
        """Play all episodes, or until the person stops."""
        options, played = self._options, self._played
        others = policy_player(self._team, played.seating, options.mode)
        try:
            for number in range(options.episodes):
                episode = Episode(number, options.episodes, self._team.reset(played.seed, number))
                play_episode(self._adapter, episode, self._players, others, self.watchers)
                played.episodes.append(episode)
                if options.person is None:
                    self._say(_line(episode, played.seating))
        except Stopped:
            played.stopped = True
        finally:
            if self._dataset is not None:
                played.record, played.rows = self._dataset.folder, self._dataset.rows

    def _open_dataset(self, agent: str, folder: Path) -> PersonDataset:
        team, env = self._team, played_environment(self._team.experiment.env)
        agents = {name: spaces_of(self._adapter, name) for name in self._adapter.agents}
        names = seating(team, None, None, {}, tuple(agents))
        policies = {names[name]: spaces for name, spaces in agents.items()}
        described = environment_described(env.factory, env.arguments, env.wrappers)
        return PersonDataset(folder, names[agent], agents, policies, described)


@contextmanager
def _described(team: Team, options: PlayOptions, played: PlayResult, path: Path) -> Iterator[VideoWriter]:
    """Open a video, and write a description of its contents to `<file>.json` at its end."""
    video = VideoWriter(path, played.fps, options.longest_side)
    try:
        with video:
            yield video
    finally:
        played.frames, played.repeated_frames, played.size = video.frames, video.repeated, video.size
        if video.frames:
            with replacing(description_of(path)) as aside:
                aside.write_text(json.dumps(_as_json(team, options, played), indent=2) + "\n", encoding="utf-8")


def _as_json(team: Team, options: PlayOptions, played: PlayResult) -> dict[str, Any]:
    return {
        "run": str(team.run_dir),
        "checkpoint": team.checkpoint,
        "mode": options.mode,
        "seed": played.seed,
        "seating": dict(played.seating),
        "video": None if played.video is None else played.video.name,
        "fps": played.fps,
        "size": list(played.size),
        "frames": played.frames,
        "repeated_frames": played.repeated_frames,
        "episodes": [
            {
                "episode": one.number,
                "seed": one.seed,
                "env_steps": one.env_steps,
                "truncated": one.truncated,
                "returns": one.returns,
            }
            for one in played.episodes
        ],
    }


def _who_plays(names: Mapping[str, str]) -> str:
    by_name: dict[str, list[str]] = {}
    for agent, name in names.items():
        by_name.setdefault(name, []).append(agent)
    return "; ".join(f"{name} {'play' if name == PERSON else 'plays'} {', '.join(of)}" for name, of in by_name.items())


def _line(episode: Episode, names: Mapping[str, str]) -> str:
    by_policy: dict[str, list[float]] = {}
    for agent, value in episode.returns.items():
        by_policy.setdefault(names.get(agent, agent), []).append(value)
    means = ", ".join(f"{name} {sum(values) / len(values):.4g}" for name, values in by_policy.items())
    return (
        f"episode {episode.number + 1} of {episode.of}, seed {episode.seed}: {episode.env_steps:,} env steps; "
        f"mean return per agent: {means}"
    )
