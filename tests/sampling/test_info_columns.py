"""Numbers in infos as columns of rows and figures of episodes, whatever the environment says and leaves out."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.info_columns import USUAL, InfoColumn, InfoColumns, coefficient_name
from marlflow.env.functional.own import batched_env
from marlflow.env.simulators.gymnasium_team import GymnasiumTeam
from marlflow.env.wrappers.shipped import black_death
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.protocol import EvaluationRequest, Request
from marlflow.sampling.saved_state import ResumeReport
from tests.env.functional_games import Walkers
from tests.sampling.workers import costs_of, rollout_worker

ENDS = {"a": 3, "b": 5}
"""The env step at which each agent ends."""
ROWS = frozenset({"one"})


class Telling(ParallelEnv[str, Any, Any]):
    """Agents end one by one; `step` in infos is the number of the env step, 1 of the dead."""

    metadata: dict[str, Any] = {"name": "telling"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = list(ENDS)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.at = list(ENDS), 0
        return self.see(), {agent: {"step": 99.0} for agent in self.agents}

    def see(self) -> Any:
        return {agent: np.array([self.at], np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.at += 1
        acted = self.agents
        seen, over = self.see(), {agent: self.at >= ENDS[agent] for agent in acted}
        self.agents = [agent for agent in acted if not over[agent]]
        infos = {
            agent: {"step": self.at, "deep": {"half": self.at / 2}, "word": "no", **self.more(agent)} for agent in acted
        }
        # The team wins in the end; dead agents' infos say so too.
        won = {"battle_won": True} if not self.agents else {}
        infos |= {agent: {"step": 1.0} for agent in ENDS if agent not in acted}
        infos = {agent: {**info, **won} for agent, info in infos.items()}
        return seen, dict.fromkeys(acted, 0.0), over, dict.fromkeys(acted, False), infos

    def more(self, agent: str) -> dict[str, Any]:
        return {"battle_won": np.bool_(False), "won": agent == "b"} if self.at >= ENDS[agent] else {}


def worker_of(*columns: InfoColumn, make: Any = Telling) -> Any:
    actors = {"one": RandomActor(spaces.Discrete(2))}
    return rollout_worker(make, (0, 1), {"a": "one", "b": "one"}, actors, 0, columns=InfoColumns(columns))


def test_a_row_has_the_sum_since_its_decision_or_the_last_number() -> None:
    worker = worker_of(InfoColumn("step", "step", "sum", ROWS), InfoColumn("latest", "step", "end", ROWS))
    receipt, batches = worker.collect(5)
    rows = batches["one"]
    np.testing.assert_array_equal(rows["step"], rows["t_env"] + 1)
    np.testing.assert_array_equal(rows["latest"], rows["t_env"] + 1)
    # The dead get 1 in two env steps of both environments.
    assert receipt.policies["one"].infos_unattributed == {"step": 4.0}
    for episode in receipt.episodes:
        assert episode.infos == {"step": {"a": 1 + 2 + 3 + 2, "b": 15}, "latest": {"a": 3.0, "b": 5.0}}


class Paying(Telling):
    """As Telling, with rewards, also for the dead."""

    def step(self, actions: Any) -> Any:
        seen, _, *rest = super().step(actions)
        return seen, dict.fromkeys(ENDS, 10.0 * self.at), *rest


def test_learners_see_rewards_and_infos_times_a_coefficient_of_the_round_and_returns_stay_as_they_are() -> None:
    worker, plain = (worker_of(InfoColumn("step", "step", "sum", ROWS), make=Paying) for _ in range(2))
    given = received = 0.0
    # 45 env steps are whole episodes; a coefficient of another policy changes nothing.
    for ticks, coefficient in ((2, 0.5), (3, -2.0), (11, 0.0), (29, 3.0)):
        request = Request(schedules={"one": {coefficient_name("one", "step"): coefficient, "reward_from.two.step": 9}})
        (receipt, batches), (expected, without) = worker.collect(ticks, request), plain.collect(ticks)
        assert receipt.episodes == expected.episodes
        assert receipt.policies["one"].reward_unattributed == expected.policies["one"].reward_unattributed
        np.testing.assert_array_equal(batches["one"]["step"], without["one"]["step"])
        received += batches["one"]["reward"].sum() - coefficient * batches["one"]["step"].sum()
        received += receipt.policies["one"].reward_unattributed
        given += sum(sum(episode.returns.values()) for episode in receipt.episodes)
        rewards = without["one"]["reward"] + coefficient * (without["one"]["t_env"] + 1)
        np.testing.assert_array_equal(batches["one"]["reward"], rewards)
    assert received == given == 9 * 2 * 2 * (10 + 20 + 30 + 40 + 50)


@pytest.mark.parametrize("compiled", [True, False])
def test_numbers_of_functional_environments_are_added_too(compiled: bool) -> None:
    mapping = {**{f"walker_{number}": "one" for number in range(3)}, "caller_0": "two"}
    actors = {"one": RandomActor(spaces.Discrete(3)), "two": RandomActor(spaces.Discrete(2))}
    settings = {"make_batched": partial(batched_env, make=Walkers, max_env_steps=9), "columns": costs_of("one", "two")}
    request = Request(schedules={"one": {coefficient_name("one", "cost"): -0.5}})
    batches, without = (
        rollout_worker(
            partial(batched_env, 1, Walkers, max_env_steps=9),
            range(3),
            mapping,
            actors,
            0,
            compiled=compiled,
            **settings,
        ).collect(30, given)[1]
        for given in (request, Request())
    )
    assert without["one"]["cost"].any()
    np.testing.assert_array_equal(batches["one"]["reward"], without["one"]["reward"] - 0.5 * without["one"]["cost"])
    np.testing.assert_array_equal(batches["two"]["reward"], without["two"]["reward"])


def test_figures_are_sums_or_what_the_last_info_says_and_those_that_nobody_gives_are_missing() -> None:
    figures = [InfoColumn("half", "deep.half"), InfoColumn("end", "deep.half", "end"), InfoColumn("word", "word")]
    receipt, batches = worker_of(*figures, *USUAL).collect(5)
    assert "half" not in batches["one"].columns
    for episode in receipt.episodes:
        assert episode.infos == {
            "half": {"a": 3.0, "b": 7.5},
            "end": {"a": 1.5, "b": 2.5},
            "battle_won": {"a": 1.0, "b": 1.0},
            "won": {"a": 0.0, "b": 1.0},
        }
    assert worker_of(*figures).evaluate(EvaluationRequest(range(3))).episodes[2].infos["end"] == {"a": 1.5, "b": 2.5}


class Quiet(Telling):
    """As Telling, with infos of the living only."""

    def step(self, actions: Any) -> Any:
        acted = self.agents
        *result, infos = super().step(actions)
        return *result, {agent: infos[agent] for agent in acted}


@pytest.mark.parametrize(("make", "won"), [(Telling, 1.0), (Quiet, 0.0)])
def test_black_death_keeps_what_an_agents_last_info_said_and_adds_nothing_to_sums(make: Any, won: float) -> None:
    figures = [
        InfoColumn("half", "deep.half"),
        InfoColumn("sum", "step"),
        InfoColumn("end", "step", "end"),
        *USUAL,
    ]
    receipt, _ = worker_of(*figures, make=lambda: black_death(make())).collect(5)
    told = make is Telling
    for episode in receipt.episodes:
        assert episode.infos == {
            "half": {"a": 3.0, "b": 7.5},
            "sum": {"a": 1 + 2 + 3 + 2 * told, "b": 15},
            "end": {"a": 1.0 if told else 3.0, "b": 5.0},
            "battle_won": {"a": won, "b": 1.0},
            "won": {"a": 0.0, "b": 1.0},
        }


class WonTogether(gym.Env[Any, Any]):
    """Agent 0 ends after two steps; one info for both says at the end, after four, that they won."""

    def __init__(self) -> None:
        self.observation_space = spaces.Tuple([spaces.Box(0, 9, (1,), np.float32)] * 2)
        self.action_space = spaces.Tuple([spaces.Discrete(2)] * 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._at = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        return [np.array([self._at], np.float32)] * 2

    def step(self, action: Any) -> Any:
        self._at += 1
        return self._seen(), [1.0, 1.0], [self._at >= 2, self._at >= 4], False, {"won": self._at >= 4, "cost": 1.0}


@pytest.mark.parametrize("wrap", [lambda env: env, black_death])
def test_agents_of_a_gymnasium_team_that_ended_earlier_are_told_how_it_ended(wrap: Any) -> None:
    actors = {"one": RandomActor(spaces.Discrete(2))}
    mapping = {"agent_0": "one", "agent_1": "one"}
    columns = InfoColumns((InfoColumn("cost", "cost"), *USUAL))
    worker = rollout_worker(lambda: wrap(GymnasiumTeam(WonTogether())), (0,), mapping, actors, 0, columns=columns)
    receipt, _ = worker.collect(8)
    expected = {"cost": {"agent_0": 2.0, "agent_1": 4.0}, "won": {"agent_0": 1.0, "agent_1": 1.0}}
    assert [episode.infos for episode in receipt.episodes] == [expected] * 2


def test_figures_of_the_next_episode_begin_again() -> None:
    receipt, _ = worker_of(InfoColumn("half", "deep.half"), *USUAL).collect(15)
    assert len(receipt.episodes) == 6
    assert {str(episode.infos) for episode in receipt.episodes} == {str(receipt.episodes[0].infos)}


class InTurn(AECEnv[str, Any, Any]):
    """Two players in turn; the last one to move wins, and only the last infos say so."""

    metadata: dict[str, Any] = {"name": "in_turn"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = list(ENDS)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        return np.array([self.at], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.at = list(ENDS), 0
        self.agent_selection = "a"
        self.rewards, self._cumulative_rewards = dict.fromkeys(ENDS, 0.0), dict.fromkeys(ENDS, 0.0)
        self.terminations, self.truncations = dict.fromkeys(ENDS, False), dict.fromkeys(ENDS, False)
        self.infos: dict[str, Any] = {agent: {} for agent in ENDS}

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.at += 1
        if self.at == 5:
            self.terminations = dict.fromkeys(ENDS, True)
            self.infos = {agent: {"won": agent == self.agent_selection} for agent in ENDS}
        self.agent_selection = "b" if self.agent_selection == "a" else "a"


def test_of_agents_in_turn_the_last_infos_are_read() -> None:
    receipt, _ = worker_of(*USUAL, make=InTurn).collect(5)
    assert [episode.infos for episode in receipt.episodes] == [{"won": {"a": 1.0, "b": 0.0}}] * 2


class Odd(Telling):
    """Says things in infos that are no numbers."""

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        odd: list[Any] = [None, {"won": [[1], [1, 2]], "success": "yes", "metrics": 3}]
        return *result, {agent: odd[(self.at + number) % 2] for number, agent in enumerate(infos)}


def test_odd_infos_are_no_figures_and_break_nothing() -> None:
    receipt, _ = worker_of(*USUAL, make=Odd).collect(30)
    assert not receipt.faults
    assert [episode.infos for episode in receipt.episodes] == [{}] * 12


def test_a_resumed_worker_knows_what_the_dead_were_told() -> None:
    columns = InfoColumn("step", "step", "sum", ROWS), InfoColumn("latest", "step", "end", ROWS), *USUAL
    whole, other = worker_of(*columns), worker_of(*columns)
    whole.collect(4)
    report = other.load_state(whole.state(), 1_000)
    assert report == ResumeReport()
    expected, found = whole.collect(11)[0], other.collect(11)[0]
    assert found.episodes == expected.episodes
    assert found.episodes[0].infos["latest"] == {"a": 3.0, "b": 5.0}
