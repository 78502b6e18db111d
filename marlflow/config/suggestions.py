"""Suggest corrections for overrides that do not work, or that Hydra accepts with another meaning than intended.

A misspelled setting of a section or an algorithm is told by `renamed.unknown_key`.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hydra.core.override_parser.types import Override, QuotedString

from marlflow.base.sentences import enumerated, kind_of, meant, misspelled_key, nearest
from marlflow.config.comments import names
from marlflow.config.other_names import BECAME_PARTS, FOREIGN_NAMES, own_paths

# Groups whose choices are entries of a section of the run.
SECTION_OF: Final = {"policy": "policies", "learner": "learners"}
# Groups that are chosen for one policy or learner, and the key of such a choice.
CHOSEN_FOR_ONE: Final = {
    "parts": "parts@policies.<id>.algorithm.parts.<name>",
    "policy": "policy@policies.<id>",
    "algorithm": "algorithm@policies.<id>.algorithm",
    "model": "model@policies.<id>.model",
    "learner": "learner@learners.<id>",
}
_POLICY, _LEARNER = r"policies\.[^.]+|default_policy", r"learners\.[^.]+"
# Patterns of the keys that a choice of each group sets.
_CHOSEN = {
    "policy": _POLICY,
    "learner": _LEARNER,
    "algorithm": rf"({_POLICY}|{_LEARNER})\.algorithm",
    "model": rf"({_POLICY})\.model",
}
# Sections of which each entry is a choice of a group, or one's own.
_SEVERAL = {"callbacks": ("callback", "callback"), "log.sinks": ("sinks", "sink")}
# Names of sinks elsewhere, such as of the command that shows the same page.
_OF_SINKS = {"watch": "page", "control": "page.control", "film": "films"}
_PARTS = "policies.<id>.algorithm.parts"
_PACKAGE = "# @package _global_"
_MOST_NAMED = 3


def value_for_choice(line: str, key: str, value: Any) -> str | None:
    """Return the error for `policies.prey=dqn` or `learners.team=qmix`, a name in place of a choice."""
    if not isinstance(value, str) or "." in value:
        return None
    if key in _SEVERAL:
        return f"{line} is not how a {_SEVERAL[key][1]} is chosen; write {_SEVERAL[key][0]}={value}"
    first, _, rest = key.partition(".")
    if first in SECTION_OF and rest and "." not in rest:
        key = f"{SECTION_OF[first]}.{rest}"
    for group, pattern in _CHOSEN.items():
        if re.fullmatch(pattern, key):
            return f"{line} is not how {_article(group)} {group} is chosen; write {group}@{key}={value}"
    return None


def sink_as_setting(line: str, key: str, chosen: Collection[str] = ()) -> str | None:
    """Return the error for `log.page=true` or `watch.control=true`, as if a sink, or its setting, were one of the run.

    `chosen` are the sinks of the run.

    >>> sink_as_setting("watch.control=true", "watch.control")
    'there is no watch.control; write sinks=page log.sinks.page.control=true'
    """
    if key.startswith("log.sinks."):
        return None
    named = key.removeprefix("log.").removeprefix("sinks.")
    sink, _, setting = _OF_SINKS.get(named, named).partition(".")
    sink = _OF_SINKS.get(sink, sink)
    if sink not in names("sinks"):
        return None
    given = line.partition("=")[2]
    if not setting and given in ("false", "null"):
        return f"there is no {key}; leave it out: a run has no {sink} without sinks={sink}"
    all_sinks = sink if sink in chosen or not chosen else f"[{','.join([*chosen, sink])}]"
    value = f" log.sinks.{sink}.{setting}={given}" if setting else ""
    return f"there is no {key}; write sinks={all_sinks}{value}"


def no_league(key: str, config: Mapping[str, Any]) -> str | None:
    """Return the error for a key of a league where none is chosen."""
    # A new key would be added to the empty section otherwise, which then lacks the matchmaker.
    if key.startswith("league.") and config.get("league") is None:
        return f"{key}: this run has no league; choose a league first, such as league=pfsp"
    return None


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def no_section(key: str, line: str, config: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return the error for an override whose first key does not exist."""
    first = key.partition(".")[0]
    if paths := [path for path in _paths(config) if path.endswith(f".{key}")]:
        return f"there is no {key}; did you mean {_some([*map(repr, paths)])}?"
    if became := BECAME_PARTS.get(key.rpartition(".")[2]):
        parts = next((path for path in _paths(config) if path.endswith(".algorithm.parts")), _PARTS)
        return f"there is no {key}; it has become {became.format(parts=parts)}"
    if foreign := FOREIGN_NAMES.get(key.rpartition(".")[2]):
        paths = list(dict.fromkeys(own_paths(key, [*_paths(config)])))
        here = _some(paths or [f"policies.<id>.algorithm.{foreign.keys[0]}, which no policy of this run has"])
        return f"there is no {key}; here it is {here}{foreign.note if paths else ''}"
    if first in SECTION_OF and key != first:
        return f"there is no {key}; did you mean '{SECTION_OF[first]}{key.removeprefix(first)}'?"
    if first == "learner":
        return f"{key} does not say which: write {CHOSEN_FOR_ONE[first]}={line.partition('=')[2]}"
    if first in CHOSEN_FOR_ONE:
        place = CHOSEN_FOR_ONE[first].partition("@")[2].removesuffix(".<name>")
        return f"{key} does not say whose: write {place}{key.removeprefix(first)}"
    # A group that is no section, such as `callback`, is in `known` too, where no choice but a value came.
    known = [name for name in known if name != first]
    in_env = "" if "." in key or nearest(key, known) else f"; an argument of the environment is env.{line.lstrip('+')}"
    return f"{misspelled_key(first, first, known, 'a run')}{in_env}"


