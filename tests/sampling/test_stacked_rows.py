"""A wrapper that shows one array again and again, changed in place, leaves right rows."""

import functools

import numpy as np
import supersuit
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.env.games import cartpole_team
from marlflow.policy.actor import Acted
from marlflow.sampling import Rule
from tests.sampling.workers import rollout_worker

FRAMES = 3


class Turns:
    """Pushes left and right in turn, whatever is seen: so that a wrapper changes nothing in what is done."""

    def __init__(self):
        self.calls = 0

    def act(self, obs, action_mask, memory, mode, generator):
        self.calls += 1
        return Acted(np.full(len(obs), self.calls % 2), np.zeros(len(obs), np.float32), memory)

    def set_schedule(self, values):
        pass

    def flat(self):
        return np.zeros(0, np.float32)

    def load_flat(self, flat):
        pass


def shown(make_env, env_steps):
    """The observation of each row, and of each bootstrap as that of a further row, by lane, episode and decision."""
    worker = rollout_worker(make_env, [0, 1], [Rule("*", "all")], {"all": Turns()}, seed=1)
    rows, bootstraps = {}, {}
    for _ in range(3):
        batch = worker.collect(env_steps)[1]["all"]
        keys = [tuple(map(int, key)) for key in zip(batch["lane"], batch["episode"], batch["t_agent"], strict=True)]
        rows |= dict(zip(keys, batch["obs"], strict=True))
        for end, observation in zip(batch.ends(), batch.segments["bootstrap_obs"], strict=True):
            lane, episode, t = keys[end]
            bootstraps[lane, episode, t + 1] = observation
    return rows, bootstraps


def assert_stacked(make_env, env_steps):
    rows, bootstraps = shown(make_env, env_steps)
    stacked_rows, stacked_bootstraps = shown(functools.partial(_stacked, make_env), env_steps)
    assert (stacked_rows.keys(), stacked_bootstraps.keys()) == (rows.keys(), bootstraps.keys())
    assert len({episode for _, episode, _ in rows}) > 2, "too few episodes to see one begin anew"
    single = {**bootstraps, **rows}
    for (lane, episode, t), observation in [*stacked_rows.items(), *stacked_bootstraps.items()]:
        frames = [single[lane, episode, max(0, t - back)] for back in reversed(range(FRAMES))]
        np.testing.assert_array_equal(observation, np.concatenate(frames))


def _stacked(make_env):
    return supersuit.frame_stack_v2(make_env(), FRAMES)


def test_stacked_frames_are_the_rows_before_in_a_parallel_environment():
    assert_stacked(cartpole_team.parallel_env, 40)


def test_stacked_frames_are_the_rows_before_in_an_aec_environment():
    assert_stacked(lambda: parallel_to_aec(cartpole_team.parallel_env()), 160)
