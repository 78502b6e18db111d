"""Read the comments of conf/, for documentation."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

# The keys that lead to a value, outermost first.
Path: TypeAlias = tuple[str, ...]

CONF = "marlflow.conf"
_ROOT, _TARGET = "train", "_target_"
# The column of comments in printed configurations.
_COLUMN = 48

_KEY = re.compile(r"(?P<indent> *)(?P<item>- )?(?P<key>'[^']*'|\"[^\"]*\"|[^\s#:'\"\[{][^:]*?):(?: +(?P<rest>.*))?$")
_COMMENT = re.compile(r"(?:^|\s+)#\s?(?P<comment>.*)$")
# A file in a defaults list that is of no group, such as the keys of all policies.
_KEYS_FILE = re.compile(r"^ +- /(\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold the path, value and comment lines of a key."""

    path: Path
    value: str
    comment: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commented:
    """Hold the description and the keys of one file of conf/."""

    heading: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def target(self) -> str | None:
        """Return the class or function that the file configures, if any."""
        return next((entry.value for entry in self.entries if entry.path == (_TARGET,)), None)


def commented(text: str) -> Commented:
    """Parse a file of conf/, with the keys that it shares with others; each entry of its defaults list is a key."""
    heading: list[str] = []
    entries: list[Entry] = []
    for line in text.splitlines():
        key, comment = _KEY.match(_COMMENT.sub("", line)), _COMMENT.search(line)
        comment_lines = (comment["comment"],) if comment else ()
        if key is not None:
            path = (*_parents(entries, len(key["indent"]) // 2), _without_package(key["key"].strip("'\"")))
            entries.append(Entry(path, (key["rest"] or "").strip(), comment_lines))
        # An indented comment without a key continues the comment of the last key.
        elif entries and comment_lines and line.startswith(" "):
            last = entries.pop()
            entries.append(Entry(last.path, last.value, (*last.comment, *comment_lines)))
        elif not entries and comment_lines and not comment_lines[0].startswith("@package"):
            heading += comment_lines
    own = {entry.path for entry in entries}
    shared = [entry for name in _KEYS_FILE.findall(text) for entry in commented(text_of(name)).entries]
    return Commented(tuple(heading), (*(entry for entry in shared if entry.path not in own), *entries))


def files(group: str) -> Mapping[str, Commented]:
    """Return the files of a group, by name."""
    return {name: commented(text_of(f"{group}/{name}")) for name in names(group)}


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """Return the shipped options of a configuration group, such as `env`."""
    folder = resources.files(CONF) / group
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def root() -> Commented:
    """Return the file of the whole run."""
    return commented(text_of(_ROOT))


def explained(yaml_text: str, config: Mapping[str, Any]) -> str:
    """Add the comments of conf/ to `yaml_text`, a part of `config`.

    Its first line may name its package, as Hydra writes it: `# @package env`.
    """
    comments: dict[Path, Sequence[str]] = {}
    for path, comment in _comments_of(config):
        if comment:
            # The first comment of a path is the most specific.
            comments.setdefault(path, comment)
    part = re.match(r"# @package (\S+)", yaml_text)
    package = () if part is None or part[1] == "_global_" else tuple(part[1].split("."))
    lines: list[str] = []
    above: list[Entry] = []
    for line in yaml_text.splitlines():
        key = _KEY.match(line)
        # Items of a list have no key of their own.
        if key is None or key["item"]:
            lines.append(line)
            continue
        above.append(Entry((*_parents(above, len(key["indent"]) // 2), key["key"].strip("'\"")), "", ()))
        lines += _behind(line, comments.get((*package, *above[-1].path), ()))
    return "".join(f"{line}\n" for line in lines)


def text_of(name: str) -> str:
    """Return the text of a file of conf/, such as `env/simple_tag`."""
    return (resources.files(CONF) / f"{name}.yaml").read_text(encoding="utf-8")


def _parents(before: Sequence[Entry], depth: int) -> Path:
    return next((entry.path for entry in reversed(before) if len(entry.path) == depth), ())


def _without_package(key: str) -> str:
    """Return `default_policy` of `policy@default_policy`, `model` of `/model@model`."""
    return key.rpartition("@")[2].rpartition("/")[2]


def _behind(line: str, comment: Sequence[str]) -> Iterator[str]:
    first, *more = comment or ("",)
    yield f"{line:<{_COLUMN - 1}} # {first}" if comment else line
    yield from (f"{'':<{_COLUMN}}# {text}" for text in more)


# Groups whose choices add keys to one section.
_COMBINED: Mapping[str, Path] = {
    "wrappers": ("env", "wrappers"),
    "runtime": ("runtime",),
    "placement": ("placement",),
    "sinks": ("log", "sinks"),
    "callback": ("callbacks",),
}


def _comments_of(config: Mapping[str, Any]) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield the comments of all possible keys, the most specific first."""
    for entry in root().entries:
        yield entry.path[1:] if entry.path[0] == "defaults" else entry.path, entry.comment
    yield from _under(("env",), _of_target("env", config.get("env")))
    # Several wrappers and placements may be combined, so the comments of all their files are offered.
    for group, prefix in _COMBINED.items():
        for file in files(group).values():
            yield from ((path, comment) for path, comment in _under(prefix, file) if path != prefix)
    yield from _under(("league",), _of_mode(config.get("league")))
    policies = config.get("policies")
    of_all: dict[Path, Any] = {("default_policy",): config.get("default_policy")}
    of_all |= {("policies", str(name)): settings for name, settings in (policies or {}).items()}
    for path, policy in of_all.items():
        if isinstance(policy, Mapping):
            # Any policy file would do: all learning policies have the same keys with the same comments.
            yield from _of_entry(path, policy, files("policy")["member" if policy.get("algorithm") is None else "ppo"])
    for name, learner in (config.get("learners") or {}).items():
        if isinstance(learner, Mapping):
            yield from _of_entry(("learners", str(name)), learner, next(iter(files("learner").values())))


def _of_entry(path: Path, values: Mapping[str, Any], file: Commented) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield the comments of a policy or a learner, from a `file` with its keys."""
    yield from ((below, comment if below != path else ()) for below, comment in _under(path, file))
    for part in ("algorithm", "model"):
        yield from _under((*path, part), _of_target(part, values.get(part)))


def _of_target(group: str, values: Any) -> Commented | None:
    target = values.get(_TARGET) if isinstance(values, Mapping) else None
    return next((file for file in files(group).values() if target is not None and file.target == target), None)


def _of_mode(league: Any) -> Commented | None:
    # All leagues have the same class, so the class of their matchmaker tells the files apart.
    mode = league.get("matchmaker") if isinstance(league, Mapping) else None
    target = mode.get(_TARGET) if isinstance(mode, Mapping) else None
    path = ("matchmaker", _TARGET)
    targets = {name: [e.value for e in file.entries if e.path == path] for name, file in files("league").items()}
    return next((file for name, file in files("league").items() if targets[name] == [target]), None)


def _under(prefix: Path, file: Commented | None) -> Iterator[tuple[Path, Sequence[str]]]:
    if file is not None:
        yield prefix, file.heading
        yield from ((prefix + entry.path, entry.comment) for entry in file.entries if entry.path[0] != "defaults")
