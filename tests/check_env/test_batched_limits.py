"""What a batched environment may observe, and what is said of one whose seeds do not determine its episodes."""

import re

import numpy as np
import pytest
from gymnasium import spaces

import marlflow as mf
from marlflow.checks.validation import ready
from tests.check_env.trial_environments import Relay

NEITHER = "episodes of the environment depend on more than their seeds"


class Drift:
    """Two agents see a number; where it starts depends on how many episodes begin at once, if `shared`."""

    groups = {"boat": ["boat_0", "boat_1"]}  # noqa: RUF012
    turn_based = False
    space: spaces.Space = spaces.Box(-100.0, 100.0, (1,), np.float32)

    def __init__(self, num_envs, shared=True):
        self.num_envs, self.shared = num_envs, shared
        self.metadata = {"name": "drift"} | ({"reproducible": False} if shared else {})
        self.place, self.time = np.zeros((num_envs, 2)), np.zeros(num_envs, int)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, envs, seeds):
        self.time[envs] = 0
        self.place[envs] = (seeds % 7)[:, None] + (len(envs) if self.shared else 0)
        return mf.BatchedStep({"boat": self.see()})

    def step(self, actions):
        self.time += 1
        self.place += actions["boat"]
        over = np.repeat((self.time >= 5)[:, None], 2, axis=1)
        return mf.BatchedStep({"boat": self.see()}, {"boat": self.place * 0.0}, {"boat": over}, {"boat": ~over & False})

    def see(self):
        return self.place[..., None].astype(np.float32)

    def close(self):
        pass


@pytest.mark.parametrize("shared", [True, False])
def test_a_run_says_at_its_start_that_seeds_do_not_determine_episodes(shared):
    remarks = ready(mf.Experiment(mf.Env(Drift, {"shared": shared}))).remarks
    assert [remark.startswith(NEITHER) for remark in remarks] == [True] * shared


@pytest.mark.parametrize("shared", [True, False])
def test_episodes_that_no_seed_determines_are_not_compared_with_those_alone(shared):
    trial = mf.check_environment(mf.Env(Drift, {"shared": shared}, num_envs=2), 4, 3)
    assert trial.ready
    verdicts = {test.name: test.verdict for test in trial.tests}
    assert verdicts["batched_test"] == ("left out" if shared else "passed")
    assert trial.reproducible is not shared
    assert any("it is not reproducible" in note for note in trial.notes) is shared


@pytest.mark.parametrize(
    "space", [spaces.Dict({"place": Drift.space}), spaces.Tuple([Drift.space]), spaces.Text(3)], ids=str
)
def test_observations_in_parts_are_refused_before_the_run(space):
    class InParts(Drift):
        pass

    InParts.space = space
    expected = (
        f"agents of group 'boat' observe a {type(space).__name__}, and batched environments have Box, Discrete, "
        "MultiDiscrete and MultiBinary observations: flatten it"
    )
    with pytest.raises(mf.ConfigInvalid, match=re.escape(expected)):
        ready(mf.Experiment(mf.Env(InParts)))


@pytest.mark.parametrize("turn_based", [False, True])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": {"boat": [0, 1]}}, r"agent 0 is of type int, .* such as 'agent_0', in possible_agents and groups"),
        ({"groups": {"boat": ["a", "b"], "raft": ["b"]}}, "two agents are named 'b'"),
        ({"space": spaces.Dict({"place": Drift.space})}, "agents of group 'boat' observe a Dict"),
        ({"reset": lambda *_: 1 / 0}, "ZeroDivisionError"),
    ],
)
def test_check_env_says_why_a_batched_environment_cannot_be_opened(changes, message, turn_based):
    faulty = type("Faulty", (Drift,), {**changes, "turn_based": turn_based})
    trial = mf.check_environment(mf.Env(faulty, num_envs=1), 4, 3)
    assert not trial.ready
    assert trial.kind == ("AEC" if turn_based else "Parallel")
    assert any(re.search(message, str(problem)) for problem in trial.problems), trial.problems


def test_an_attribute_turn_based_does_not_make_a_pettingzoo_environment_turn_based():
    class Named(Relay):
        turn_based = True

    assert mf.check_environment(mf.Env(Named), 2, 3).kind == "Parallel"