def _some(paths: Sequence[str]) -> str:
    return " or ".join([*paths[:_MOST_NAMED], *(["..."] if len(paths) > _MOST_NAMED else [])])


def no_entry(section: str, name: str, known: Sequence[str], learner_of: Mapping[str, str] | None = None) -> str:
    """Return the error for a policy or learner that does not exist; `learner_of` are policies that a learner lists."""
    kind, choice = ("learner", "qmix") if section == "learners" else ("policy", "ppo")
    if kind == "policy" and (learner := (learner_of or {}).get(name)):
        return (
            f"policy {name!r} of learners.{learner} has the model of default_policy; for settings of its own add "
            f"policy@policies.{name}=member"
        )
    close = nearest(name, known)
    remedy = f"did you mean {close!r}?" if close else f"add it with {kind}@{section}.{name}={choice}"
    alternatives = f" (there are {enumerated(known)})" if known and not close else ""
    return f"there is no {kind} {name!r}{alternatives}; {remedy}"


def _paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    order = ("policies", "learners", "default_policy")
    # Keys of policies are overridden most often, so they are suggested first.
    for key in sorted(values, key=lambda key: order.index(key) if not prefix and key in order else len(order)):
        if key == "hydra" and not prefix:
            continue
        yield f"{prefix}{key}"
        if isinstance(values[key], Mapping):
            yield from _paths(values[key], f"{prefix}{key}.")


def no_option(
    group: str, choice: str, options: Sequence[str], folders: Sequence[str], elsewhere: Sequence[str] = ()
) -> str:
    """Return the error for an unknown choice; `folders` are the user's configuration folders.

    `elsewhere` are the other groups that have an option of this name.
    """
    absent_choice = f"there is no {group} {choice!r}"
    name = choice.removesuffix(".yaml")
    if name in options:
        return f"{absent_choice}; a choice is written without .yaml: {group}={name}"
    for file in [Path(group, f"{name}.yaml"), *Path().glob(f"*/{group}/{glob.escape(name)}.yaml")]:
        if file.is_file():
            folder = file.parents[len(Path(group).parts)]
            return f"{absent_choice} among those of marlflow; to use {file} add --config-dir {folder}"
    # Several groups have `none`.
    if elsewhere and choice != "none":
        written = " or ".join(f"{CHOSEN_FOR_ONE.get(other, other)}={choice}" for other in elsewhere)
        where = f"{'group' if len(elsewhere) == 1 else 'groups'} {' and '.join(elsewhere)}"
        return f"{absent_choice}; it is in {where}: write {written}"
    if group == "env" and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", choice):
        remedy = f"for an import path write env=python env._target_={choice}"
        return f"{absent_choice}: a name there is one of a configuration; {remedy}"
    remedy = meant(choice, options, "there are")
    own = "one" if group.endswith("s") else f"{_article(group)} {group}"
    is_explained = folders or "did you mean" in remedy
    own_hint = "" if is_explained else f"; {own} of your own needs --config-dir <folder>"
    return f"{absent_choice}{remedy}{own_hint}"


