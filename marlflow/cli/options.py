"""Options of the commands on finished runs: declarations, and one parser and one help text for all.

An option is written `name=value`, `--name value` or `--name=value`. Dashes and underscores in a name are the same.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant, nearest
from marlflow.cli.arguments import COMMANDS, DECLARED, FLAG_OF

Kind = Literal["text", "whole number", "number", "switch"]
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_WIDTH, _COLUMN = 118, 28


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command.

    `value` is the value's name in the help text. A `switch` takes no value as `--name`, and true or false as
    `name=true`. With `several`, the value is a list, written with commas, in brackets or without, or by repeating the
    option. With `parts`, the value is a tuple of that many texts: `--name a b` or `name=a,b`. `low` and `high` are the
    limits of a number. Without `default`, the value is None, [] or False. `aliases` are other names of the option.
    """

    name: str
    help: str
    kind: Kind = "text"
    value: str = "<value>"
    default: Any = None
    choices: tuple[str, ...] = ()
    several: bool = False
    parts: int = 1
    low: float | None = None
    high: float | None = None
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    @property
    def initial(self) -> Any:
        """The value if it is not given."""
        if self.several:
            return list(self.default or ())
        return bool(self.default) if self.kind == "switch" else self.default


TRUST: Final = Option(
    "trust",
    "import all that a run's configuration names, also what is none of marlflow's parts, even if another user wrote it",
    "switch",
)
"""The option of commands that import what a run names."""
JSON: Final = Option("json", "print the results as JSON", "switch")
UNITS: Final = Option(
    "units",
    "return of a policy: mean over its agents, or their sum, per episode",
    value="UNITS",
    default="mean",
    choices=("mean", "sum"),
)
"""The option that chooses the units of returns."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a command: `operands` (such as folders of runs), options, and overrides if it takes any.

    `options[name]` is the value, or the default; `given` has the names of the options that were given.
    """

    operands: Sequence[str]
    options: Mapping[str, Any]
    given: frozenset[str] = frozenset()
    overrides: Sequence[str] = ()

    def __getitem__(self, name: str) -> Any:
        return self.options[name]


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its options; `run` returns the exit code.

    `operands` is the name of positional arguments, such as `RUN`; the command takes from `fewest` to `most` (None: any
    number). `examples` are lines without `marlflow <name>`. `overrides`: how other `key=value` arguments begin,
    which it passes on.
    """

    name: str
    run: Callable[[Arguments], int]
    options: Sequence[Option]
    about: str = ""
    examples: Sequence[str] = ()
    operands: str = "RUN"
    fewest: int = 1
    most: int | None = 1
    overrides: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The command's form in one line."""
        words = [self.operands] * self.fewest
        if self.most is None or self.most > self.fewest:
            words.append(f"[{self.operands}{' ...' if self.most is None else ''}]")
        return " ".join(["marlflow", self.name, *words, "[name=value ...]"])


def declared(name: str) -> Command:
    """Return the command `name` of DECLARED, from its module."""
    command = import_module(f"marlflow.cli.{name.replace('-', '_')}").COMMAND
    assert isinstance(command, Command)
    return command


@dataclass
class _Parsing:
    command: Command
    options: dict[str, Option]
    operands: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def parse(command: Command, words: Sequence[str]) -> Arguments:
    """Return the arguments in `words`; raises ConfigInvalid with every problem."""
    parsing = _Parsing(command, {_key(name): option for option in command.options for name in option.names})
    rest = list(words)
    while rest:
        _parse_word(parsing, rest.pop(0), rest)
    if not parsing.problems:
        parsing.problems += _operand_problems(command, parsing.operands)
    if parsing.problems:
        raise ConfigInvalid(parsing.problems)
    options = {option.name: parsing.values.get(option.name, option.initial) for option in command.options}
    return Arguments(parsing.operands, options, frozenset(parsing.values), parsing.overrides)


def _key(name: str) -> str:
    return name.replace("-", "_")


def _parse_word(parsing: _Parsing, word: str, rest: list[str]) -> None:
    name, has_value, value = word.partition("=")
    option = parsing.options.get(_key(name.removeprefix("--")))
    dashed = word.startswith("-") and word != "-"
    if option is None or not (dashed or has_value):
        _parse_other(parsing, word, dashed)
        return
    if has_value:
        texts = _parts(option, value)
    elif option.kind == "switch":
        texts = ["true"]
    else:
        texts = [rest.pop(0) for _ in range(min(option.parts, len(rest))) if not rest[0].startswith("--")]
    if len(texts) < option.parts or not all(texts):
        what = "a value" if option.parts == 1 else f"{option.parts} values, {option.value}"
        parsing.problems.append(f"{option.name} needs {what}: {option.name}={option.value.replace(' ', ',')}")
        return
    _take(parsing, option, texts)


def _parts(option: Option, value: str) -> list[str]:
    return value.split(",", option.parts - 1) if option.parts > 1 else [value]


