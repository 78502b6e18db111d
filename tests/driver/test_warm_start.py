"""Runs that begin with parameters of another run, or have its policies as frozen opponents; the source may go."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import marlflow as mf
from marlflow.config.imported_policies import load_policy
from marlflow.runs.checkpoints import CheckpointStore
from marlflow.runs.saved_league import saved_run
from marlflow.runs.saved_policies import from_export, saved_policy
from marlflow.runs.saved_runs import newest
from tests.driver.resumed_runs import resumes_exactly, saved_at
from tests.league.runs import LEAGUES, MAIN, league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

HALF, WHOLE = 400, 800


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "carts"
    mf.train(small_run(env_steps=400), folder)
    return folder


def begun(source: Path, env_steps: int, **changes: mf.Policy) -> mf.Experiment:
    """PPO and DQN continue; DQN plays together with a frozen version of itself."""
    policies = {
        "hunters": mf.Policy(SMALL_PPO, SMALL, init=mf.FromRun(source)),
        "prey": mf.Policy(SMALL_DQN, SMALL, init=mf.FromRun(source)),
        "past": mf.Policy(mf.Frozen(source, "prey")),
    }
    mapping = [mf.Rule("cart_0", "hunters"), mf.Rule("cart_1", "prey"), mf.Rule("*", "past")]
    return small_run(env_steps=env_steps, policies={**policies, **changes}, mapping=mapping)


def test_a_run_goes_on_bit_for_bit_though_its_source_is_gone(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    gone = partial(shutil.rmtree, tmp_path / "source")
    resumed = resumes_exactly(begun(tmp_path / "source", WHOLE), tmp_path, HALF, gone)
    parts, middle = resumed.parts, CheckpointStore(resumed.parts / "checkpoints", 1).at(saved_at(resumed.parts)[-2])
    for name in ("init.hunters", "init.prey", "member.past"):
        assert newest(parts).files[name] == middle.files[name], "the same bytes, in each checkpoint"
    # The frozen policy has not changed; the others have learned.
    copy = from_export(bytes(newest(parts).read("member.past")), "")
    assert copy.sha256 == load_policy(source, "prey").sha256
    for name in ("hunters", "prey"):
        assert load_policy(parts, name).sha256 != load_policy(source, name).sha256
    # A policy that is frozen here is a source again.
    assert saved_policy(saved_run(parts), "past").sha256 == copy.sha256


def test_another_source_than_that_of_the_run_is_refused(source: Path, tmp_path: Path) -> None:
    experiment = begun(source, 80)
    mf.train(experiment, tmp_path)
    for change, message in (
        ({"past": mf.Policy(mf.Frozen(source, "hunters"))}, "policies.past.source.policy was 'prey'"),
        ({"prey": mf.Policy(SMALL_DQN, SMALL)}, "it has policies.prey.init, which this run has not"),
        (
            {"prey": mf.Policy(SMALL_DQN, SMALL, init=mf.FromRun(source, parts=["actor"]))},
            r"policies.prey.init.parts was None when it was kept, and is \['actor'\] now",
        ),
    ):
        changed = replace(experiment, policies={**experiment.policies, **change}, stop=mf.Stop(env_steps=160))
        with pytest.raises(mf.CheckpointUnusable, match=message):
            mf.resume(changed, tmp_path)


def test_a_policy_added_to_default_policy_is_resumed_from_the_copy_too(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    default = mf.Policy(mf.Frozen(tmp_path / "source", "prey"))
    experiment = small_run(env_steps=80, policies={"hunters": mf.Policy(SMALL_PPO, SMALL)}, default_policy=default)
    rules = [mf.Rule("cart_0", "hunters"), mf.Rule("*", "cart")]
    experiment = replace(experiment, mapping=rules, learners={}, policies={**experiment.policies, "cart": default})
    mf.train(experiment, tmp_path / "run")
    shutil.rmtree(tmp_path / "source")
    result = mf.resume(replace(experiment, stop=mf.Stop(env_steps=160)), tmp_path / "run")
    assert result.metrics["env_steps"] == 160


def test_before_its_first_update_it_plays_as_its_source(tmp_path: Path) -> None:
    first = league_run(LEAGUES["pfsp"], 300)
    mf.train(first, tmp_path / "first")
    never = replace(MAIN.acts_by, batch_agent_steps=100_000)  # type: ignore[type-var]
    policies = {"main": mf.Policy(never, MAIN.model, init=mf.FromRun(tmp_path / "first"))}
    second = league_run(LEAGUES["pfsp"], 24, policies=policies)
    mf.train(second, tmp_path / "second")
    for against in ("random", "main"):
        games = [
            mf.evaluate(tmp_path / name, experiment, members=["main"], against=[against], episodes=40, seed=3).games
            for name, experiment in (("first", first), ("second", second))
        ]
        assert games[0] == games[1]
    one, other = (load_policy(tmp_path / name, "main") for name in ("first", "second"))
    np.testing.assert_array_equal(one.flat, other.flat)
    # The first snapshot of a league is what its policy began with.
    snapshot = load_policy(tmp_path / "second", "main@1")
    np.testing.assert_array_equal(snapshot.flat, one.flat)