def no_place(key: str, group: str, known: Sequence[str]) -> str:
    """Return the error for a choice `group@place` at a place that takes none; `known` has the choices of the run."""
    of_group = [one for one in known if one.startswith(f"{group}@")]
    if not of_group and group in CHOSEN_FOR_ONE:
        return f"there is no {key} to choose; write {CHOSEN_FOR_ONE[group]}"
    return f"there is no {key} to choose{meant(key, of_group or known, 'there are')}"


def package_problem(group: str, choice: str, folders: Sequence[str]) -> str | None:
    """Return the error for an experiment file without the global package line."""
    if group != "experiment":
        return None
    file = next((path for folder in folders if (path := Path(folder, group, f"{choice}.yaml")).is_file()), None)
    # Hydra stops looking for package lines at the first other line, even a comment.
    if file is None or re.match(r"\s*#\s*@package\s+_global_\s*$", file.read_text(encoding="utf-8"), re.MULTILINE):
        return None
    return f"{file} must have {_PACKAGE!r} as its first line, which makes its keys those of the run"


_CAST = re.compile(r"\bint\(")
_FRACTION = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|(?<![\w.])\d+[eE]-\d+")
# Hydra's parser recurses several Python frames per level, so deeper values could overflow the stack.
_DEEPEST = 32


def cast_problems(read: Override) -> Iterator[str]:
    """Yield casts that lose a fraction: Hydra reads `int(3.7)` as 3."""
    text = (read.input_line or "").partition("=")[2]
    if not _CAST.search(text) or isinstance(read.value(), str | QuotedString):
        return
    # Hydra truncates without a warning.
    fractions = [number for number in _FRACTION.findall(text) if not float(number).is_integer()]
    if fractions:
        yield f"{read.input_line} would cut {', '.join(fractions)} down to a whole number; write the one that is meant"


def depth_problem(override: str) -> str | None:
    """Return the error for values nested too deep for Hydra's recursive parser."""
    deepest = depth = 0
    for character in override:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    deepest = max(deepest, override.partition("=")[0].count("."))
    if deepest > _DEEPEST:
        return f"{override[:40]}... is nested {deepest} deep, and no setting is nested more than {_DEEPEST} deep"
    return None


def deletion_problem(key: str) -> str | None:
    """Return the error for `~key` of a section that every run has."""
    # Nested keys may be deleted, such as an argument of the environment.
    if "." in key:
        return None
    return f"~{key} takes away what every run has; give it the value that is meant, or leave it out for the default"


def merge_problem(line: str, key: str, current: Any, value: Any) -> str | None:
    """Return the error for `{...}` without a `_target_` in place of an object."""
    if not (isinstance(current, Mapping) and isinstance(value, Mapping)) or key == "env":
        return None
    # Hydra would merge the two, keeping the old class and its settings.
    if "_target_" not in current or "_target_" in value:
        return None
    parts = " ".join(_dotted(key, value))
    instead = f", or change what is there by {parts}" if parts else ""
    return f"{line} has no _target_: name the class that it is to be made from{instead}"


def _dotted(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, setting in value.items():
            yield from _dotted(f"{key}.{name}", setting)
    else:
        yield f"{key}={'null' if value is None else value}"


def kind_problem(key: str, current: Any, value: Any) -> str | None:
    """Return the error for an environment argument of another type than its default."""
    # Other settings are checked against annotations, which factories of environments seldom have.
    if not key.startswith("env.") or current is None or value is None or "???" in (current, value):
        return None
    expected, actual = kind_of(current), kind_of(value)
    return (
        None
        if None in (expected, actual) or expected == actual
        else f"{key} must be {expected}, such as {current!r}, not {str(value)!r}"
    )
