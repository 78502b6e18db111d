"""Runs with shields, automata and managers continue bit for bit, and play the same once they are loaded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.env.games import cliff, gridworld, sign
from marlflow.env.wrappers.automaton_task import automaton
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shield import shield
from tests.driver.resumed_runs import resumes_exactly
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run
from tests.trained.runs import by_hand, by_worker, played_alike

HALF, WHOLE = 400, 800


def of_env(factory: str, arguments: dict[str, object], wrapper: object, mapping: object) -> mf.Experiment:
    """A run of PPO and DQN in a wrapped environment."""
    env = mf.Env("tests.trained.watched.make", {"factory": factory, **arguments}, (wrapper,), num_envs=4)  # type: ignore[arg-type]
    learns = {"one": mf.Policy(SMALL_PPO, SMALL), "two": mf.Policy(SMALL_DQN, SMALL)}
    return small_run(env_steps=WHOLE, env=env, policies=learns, mapping=mapping)


RUNS = {
    "shield": of_env(
        "marlflow.env.games.cliff.parallel_env",
        {"max_cycles": 27},
        partial(shield, safe=cliff.stays_up),
        (mf.Rule("walker_0", "one"), mf.Rule("walker_1", "two")),
    )
}

# Agents first choose what to promise, then stay away from unsafe cells; both accepting sets are due in turns.
PROMISE = {
    "states": 4,
    "initial": 0,
    "accepting": [[1], [1, 2]],
    "sink": 3,
    "epsilon": {0: [1, 2]},
    "transitions": [
        {"from": 0, "to": 0},
        {"from": 1, "when": "!unsafe", "to": 1},
        {"from": 1, "when": "unsafe", "to": 3},
        {"from": 2, "when": "unsafe", "to": 3},
        {"from": 2, "when": "!unsafe & goal1", "to": 1},
        {"from": 2, "when": "!unsafe & !goal1", "to": 2},
    ],
}
RUNS["automaton"] = of_env(
    "marlflow.env.games.gridworld.parallel_env",
    {"max_cycles": 27, "num_agents": 2},
    partial(automaton, labels=gridworld.labels, sees="env", automaton=PROMISE, noop=4),
    (mf.Rule("walker_0", "one"), mf.Rule("walker_1", "two")),
)

# Options last longer than a fragment (40 turns of both), so the manager's rows are carried over.
FEW_ROWS = replace(SMALL_DQN, batch_agent_steps=2, train_every_agent_steps=1, learning_starts_agent_steps=4)
MANAGED = of_env(
    "marlflow.env.games.sign.parallel_env",
    {"max_cycles": 70},
    partial(managed, options=2, every=60, manager="manager", manager_sees="state", intrinsic=sign.reached),
    (mf.Rule("walker_0", "one"), mf.Rule("manager", "two")),
)
RUNS["managed"] = replace(MANAGED, policies={**MANAGED.policies, "two": mf.Policy(FEW_ROWS, SMALL)})
RUNS["managed at every env step"] = of_env(
    "marlflow.env.games.sign.parallel_env",
    {"max_cycles": 70},
    partial(managed, options=2, every=7, manager="manager", intrinsic=sign.reached, manager_acts="every_env_step"),
    (mf.Rule("walker_0", "one"), mf.Rule("manager", "two")),
)


def apart(observations: dict[str, Any], actions: dict[str, Any]) -> dict[str, Any]:
    """The second walker takes another way than the first."""
    del observations
    if len(actions) < 2 or actions["walker_0"] != actions["walker_1"]:
        return actions
    return {**actions, "walker_1": (int(actions["walker_0"]) + 1) % 4}


RUNS["correction"] = of_env(
    "marlflow.env.games.cliff.parallel_env",
    {"max_cycles": 27},
    partial(shield, post=apart),
    (mf.Rule("walker_0", "one"), mf.Rule("walker_1", "two")),
)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_goes_on_does_what_it_would_have_done_and_is_loaded(name: str, tmp_path: Path) -> None:
    resumed = resumes_exactly(RUNS[name], tmp_path, HALF)
    assert any(env["running"] for env in resumed.half["workers"]["envs"]), "episodes were to be running"
    assert all(learner["updates"] > 0 for learner in resumed.metrics["learners"].values())
    assert (resumed.metrics["rollouts"]["actions_corrected"] > 20) == (name == "correction")
    assert name != "managed" or resumed.metrics["policies"]["two"]["rows_carried"] > 3
    worker = by_worker(RUNS[name], resumed.parts, 4, "greedy")
    assert len(worker) == 4
    assert played_alike(worker, by_hand(mf.load(resumed.parts), 4, "greedy"))
