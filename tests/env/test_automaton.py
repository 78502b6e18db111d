"""Automata are checked over all labels; their tasks reward, end and show what the formula says."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

from marlflow.base.errors import ConfigInvalid
from marlflow.env.games import gridworld, pendulum_team
from marlflow.env.wrappers.automaton import LabelCondition, read_automaton
from marlflow.env.wrappers.automaton_task import TaskProgress, automaton

THEN: dict[str, Any] = {
    "states": ["start", "went", "done", "dead"],
    "initial": "start",
    "transitions": [
        {"from": "start", "when": "goal1 & !unsafe", "to": "went"},
        {"from": "start", "when": "!goal1 & !unsafe", "to": "start"},
        {"from": "start", "when": "unsafe", "to": "dead"},
        {"from": "went", "when": "goal2 & !unsafe", "to": "done"},
        {"from": "went", "when": "!goal2 & !unsafe", "to": "went"},
        {"from": "went", "when": "unsafe", "to": "dead"},
        {"from": "done", "to": "done"},
    ],
    "accepting": [["done"]],
    "sink": "dead",
}
# "Stay at a from some time on, or at b": LTL FG a | FG b, which needs guesses.
GUESS: dict[str, Any] = {
    "states": 4,
    "initial": 0,
    "transitions": [
        {"from": 0, "to": 0},
        {"from": 1, "when": "a", "to": 1},
        {"from": 1, "when": "!a", "to": 3},
        {"from": 2, "when": "b", "to": 2},
        {"from": 2, "when": "!b", "to": 3},
    ],
    "accepting": [[1, 2]],
    "sink": 3,
    "epsilon": {0: [1, 2]},
}
BOTH_AGAIN: dict[str, Any] = {
    "states": 3,
    "initial": 0,
    "transitions": [
        {"from": state, "when": when, "to": to}
        for state in range(3)
        for when, to in (("a & !b", 1), ("b & !a", 2), ("(a & b) | (!a & !b)", 0))
    ],
    "accepting": [[1], [2]],
}


@given(
    st.recursive(
        st.sampled_from(["a", "b", "c", "true", "false"]),
        lambda inner: st.one_of(
            inner.map(lambda x: f"!({x})"),
            st.tuples(inner, st.sampled_from(["&", "|"]), inner).map(
                lambda parts: f"({parts[0]}) {parts[1]} {parts[2]}"
            ),
        ),
        max_leaves=8,
    )
)
@settings(deadline=None)
def test_conditions_mean_what_pythons_mean(text: str) -> None:
    python = text.replace("!", " not ").replace("&", " and ").replace("|", " or ")
    python = python.replace("true", "True").replace("false", "False")
    for bits in itertools.product([False, True], repeat=3):
        values = dict(zip("abc", bits, strict=True))
        true = {name for name, value in values.items() if value}
        assert LabelCondition(text).holds(true) == eval(python, {}, values)


@pytest.mark.parametrize("text", ["", "a &", "a b", "(a", "a)", "& a", "a + b", "!"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="is no condition such as"):
        LabelCondition(text)


def changed(**changes: Any) -> dict[str, Any]:
    return {**THEN, **changes}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"states": 2}, "automaton.transitions is missing"),
        (changed(staets=3), "automaton has no 'staets'; did you mean 'states'?"),
        (changed(states=["a", "a"]), "a list of different names"),
        (changed(initial="begin"), "automaton.initial: there is no state 'begin'; states are start, went, done, dead"),
        (changed(transitions=THEN["transitions"][1:]), "state start leads nowhere with goal1;"),
        (
            changed(transitions=[*THEN["transitions"], {"from": "went", "when": "goal1", "to": "start"}]),
            "leads to both start and ",
        ),
        (changed(transitions=[{"from": "start"}]), "transitions[0] must be {from: <state>"),
        (changed(accepting=[]), "accepting must be a list of sets"),
        (changed(accepting=[["dead"]]), "sink: state dead is accepting"),
        (changed(sink="went"), "sink: state went has transitions to states that are no sinks"),
        (changed(states=[*THEN["states"], "far"], sink=["dead", "far"]), "state far cannot be reached from"),
        (changed(epsilon={"start": ["start"]}), "epsilon.start leads to itself"),
        (changed(epsilon={"start": ["nowhere"]}), "epsilon.start: there is no state 'nowhere'"),
        (changed(epsilon={"start": ["dead"]}), "epsilon.start leads to sink dead"),
        (changed(epsilon={"start": ["went"], "went": ["start"]}), "epsilon has a cycle"),
        (
            {
                "states": 2,
                "initial": 0,
                "transitions": [{"from": 0, "to": 1}, {"from": 1, "to": 1}],
                "accepting": [[0]],
            },
            "accepting[0] can be visited only once",
        ),
    ],
)  # fmt: skip
def test_wrong_automata_are_refused(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        read_automaton(data)
    assert problem in str(caught.value)


def reference(word: list[set[str]]) -> str:
    """THEN by its formula: no unsafe before goal2 after goal1; both goals at different moments."""
    for end in range(len(word)):
        if "unsafe" in word[end]:
            return "dead"
        if "goal2" in word[end] and any("goal1" in letter for letter in word[:end]):
            return "done"
    return "went" if any("goal1" in letter for letter in word) else "start"


def words(count: int, labels: list[str], length: int) -> list[list[set[str]]]:
    source = random.Random(0)
    return [
        [{label for label in labels if source.random() < 0.25} for _ in range(source.randrange(length))]
        for _ in range(count)
    ]


def test_a_word_leads_where_its_formula_says() -> None:
    task = read_automaton(THEN)
    ends = set()
    for word in words(400, ["goal1", "goal2", "unsafe", "other"], 9):
        state = task.initial
        for letter in word:
            state = task.next(state, letter)
        assert task.names[state] == reference(word)
        ends.add(task.names[state])
    assert ends == set(THEN["states"])
    assert {task.names[state] for state in task.satisfied} == {"done"}


def test_accepting_sets_are_rewarded_in_turns() -> None:
    """Held against: an occurrence counts if its set was not visited since the last time that all had been."""
    task = read_automaton(BOTH_AGAIN)
    for word in words(200, ["a", "b"], 30):
        progress, due = TaskProgress(task), {"a", "b"}
        for letter in word:
            only = letter.copy().pop() if len(letter) == 1 else None
            expected = only in due
            if expected:
                due -= {only}
                due = due or {"a", "b"} - {only}
            assert progress.read(letter) == expected
            assert progress.numbers()[3:].tolist() == [float("a" in due), float("b" in due)]


class Letters(ParallelEnv):
    """Agents whose labels are a script, with action masks and rewards of 0.5; it notes the actions that it gets."""

    metadata: dict[str, Any] = {"name": "letters"}  # noqa: RUF012

    def __init__(self, script: list[set[str]], num_agents: int = 1, masked: bool = False) -> None:
        self.possible_agents = [f"reader_{n}" for n in range(num_agents)]
        self.script, self.masked, self.taken = script, masked, []
        seen = spaces.Box(0.0, 99.0, (1,), np.float32)
        mask = spaces.Box(0, 1, (3,), np.int8)
        self.space = spaces.Dict({"observation": seen, "action_mask": mask}) if masked else seen
        self.action = spaces.Discrete(3, start=5)

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return self.action

    def seen(self) -> Any:
        t = np.array([self.t], np.float32)
        one = {"observation": t, "action_mask": np.array([1, 0, 1], np.int8)} if self.masked else t
        return dict.fromkeys(self.possible_agents, one)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.t = list(self.possible_agents), 0
        self.taken.clear()
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.taken.append(dict(actions))
        before, self.t = self.agents, self.t + 1
        over = self.t == len(self.script) - 1
        self.agents = [] if over else before
        no = dict.fromkeys(before, False)
        return self.seen(), dict.fromkeys(before, 0.5), no, dict.fromkeys(before, over), {a: {} for a in before}


def script_labels(env: Any, agent: str) -> set[str]:
    return env.script[env.t] if agent == "reader_0" else set()


@pytest.mark.parametrize("masked", [False, True])
def test_epsilon_moves_are_masked_actions_that_step_nothing(masked: bool) -> None:
    inner = Letters([{"a"}, {"a"}, {"a"}, {"b"}, {"b"}], masked=masked)
    env = automaton(inner, script_labels, GUESS, sees="env")
    assert env.action_space("reader_0") == spaces.Discrete(5, start=5)
    parts = (lambda seen, _: seen.values()) if masked else (lambda seen, info: (seen, info["action_mask"]))
    seen, infos = env.reset()
    own = [1, 0, 1] if masked else [1, 1, 1]
    observation, mask = parts(seen["reader_0"], infos["reader_0"])
    assert (observation.tolist(), mask.tolist()) == ([0, 1, 0, 0, 0], [*own, 1, 1])
    seen, rewards, terminated, _, infos = env.step({"reader_0": 8})
    observation, mask = parts(seen["reader_0"], infos["reader_0"])
    assert (observation.tolist(), mask.tolist()) == ([0, 0, 1, 0, 0], [*own, 0, 0]), "in state 1, at the same time"
    assert (rewards, inner.taken) == ({"reader_0": 0.0}, [])
    got = []
    while env.agents:
        seen, rewards, terminated, truncated, _ = env.step({"reader_0": 7})
        got.append((rewards["reader_0"], terminated["reader_0"], truncated["reader_0"]))
    assert got == [(1.0, False, False), (1.0, False, False), (0.0, True, False)]
    assert inner.taken == [{"reader_0": 7}] * 3


def test_others_act_on_while_one_moves_or_has_ended() -> None:
    inner = Letters([set(), {"goal1"}, {"goal2"}, set(), set()], num_agents=2)
    env = automaton(inner, script_labels, THEN, sees="env", agents="reader_0", keep_reward=True, noop=5)
    env.reset()
    rewards = []
    while env.agents:
        actions = dict.fromkeys(env.agents, 6)
        _, reward, terminated, truncated, _ = env.step(actions)
        rewards.append(reward)
        if len(rewards) == 2:
            assert (terminated, truncated) == (
                {"reader_0": True, "reader_1": False},
                {"reader_0": False, "reader_1": False},
            )
    both, one = {"reader_0": 0.5, "reader_1": 0.5}, {"reader_1": 0.5}
    assert rewards == [both, {**both, "reader_0": 1.5}, one, one]
    assert [actions["reader_0"] for actions in inner.taken] == [6, 6, 5, 5], "who has ended does nothing"


def test_an_agent_that_moves_does_nothing_while_the_other_acts() -> None:
    inner = Letters([{"a"}] * 4, num_agents=2)
    env = automaton(inner, script_labels, GUESS, sees="env", noop=7)
    env.reset()
    env.step({"reader_0": 8, "reader_1": 6})
    assert inner.taken == [{"reader_0": 7, "reader_1": 6}]
    assert env.progress["reader_0"].state == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "set labels, the import path"),
        ({"labels": gridworld.labels}, "set either automaton, its states and transitions, or formula"),
        ({"labels": gridworld.labels, "automaton": THEN, "formula": "F(a)"}, "set either automaton"),
        ({"labels": gridworld.labels, "automaton": THEN, "sees": "state"}, "sees must be observation or env"),
        ({"labels": lambda *_: "goal1", "automaton": THEN}, "labels returned 'goal1'; it must return a list or a set"),
        ({"labels": lambda *_: [1], "automaton": THEN}, "labels returned [1]"),
        ({"labels": gridworld.labels, "automaton": THEN, "sees": "env", "noop": 9}, "noop=9 is not in Discrete(5)"),
        ({"labels": gridworld.labels, "automaton": THEN, "agents": "fox"}, "matches none of walker_0"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        automaton(gridworld.parallel_env(), **settings)
    assert problem in str(caught.value)


def test_it_needs_parallel_environments_and_an_action_for_those_who_have_ended() -> None:
    with pytest.raises(ConfigInvalid, match="name its parallel_env"):
        automaton(gridworld.env(), gridworld.labels, THEN)
    with pytest.raises(ConfigInvalid, match="noop is not set"):
        automaton(gridworld.parallel_env(num_agents=2), gridworld.labels, THEN, sees="env")
    with pytest.raises(ConfigInvalid, match=r"epsilon moves are further actions of Discrete ones"):
        automaton(pendulum_team.parallel_env(), lambda *_: [], GUESS)


@pytest.mark.parametrize("num_agents", [1, 2])
def test_it_passes_pettingzoos_test(num_agents: int) -> None:
    env = gridworld.parallel_env(num_agents=num_agents, max_cycles=20)
    parallel_api_test(automaton(env, gridworld.labels, THEN, sees="env", noop=4), num_cycles=100)


# -- formulas ---------------------------------------------------------------------------------------------------------


def test_a_formula_is_the_automaton_that_one_would_write() -> None:
    pytest.importorskip("flloat")
    from marlflow.env.wrappers.automaton import automaton_data

    until = "(!(unsafe)) U (goal1 & !(unsafe) & X((!(unsafe)) U (goal2 & !(unsafe))))"
    task = read_automaton(automaton_data(until))
    again = read_automaton(automaton_data("F(goal1 & X(F(goal2))) & G(!unsafe)"))
    assert not again.satisfied, "what must never happen may still happen"
    for word in words(300, ["goal1", "goal2", "unsafe"], 8):
        state, other = task.initial, again.initial
        for letter in word:
            state, other = task.next(state, letter), again.next(other, letter)
        assert (state in task.satisfied) == (reference(word) == "done"), word
        good = not any("unsafe" in letter for letter in word)
        after = any("goal1" in a and any("goal2" in b for b in word[i + 1 :]) for i, a in enumerate(word))
        assert (other in again.accepting[0]) == (good and after and bool(word))
        assert (other in again.sinks) == (not good)


@pytest.mark.parametrize(
    ("formula", "problem"),
    [("G(F(goal1))", "again and again"), ("F(goal1", "cannot be read"), ("goal1 & !goal1", "can never be satisfied")],
)
def test_formulas_without_an_automaton_are_refused(formula: str, problem: str) -> None:
    pytest.importorskip("flloat")
    from marlflow.env.wrappers.automaton import automaton_data

    with pytest.raises(ConfigInvalid, match=problem):
        automaton_data(formula)
