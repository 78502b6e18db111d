"""A recurrent policy whose agents come back within an episode begins again without memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import marlflow as mf
from marlflow.offline.dataset import find_dataset
from tests.driver.coming_and_going import ComingAndGoing
from tests.runtime.small_runs import small_run


def test_memory_is_zero_after_an_end_and_goes_on_after_a_cut(tmp_path: Path) -> None:
    algorithm = mf.RecurrentPPO(batch_agent_steps=64, minibatch_agent_steps=64, epochs=1, sequence_agent_steps=4)
    policies = {name: mf.Policy(algorithm, mf.GRU(4, (4,))) for name in ("red", "blue")}
    experiment = small_run(
        env=mf.Env(ComingAndGoing, num_envs=2),
        policies=policies,
        mapping=[mf.Rule("red_*", "red"), mf.Rule("*", "blue")],
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=10),
        env_steps=400,
        record=mf.Record(),
    )
    mf.train(experiment, tmp_path)
    remembers: dict[tuple[bool, bool], list[bool]] = {}
    for policy in policies:
        dataset = find_dataset(tmp_path / "record", policy)
        ended: dict[tuple[int, int, int], bool] = {}
        for batch in map(dataset.read, dataset.fragments):
            first = np.cumsum(batch.segments["length"]) - batch.segments["length"]
            order = np.argsort(batch.columns["t_agent"][first], kind="stable")
            for segment in order:
                agent = tuple(int(batch.segments[name][segment]) for name in ("env", "episode", "agent"))
                was_there = agent in ended
                remembered = bool(batch.columns["memory"][first[segment]].any())
                remembers.setdefault((was_there, ended.get(agent, False)), []).append(remembered)
                ended[agent] = bool(batch.segments["terminated"][segment] or batch.segments["truncated"][segment])
    assert not any(remembers[False, False])  # the first of an episode
    assert not any(remembers[True, True])  # after an end
    assert all(remembers[True, False])  # after the end of a fragment
    assert all(len(found) > 10 for found in remembers.values())
