"""A run in a process of its own, which is killed after a snapshot and before the checkpoint that would have it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import marlflow as mf
from marlflow.league.dealing import LeagueMatchmaker
from tests.league.runs import LEAGUES, league_run

KILLED_AT = 4


def saved_often(env_steps: int) -> mf.Experiment:
    """A league with a checkpoint about every five rounds."""
    return replace(league_run(LEAGUES["pfsp"], env_steps), checkpoint=mf.CheckpointConfig(every_env_steps=120))


def main(run_dir: Path) -> None:
    """Train until the fourth snapshot."""
    change = LeagueMatchmaker.change_population

    def killed(league: LeagueMatchmaker, published: Mapping[str, int], steps: Mapping[str, int]) -> mf.PopulationChange:
        made = change(league, published, steps)
        if len(league.members.snapshots) == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    LeagueMatchmaker.change_population = killed  # type: ignore[method-assign]
    mf.train(saved_often(10_000), run_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
