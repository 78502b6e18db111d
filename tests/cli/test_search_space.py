"""The jobs of a sweep: all combinations, or random draws with the distribution that was asked for."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from scipy.stats import kstest

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.tune import jobs_of
from marlflow.config.compose import composing
from tests.sentences import refusals

LINES = ("seed=range(1,4)", "env=simple_tag", "+a.b=x,y")


def jobs(*lines: str, samples: int | None = None, seed: int = 0) -> list[list[str]]:
    with composing():
        return jobs_of(lines, samples, seed)


def test_without_samples_each_combination_comes_once_and_the_last_key_changes_fastest() -> None:
    expected = [[f"seed={seed}", "env=simple_tag", f"+a.b={b}"] for seed, b in itertools.product((1, 2, 3), "xy")]
    assert jobs(*LINES) == expected


def test_samples_of_lists_repeat_a_combination_only_after_all_others() -> None:
    drawn = jobs(*LINES, samples=15)
    assert drawn == jobs(*LINES, samples=15)
    assert drawn != jobs(*LINES, samples=15, seed=1)
    every = sorted(jobs(*LINES))
    assert sorted(drawn[:6]) == sorted(drawn[6:12]) == every
    assert len(set(map(tuple, drawn[12:]))) == 3


def test_equal_values_of_a_list_are_one_combination() -> None:
    drawn = [job[0] for job in jobs("+a.b=x,x,y", samples=6)]
    assert [sorted(drawn[at : at + 2]) for at in (0, 2, 4)] == [["+a.b=x", "+a.b=y"]] * 3


def test_samples_of_lists_are_equally_likely_and_few_of_many_take_no_longer() -> None:
    first = Counter(tuple(jobs(*LINES, samples=1, seed=seed)[0]) for seed in range(600))
    # 600 draws of 6: mean 100, standard deviation 9.1
    assert len(first) == 6
    assert all(55 < count < 145 for count in first.values())
    many = [*(f"+a.b{i}=range(1000)" for i in range(8)), *(f"+a.c{i}=1" for i in range(100))]
    assert jobs(*many, samples=5)[:3] == jobs(*many, samples=3)


def test_a_list_beside_an_interval_is_drawn_independently_of_it() -> None:
    counts = Counter(job[0] for job in jobs("+a.b=x,y", "a.rate=interval(0,1)", samples=600))
    # 600 draws of 2: mean 300, standard deviation 12.2
    assert set(counts) == {"+a.b=x", "+a.b=y"}
    assert all(240 < count < 360 for count in counts.values())


@pytest.mark.parametrize(
    ("interval", "scale"),
    [
        ("interval(0.5,2.5)", lambda x: (x - 0.5) / 2),
        ("tag(log,interval(1e-5,1e-2))", lambda x: math.log10(x) / 3 + 5 / 3),
    ],
)
def test_intervals_are_uniform_on_their_scale(interval: str, scale: object) -> None:
    drawn = [float(job[0].removeprefix("a.rate=")) for job in jobs(f"a.rate={interval}", samples=2000)]
    assert kstest([scale(x) for x in drawn], "uniform").pvalue > 0.001  # type: ignore[operator]


def test_whole_numbers_include_both_ends_and_are_equally_likely() -> None:
    counts = Counter(job[0] for job in jobs("a.n=int(interval(2,4))", samples=900))
    assert set(counts) == {"a.n=2", "a.n=3", "a.n=4"}
    assert all(240 < count < 360 for count in counts.values())


@pytest.mark.parametrize(
    ("line", "samples", "message"),
    [
        (
            "a.rate=interval(0,1)",
            None,
            "a.rate=interval(0,1) has any number of values; say how many trials: samples=20",
        ),
        ("a.rate=interval(1.0,0.5)", 5, "a.rate: the ends of interval(1.0, 0.5) must be finite and increasing"),
        (
            "a.rate=tag(log,interval(0,1))",
            5,
            "a.rate: the ends of interval(0.0, 1.0) must be finite, above 0 and increasing",
        ),
        ("a.rate=interval(1e-5,inf)", 5, "a.rate: the ends of interval(1e-05, inf) must be finite and increasing"),
        ("a.rate=tag(lgo,interval(1,2))", 5, "a.rate: an interval may have the tag log, not lgo"),
    ],
)
def test_what_cannot_be_drawn_is_refused(line: str, samples: int | None, message: str) -> None:
    assert refusals(ConfigInvalid, jobs, line, samples=samples) == [message]
