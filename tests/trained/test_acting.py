"""A team keeps the networks that it acts with: `act` builds none and reads nothing after the first decisions."""

from __future__ import annotations

import copy
import gc
import shutil
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.algorithms.from_run import Imported
from marlflow.runtime.spec import PolicySpec
from marlflow.trained import team as team_module
from marlflow.trained.games import seating
from tests.league.runs import LEAGUES, league_run
from tests.trained.conftest import Trained
from tests.trained.runs import by_hand, played_alike

Builds = Counter[str]


@pytest.fixture(scope="module")
def league(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("league") / "pfsp"
    mf.train(league_run(LEAGUES["pfsp"], 500), run_dir)
    return run_dir


@pytest.fixture(scope="module")
def folder_of(trained: Trained, league: Path) -> Callable[[str], Path]:
    return lambda name: league if name == "league" else trained(name)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """Counts the networks that policies act with, by name, and under `all` every actor that anything builds."""
    counted: Builds = Counter()
    of_spec, of_saved = PolicySpec.actor, Imported.actor

    def spec_actor(spec: PolicySpec) -> Any:
        counted[spec.name] += 1
        return of_spec(spec)

    def saved_actor(saved: Imported, *given: Any) -> Any:
        counted["all"] += 1
        return of_saved(saved, *given)

    monkeypatch.setattr(PolicySpec, "actor", spec_actor)
    monkeypatch.setattr(Imported, "actor", saved_actor)
    return counted


def first_seen(team: mf.Team) -> dict[str, tuple[Any, Any]]:
    """Observation and info of each agent that can act first."""
    env = team.make_env()
    seen = env.reset(seed=team.reset(seed=0))
    if seen is None:
        observation, _, _, _, info = env.last()
        return {env.agent_selection: (observation, info)}
    return {agent: (seen[0][agent], seen[1][agent]) for agent in env.agents}


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
@pytest.mark.parametrize(
    ("name", "policy", "networks"),
    [
        ("ppo and dqn", None, ["hunters", "prey"]),
        ("memory", None, ["hunters", "prey"]),
        ("qmix and ppo", None, ["adversary", "agent"]),
        # Four agents of two policies: a network for each policy, not for each agent.
        ("ppo and dqn", "team", ["hunters", "prey"]),
        ("league", "main", ["main"]),
        ("league", "main@1", ["main@1"]),
    ],
)
def test_a_network_is_built_once_for_each_policy(
    name: str, policy: str | None, networks: list[str], mode: Any, folder_of: Callable[[str], Path], builds: Builds
) -> None:
    team = mf.load(folder_of(name))
    builds.clear()
    seen = first_seen(team)
    for agent, (observation, info) in seen.items():
        team.act(agent, observation, info, mode, policy)
    first = builds.copy()
    assert {name: count for name, count in first.items() if name != "all"} == dict.fromkeys(networks, 1)
    for episode in range(3):
        team.reset(seed=episode)
        for agent, (observation, info) in seen.items():
            for _ in range(5):
                team.act(agent, observation, info, mode, policy)
    assert builds == first


def test_acting_reads_nothing_that_it_has_read(trained: Trained, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained("memory"), run_dir)
    team, kept = mf.load(run_dir), mf.load(trained("memory"))
    seen = first_seen(team)
    for agent, (observation, info) in seen.items():
        team.act(agent, observation, info)
    # As a run in progress removes its earlier checkpoints.
    shutil.rmtree(run_dir)
    assert played_alike(by_hand(team, 2, "sampled"), by_hand(kept, 2, "sampled"))


def test_a_decision_is_that_of_the_policy_alone(league: Path) -> None:
    team = mf.load(league)
    (agent, (observation, info)), names = next(iter(first_seen(team).items())), ("main", "main@1", "main@2")
    for name in names * 2:
        mask = observation["action_mask"] if isinstance(observation, dict) else info.get("action_mask")
        row = observation["observation"] if isinstance(observation, dict) else observation
        assert team.act(agent, observation, info, "greedy", name) == team[name].act([row], [mask], mode="greedy")[0]


def test_teams_of_other_checkpoints_have_their_own_networks(trained: Trained) -> None:
    run_dir = trained("ppo and dqn")
    first, second = mf.load(run_dir), mf.load(run_dir)
    for network in first["hunters"].actor.parameters():  # type: ignore[attr-defined]
        network.data.zero_()
    assert second["hunters"].actor.flat().any()  # type: ignore[attr-defined]


def test_members_that_have_not_played_for_long_are_dropped_and_come_back(
    league: Path, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_module, "_MOST_LOADED", 1)
    team = mf.load(league)
    snapshots = [name for name in team.policies if name.startswith("main@")]
    assert len(snapshots) > 2
    flats = {name: team[name].actor.flat() for name in snapshots}  # type: ignore[attr-defined]
    dropped = weakref.ref(team[snapshots[0]].actor)
    for name in (*snapshots[1:], "main"):
        assert (team[name].actor.flat() == flats.get(name, team["main"].actor.flat())).all()  # type: ignore[attr-defined]
    gc.collect()
    assert dropped() is None
    # Whoever plays in the running episode stays, however many there are.
    seen = first_seen(team)
    agent, (observation, info) = next(iter(seen.items()))
    team.act(agent, observation, info, policy=snapshots[0])
    builds.clear()
    for name in snapshots[1:]:
        assert (team[name].actor.flat() == flats[name]).all()  # type: ignore[attr-defined]
    team.act(agent, observation, info, policy=snapshots[0])
    assert builds[snapshots[0]] == 0


def test_threads_share_the_networks_of_a_team(trained: Trained, builds: Builds) -> None:
    team = mf.load(trained("memory"))
    seen = first_seen(team)

    def decisions(agent: str) -> list[Any]:
        observation, info = seen[agent]
        return [team.act(agent, observation, info, "sampled") for _ in range(40)]

    expected = {agent: decisions(agent) for agent in seen}
    again = copy.deepcopy(mf.load(trained("memory")))
    again.reset(seed=0)
    team, _ = again, builds.clear()
    with ThreadPoolExecutor(len(seen)) as pool:
        assert dict(zip(seen, pool.map(decisions, seen), strict=True)) == expected
    assert {name: count for name, count in builds.items() if name != "all"} == {"hunters": 1, "prey": 1}


def test_an_agent_of_other_spaces_is_refused_without_a_network(trained: Trained, builds: Builds) -> None:
    team = mf.load(trained("qmix and ppo"))
    builds.clear()
    with pytest.raises(mf.ConfigInvalid, match=r"observes Box.* and agent 'agent_0' observes Box"):
        team.player("agent_0", "adversary")
    assert builds["agent"] == 0


def test_who_can_play_is_asked_only_until_one_can() -> None:
    asked: list[str] = []

    class ManyMembers:
        run_dir, agents, policies = Path(), ("a",), ("other", "main", *(f"main@{number}" for number in range(300)))

        def player(self, agent: str, policy: str | None = None) -> Any:
            raise mf.ConfigInvalid(["several learned"])

        def __getitem__(self, name: str) -> Any:
            asked.append(name)
            return SimpleNamespace(name=name, agents=() if name == "other" else ("a",))

    assert seating(ManyMembers(), None, None, {}, ("a",)) == {"a": "main"}  # type: ignore[arg-type]
    assert asked == ["other", "main"]


def test_agents_without_a_mask_of_a_policy_that_acts_by_masks_act_by_their_info(tmp_path: Path) -> None:
    one = mf.PPO(batch_agent_steps=8, minibatch_agent_steps=8, epochs=1)
    experiment = mf.Experiment(
        mf.Env(MaskedInTurn, wrappers=["mask_in_info"]),
        {"all": mf.Policy(one)},
        [mf.Rule("*", "all")],
        stop=mf.Stop(env_steps=16),
        runtime=mf.RuntimeConfig("inline"),
    )
    mf.train(experiment, tmp_path / "run")
    team = mf.load(tmp_path / "run")
    env = team.make_env()
    seen, infos = env.reset(seed=team.reset())
    assert "action_mask" in infos["a"]
    assert "action_mask" not in infos["b"]
    for _ in range(40):
        assert team.act("a", seen["a"], infos["a"], "sampled") == 2
    assert {team.act("b", seen["b"], infos["b"], "sampled") for _ in range(40)} == {0, 1, 2}


class MaskedInTurn(ParallelEnv[str, Any, int]):
    """Agent a may take action 2 alone, b any; both see three numbers. One env step."""

    metadata: ClassVar[dict[str, Any]] = {"name": "masked_in_turn"}
    possible_agents: ClassVar[list[str]] = ["a", "b"]
    render_mode = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        numbers = spaces.Box(0, 1, (3,))
        return spaces.Dict(observation=numbers, action_mask=spaces.MultiBinary(3)) if agent == "a" else numbers

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents = ["a", "b"]
        return self._seen(), {"a": {}, "b": {}}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        self.agents = []
        none = dict.fromkeys(actions, False)
        return self._seen(), dict.fromkeys(actions, 0.0), dict.fromkeys(actions, True), none, {"a": {}, "b": {}}

    def _seen(self) -> dict[str, Any]:
        zeros = np.zeros(3, np.float32)
        return {"a": {"observation": zeros, "action_mask": np.array([0, 0, 1], np.int8)}, "b": zeros}
