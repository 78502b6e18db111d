"""A person's games in a terminal, typed in advance."""

import io
import os
import sys

import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from marlflow.env.adapter import AgentEnd, StepResult
from marlflow.trained.boards import Board
from marlflow.trained.games import Decision, Episode, Stopped
from marlflow.trained.terminal import StandardInput, TerminalPerson
from tests.trained.people import Typed


class Drawing(Board):
    public = True

    def __init__(self, names=()):
        self.names = names

    def text(self, agent, observation):
        return f"[bold]{observation}[/bold]"

    def action(self, agent, action):
        return self.names[action] if self.names else ""

    def for_all(self):
        return "the last board"


def seat(*lines, names=(), clock_s=None):
    console = Console(file=io.StringIO(), width=100)
    typed = Typed(*lines)
    person = TerminalPerson("a_0", Drawing(names), {"a_0": "you", "b_0": "dqn"}, clock_s, console, typed)
    return person, console.file, typed


def decision(mask=(1, 0, 1), space=None, agent="a_0"):
    space = spaces.Discrete(3) if space is None else space
    return Decision(agent, 4, "board", None if mask is None else np.array(mask, np.int8), space, 0)


def test_it_asks_until_the_answer_is_legal():
    person, out, _ = seat("1", "east", "", "2")
    assert person(decision()) == 2
    text = out.getvalue()
    assert text.count("a_0, your action> ") == 4
    for said in ("[bold]board[/bold]", "1 is not legal now; legal are 0, 2", "'east' is no action"):
        assert said in text


def test_actions_are_chosen_by_name_too():
    person, out, _ = seat("PASS", names=("fold", "bet", "pass"))
    assert person(decision()) == 2
    assert "0 fold" in out.getvalue()
    assert "2 pass" in out.getvalue()
    assert "bet" not in out.getvalue()


@pytest.mark.parametrize("ending", ["quit", "q", "Exit"])
def test_a_person_may_stop(ending):
    with pytest.raises(Stopped):
        seat(ending)[0](decision())


def test_the_end_of_the_input_stops():
    with pytest.raises(Stopped):
        seat()[0](decision())


def test_an_action_that_is_called_like_a_command_is_an_action():
    assert seat("q", names=("a", "b", "q"))[0](decision()) == 2


def test_help_lists_long_lists_and_asks_again():
    person, out, _ = seat("?", "149")
    assert person(decision(None, spaces.Discrete(150))) == 149
    first, _, later = out.getvalue().partition("action> ")
    assert "150 legal actions; ? lists them" in first
    assert "149" in later


def test_after_the_time_the_last_action_is_repeated_if_it_is_legal():
    person, out, typed = seat(None, "2", None, None, clock_s=1.5)
    answers = [person(decision()), person(decision()), person(decision()), person(decision((1, 1, 0)))]
    assert answers == [0, 2, 2, 0]
    assert typed.timeouts == [1.5] * 4
    assert out.getvalue().count("the time is over, so you play") == 3
    assert "within 1.5 s" in out.getvalue()


def test_each_game_begins_without_a_last_action():
    person, _, _ = seat("2", None, clock_s=1)
    assert person(decision()) == 2
    person.began(Episode(1, 2, 5))
    assert person(decision()) == 0


def test_numbers_of_a_box_are_what_the_environment_takes():
    space = spaces.Box(-1, 1, (2,), np.float32)
    action = seat("0.5 -1")[0](decision(None, space))
    assert space.contains(action)
    assert action.tolist() == [0.5, -1]


def test_it_says_who_plays_what_others_do_and_how_the_game_ends():
    person, out, _ = seat("0", names=("fold", "bet", "pass"))
    person.began(Episode(0, 3, 17))
    person.decided(decision(agent="b_0"), np.int64(1))
    person(decision())
    person.ended(Episode(0, 3, 17, 9, {"a_0": 1.0, "b_0": -1.0}))
    text = out.getvalue()
    for said in (
        "game 1 of 3, seed 17: you are a_0; b_0 is dqn",
        "b_0 plays bet",
        "the last board",
        "over after 9 env steps; returns: a_0 1, b_0 -1",
    ):
        assert said in text


@pytest.mark.parametrize(("over", "slot", "said"), [(False, 4, True), (True, 4, False), (False, 5, False)])
def test_it_says_when_ones_own_agent_is_out(over, slot, said):
    person, out, _ = seat("0")
    person(decision())
    result = StepResult()
    result.over, result.ended = over, [AgentEnd(slot, True, False, None, None)]
    person.stepped(result)
    assert ("a_0 is out; the others play on" in out.getvalue()) == said


@pytest.fixture
def piped(monkeypatch):
    """Standard input as a pipe; returns a function that types into it."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as source:
        monkeypatch.setattr(sys, "stdin", source)
        yield lambda text: os.write(writing, text.encode())
        os.close(writing)


def test_lines_are_read_with_and_without_a_time(piped):
    lines = StandardInput()
    piped("a\nb\n")
    assert lines.read(None) == "a"
    assert lines.read(60) == "b"


def test_a_line_that_comes_late_is_dropped(piped):
    lines = StandardInput()
    assert lines.read(0.01) is None
    piped("late\n")
    while lines._read.empty():
        pass
    piped("in time\n")
    assert lines.read(60) == "in time"
