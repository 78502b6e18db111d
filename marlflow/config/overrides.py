"""Rewrite command-line overrides with the prefixes that Hydra needs.

Hydra requires `+` for a new key and rejects it for an existing one; here both forms work. Call within `composing`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Sweep
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import enumerated, meant
from marlflow.config.compose import (
    SUITE,
    SWEEPER_PARAMS,
    Groups,
    composed,
    composition_problem,
    config_loader,
    set_values,
    sweeper_params,
)
from marlflow.config.folders import searchpath_override, searchpath_problems
from marlflow.config.suggestions import (
    CHOSEN_FOR_ONE,
    SECTION_OF,
    cast_problems,
    deletion_problem,
    depth_problem,
    kind_problem,
    merge_problem,
    no_entry,
    no_league,
    no_option,
    no_place,
    no_section,
    package_problem,
    sink_as_setting,
    value_for_choice,
)
from marlflow.config.target_nodes import ENV_KEYS

_SEARCHPATH = "hydra.searchpath"
# A choice that adds a policy or a learner.
_NEW_ENTRY = re.compile("|".join(rf"{group}@{section}\.[^.]+" for group, section in SECTION_OF.items()))
_NEW_PART = re.compile(r"parts@.+\.algorithm\.parts\.[^.]+")
_OPTIONAL = ("wrappers", "placement", "league", "record", "sinks", "callback", "experiment")
_MEMBERS = re.compile(r"learners\.([^.]+)\.policies")


@dataclass(frozen=True)
class Prepared:
    """Hold `overrides` for Hydra, the `config` of the first job, and `problems` of keys left out.

    `fixed` are the keys without a sweep, the same in each job. `intervals` are the overrides of which a sweeper has to
    choose the values.
    """

    overrides: list[str]
    config: DictConfig
    problems: list[str]
    fixed: list[str]
    intervals: list[str]


@dataclass
class _OverrideWord:
    """Wrap a parsed override with the prefix that Hydra needs; None drops it."""

    read: Override
    prefix: str | None = field(init=False)
    # Whether the present value must be cleared first, because Hydra would merge the two.
    replaces: bool = False

    def __post_init__(self) -> None:
        self.prefix = re.match(r"~|\+{0,2}", self.line).group()  # type: ignore[union-attr]

    @property
    def line(self) -> str:
        return self.read.input_line or ""

    @property
    def bare(self) -> str:
        return self.line.lstrip("+~")

    @property
    def key(self) -> str:
        """Return `group@package`, or the dotted path of a value."""
        package = self.read.package
        return self.read.key_or_group + (f"@{package}" if package is not None else "")

    def values(self) -> list[Any]:
        """Return the value, or the values of a sweep; for an interval, its start."""
        if not self.read.is_sweep_override():
            return [self.read.value()]
        if self.read.is_interval_sweep():
            return [getattr(self.read.value(), "start", None)]
        return list(self.read.sweep_string_iterator())

    def elements(self) -> list[Any]:
        """Return the value, or the values of a sweep as they were parsed, not as text."""
        value = self.read.value()
        return list(value.list) if isinstance(value, ChoiceSweep) else [value]

    def whole(self) -> str:
        return f"{self.prefix}{self.bare}"

    def lines(self, line: str) -> list[str]:
        # Sweepers keep one override for each key as written, prefix included, so the two must differ in it.
        return [f"{'' if self.prefix else '++'}{self.key}=null", line] if self.replaces else [line]

    def first(self) -> str:
        """Return the override with the first value of its sweep."""
        if not isinstance(self.read.value(), Sweep):
            return self.whole()
        return f"{self.prefix}{self.key}={self.values()[0]}"


def prepare(overrides: Sequence[str], searchpath: Sequence[str] = (), multirun: bool = False) -> Prepared:
    """Complete `overrides` for Hydra and compose the first job.

    `searchpath` lists further configuration folders. With `multirun`, the sweeper's own parameters in the configuration
    are added to the overrides. Raises ConfigInvalid for an unknown option or group.
    """
    words = [_OverrideWord(_parsed(override)) for override in overrides]
    problems = list(_word_problems(words, multirun))
    folders = _folders(words, searchpath)
    before = _hydra_own(words, folders)
    known = Groups(before)
    groups = [word for word in words if _is_choice(word, known)]
    values = [word for word in words if word not in groups and not word.read.is_hydra_override()]
    for word in groups:
        # A configuration file may choose `null`, but on the command line Hydra takes only names and lists.
        if word.read.value() is None and word.read.key_or_group in _OPTIONAL:
            word.read, word.prefix = _parsed(f"{word.key}=[]"), (word.prefix or "").replace("~", "")
    with _composition_explained():
        problems += _choices_settled(groups, known, [folder.removeprefix("file://") for folder in folders])
        if problems:
            raise ConfigInvalid(problems)
        # Only group choices are composed; values are applied to the result, which tells whether a key exists.
        config = composed([*before, *(word.first() for word in groups)])
    if (multirun or config.hydra.mode is RunMode.MULTIRUN) and (swept := sweeper_params(config)):
        given = {word.key for word in words}
        added = [line for line in swept if _OverrideWord(_parsed(line)).key not in given]
        return prepare([*added, *overrides, f"{SWEEPER_PARAMS}=null"], searchpath, multirun=True)
    values_present: Any = OmegaConf.to_container(config, resolve=False)
    learner_of = _learner_of_listed(values)
    for position, word in enumerate(values):
        above = next((last for last in values[:position][::-1] if word.key.startswith(f"{last.key}.")), None)
        # A later override may change a key that an earlier one adds.
        problems += _below_settled(word, above) if above else _value_settled(word, values_present, known, learner_of)
    settled = [word for word in words if word.prefix is not None]
    with _composition_explained():
        set_values(config, _first_lines(word for word in settled if word in values), _first_lines(settled))
    whole = [line for word in settled for line in word.lines(word.whole())]
    swept_keys = {word.key for word in settled if word.read.is_sweep_override()}
    fixed = [word.key for word in settled if word.key not in swept_keys]
    intervals = [word.line for word in settled if word.read.is_interval_sweep()]
    return Prepared(whole, config, problems, fixed, intervals)


def _word_problems(words: Iterable[_OverrideWord], multirun: bool) -> Iterator[str]:
    for word in words:
        if word.read.is_sweep_override() and not multirun:
            yield f"{word.line} has several values: add -m to run one job for each, or write a list as [...]"
        yield from cast_problems(word.read)


def _first_lines(words: Iterable[_OverrideWord]) -> list[str]:
    return [line for word in words if not word.read.is_hydra_override() for line in word.lines(word.first())]


def _folders(words: Sequence[_OverrideWord], searchpath: Sequence[str]) -> list[str]:
    folders = list(searchpath)
    for word in words:
        if word.key == _SEARCHPATH:
            named = word.values()[0]
            if not isinstance(named, list) or not all(isinstance(folder, str) for folder in named):
                raise ConfigInvalid([f"{word.line} must be a list of folders, [<folder>, ...]"])
            folders += named
    if problems := list(searchpath_problems(folders)):
        raise ConfigInvalid(problems)
    return folders


def _hydra_own(words: Sequence[_OverrideWord], folders: Sequence[str]) -> list[str]:
    own_words = [word for word in words if word.read.is_hydra_override() and word.key != _SEARCHPATH]
    return [*searchpath_override(folders), *(word.first() for word in own_words)]


def _parsed(override: str) -> Override:
    key = override.partition("=")[0]
    # Hydra reads a word without a key as one of the group "".
    if not key.strip("+~") or key.lstrip("+~").startswith("@"):
        raise ConfigInvalid([_not_of_the_form(override)])
    if problem := depth_problem(override):
        raise ConfigInvalid([problem])
    try:
        return OverridesParser.create(config_loader()).parse_overrides([override])[0]
    # ValueError is for numbers of thousands of digits.
    except (HydraException, ValueError) as error:
        if "=" not in override:
            raise ConfigInvalid([_not_of_the_form(override)]) from error
        reason = str(error).splitlines()[0]
        unknown_characters = reason.startswith("Lexer")
        why = "" if unknown_characters else f" ({reason})"
        remedy = "is it whole, and quoted for the shell?"
        if unknown_characters and (quoted := _quoted(override)) is not None:
            remedy = f"such characters need quotes, of which the shell takes the outer ones: {quoted!r}"
        raise ConfigInvalid([f"cannot read {override!r}{why}; {remedy}"]) from error


def _quoted(override: str) -> str | None:
    """Return an override with its value in quotes, if Hydra reads it so."""
    key, _, value = override.partition("=")
    if "'" in value or '"' in value or not value.isprintable():
        return None
    try:
        OverridesParser.create(config_loader()).parse_overrides([quoted := f"{key}='{value}'"])
    except HydraException:
        return None
    return quoted


def _not_of_the_form(override: str) -> str:
    return f"{override!r} is not of the form key=value, such as env=simple_tag"


@contextmanager
def _composition_explained() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigInvalid([composition_problem(error)]) from error
    # Of a wrong kind of value for its own groups and settings, such as hydra/launcher=null, Hydra raises plain errors.
    except (AttributeError, TypeError, ValueError) as error:
        if not _raised_by_hydra(error):
            raise
        raise ConfigInvalid([composition_problem(error)]) from error


def _raised_by_hydra(error: BaseException) -> bool:
    module = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1].f_globals.get("__name__", "")
    return module.partition(".")[0] in ("hydra", "omegaconf")


# -- choices of groups ------------------------------------------------------------------------------------------------


def _is_choice(word: _OverrideWord, known: Groups) -> bool:
    if word.read.is_hydra_override():
        return False
    is_group = word.read.package is not None or bool(known.options(word.read.key_or_group))
    return is_group and not isinstance(word.read.value(), dict)


def _choices_settled(words: Sequence[_OverrideWord], groups: Groups, folders: Sequence[str]) -> Iterator[str]:
    problems = [
        f"{word.line}: ~ takes one choice away, so it needs one name, or none: ~{word.key}"
        for word in words
        if word.read.is_delete() and not isinstance(word.read.value(), str | None)
    ]
    problems += [problem for word in words for problem in _option_problems(word, groups, folders)]
    if problems:
        yield from problems
        return
    packaged = [word for word in words if word.read.package is not None and not word.read.is_delete()]
    if not packaged:
        return
    # Two passes: a choice may refer to a package that another choice adds, such as the algorithm of a new policy.
    sure = [word.first() for word in words if word.read.package is None]
    known = groups.choices(sure)
    for word in packaged:
        word.prefix = "" if word.key in known else "+"
    added = [word.first() for word in packaged if word.prefix == "" or _NEW_ENTRY.fullmatch(word.key)]
    known = groups.choices([*sure, *added])
    for word in packaged:
        if word.key in known:
            # A new entry is known only through its own override, so it keeps its `+`.
            word.prefix = "+" if word.prefix == "+" and _NEW_ENTRY.fullmatch(word.key) else ""
            continue
        section, *rest = (word.read.package or "").split(".")
        entries = [key.rpartition(".")[2] for key in known if re.fullmatch(rf"\w+@{re.escape(section)}\.[^.]+", key)]
        if section in SECTION_OF.values() and rest and rest[0] not in entries:
            yield f"{word.key}: {no_entry(section, rest[0], entries)}"
        elif _NEW_PART.fullmatch(word.key):
            word.prefix = "+"
        else:
            yield no_place(word.key, word.read.key_or_group, sorted(known))


def _option_problems(word: _OverrideWord, groups: Groups, folders: Sequence[str]) -> Iterator[str]:
    group, package = word.read.key_or_group, word.read.package
    options = groups.options(group)
    if group == SUITE or not options:
        of_benchmark = f"; marlflow benchmark {word.line} runs the tasks of a suite"
        question = of_benchmark if group == SUITE else meant(group, groups.names(), "the groups are")
        yield f"there is no configuration group {group!r} (in {word.line}){question}"
        return
    for value in word.values():
        for choice in value if isinstance(value, list) else [value]:
            if choice is None:
                if isinstance(value, list):
                    yield f"{word.line}: null cannot be one of several; to choose none, write {group}=null"
                elif group not in _OPTIONAL:
                    yield f"{word.line}: {group} cannot be null; choose {enumerated(options)}"
            elif str(choice) not in options:
                elsewhere = [name for name in groups.names() if name != group and str(choice) in groups.options(name)]
                yield no_option(group, str(choice), options, folders, elsewhere)
            elif problem := package_problem(group, str(choice), folders):
                yield problem
    chosen = [one for value in word.values() for one in (value if isinstance(value, list) else [value])]
    if package is None and group in CHOSEN_FOR_ONE and {*map(str, chosen)} <= {*options, "None"}:
        yield f"{word.line} does not say whose: write {CHOSEN_FOR_ONE[group]}={word.values()[0]}"


# -- values -----------------------------------------------------------------------------------------------------------


def _learner_of_listed(values: Sequence[_OverrideWord]) -> dict[str, str]:
    """Return the learner of each policy that an override lists in `learners.<id>.policies`."""
    learner_of: dict[str, str] = {}
    for word in values:
        if match := _MEMBERS.fullmatch(word.key):
            listed = [value for value in word.values() if isinstance(value, list)]
            learner_of |= {str(policy): match[1] for policies in listed for policy in policies}
    return learner_of


def _value_settled(
    word: _OverrideWord, config: dict[str, Any], groups: Groups, learner_of: Mapping[str, str]
) -> Iterator[str]:
    """Set a value's prefix, or drop the override and yield why."""
    parts = word.key.split(".")
    if word.read.is_delete():
        if word.key in config and (problem := deletion_problem(word.key)):
            word.prefix = None
            yield problem
        return
    sinks = _value_at(config, ["log", "sinks"])
    for value in word.values():
        problem = value_for_choice(word.line, word.key, value)
        problem = problem or sink_as_setting(word.line, word.key, sinks if isinstance(sinks, dict) else ())
        if problem := problem or no_league(word.key, config):
            word.prefix = None
            yield problem
            return
    if (current := _value_at(config, parts)) is not _ABSENT:
        if problem := _type_problem(word, current):
            word.prefix = None
            yield problem
            return
        # env is excluded, because an override of it keeps marlflow's own keys.
        word.replaces = _must_replace(current, word.elements()[0]) and word.key != "env"
        word.prefix = "" if word.prefix == "+" else word.prefix
        if not word.replaces and any(_adds_keys(current, value) for value in word.elements()):
            word.prefix = "++"
        return
    entries = [str(name) for name in config.get(parts[0]) or ()] if parts[0] in SECTION_OF.values() else []
    if parts[0] not in config:
        known = [key for key in config if key != "hydra"]
        names = list(dict.fromkeys([*known, *(group for group in groups.names() if group not in CHOSEN_FOR_ONE)]))
        word.prefix = None
        yield no_section(word.key, word.line, config, names)
    elif parts[0] in SECTION_OF.values() and len(parts) > 2 and parts[1] not in entries and not word.prefix:
        word.prefix = None
        yield f"{word.key}: {no_entry(parts[0], parts[1], entries, learner_of)}"
    else:
        # A new key is right for an argument of the environment or a goal; signatures reject all others. None may take
        # away one that an earlier word has added.
        word.prefix = word.prefix or ("++" if list(word.values()) == [None] else "+")


