"""run.log: in every run's folder, with versions, command and configuration first, and nothing changed for others."""

from __future__ import annotations

import logging
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import marlflow as mf
from marlflow.checks.validation import from_config
from marlflow.config.compose import composing
from marlflow.config.description import plain
from marlflow.config.overrides import prepare
from marlflow.config.schema import read_values
from marlflow.driver.notices import as_yaml
from marlflow.observe.run_log import logged_in
from tests.driver.breaking_environments import Raises
from tests.runtime.small_runs import small_run

LOG = logging.getLogger("marlflow")


def messages(folder: Path) -> list[str]:
    """The messages of a run.log, without when they were logged; one of several lines is one."""
    found: list[str] = []
    for line in (folder / "run.log").read_text(encoding="utf-8").splitlines():
        _, is_new, message = line.partition(" marlflow: ")
        if is_new:
            found.append(message)
        else:
            found[-1] += "\n" + line
    return found


def test_a_run_from_python_begins_its_log_with_versions_command_and_configuration(tmp_path: Path) -> None:
    experiment = small_run(env_steps=80, seed=3)
    mf.train(experiment, tmp_path)
    versions, command, configuration, *rest = messages(tmp_path)
    assert versions.startswith(f"versions: marlflow {mf.__version__}, python {platform.python_version()}, ray ")
    assert f"torch {metadata.version('torch')}" in versions
    assert command.startswith("command: ")
    assert sys.orig_argv[0] in command
    assert command.endswith(f", in {Path.cwd()}")
    title, _, text = configuration.partition("\n")
    assert title == "configuration:"
    assert yaml.safe_load(text)["seed"] == 3
    assert yaml.safe_load(text)["policies"]["prey"]["algorithm"]["_target_"] == "marlflow.algorithms.dqn.DQN"
    assert any("checkpoint" in message for message in rest)
    assert rest[-1].startswith("stopped by stop.env_steps=80")


def test_a_resume_adds_what_it_was_made_with(tmp_path: Path) -> None:
    mf.train(small_run(env_steps=80), tmp_path)
    before = (tmp_path / "run.log").read_text(encoding="utf-8")
    mf.resume(small_run(env_steps=160), tmp_path)
    after = (tmp_path / "run.log").read_text(encoding="utf-8")
    assert after.startswith(before)
    added = after[len(before) :]
    assert "versions: marlflow" in added
    assert "  env_steps: 160" in added
    assert "resuming from" in added


def test_the_log_says_how_a_run_failed(tmp_path: Path) -> None:
    with pytest.raises(mf.EnvironmentFailed):
        mf.train(small_run(env=mf.Env(Raises, num_envs=4)), tmp_path)
    assert any(message.startswith("ended by EnvironmentFailed: ") for message in messages(tmp_path))


def test_a_run_that_is_refused_leaves_the_log_of_the_run_that_is_there(tmp_path: Path) -> None:
    mf.train(small_run(env_steps=80), tmp_path)
    before = (tmp_path / "run.log").read_bytes()
    with pytest.raises(mf.ConfigInvalid, match="there is a run in"):
        mf.train(small_run(env_steps=160), tmp_path)
    assert (tmp_path / "run.log").read_bytes() == before


SHIPPED = [
    ["experiment=cartpole_team_ppo_dqn"],
    ["experiment=simple_tag_three_algorithms", "stop.policies.agent.return_mean=3"],
    ["env=cartpole_team", "wrappers=[padding,agent_indicator]", "record={}"],
    ["env=cartpole_team", "policy@policies.cart=dqn", "policies.cart.algorithm.optimizer={_target_: torch.optim.SGD}"],
]


@pytest.mark.parametrize("words", SHIPPED, ids=lambda words: words[0] + words[-1])
def test_what_the_log_says_of_a_configuration_makes_the_same_experiment(words: list[str]) -> None:
    with composing():
        prepared = prepare(words)
    experiment = from_config(prepared.config, prepared.problems)
    problems: list[str] = []
    assert read_values(yaml.safe_load(as_yaml(experiment)), problems) == experiment
    assert problems == []


class Chosen(float):
    """A number of a user's own type."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (Chosen(0.25), 0.25),
        ((1, "a", None, True), [1, "a", None, True]),
        (mf.TorchOptimizer(torch.optim.SGD, {"momentum": 0.9}), {"_target_": "torch.optim.sgd.SGD", "momentum": 0.9}),
        (mf.Rule("fox_*", "prey"), {"match": "fox_*", "policy": "prey"}),
        (messages, "tests.driver.test_run_log.messages"),
        (mf.RandomSeats(["one"]), {"_target_": "marlflow.matchmaking.matchmakers.RandomSeats", "policies": ["one"]}),
    ],
)
def test_anything_in_an_experiment_can_be_written(value: Any, expected: Any) -> None:
    assert yaml.safe_load(yaml.safe_dump(plain(value))) == expected


def log_at(level: int) -> None:
    LOG.log(level, "of level %s", logging.getLevelName(level))


def test_who_set_up_logging_sees_what_they_asked_for_and_the_file_has_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    level = LOG.level
    with caplog.at_level(logging.WARNING, "marlflow"), logged_in(tmp_path):
        log_at(logging.INFO)
        log_at(logging.WARNING)
        logging.getLogger("another").warning("of another library")
    log_at(logging.ERROR)
    assert [record.getMessage() for record in caplog.records] == [
        "of level WARNING",
        "of another library",
        "of level ERROR",
    ]
    lines = (tmp_path / "run.log").read_text(encoding="utf-8").splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "INFO marlflow: of level INFO",
        "WARNING marlflow: of level WARNING",
        "WARNING another: of another library",
    ]
    assert LOG.level == level


def test_a_warning_still_reaches_standard_error_where_nobody_set_up_logging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    with logged_in(tmp_path):
        log_at(logging.INFO)
        log_at(logging.WARNING)
    assert capsys.readouterr().err == "of level WARNING\n"
    assert logging.root.handlers == []
