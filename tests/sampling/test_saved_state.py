"""The saved state of workers: other environments than before, workers in place of lost ones, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from marlflow.base.errors import CheckpointUnusable
from marlflow.env.games import cartpole_team
from marlflow.sampling.saved_state import merged, share
from tests.sampling.test_worker_state import EVER, turning
from tests.sampling.workers import lone_worker


def team(env_indices, **arguments):
    return lone_worker(cartpole_team.parallel_env, None, env_indices, seed=1, **arguments)


def test_a_worker_in_the_place_of_a_lost_one_begins_where_it_is_told():
    first, second = team([0, 4]), team([4, 0], next_episodes={0: 2, 9: 9})
    episodes = [one for one in first.collect(400)[0].episodes if one.env == 4 or one.episode >= 2]
    found = {(one.env, one.episode): one.returns for one in second.collect(400)[0].episodes}
    assert {key: found[key] for one in episodes if (key := (one.env, one.episode)) in found}
    assert min(episode for number, episode in found if number == 0) == 2
    for one in episodes:
        if (one.env, one.episode) in found:
            assert found[one.env, one.episode] == one.returns


def test_copies_that_nothing_is_kept_of_begin_at_the_beginning():
    worker = team([0, 1])
    worker.collect(30)
    wider = team([1, 2])
    wider.load_state(share(worker.state(), [1, 2]), EVER)
    following = {one["env"]: one["next_episode"] for one in wider.state()["envs"]}
    assert following[1] == worker.state()["envs"][1]["next_episode"]
    assert following[2] == 0


def test_what_is_kept_of_other_agents_or_policies_is_refused():
    worker = team([0])
    worker.collect(3)
    with pytest.raises(CheckpointUnusable) as caught:
        turning(env_indices=(0,)).load_state(worker.state(), EVER)
    assert "the environment has agents ['built_0', 'built_1']" in caught.value.problems[0]
    tree = turning(env_indices=(0,)).state()
    tree["tables"]["rows.all"]["obs"] = np.zeros((0, 5), np.float32)
    with pytest.raises(CheckpointUnusable, match=r"the rows of policy 'all' are kept as .*float32 \[5\]"):
        turning(env_indices=(0,)).load_state(tree, EVER)
    with pytest.raises(CheckpointUnusable, match="different agents"):
        merged([tree, worker.state()])
