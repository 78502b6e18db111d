"""The example of the page about functional environments works as it is written there."""

import re
from pathlib import Path

import numpy as np
import pytest

import marlflow as mf
from marlflow.env.functional.own import batched_env
from marlflow.env.make import wrapped

PAGE = Path(__file__).parents[2] / "docs/functional_environments.md"


@pytest.fixture(scope="module")
def written():
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(code, names)  # the documentation's own code
    return names


@pytest.fixture(scope="module")
def meeting(written):
    return written["Meeting"]


def test_the_wrapper_on_the_page_clips_rewards(written, meeting):
    env = wrapped(batched_env(3, meeting), [written["clipped"]], "meeting")
    inside = batched_env(3, meeting)
    for one in (env, inside):
        one.reset(np.arange(3), np.arange(3))
    (group,) = env.groups
    actions = {group: np.stack([env.action_space(agent).sample() for agent in env.groups[group]] * 3).reshape(3, -1)}
    expected = inside.step(actions).rewards[group]
    assert expected.min() < -1, "something was to be clipped"
    np.testing.assert_array_equal(env.step(actions).rewards[group], np.clip(expected, -1, 1))


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
