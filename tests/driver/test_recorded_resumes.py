"""However a run that records is stopped, killed and resumed: its record is that of a run that nothing happened to.

The recorded policies are random, so that a row depends on its environment and episode, and not on how many workers
there were.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.env.games import cartpole_team
from marlflow.offline import dataset_writer
from marlflow.offline.dataset import find_dataset
from marlflow.runs.saved_runs import newest
from marlflow.runtime.inline import InlineWorkers
from marlflow.sampling.worker import RolloutWorker

COPIES, ROUND, END = 4, 40, 1_600  # env steps of a round of one worker, and of the whole run
POLICIES = ("left", "manifest.json")  # the second as if to take the place of the record's own file
Row = tuple[int, ...]


class Killed(BaseException):
    """Stands for SIGKILL: nothing that marlflow has catches it, and nothing is closed."""


def experiment(workers: int, folder: Path | None = None, env_steps: int = END, replayed: int = 10_000) -> mf.Experiment:
    return mf.Experiment(
        mf.Env(cartpole_team.parallel_env, {"num_agents": 3, "max_cycles": 30}, num_envs=COPIES),
        {
            **{name: mf.Policy(mf.Random()) for name in POLICIES},
            "learner": mf.Policy(mf.PPO(batch_agent_steps=100_000)),
        },
        [mf.Rule("cart_0", POLICIES[0]), mf.Rule("cart_1", POLICIES[1]), mf.Rule("*", "learner")],
        rollouts=mf.Rollouts(num_workers=workers, fragment_env_steps=ROUND),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0),
        checkpoint=mf.CheckpointConfig(every_env_steps=2 * ROUND, replay_max_env_steps=replayed),
        log=mf.Log(every_env_steps=END, console="none", tensorboard=False, jsonl=False),
        record=mf.Record(POLICIES, None if folder is None else str(folder)),
    )


@contextmanager
def killed_in(collect: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends its process in this collect of some worker, counted from now on, after it was made."""
    left, real = iter(range(collect)), RolloutWorker.collect

    def made(worker: RolloutWorker, *given: Any) -> Any:
        found = real(worker, *given)
        if next(left, None) is None:
            raise Killed
        return found

    with patch.context() as during:
        during.setattr(RolloutWorker, "collect", made)
        during.setattr(InlineWorkers, "close", lambda workers: ())
        with pytest.raises(Killed):
            yield


def rows_in(folder: Path, policy: str) -> dict[Row, Row]:
    """Observation, action and reward as bytes, by (env, episode, agent, number of the decision), each once."""
    records, found = find_dataset(folder, policy), list[tuple[Row, Any]]()
    for batch in map(records.read, records.fragments):
        segments, start = batch.segments, 0
        for number, length in enumerate(segments["length"].tolist()):
            for row in range(start, start + length):
                where = tuple(int(segments[name][number]) for name in ("env", "episode", "agent"))
                values = tuple(batch.columns[name][row].tobytes() for name in ("obs", "action", "reward"))
                found.append(((*where, int(batch.columns["t_agent"][row])), values))
            start += length
    twice = [where for where, count in Counter(where for where, _ in found).items() if count > 1]
    assert not twice, f"{len(twice)} of {len(found)} rows of {policy} are there twice: {twice[:3]}"
    return dict(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Row, Row]]:
    """The record of a run that nothing happened to."""
    where = tmp_path_factory.mktemp("whole")
    mf.train(experiment(1), where)
    return {policy: rows_in(where / "record", policy) for policy in POLICIES}


# Numbers of workers, and in which collect each is killed; 0: it stops in order, after two checkpoints.
CHAINS = {
    "more workers, killed twice": [(2, 0), (4, 3), (4, 7), (4, 0)],
    "fewer, and more again": [(4, 9), (2, 3), (1, 6), (4, 2), (4, 5), (2, 0), (3, 5), (4, 8)],
    "killed before the first checkpoint of each": [(3, 8), (4, 1), (1, 1), (2, 1), (3, 2)],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_the_record_is_that_of_a_run_that_was_never_stopped(
    chain: list[tuple[int, int]], whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_writer, "_FRAGMENTS", 1)  # files are written at every turn
    run, folder = tmp_path / "run", tmp_path / "records"
    for number, (workers, collect) in enumerate(chain):
        go = mf.resume if number else mf.train
        if collect:
            with killed_in(collect, monkeypatch):
                go(experiment(workers, folder), run)
        else:
            done = newest(run).env_steps if number else 0
            go(experiment(workers, folder, done + 4 * ROUND * workers), run)
        for policy in POLICIES:
            rows_in(folder, policy)
    mf.resume(experiment(1, folder), run)
    assert {policy: rows_in(folder, policy) for policy in POLICIES} == whole


def test_an_older_checkpoint_takes_back_what_was_recorded_since(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved in between, folder of records and all; and a resume that does not record takes back as much."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    with killed_in(9, monkeypatch):
        mf.train(experiment(2), run)
    (newest(run).path / "checkpoint.json").write_text("{")
    shutil.move(run, moved)
    older = newest(moved).env_steps
    mf.resume(replace(experiment(3, env_steps=older), record=None), moved)
    mf.resume(experiment(1), moved)
    assert {policy: rows_in(moved / "record", policy) for policy in POLICIES} == whole


def test_runs_that_share_a_folder_leave_each_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, env_steps = tmp_path / "records", 6 * ROUND
    first, second = (replace(experiment(1, folder, env_steps), seed=seed) for seed in (1, 2))
    with killed_in(3, monkeypatch):
        mf.train(first, tmp_path / "first")
    mf.train(second, tmp_path / "second")
    mf.resume(first, tmp_path / "first")
    for policy in POLICIES:
        records = find_dataset(folder, policy)
        runs = Counter(fragment.file.split("-")[0] for fragment in records.fragments)
        assert sorted(runs.values()) == [6, 6]


def test_an_episode_that_begins_anew_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is too long to be played again: what was recorded of it stays, and its environment begins one like it."""
    with killed_in(5, monkeypatch):
        mf.train(experiment(1, replayed=3), tmp_path)
    mf.resume(experiment(1, env_steps=400, replayed=3), tmp_path)
    assert sum(len(rows_in(tmp_path / "record", policy)) for policy in POLICIES) > 300
