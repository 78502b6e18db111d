"""Shields, corrections, automata and managers lose, double or move nothing, around whatever environment is drawn."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from marlflow.env.wrappers.automaton_task import automaton
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shield import shield
from tests.env.test_conservation import (
    assert_conserved,
    assert_each_decision_is_a_row,
    assert_ends_are_the_environments,
    play,
)
from tests.env.watched import digest
from tests.sampling.built_environments import BuiltParallel
from tests.sampling.scripts import JOIN, Script, scripts

# Fragments of one env step too, so that options and rows are open over several of them.
COLLECTS = st.lists(st.integers(1, 40), min_size=2, max_size=8)


def lawful(script: Script, does: str | None = None) -> Script:
    """Declared agents that end at most once and see vectors; actions begin at 0, as in rows, or are those of `does`."""
    kinds = [
        replace(kind, sees="vector", does="several" if kind.does == "shifted" else kind.does) for kind in script.kinds
    ]
    if does is not None:
        kinds = [replace(kind, does=does, masks="none") for kind in kinds]
    courses = []
    for course in script.courses:
        ends = {agent: (step, agent, what) for step, agent, what in course.happenings if what != JOIN}
        courses.append(replace(course, happenings=tuple(ends.values())))
    habits = script.habits - {"undeclared", "reorders"}
    return replace(script, kinds=tuple(kinds), courses=tuple(courses), habits=habits, pay="quarters")


def assert_exact(make_env: Any, collects: list[int]) -> None:
    outcome = play(make_env, (0, 3), collects)
    assert_conserved(outcome)
    assert_ends_are_the_environments(outcome)
    assert_each_decision_is_a_row(outcome)


def number_of(*seen: Any) -> int:
    return int.from_bytes(hashlib.sha1(b"".join(map(digest, seen))).digest()[:4], "big")


@settings(max_examples=10)
@given(
    scripts(lawful=True),
    st.integers(1, 30),
    st.booleans(),
    st.sampled_from(["when_due", "every_env_step"]),
    st.booleans(),
    COLLECTS,
)
def test_managers(script: Script, every: int, shared: bool, acts: Any, early: bool, collects: list[int]) -> None:
    def ends(seen: Any, option: Any) -> bool:
        return early and number_of(seen) % 3 == 0

    def intrinsic(seen: Any, option: Any, following: Any) -> float:
        return (number_of(seen) % 5 - 2 * (number_of(following) % 3)) / 4

    script = lawful(script)
    name = "boss" if shared else "manager_{agent}"
    assert_exact(
        lambda: managed(
            BuiltParallel(script),
            3,
            every=every,
            manager=name,
            terminate=ends,
            intrinsic=intrinsic,
            worker_share=0.5,
            manager_acts=acts,
        ),
        collects,
    )


@settings(max_examples=10)
@given(scripts(lawful=True), COLLECTS)
def test_shields_and_corrections(script: Script, collects: list[int]) -> None:
    script = lawful(script)
    discrete = [a for a in script.agents if isinstance(script.kind(a).action_space(), spaces.Discrete)]
    free = [a for a in discrete if script.kind(a).masks == "none"]

    def safe(seen: Any, agent: str) -> Any:
        return np.array([number_of(seen, np.array(n)) % 2 == 0 for n in range(script.kind(agent).action_space().n)])

    def post(seen: Any, actions: Any) -> Any:
        # Only agents without masks of their own: the environment's masks hold for corrected actions too.
        return {a: action - 1 if a in free and action > 0 else action for a, action in actions.items()}

    def make() -> Any:
        env = shield(BuiltParallel(script), post=post)
        # An agent is shielded by a pattern, which is its name.
        for agent in discrete:
            env = shield(env, safe, when_none="all", agents=agent)
        return env

    assert_exact(make, collects)


@settings(max_examples=10)
@given(scripts(lawful=True), st.booleans(), st.booleans(), COLLECTS)
def test_automata(script: Script, keeps: bool, guesses: bool, collects: list[int]) -> None:
    script = lawful(script, does="three")
    wanted: dict[str, Any] = {
        "states": 4,
        "initial": 0,
        "accepting": [[1], [2]],
        "sink": 3,
        "transitions": [
            {"from": 0, "when": "a", "to": 1},
            {"from": 0, "when": "!a", "to": 0},
            {"from": 1, "when": "b & !a", "to": 2},
            {"from": 1, "when": "a & b", "to": 3},
            {"from": 1, "when": "!b", "to": 1},
            {"from": 2, "when": "a", "to": 1},
            {"from": 2, "when": "!a", "to": 2},
        ],
    }
    if guesses:
        wanted["epsilon"] = {0: [1, 2]}
        wanted["transitions"][:2] = [{"from": 0, "to": 0}]

    def labels(seen: Any, agent: str) -> set[str]:
        number = number_of(seen)
        return {name for name, holds in {"a": number % 2, "b": number % 3 == 0}.items() if holds}

    assert_exact(
        lambda: automaton(BuiltParallel(script), labels, automaton=wanted, keep_reward=keeps, noop=0), collects
    )
