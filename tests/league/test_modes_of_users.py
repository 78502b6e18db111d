"""Modes and matchmakers of a user's own: what they keep over a resume, and whose name an error has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.league.matches import Matches
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.runs.saved_runs import newest
from tests.league.runs import MAIN, OFTEN, league_run
from tests.runtime.kept_folders import write_tree

HALF, WHOLE = 432, 864


class Neighbor(mf.LeagueMode):
    """Always the newest snapshot; what it keeps changes its type during the run."""

    def __init__(self) -> None:
        self.kept: Any = 0

    def rival(self, view: mf.LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        past = view.members.past_in(role)
        self.kept = {"newest": past[-1] if past else None, "share": 1 / len(past)} if past else 0
        return past[-1] if past else None

    def state(self) -> Any:
        return self.kept

    def load_state(self, tree: Any) -> None:
        self.kept = tree


class Renamed(Neighbor):
    def load_state(self, tree: Any) -> None:
        raise ValueError("an older version of mine")


class Solved(Neighbor):
    answer: Any = None

    def solution(self, members: Members) -> Any:
        return self.answer


class Meta(Neighbor):
    wanted: Any = None

    def matches_wanted(self, members: Members, matches: Matches) -> Any:
        return self.wanted


class FailsToSolve(Neighbor):
    def matches_wanted(self, members: Members, matches: Matches) -> Any:
        return {}

    def solve(self, members: Members, payoffs: Payoffs) -> None:
        raise ZeroDivisionError("no games")


class Unsaveable(Neighbor):
    def state(self) -> Any:
        return {"met": {"main"}}


class FailsToSave(Neighbor):
    def state(self) -> Any:
        raise RuntimeError("nothing to save")


def run_of(mode: mf.LeagueMode, env_steps: int = HALF) -> mf.Experiment:
    return league_run(mf.League(mode, snapshots=OFTEN), env_steps)


def test_a_mode_may_keep_anything(tmp_path: Path) -> None:
    mf.train(run_of(Neighbor()), tmp_path)
    assert mf.resume(run_of(Neighbor(), WHOLE), tmp_path).metrics["env_steps"] >= WHOLE


class Counting(mf.Matchmaker):
    """Keeps the mean return of a game, a whole number at first."""

    def __init__(self) -> None:
        self.mean: float = 0

    def __call__(self, episode: mf.EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        return dict.fromkeys(agents, "main")

    def observe(self, results: Sequence[mf.EpisodeResult]) -> None:
        self.mean = 0.5 + len(results)

    def state(self) -> Any:
        return {"mean": self.mean}

    def load_state(self, tree: Any) -> None:
        self.mean = tree["mean"]


def test_a_matchmaker_may_keep_anything(tmp_path: Path) -> None:
    experiment = replace(run_of(Neighbor()), league=None, mapping=Counting())
    mf.train(experiment, tmp_path)
    longer = replace(experiment, mapping=Counting(), stop=mf.Stop(env_steps=WHOLE))
    assert mf.resume(longer, tmp_path).metrics["env_steps"] >= WHOLE


class Forgetful(Counting):
    def load_state(self, tree: Any) -> None:
        raise KeyError("median")


def test_an_error_in_load_state_is_the_users_and_not_the_checkpoints(tmp_path: Path) -> None:
    mf.train(run_of(Renamed()), tmp_path / "mode")
    with pytest.raises(mf.MatchmakerFailed, match=r"matchmaker Renamed, load_state: it raised ValueError: an older"):
        mf.resume(run_of(Renamed(), WHOLE), tmp_path / "mode")
    experiment = replace(run_of(Neighbor()), league=None, mapping=Forgetful())
    mf.train(experiment, tmp_path / "matchmaker")
    with pytest.raises(mf.MatchmakerFailed, match=r"matchmaker Forgetful, load_state: it raised KeyError: 'median'"):
        mf.resume(replace(experiment, stop=mf.Stop(env_steps=WHOLE)), tmp_path / "matchmaker")


def solved(answer: Any) -> Solved:
    mode = Solved()
    mode.answer = answer
    return mode


def wanting(wanted: Any) -> Meta:
    mode = Meta()
    mode.wanted = wanted
    return mode


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (solved({"main": 1.0}), r"matchmaker Solved, solution: it returned \{'main': 1.0\}, not a list of one mapping"),
        (
            solved([{"main": 1.0}]),
            r"not a list of one mapping \{member: probability\} for each role: \['player_0'",
        ),
        (solved([{"main": 1.0}, {"mian": 1.0}]), "to 'mian', which is no member that plays role 'player_1'"),
        (solved(5), "it returned 5, not a list of one mapping"),
        (solved([{"main": 1.0}, {"main": -1.0}]), "it gave 'main' the probability -1.0"),
        (solved([{"main": 1.0}, {"main": "x"}]), "it gave 'main' the probability 'x'"),
        (wanting([("main", "main")]), r"it returned \[\('main', 'main'\)\], not a mapping \{profile: games\}"),
        (wanting({("main", "main"): 1.5}), r"it asked for 1.5 games of \('main', 'main'\)"),
        (wanting({3: 1}), "it asked for games of 3, which is not one member for each role"),
        (wanting({("main", "mian"): 2}), r"matchmaker Meta, matches_wanted: it asked for games of \('main', 'mian'\)"),
        (wanting({("main",): 2}), r"which is not one member for each role: \['player_0', 'player_1'\]"),
        (FailsToSolve(), r"matchmaker FailsToSolve, solve: it raised ZeroDivisionError: no games"),
        (Unsaveable(), r"the state of matchmaker Unsaveable cannot be saved: at '/mode/met': expected"),
        (FailsToSave(), r"matchmaker FailsToSave, state: it raised RuntimeError: nothing to save"),
    ],
)
def test_an_error_names_the_mode_and_its_hook_before_the_run(mode: mf.LeagueMode, text: str, tmp_path: Path) -> None:
    with pytest.raises(mf.ConfigInvalid, match=f"league: .*{text}"):
        mf.train(run_of(mode), tmp_path)
    assert not [*tmp_path.iterdir()]


class FailsLater(Neighbor):
    def matches_wanted(self, members: Members, matches: Matches) -> Mapping[Any, int]:
        return {("main", "mian"): 2} if len(members.snapshots) > 1 else {}


def test_an_error_in_the_run_names_the_mode_and_its_hook(tmp_path: Path) -> None:
    with pytest.raises(mf.StageFailed, match="matchmaker FailsLater, matches_wanted: it asked for games of"):
        mf.train(run_of(FailsLater()), tmp_path)


@pytest.mark.parametrize(("before", "after"), [({}, {"main": 1.0, "rival": 3.0}), ({"rival": 2.0}, {"main": 0.5})])
def test_a_resumed_run_may_have_other_shares(
    before: Mapping[str, float], after: Mapping[str, float], tmp_path: Path
) -> None:
    def experiment(shares: Mapping[str, float], env_steps: int) -> mf.Experiment:
        players = {name: mf.LeaguePlayer(share=share) for name, share in shares.items()}
        league = mf.League(mf.PFSP(), snapshots=OFTEN, players=players)
        return league_run(league, env_steps, policies={"main": MAIN, "rival": MAIN})

    mf.train(experiment(before, HALF), tmp_path)
    assert mf.resume(experiment(after, WHOLE), tmp_path).metrics["env_steps"] >= WHOLE


def test_a_malformed_state_of_psro_is_the_checkpoints(tmp_path: Path) -> None:
    experiment = league_run(mf.League(mf.PSRO(games=2), snapshots=OFTEN), HALF)
    mf.train(experiment, tmp_path)
    path = newest(tmp_path).path
    tree = from_bytes((path / "driver.safetensors").read_bytes())
    tree["dealer"]["matchmaker"]["mode"] = {"x": 1}
    write_tree(path, "driver", tree)
    with pytest.raises(mf.CheckpointUnusable, match="dealer/matchmaker/mode/iteration is missing"):
        mf.resume(replace(experiment, stop=mf.Stop(env_steps=WHOLE)), tmp_path)


class Remembering(mf.PSRO):
    """PSRO that keeps more, of another type in time."""

    def state(self) -> Any:
        return {**super().state(), "best": None if self.iteration else 0}


def test_a_subclass_of_psro_may_keep_anything_beside(tmp_path: Path) -> None:
    experiment = league_run(mf.League(Remembering(games=2), snapshots=OFTEN), HALF)
    mf.train(experiment, tmp_path)
    assert mf.resume(replace(experiment, stop=mf.Stop(env_steps=WHOLE)), tmp_path).metrics["env_steps"] >= WHOLE
