"""The example of the page about batched environments works as it is written there."""

import re
from pathlib import Path

import pytest

import marlflow as mf

PAGE = Path(__file__).parents[2] / "docs/batched_environments.md"


@pytest.fixture(scope="module")
def meeting():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {}
    exec(code, names)  # the documentation's own code
    return names["Meeting"]


def test_the_example_is_a_batched_environment(meeting):
    assert isinstance(meeting(3, size=2.0), mf.BatchedEnv)


def test_check_env_finds_the_example_ready(meeting):
    trial = mf.check_environment(mf.Env(meeting, {"size": 3.0}), episodes=20)
    assert trial.ready, trial.problems
    assert {test.name: test.verdict for test in trial.tests}["batched_test"] == "passed"
    assert trial.reproducible
    assert trial.episodes.conserved


def test_check_env_finds_environments_that_depend_on_each_other(meeting):
    class Mixed(meeting):
        def step(self, actions):
            made = super().step(actions)
            made.rewards = {"walker": made.rewards["walker"] - self.time.max()}
            return made

    trial = mf.check_environment(mf.Env(Mixed, {"size": 3.0}), episodes=20)
    (problem,) = trial.problems
    assert "stepped by one call, it is another environment: reward of 'walker_0' differs in row" in problem.what
    assert "env.batched=false" in problem.remedy
