"""The records of an offline run are settings of its environment, and held to their ranges like all others."""

from __future__ import annotations

import math
from typing import Any

import pytest

import marlflow as mf
from marlflow.config.records import offline_records
from tests.config.composition import experiment_of
from tests.runtime.small_runs import small_run
from tests.sentences import wrong_with_settings

RECORDED = "marlflow.offline.environment.recorded_environment"


@pytest.mark.parametrize("passes", [math.inf, "3", 0])
def test_passes_that_cannot_be_are_one_problem(passes: Any) -> None:
    run = small_run(env=mf.Env(RECORDED, {"folder": "records", "passes": passes}))
    assert len([problem for problem in wrong_with_settings(run) if "env.passes" in problem]) == 1


@pytest.mark.parametrize("passes", [None, math.nan, math.inf, -math.inf, 1e400, -1, 0, 1.5, "3", [1], {"a": 1}, True])
def test_passes_that_cannot_be(passes: Any) -> None:
    run = small_run(env=mf.Env(RECORDED, {"folder": "records", "passes": passes}))
    problems = [problem for problem in wrong_with_settings(run) if problem.startswith("env.passes ")]
    assert problems
    # The checks behind it do not compute with it.
    with pytest.raises(mf.ConfigInvalid, match=r"env\.passes"):
        mf.train(run)


@pytest.mark.parametrize("written", ["null", "nan", "inf", "1e400", "-1", "abc", "[1]", "{a: 1}", str(10**400)])
def test_passes_that_cannot_be_on_the_command_line(written: str) -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"env\.passes must be "):
        mf.train(experiment_of("env=offline", "env.folder=records", f"env.passes={written}"))


@pytest.mark.parametrize(("folder", "reason"), [("a" * 400, "File name too long"), (None, "must be text"), (3, "text")])
def test_folders_that_cannot_be(folder: Any, reason: str) -> None:
    with pytest.raises(mf.ConfigInvalid, match=reason):
        mf.train(small_run(env=mf.Env(RECORDED, {"folder": folder})))


def test_without_a_folder_nothing_is_recorded() -> None:
    assert offline_records(mf.Env(RECORDED)) is None
    with pytest.raises(mf.ConfigInvalid, match="missing 1 required positional argument: 'folder'"):
        mf.train(small_run(env=mf.Env(RECORDED)))


def test_whole_numbers_are_whole() -> None:
    source = offline_records(mf.Env(RECORDED, {"folder": "records", "passes": 2.0}))
    assert source is not None
    assert (source.passes, type(source.passes)) == (2, int)
