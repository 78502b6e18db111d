"""A run whose environments are stepped by one call reports, and is resumed, as one that steps them one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.env.batched.versions import batched_maker
from marlflow.env.games import cartpole_team
from marlflow.env.make import EnvMaker
from marlflow.env.wrappers.shipped import joint_state
from marlflow.observe.sinks import read_metrics
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run, without_times

CARTS = mf.Env(cartpole_team.parallel_env, {"max_cycles": 50}, num_envs=4)


def reports(folder: Path) -> list[Any]:
    return [without_times(report) for report in read_metrics(folder / "metrics.jsonl")]


def test_the_reports_of_a_run_are_the_same(tmp_path: Path) -> None:
    for batched in (True, False):
        run = small_run(env=replace(CARTS, batched=batched), evaluation=mf.Evaluation(400, 6))
        mf.train(run, tmp_path / str(batched))
    assert reports(tmp_path / "True") == reports(tmp_path / "False")
    assert reports(tmp_path / "True")[-1]["episodes"] > 10


@pytest.mark.parametrize("then", [True, False])
def test_a_run_is_resumed_from_its_snapshots(tmp_path: Path, then: bool) -> None:
    def until(env_steps: int, batched: bool) -> mf.Experiment:
        return small_run(env=replace(CARTS, batched=batched), stop=mf.Stop(env_steps=env_steps))

    mf.train(until(400, True), tmp_path / "two")
    result = mf.resume(until(800, then), tmp_path / "two")
    if then:
        mf.train(until(800, True), tmp_path / "one")
        assert reports(tmp_path / "two")[-1]["policies"] == reports(tmp_path / "one")[-1]["policies"]
        assert result.metrics["faults"]["episodes_restarted"] == 0
    else:
        # Workers that step environments one by one have no actions to replay.
        assert result.metrics["faults"]["episodes_restarted"] == 4


@pytest.mark.parametrize(
    ("env", "is_batched"),
    [
        (CARTS, True),
        (replace(CARTS, batched=False), False),
        (replace(CARTS, wrappers=(lambda env: env,)), False),
        (mf.Env("simple_spread"), True),
        (mf.Env("simple_spread", {"num_agent_neighbors": 1}), False),
        (mf.Env("connect_four"), True),
        (mf.Env("pendulum_team"), False),
        (mf.Env("pendulum_team", batched=True), True),
        (mf.Env("knights_archers_zombies"), False),
    ],
)
def test_auto_takes_the_version_with_the_same_numbers(env: mf.Env, is_batched: bool) -> None:
    maker = EnvMaker(env.factory, env.arguments, env.wrappers, "name", env.batched)
    assert (maker.make_batched is not None) == is_batched


def test_a_factory_of_the_users_own_names_its_version() -> None:
    def own(size: int = 2, color: str = "red") -> None: ...

    def own_batched(num_envs: int, size: int = 2) -> None: ...

    own.batched = own_batched  # type: ignore[attr-defined]
    found = batched_maker(own, {"size": 3}, (), "auto")
    assert found is not None
    assert (found.factory, found.arguments) == (own_batched, {"size": 3})
    assert batched_maker(own, {"size": 3, "color": "blue"}, (), "auto") is None


def test_a_version_that_there_is_not_is_refused_before_the_run() -> None:
    run = small_run(
        env=mf.Env("butterfly/cooperative_pong-v6", batched=True), policies={"paddle": mf.Policy(SMALL_PPO, SMALL)}
    )
    with pytest.raises(mf.ConfigInvalid, match=r"has no batched version; set env\.batched=auto"):
        ready(replace(run, mapping=None))


def test_wrappers_that_a_version_does_not_take_are_refused_before_the_run() -> None:
    pytest.importorskip("lbforaging")
    env = mf.Env("lbf", batched=True, wrappers=[joint_state])
    run = small_run(env=env, policies={"agent": mf.Policy(SMALL_PPO, SMALL)})
    with pytest.raises(mf.ConfigInvalid, match=r"joint_state of environment .* has no form"):
        ready(replace(run, mapping=None))
