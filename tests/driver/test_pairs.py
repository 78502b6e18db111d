"""Pairs of algorithms share one environment: both learn, each from its own rows, and as it would alone.

Each algorithm plays beside one, and each kind of algorithm beside each. All pairs are tried with the slow tests.

The groups of the environment have no influence on each other, and rows of one do not fit the other's networks. So if
a learner ever saw a row, a version or a random number that its partner has to do with, it would come to something else
than beside nobody who learns; it comes to the same, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.two_groups import SMALL, pair
from tests.driver.watching import standing

SIDES = {"left": 0, "right": 1}
# Its tasks begin again while the others' episodes continue, so their observations depend on it.
CUTS_EPISODES = frozenset({"maml"})


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Recorded rows of both groups."""
    folder = tmp_path_factory.mktemp("records")
    played = pair("ppo", "ppo", "", env_steps=400)
    mf.train(mf.Experiment(**{**vars(played), "record": mf.Record(folder=str(folder))}), folder / "run")
    return str(folder)


@pytest.fixture(scope="module")
def alone(records: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """The result of each algorithm, on each side, without another learner."""
    return {}


def learned(run_dir: Path, side: str) -> Any:
    """All that a learner has come to."""
    return kept(run_dir)[f"learner.{side}"]


def check(result: mf.Result, left: str, right: str) -> None:
    """Both have learned, and reports tell them apart."""
    for side, name in {"left": left, "right": right}.items():
        found = standing(result.metrics, side)
        assert found["updates"] > 0, f"{name} on the {side} never learned"
        assert found["version"] > 0
        assert found["loss"]
        assert all(np.isfinite(term) for term in found["loss"].values())
        tree = learned(result.run_dir, side)
        assert np.isfinite(tree["vector"]).all()
    steps = {side: result.metrics["policies"][side]["agent_steps_sampled"] for side in SIDES}
    assert steps["right"] == result.metrics["env_steps"]  # one agent, which plays every episode to its end
    assert steps["right"] < steps["left"] < 2 * steps["right"]  # two, of which one leaves early at times


def kind(name: str) -> str:
    """How an algorithm comes by its rows, which is what its partner could be disturbed by."""
    algorithm = SMALL[name][0]
    drops_stale = "max_staleness" in {setting.name for setting in fields(algorithm)}
    fresh = "fresh " if drops_stale and algorithm.max_staleness == 0 else ""
    return name if name in CUTS_EPISODES else f"{fresh}{algorithm.capabilities.experience}"


def met_in(left: str, right: str) -> set[tuple[str, str]]:
    """The pairs: each algorithm, and both kinds together, on either side."""
    first, second = sorted((kind(left), kind(right)))
    return {(left, ""), (right, ""), (first, second)}


PAIRS = list(combinations_with_replacement(SMALL, 2))
EITHER_WAY = list(product(SMALL, repeat=2))
TO_MEET = set().union(*(met_in(*both) for both in EITHER_WAY))


def covering() -> list[tuple[str, str]]:
    """Few pairs: every algorithm, and every two kinds together.

    Each time the pair that has most to try, and of these the one whose algorithms had fewest partners so far.
    """
    chosen: list[tuple[str, str]] = []
    left_over = set(TO_MEET)
    while left_over:
        had = Counter(name for both in chosen for name in both)
        best = max(EITHER_WAY, key=lambda both: (len(left_over & met_in(*both)), -had[both[0]] - had[both[1]]))
        chosen.append(best)
        left_over -= met_in(*best)
    return chosen


def test_the_pairs_tried_here_are_few_and_leave_no_kind_of_partner_out() -> None:
    pairs = covering()
    assert set().union(*(met_in(*both) for both in pairs)) == TO_MEET
    assert {kind(name) for name in SMALL} == {"fresh on-policy", "on-policy", "off-policy", "offline", "maml"}
    assert len(TO_MEET) == len(SMALL) + 5 * 6 // 2
    assert {name for both in pairs for name in both} == {*SMALL}
    assert len(set(pairs)) == len(pairs) < len(PAIRS) / 8


@pytest.mark.parametrize(("left", "right"), covering())
def test_a_pair_learns_as_each_would_alone(
    left: str, right: str, records: str, alone: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    learn_as_alone(left, right, records, alone, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_every_pair_learns_as_each_would_alone(
    left: str, right: str, records: str, alone: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    learn_as_alone(left, right, records, alone, tmp_path)


def learn_as_alone(left: str, right: str, records: str, alone: dict[tuple[str, str], Any], tmp_path: Path) -> None:
    check(mf.train(pair(left, right, records), tmp_path / "both"), left, right)
    if CUTS_EPISODES & {left, right}:
        return
    for side, name in {"left": left, "right": right}.items():
        if (side, name) not in alone:
            others = {"left": "random", "right": "random"} | {side: name}
            mf.train(pair(others["left"], others["right"], records), tmp_path / side)
            alone[side, name] = learned(tmp_path / side, side)
        assert_equal(learned(tmp_path / "both", side), alone[side, name])


def chain() -> list[tuple[str, str]]:
    """Few pairs with every algorithm in one of them."""
    names = [*SMALL, *list(SMALL)[: len(SMALL) % 2]]
    half = len(names) // 2
    return list(zip(names[:half], names[half:], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), chain())
def test_pairs_over_ray(left: str, right: str, records: str, tmp_path: Path, ray_session: None) -> None:
    check_over_ray(left, right, records, tmp_path)


def check_over_ray(left: str, right: str, records: str, tmp_path: Path) -> None:
    # Nobody waits for Ape-X's learner, which may begin late on a busy machine.
    env_steps = 8_000 if "apex" in (left, right) else 240
    check(mf.train(pair(left, right, records, "ray", env_steps=env_steps), tmp_path), left, right)


@pytest.mark.learning
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_every_pair_over_ray(left: str, right: str, records: str, tmp_path: Path, ray_session: None) -> None:
    check_over_ray(left, right, records, tmp_path)
