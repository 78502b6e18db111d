"""The example of the page about functional environments works as it is written there."""

import re
from pathlib import Path

import pytest

import marlflow as mf

PAGE = Path(__file__).parents[2] / "docs/functional_environments.md"


@pytest.fixture(scope="module")
def meeting():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {}
    exec(code, names)  # the documentation's own code
    return names["Meeting"]


# Steps of one and of many are rounded alike as XLA compiles in a run, not without LLVM's passes.
@pytest.mark.slow
def test_check_env_finds_the_example_ready(meeting):
    assert isinstance(meeting(size=2.0), mf.FunctionalEnv)
    trial = mf.check_environment(
        mf.Env("functional", {"make": meeting, "parameters": {"size": 3.0}, "max_env_steps": 20}), episodes=20
    )
    assert trial.ready, trial.problems
    assert {test.name: test.verdict for test in trial.tests}["batched_test"] == "passed"
    assert trial.reproducible
    assert trial.episodes.conserved
