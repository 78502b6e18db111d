"""The cases of benchmarks/composition_bars.py: shields, automata and managers, and their controls."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.team_case import Case, learns_with, on_game
from marlflow.env import cliff

_SHORT = (
    "env.num_envs=8",
    "rollouts.num_workers=1",
    "rollouts.fragment_env_steps=128",
    "checkpoint.every_env_steps=null",
    "evaluation.episodes=0",
)


def falls(run_dir: Path) -> tuple[int, str]:
    """Return the number of falls in all rows of a run with `record=dataset`."""
    rows = fallen = 0
    for file in sorted((run_dir / "record").rglob("*.rows.parquet")):
        rewards = pq.read_table(file, columns=["reward"])["reward"].to_numpy()
        rows += len(rewards)
        fallen += int(np.count_nonzero(rewards == cliff.FALL))
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    sampled = sum(policy["agent_steps_sampled"] for policy in last["policies"].values())
    if rows != sampled:
        raise RuntimeError(f"{run_dir} recorded {rows:,} of {sampled:,} agent steps")
    other = last["policies"]["second"]["eval_return_mean"]
    return fallen, f"second (dqn) {other:.4g}; {fallen:,} falls in {rows:,} agent steps of training"


_CLIFF = (
    *on_game("cliff"),
    *learns_with("ppo", "first", batch_agent_steps=800, minibatch_agent_steps=200, learning_rate=3e-3, discount=1.0),
    *learns_with(
        "dqn",
        "second",
        learning_rate=1e-3,
        discount=1.0,
        n_step=1,
        train_every_agent_steps=4,
        learning_starts_agent_steps=500,
        target_every_updates=100,
        epsilon="{_target_: marlflow.Linear, start: 1.0, end: 0.05, agent_steps: 12000}",
    ),
    "mapping=[{match: walker_0, policy: first}, {match: walker_1, policy: second}]",
    *_SHORT,
    "evaluation.final_episodes=4",
    "stop.env_steps=25000",
    "record=dataset",
)
_SHIELDED = (*_CLIFF, "wrappers=shield", "env.wrappers.shield.safe=marlflow.env.cliff.stays_up")
_CLIFF_CASES = (
    Case("cliff_shielded", _SHIELDED, -13, -13, policy="first", count=falls),
    Case("cliff", _CLIFF, policy="first", is_control=True, count=falls, counted_from=1, counted_to=math.inf),
)

_ALL = (*_CLIFF_CASES,)
CASES = {case.name: case for case in _ALL}
