"""A checkpoint during which a process is lost is taken again at once; by then the process was replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.runs.checkpoint_format import rows_file, rows_files
from marlflow.runs.saved_runs import newest
from marlflow.runtime.inline import InlineRuntime
from tests.driver.kept_runs import kept
from tests.runtime.small_runs import SMALL_DQN, policies, small_run

ROUND = 80  # env steps


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], mf.Result]:
    """Trains for three rounds, with a checkpoint after each; at some attempts a process ends."""

    def trained(attempts: set[int]) -> mf.Result:
        left, real = iter(range(100)), InlineRuntime.save

        def save(self: InlineRuntime, *arguments: Any) -> Any:
            if next(left) in attempts:
                raise mf.ActorLost("rollout worker 1 died while the run's state was taken")
            return real(self, *arguments)

        monkeypatch.setattr(InlineRuntime, "save", save)
        return mf.train(
            small_run(env_steps=3 * ROUND, checkpoint=mf.CheckpointConfig(every_env_steps=ROUND, keep=9)), tmp_path
        )

    return trained


@pytest.mark.parametrize(("attempts", "failed"), [(set(), 0), ({0}, 0), ({0, 2, 4}, 0), ({1, 2}, 1)])
def test_it_fails_only_if_somebody_dies_again(
    attempts: set[int], failed: int, dying: Callable[[set[int]], mf.Result], tmp_path: Path
) -> None:
    result = dying(attempts)
    assert result.metrics["faults"]["checkpoints_failed"] == failed
    assert newest(tmp_path).env_steps == 3 * ROUND
    assert len(list((tmp_path / "checkpoints").glob("[0-9]*"))) == 3 - failed


def test_a_run_whose_end_could_not_be_kept_says_so(dying: Callable[[set[int]], mf.Result], tmp_path: Path) -> None:
    with pytest.raises(mf.ActorLost, match="rollout worker 1 died"):
        dying({2, 3})
    assert newest(tmp_path).env_steps == 2 * ROUND


class Unkeepable(mf.RandomSeats):
    """A matchmaker whose state is none that can be kept."""

    def state(self) -> object:
        return {"seen": {1, 2}}

    def load_state(self, tree: object) -> None:
        raise AssertionError("nothing was kept")


def test_what_a_matchmaker_cannot_have_kept_is_a_failed_checkpoint_that_says_where(tmp_path: Path) -> None:
    experiment = small_run(env_steps=ROUND, mapping=Unkeepable(["hunters", "prey"]))
    with pytest.raises(mf.CheckpointFailed, match=r"what the driver knows cannot be kept: .*/dealer/matchmaker/seen"):
        mf.train(experiment, tmp_path)
    assert not (tmp_path / "checkpoints").exists() or not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_what_is_kept_already_is_not_written_again(tmp_path: Path) -> None:
    def files() -> dict[str, int]:
        return {str(path): path.stat().st_ino for path in (tmp_path / "checkpoints").rglob("*")}

    experiment = small_run(env_steps=2 * ROUND)
    mf.train(experiment, tmp_path)
    before = files()
    assert mf.resume(experiment, tmp_path).metrics["env_steps"] == 2 * ROUND
    assert files() == before


@pytest.mark.parametrize("policy", ["prey", "a.b", "prey.0-5"])
def test_rows_belong_to_the_policy_that_their_file_names(policy: str) -> None:
    names = [f"rows.{policy}.900-1200", f"replay.{policy}", f"rows.{policy}.0-900", "rows.other.0-7", "workers"]
    assert rows_file(names[0]) == (policy, 900, 1200)
    assert rows_files(policy, names) == [names[2], names[0]]
    assert rows_file("learner.prey.0-5") is None


def test_policies_of_any_name_have_files_of_their_own(tmp_path: Path) -> None:
    """Also where the name looks like a file of another's rows, and where two differ by case alone."""
    names = ("a", "a.0-80", "A", "manifest")
    experiment = small_run(
        env_steps=2 * ROUND,
        policies=policies(**dict.fromkeys(names, SMALL_DQN)),
        mapping=[mf.Rule(f"cart_{number}", name) for number, name in enumerate(names)],
        checkpoint=mf.CheckpointConfig(every_env_steps=ROUND),
    )
    mf.train(experiment, tmp_path)
    files = [path.name for path in newest(tmp_path).path.iterdir()]
    assert len({name.lower() for name in files}) == len(files)
    experiment = replace(experiment, stop=mf.Stop(env_steps=4 * ROUND))
    assert mf.resume(experiment, tmp_path).metrics["env_steps"] == 4 * ROUND
    kept(tmp_path)
