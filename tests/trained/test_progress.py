"""Long work reports its progress: what is being done, how much of it, and of how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.base.progress import listening
from marlflow.check_env import check_environment
from marlflow.html_report.report import write_report
from marlflow.trained.play import PlayOptions, play
from tests.trained.conftest import Trained

Work = Callable[[Path, Path], Any]


def played(run_dir: Path, out: Path) -> Any:
    return play(mf.load(run_dir), PlayOptions(2, video=out / "carts.gif"), lambda _line: None)


WORK: dict[str, tuple[Work, dict[str, int | None]]] = {
    "evaluate": (lambda run, _: mf.evaluate(run, episodes=7), {"playing episodes": 7}),
    "export": (
        lambda run, out: mf.export(run, "prey", out / "prey.pt2", "pt2"),
        {
            "loading the policy": None,
            "tracing the network": None,
            "writing prey.pt2": None,
            "playing rows to compare": 1_000,
            "comparing rows with the policy": 1_143,
        },
    ),
    "video": (played, {"drawing episode 1 of 2, frame": None, "drawing episode 2 of 2, frame": None}),
    "report": (lambda run, out: write_report([run], out / "report"), {"drawing": 1}),
    "check-env": (
        lambda _run, _out: check_environment(
            mf.Env("marlflow.env.games.cartpole_team.parallel_env", {"max_cycles": 20}), 5
        ),
        {
            "opening the environment": None,
            "PettingZoo's own tests": None,
            "the networks of its policies": None,
            "random episodes": 5,
            "the same episodes again": None,
            "its speed": None,
        },
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_long_work_reports_how_far_it_is(name: str, trained: Trained, tmp_path: Path) -> None:
    work, expected = WORK[name]
    heard: dict[str, list[tuple[int, int | None]]] = {}
    with listening(lambda doing, done, total: heard.setdefault(doing, []).append((done, total))):
        work(trained("ppo and dqn"), tmp_path)
    assert {doing: reports[-1][1] for doing, reports in heard.items()} == expected
    for reports in heard.values():
        done = [one for one, _ in reports]
        assert done == sorted(done), "it never goes back"
        assert len(set(done)) > 1 or reports[-1][1] in (None, 1)