def _below_settled(word: _OverrideWord, above: _OverrideWord) -> Iterator[str]:
    """Drop an override of a key below that of an earlier one which has no keys, and yield why, unless that one is."""
    value = above.elements()[0]
    if above.prefix is None or not (above.read.is_delete() or isinstance(value, dict | list)):
        if above.prefix is not None:
            yield f"{word.line} is for a key of {above.key}, and {above.line} leaves it none; leave one of them out"
        word.prefix = None
    elif isinstance(value, dict) and not word.read.is_delete():
        # The key may be new.
        word.prefix = word.prefix or "++"


def _type_problem(word: _OverrideWord, current: Any) -> str | None:
    problem: str | None = None
    for value in word.values():
        problem = problem or merge_problem(word.line, word.key, current, value)
        if word.key.partition(".")[2].partition(".")[0] not in ENV_KEYS:
            problem = problem or kind_problem(word.key, current, value)
    return problem


def _must_replace(current: Any, value: Any) -> bool:
    """Return whether a merge would mix unrelated settings."""
    if isinstance(current, dict) and isinstance(value, dict):
        return "_target_" in value
    return {type(current), type(value)} == {list, dict}


def _adds_keys(current: Any, value: Any) -> bool:
    """Return whether a mapping has keys that the present one lacks, at any depth: signatures reject wrong ones."""
    if not (isinstance(current, dict) and isinstance(value, dict)):
        return False
    return any(str(key) not in current or _adds_keys(current[str(key)], entry) for key, entry in value.items())


_ABSENT = object()


def _value_at(values: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        if isinstance(values, dict) and part in values:
            values = values[part]
        elif isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            return _ABSENT
    return values
