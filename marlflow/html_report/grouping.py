"""What a user chose to group runs by, and in which keys environments may differ: `group_by=` and `merge=`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import nearest
from marlflow.html_report.differences import ALGORITHM, MISSING, as_text, class_name, identity, named, short_keys, whole
from marlflow.html_report.runs import Config, ReportedRun

_ENV = "env"
_DEFAULT = "default_policy"
_OWNERS = ("policies", "learners")
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Grouping:
    """Keys of configurations, whole or their ends: runs equal in `group_by` are a group, without any all but the seed.

    Environments that differ only in keys of `merge` are compared with each other.
    """

    group_by: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()

    def check(self, runs: Sequence[ReportedRun]) -> None:
        """Raise ConfigInvalid for keys that no configuration has, or that are not of an environment."""
        known = dict.fromkeys(key for run in runs for key, _ in entries(run.config))
        problems = [
            f"group_by: no run has a key {word!r} in its configuration{_near(word, known)}"
            for word in self.group_by
            if not _matching(word, known)
        ]
        of_env = [key for key in known if key == _ENV or key.startswith(f"{_ENV}.")]
        for word in self.merge:
            if not _matching(word, of_env):
                reason = "is not a key of env" if _matching(word, known) else "is a key of no run's env"
                problems.append(
                    f"merge: {word!r} {reason}{_near(word, of_env)}. It takes keys of env in which environments may "
                    "differ and still be compared, such as env.max_cycles, or env for all; group_by= chooses groups"
                )
        if problems:
            raise ConfigInvalid(problems)

    def merged(self, env: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of an environment without those that may differ."""
        paths = [path for word in self.merge for path in _matching(word, [key for key, _ in entries({_ENV: env})])]
        return {} if _ENV in paths else _without(env, _ENV, paths)

    def key(self, config: Config) -> str:
        """Return a text that is the same for runs of a group."""
        return identity([sorted(self.texts(config, word).items()) for word in self.group_by])

    def texts(self, config: Config, word: str) -> dict[str, str]:
        """Return the values of a configuration's keys that `word` names, as texts; an algorithm counts by its class."""
        known = dict(entries(config))
        paths = _matching(word, known)
        # The default policy says nothing about a run whose policies have settings of their own.
        owned = [path for path in paths if path.partition(".")[0] in _OWNERS]
        chosen = [path for path in paths if not (owned and path.partition(".")[0] == _DEFAULT)]
        return {
            path: (path.endswith(ALGORITHM) and class_name(known[path])) or as_text(whole(known[path]))
            for path in chosen
        }

    def names(self, configs: Sequence[Config]) -> list[str]:
        """Return the names of groups, from one configuration of each."""
        for short in (True, False):
            names = [
                ", ".join(self._name(config, word, configs, short) for word in self.group_by) for config in configs
            ]
            cut = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
            if len(set(cut)) == len(cut):
                return cut
        return [f"{name} ({number})" for number, name in enumerate(cut, 1)]

    def _name(self, config: Config, word: str, configs: Sequence[Config], short: bool) -> str:
        texts = self.texts(config, word)
        last = word.rpartition(".")[2]
        if not texts:
            return named({last: MISSING}, {last: last})
        if short and len(set(texts.values())) == 1:
            return named({last: next(iter(texts.values()))}, {last: last})
        return named(texts, short_keys(list(texts), configs))


BY_CONFIGURATION: Final = Grouping()
"""The default: all keys count, but for the seed."""


def entries(config: Config, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all keys of a configuration with their values, sections before what is in them."""
    for name, value in config.items():
        key = f"{path}.{name}" if path else str(name)
        yield key, value
        if isinstance(value, Mapping):
            yield from entries(value, key)


def _matching(word: str, keys: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Return the key `word`, or else all keys that end with it."""
    return [word] if word in keys else [key for key in keys if key.endswith(f".{word}")]


def _without(values: Mapping[str, Any], path: str, left_out: Sequence[str]) -> dict[str, Any]:
    return {
        name: _without(value, f"{path}.{name}", left_out) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if f"{path}.{name}" not in left_out
    }


def _near(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    ends = list(dict.fromkeys([*known, *(key.rpartition(".")[2] for key in known)]))
    close = nearest(word, ends)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; there are {', '.join(ends[:10])}, ..." if ends else "; no configuration was recorded"
