"""Parse the arguments of a command: overrides such as `env=simple_tag`, and flags, mostly Hydra's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Final

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant, nearest

COMMANDS: Final = {
    "train": "train the policies of an experiment, each with its own algorithm",
    "resume": "continue a run from its last checkpoint",
    "plan": "draw and check what train would run; run nothing",
    "check-env": "test an environment: does it keep PettingZoo's rules, and which algorithms can learn in it?",
    "init": "write a folder with an environment of your own, its configuration, a test and a notebook",
    "league": "show the standings of a run's league, or export a member of it",
    "tune": "train an experiment with many settings, and end the worse trials early",
    "benchmark": "train algorithms on the tasks of a suite over seeds, and report their scores",
    "evaluate": "play episodes of runs' policies together, or games against each other, other runs, or random",
    "report": "compare runs on one page: curves, tables and intervals over seeds",
    "watch": "follow runs on a page that shows plans at work, curves, faults and configurations",
    "play": "watch a run's policies play, write a video of them, or play against them yourself",
    "export": "write a policy's network to a file that runs without marlflow: ONNX, or PyTorch's .pt2",
}
"""Every command, with its purpose in one line, in the order of `marlflow --help`."""
DECLARED: Final = ("init", "league", "evaluate", "report", "watch", "play", "export", "tune", "benchmark")
"""The commands that declare their options (`options.py`); the module of the command has its COMMAND."""
COMPLETION = ("-sc", "--shell-completion")
_MULTIRUN = ("-m", "--multirun")
CONFIG_DIR: Final = "--config-dir"
_CONFIG_DIR = ("-cd", CONFIG_DIR)
# Hydra's, by whether a value follows.
_ALONE = (*_MULTIRUN, "-r", "--run", "--hydra-help", "--resolve")
_WITH_VALUE = (*_CONFIG_DIR, "-c", "--cfg", "-p", "--package", "-i", "--info")
# With these Hydra shows something and runs nothing.
_CONFIGURATION = ("-c", "--cfg")
_SHOWING = (*_CONFIGURATION, "-i", "--info", "--hydra-help")
MERMAID: Final = "--mermaid"
MACHINES: Final = "--machines"
EPISODES: Final = "--episodes"
SECONDS: Final = "--seconds"
JSON: Final = "--json"
FLAG_OF: Final = {
    **dict.fromkeys((*_ALONE, *_WITH_VALUE), "train"),
    **dict.fromkeys((MERMAID, MACHINES), "plan"),
    **dict.fromkeys((EPISODES, SECONDS, JSON), "check-env"),
}
"""Flags of the commands that take settings, by the one command that has them."""


@dataclass
class Words:
    """The arguments of a command."""

    overrides: list[str] = field(default_factory=list)
    hydra_flags: list[str] = field(default_factory=list)
    own_flags: set[str] = field(default_factory=set)
    own_values: dict[str, str] = field(default_factory=dict)
    config_dirs: list[str] = field(default_factory=list)

    @property
    def multirun(self) -> bool:
        """Whether the command is a sweep of several jobs."""
        return any(flag in self.hydra_flags for flag in _MULTIRUN)

    @property
    def shows_configuration(self) -> bool:
        """Whether Hydra is asked to show a configuration."""
        return any(flag.partition("=")[0] in _CONFIGURATION for flag in self.hydra_flags)

    @property
    def only_shows(self) -> bool:
        """Whether Hydra is only asked to show something."""
        return any(flag.partition("=")[0] in _SHOWING for flag in self.hydra_flags)


def split(
    words: Sequence[str],
    command: str,
    own: Sequence[str] = (),
    own_with_value: Sequence[str] = (),
    hydra: bool = True,
) -> Words:
    """Separate overrides from flags: the command's `own`, and Hydra's if `hydra`.

    Raises ConfigInvalid with every unknown flag.
    """
    parsed, problems = Words(), []
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            parsed.overrides.append(word)
        elif word in own:
            parsed.own_flags.add(word)
        elif name in own_with_value:
            parsed.own_values[name] = value or _value_after(name, rest)[0]
        elif name in _CONFIG_DIR:
            # Both to Hydra and to our own composition, which checks the run first.
            folder = value or next(rest, "")
            parsed.config_dirs.append(folder)
            parsed.hydra_flags += [name, folder]
        elif hydra and word in _ALONE:
            parsed.hydra_flags.append(word)
        elif hydra and name in _WITH_VALUE:
            parsed.hydra_flags += [word] if value else [word, *_value_after(name, rest)]
        else:
            known = [*own, *own_with_value, "--help", *_CONFIG_DIR, *(_ALONE if hydra else ())]
            problems.append(_no_flag(word, next(copy(rest), ""), command, known))
    if problems:
        raise ConfigInvalid(problems)
    return parsed


def _value_after(flag: str, rest: Iterator[str]) -> list[str]:
    value = next(rest, None)
    # Without a value, --info shows everything.
    if value is None and flag not in ("-i", "--info"):
        raise ConfigInvalid([f"{flag} needs a value"])
    return [] if value is None else [value]


def _no_flag(word: str, following: str, command: str, known: Sequence[str]) -> str:
    name, _, value = word.partition("=")
    key = name.lstrip("-")
    refused = f"marlflow {command} has no flag {word}"
    if name in FLAG_OF:
        return f"{refused}; it is a flag of marlflow {FLAG_OF[name]}"
    if (owner := _declaring(key)) is not None:
        return f"{refused}; it is an option of marlflow {owner}"
    names = [flag.removeprefix("--") for flag in known if flag.startswith("--")]
    if close := nearest(key, names):
        return f"{refused}; did you mean '--{close}'?"
    if not key:
        return f"{refused}; its flags are {', '.join(f'--{flag}' for flag in names)}"
    # `--seed 1` becomes `seed=1` in the suggestion.
    if not following.startswith("-") and "=" not in following:
        value = value or following
    return f"{refused}; settings are written without dashes: {key.replace('-', '_')}={value or '<value>'}"


def _declaring(key: str) -> str | None:
    """Return the command that declares an option `key`, if that is no setting of an experiment too."""
    from marlflow.cli.options import owner_of
    from marlflow.config.experiment import Experiment

    return None if key in (setting.name for setting in fields(Experiment)) else owner_of(key)


def key_of(override: str) -> str:
    """Return the key of an override.

    >>> key_of("+env.size=5")
    'env.size'
    """
    return override.lstrip("+~").partition("=")[0]


def unknown_command(name: str) -> ConfigInvalid:
    """Return the error for an unknown command."""
    if "=" in name:
        return ConfigInvalid([f"marlflow needs a command before {name!r}: marlflow train {name}"])
    return ConfigInvalid([f"marlflow has no command {name!r}{meant(name, COMMANDS, 'the commands are')}"])