def _parse_other(parsing: _Parsing, word: str, dashed: bool) -> None:
    # A folder may have "=" in its name, as the folders of a sweep do.
    if not dashed and ("=" not in word or Path(word.partition(":")[0]).exists()):
        parsing.operands.append(word)
    elif word.startswith(parsing.command.overrides) and not dashed:
        parsing.overrides.append(word)
    else:
        parsing.problems.append(_no_option(word, parsing.command))


def _take(parsing: _Parsing, option: Option, texts: list[str]) -> None:
    if option.parts > 1:
        parsing.values[option.name] = tuple(texts)
        return
    text = texts[0]
    if not option.several:
        parsing.values[option.name] = _converted(parsing, option, text)
        return
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        parsing.problems.append(f"{option.name} needs values with commas between them, {option.value}, not {text!r}")
        return
    parsing.values.setdefault(option.name, []).extend(_converted(parsing, option, entry) for entry in entries)


def _converted(parsing: _Parsing, option: Option, text: str) -> Any:
    if option.kind == "switch":
        if text.lower() not in _TRUE + _FALSE:
            parsing.problems.append(f"{option.name} must be true or false, not {text!r}")
        return text.lower() in _TRUE
    if option.kind == "text":
        if option.choices and text not in option.choices:
            question = meant(text, option.choices, "there are")
            parsing.problems.append(f"{option.name} must be one of {', '.join(option.choices)}, not {text!r}{question}")
        return text
    return _number(parsing, option, text)


def _number(parsing: _Parsing, option: Option, text: str) -> float:
    is_whole = option.kind == "whole number"
    number = _read_number(text)
    # A comparison, because whole numbers of hundreds of digits fit into no float.
    if not abs(number) < _TOO_LARGE or (is_whole and number != int(number)):
        parsing.problems.append(f"{option.name} must be a {option.kind}, not {text!r}")
        return 0
    if (option.low is not None and number < option.low) or (option.high is not None and number > option.high):
        parsing.problems.append(f"{option.name} must be a {option.kind} {_limits(option)}, not {text}")
    return int(number) if is_whole else float(number)


_TOO_LARGE = 10**300


def _read_number(text: str) -> float:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return math.nan


def _limits(option: Option) -> str:
    if option.high is None:
        return f"of at least {option.low:,}"
    return f"of at most {option.high:,}" if option.low is None else f"from {option.low:,} to {option.high:,}"


def _no_option(word: str, command: Command) -> str:
    name = word.partition("=")[0].removeprefix("--")
    refused = f"marlflow {command.name} has no option {name!r}"
    known = [known for option in command.options for known in option.names]
    if (close := nearest(_key(name), known)) is not None:
        return f"{refused}; did you mean {close!r}?"
    if owner := owner_of(name):
        return f"{refused}; it is an option of marlflow {owner}"
    return f"{refused}{meant(name, known, 'its options are')}"


def owner_of(name: str) -> str | None:
    """Return the command that has an option or flag of this name, if any has."""
    if (owner := FLAG_OF.get(f"--{name.replace('_', '-')}")) is not None:
        return owner
    for command in DECLARED:
        if any(_key(name) == _key(known) for option in declared(command).options for known in option.names):
            return command
    return None


def _operand_problems(command: Command, operands: Sequence[str]) -> Iterator[str]:
    if len(operands) < command.fewest:
        yield f"{command.name} needs {command.operands}: {command.usage}"
    elif command.most is not None and len(operands) > command.most:
        extra = operands[command.most]
        yield f"{command.name} takes {command.most} {command.operands}, not also {extra!r}: {command.usage}"


def help_text(command: Command) -> str:
    """Return the help text of a command."""
    parts = [f"marlflow {command.name}: {COMMANDS[command.name]}", f"usage: {command.usage}"]
    if command.about:
        parts.append(textwrap.indent(textwrap.dedent(command.about).strip("\n"), "  "))
    if command.examples:
        parts.append("\n".join(["examples:", *(f"  marlflow {command.name} {line}" for line in command.examples)]))
    lines = [_help_of(option) for option in command.options]
    parts.append("\n".join(["options, each as name=value, --name value or --name=value:", *lines]))
    return "\n\n".join(parts) + "\n"


def _help_of(option: Option) -> str:
    switch, assigned = f"--{option.name.replace('_', '-')}", f"{option.name}={option.value.replace(' ', ',')}"
    head = f"  {switch if option.kind == 'switch' else assigned:<{_COLUMN - 4}}  "
    text = option.help
    if option.choices:
        text += f": {', '.join(option.choices)}"
    if option.default is not None and option.kind != "switch":
        default = ",".join(map(str, option.default)) if option.several else option.default
        text += f"; by default {default}"
    if option.aliases:
        text += f"; also called {', '.join(option.aliases)}"
    return textwrap.fill(text, _WIDTH, initial_indent=head, subsequent_indent=" " * _COLUMN)
