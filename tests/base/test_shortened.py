"""A message has at most 2,000 characters, and says what it leaves out."""

from __future__ import annotations

import re

import pytest

from marlflow.base.errors import ConfigInvalid, StageFailed, UserCodeFailed
from marlflow.base.sentences import MOST, enumerated, meant, misspelled_key, shortened
from marlflow.cli.failures import failure

NAMES = [f"agent_{number}" for number in range(99_999)]


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        (f"agents {', '.join(NAMES)}; lower the number", "others"),
        ("9" * 5_000, "characters"),
        (f"{'9' * 5_000}, {'8' * 5_000}", "characters"),
        ("a, " * 5_000, "others"),
    ],
)
@pytest.mark.parametrize("most", [200, 500, MOST])
def test_a_long_text_loses_its_middle(text: str, left_out: str, most: int) -> None:
    short = shortened(text, most)
    assert 0.7 * most <= len(short) <= most
    head, number, tail = re.split(rf"(?:, \.\.\. and | \.\.\. )([\d,]+) {left_out} \.\.\.(?:, | )", short)
    assert text.startswith(head)
    assert text.endswith(tail)
    count = int(number.replace(",", ""))
    if left_out == "others":
        assert count + len(head.split(", ")) + len(tail.split(", ")) == len(text.split(", "))
    else:
        assert count + len(head) + len(tail) == len(text)


def test_a_short_text_is_as_it_was() -> None:
    assert shortened("a" * MOST) == "a" * MOST


@pytest.mark.parametrize("number", [1, 2, 7, 162, 99_999])
@pytest.mark.parametrize("length", [10, 500, 50_000])
def test_many_problems_have_the_first_ones_and_the_number_of_the_others(number: int, length: int) -> None:
    if number * length > 10**7:
        number = 10**7 // length
    error = ConfigInvalid([f"{name} {'x' * length}" for name in NAMES[:number]])
    assert len(f"error: {error}") <= 2_000
    assert "agent_0" in str(error)
    assert len(error.problems) == number
    listed = len(re.findall(r"^  \d+\. agent", str(error), re.MULTILINE))
    more = re.search(r"\n  \.\.\. and ([\d,]+) more$", str(error))
    assert listed + (int(more[1].replace(",", "")) if more else 0) == (number if number > 1 else 0)


def _raised() -> StageFailed:
    error = StageFailed("learn", "ppo", "x" * 9_000, "y" * 9_000)
    error.__cause__ = ValueError("z" * 9_000)
    return error


@pytest.mark.parametrize(
    "error", [_raised(), UserCodeFailed("w" * 9_000, "r" * 9_000, "t" * 9_000), UserCodeFailed("w", "r", "t" * 9_000)]
)
def test_a_failed_run_has_a_short_sentence_and_a_short_traceback(error: UserCodeFailed | StageFailed) -> None:
    *_, sentence = failure(error).split("\n\n")
    assert sentence.startswith("error: ")
    assert len(sentence) <= 2_000
    assert len(failure(error)) <= 4_000


def test_names_are_enumerated_up_to_a_number() -> None:
    assert enumerated(NAMES, 2) == "agent_0, agent_1 and 99,997 more"
    assert enumerated(NAMES[:2], 2) == "agent_0, agent_1"
    assert enumerated([]) == ""
    assert meant("Q", NAMES[:162]).endswith("agent_49 and 112 more")
    assert misspelled_key("env.Q", "Q", NAMES[:162], "env").endswith("agent_49 and 112 more")
