"""Agents that come back within an episode begin without memory in games and in exports, too, as in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.env.opening import open_adapter
from marlflow.trained.export import played_rows
from marlflow.trained.games import Decision, Episode, play_episode, policy_player
from tests.driver.coming_and_going import ComingAndGoing
from tests.runtime.small_runs import small_run


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> mf.Team:
    algorithm = mf.RecurrentPPO(batch_agent_steps=64, minibatch_agent_steps=64, epochs=1, sequence_agent_steps=4)
    experiment = small_run(
        env=mf.Env(ComingAndGoing, num_envs=2),
        policies={name: mf.Policy(algorithm, mf.GRU(4, (4,))) for name in ("red", "blue")},
        mapping=[mf.Rule("red_*", "red"), mf.Rule("*", "blue")],
        env_steps=100,
    )
    folder = tmp_path_factory.mktemp("coming") / "run"
    mf.train(experiment, folder)
    return mf.load(folder, experiment=experiment)


def test_who_comes_back_decides_as_one_without_memory(team: mf.Team) -> None:
    adapter = open_adapter(team.make_env())
    asked, begun = policy_player(team, {}, "greedy"), set()
    alike: dict[str, list[bool]] = {"first": [], "back": [], "later": []}

    def player(decision: Decision) -> Any:
        action, trained = asked(decision), team.player(decision.agent)
        anew = trained.memory(1)
        trained.act([decision.observation], [decision.mask], anew, "greedy")
        kind = "first" if decision.agent not in begun else "back" if decision.comes_back else "later"
        begun.add(decision.agent)
        alike[kind].append(bool(np.array_equal(anew, team._states[decision.agent].memory)))
        return action

    for number in range(20):
        begun.clear()
        play_episode(adapter, Episode(number, 20, team.reset(0, number)), {}, player, [])
    adapter.close()
    assert all(alike["first"])
    assert all(alike["back"])
    assert not any(alike["later"])
    assert min(map(len, alike.values())) > 10


def test_rows_to_compare_exports_on_begin_without_memory_after_an_end(team: mf.Team) -> None:
    policy = team["blue"]
    rows = played_rows(team, policy, 200)
    assert rows.memory is not None
    env, begins, decided = team.make_env(), [], 0
    # The same episodes; what agents do changes neither who comes nor who goes.
    for number in range(100):
        env.reset(seed=team.reset(0, number))
        before: set[str] = set()
        while env.agents and decided < 200:
            here = [agent for agent in env.agents if agent.startswith("blue")]
            begins += [agent not in before for agent in here]
            decided, before = decided + len(here), set(here)
            env.step(dict.fromkeys(env.agents, 0))
    assert decided >= 200
    assert [not memory.any() for memory in rows.memory] == begins[:200]
