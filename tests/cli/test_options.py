"""Options of commands: three ways to write each, one value, and every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import COMMANDS, DECLARED
from marlflow.cli.options import Arguments, Command, Option, declared, help_text, parse
from tests.sentences import refusals

COMMAND = Command(
    "evaluate",
    lambda arguments: 0,
    (
        Option("episodes", "how many", "whole number", "N", 100, low=1, high=1000, aliases=("games",)),
        Option("fps", "frames per second", "number", "N"),
        Option("mode", "how they act", value="MODE", default="greedy", choices=("greedy", "sampled")),
        Option("against", "opponents", value="NAMES", several=True),
        Option("keep_best", "keep the best", "switch"),
        Option("export", "write a member", value="MEMBER FILE", parts=2),
    ),
    most=None,
)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("episodes=5", "episodes", 5),
        ("--episodes 5", "episodes", 5),
        ("--episodes=5", "episodes", 5),
        ("games=5", "episodes", 5),
        ("--games 1e2", "episodes", 100),
        ("episodes=5 episodes=6", "episodes", 6),
        ("--fps 12", "fps", 12.0),
        ("fps=-1.5", "fps", -1.5),
        ("--fps -1.5", "fps", -1.5),
        ("mode=sampled", "mode", "sampled"),
        ("keep_best=true", "keep_best", True),
        ("keep-best=no", "keep_best", False),
        ("--keep-best", "keep_best", True),
        ("--keep_best=False", "keep_best", False),
        ("against=a,b", "against", ["a", "b"]),
        ("against=[a,b]", "against", ["a", "b"]),
        ("--against a --against b,c", "against", ["a", "b", "c"]),
        ("--export main@3 file=1", "export", ("main@3", "file=1")),
        ("export=main@3,a,b", "export", ("main@3", "a,b")),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_option_is_the_same_however_it_is_written(words: str, name: str, value: Any, first: bool) -> None:
    split = words.split()
    found = parse(COMMAND, [*split, "run"] if not first else ["run", *split])
    assert (found.operands, found[name], found.given) == (["run"], value, {name})


def test_what_is_not_given_has_its_default() -> None:
    found = parse(COMMAND, ["a", "b"])
    defaults = {"episodes": 100, "fps": None, "mode": "greedy", "against": [], "keep_best": False, "export": None}
    assert found == Arguments(["a", "b"], defaults, overrides=[])


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed=1").mkdir()
    assert parse(COMMAND, ["seed=1", "seed=1:main", "./seed=1"]).operands == ["seed=1", "seed=1:main", "./seed=1"]
    with pytest.raises(ConfigInvalid, match="has no option 'seed'"):
        parse(COMMAND, ["seed=2"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", r"evaluate needs RUN: marlflow evaluate RUN \[RUN \.\.\.\] \[name=value \.\.\.\]"),
        ("run --gamse 3", "marlflow evaluate has no option 'gamse'; did you mean 'games'"),
        ("run keep-bets=1", "has no option 'keep-bets'; did you mean 'keep_best'"),
        ("run nash_conv=true", "it is an option of marlflow league"),
        ("run --zzz", "has no option 'zzz'; its options are episodes, games, fps"),
        ("run --episodes", "episodes needs a value: episodes=N"),
        ("run --episodes --fps 3", "episodes needs a value"),
        ("run episodes=", "episodes needs a value"),
        ("run --export main", "export needs 2 values, MEMBER FILE: export=MEMBER,FILE"),
        ("run export=main", "export needs 2 values"),
        *((f"run episodes={number}", "episodes must be a whole number") for number in ("inf", "nan", "1e400", "null")),
        *((f"run {name}={'9' * 400}", f"{name} must be a (whole )?number, not '999") for name in ("episodes", "fps")),
        (f"run episodes={'9' * 5_000}", "episodes must be a whole number, not '999"),
        ("run episodes=many", "episodes must be a whole number, not 'many'"),
        ("run episodes=1.5", "episodes must be a whole number, not '1.5'"),
        ("run episodes=0", "episodes must be a whole number from 1 to 1,000, not 0"),
        ("run fps=nan", "fps must be a number, not 'nan'"),
        ("run fps=inf", "fps must be a number, not 'inf'"),
        ("run mode=gredy", "mode must be one of greedy, sampled, not 'gredy'; did you mean 'greedy'"),
        ("run keep_best=maybe", "keep_best must be true or false, not 'maybe'"),
        ("run against=a,,b", "against needs values with commas between them, NAMES, not 'a,,b'"),
    ],
)
def test_bad_input_is_one_problem(words: str, problem: str) -> None:
    with pytest.raises(ConfigInvalid, match=problem) as raised:
        parse(COMMAND, words.split())
    assert len(raised.value.problems) == 1


def test_all_problems_are_said_at_once() -> None:
    assert len(refusals(ConfigInvalid, parse, COMMAND, ["run", "episodes=x", "mode=y", "against=,", "--zzz"])) == 4


def test_a_command_that_takes_overrides_passes_them_on() -> None:
    command = Command("train", lambda _: 0, (Option("samples", "trials", "whole number", "N"),), fewest=0, most=0)
    tune = Command(command.name, command.run, command.options, fewest=0, most=0, overrides="")
    found = parse(tune, ["env=x", "samples=3", "+a.b=[1,2]", "~c=1"])
    assert (found["samples"], found.overrides) == (3, ["env=x", "+a.b=[1,2]", "~c=1"])
    with pytest.raises(ConfigInvalid, match="has no option"):
        parse(command, ["env=x"])


@pytest.mark.parametrize("name", DECLARED)
def test_every_declared_command_draws_its_help(name: str) -> None:
    command = declared(name)
    assert command.name == name in COMMANDS
    text = help_text(command)
    assert max(map(len, text.splitlines())) <= 120
    for option in command.options:
        shown = f"--{option.name.replace('_', '-')}" if option.kind == "switch" else f"{option.name}="
        assert f"\n  {shown}" in text
    names = [known for option in command.options for known in option.names]
    assert len(set(names)) == len(names)
