"""A benchmark suite: tasks and algorithms by name, read from the configuration group `suite`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import absent
from marlflow.config.compose import SUITE, Groups, composing
from marlflow.config.construct import imported
from marlflow.config.folders import searchpath_problems
from marlflow.config.suggestions import no_option
from marlflow.config.target_nodes import TARGET

_LENGTHS = ("agent_steps", "at_agent_steps")


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """A task: its overrides, the scores that count as 0 and 1, and other settings of env for the scored episodes."""

    overrides: tuple[str, ...]
    low: float
    high: float
    score_env: Mapping[str, Any]

    def normalized(self, score: float) -> float:
        """Return a score with `low` at 0 and `high` at 1."""
        return (score - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks, algorithms as overrides, and the policies whose agents' returns are summed to a score."""

    name: str
    policies: tuple[str, ...]
    tasks: Mapping[str, SuiteTask]
    algorithms: Mapping[str, tuple[str, ...]]


def read_suite(name: str, config_dirs: Sequence[str] = ()) -> Suite:
    """Return the suite of a name, of marlflow or in one of `config_dirs`; raises ConfigInvalid with every problem."""
    if problems := list(searchpath_problems(config_dirs)):
        raise ConfigInvalid(problems)
    path = [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in config_dirs)}]"] if config_dirs else []
    with composing():
        groups = Groups(path)
        if name not in (options := groups.options(SUITE)):
            raise ConfigInvalid([no_option(SUITE, name, options, config_dirs)])
        values: Any = OmegaConf.to_container(groups.file(f"{SUITE}/{name}"))
    problems = [f"suite {name}: {problem}" for problem in _problems(values)]
    if problems:
        raise ConfigInvalid(problems)
    tasks = {
        str(task): SuiteTask(
            tuple(of["overrides"]), float(of["low"]), float(of["high"]), dict(of.get("score_env") or {})
        )
        for task, of in values["tasks"].items()
    }
    algorithms = {str(algorithm): tuple(of["overrides"]) for algorithm, of in values["algorithms"].items()}
    return Suite(name, tuple(values["policies"]), tasks, algorithms)


def _problems(values: Any) -> Iterator[str]:
    if not isinstance(values, dict):
        yield "it must have policies, tasks and algorithms"
        return
    yield from _key_problems("", values, ("policies", "tasks", "algorithms"))
    if "policies" in values and not _are_texts(values["policies"]):
        yield "policies must be a list of the ids of policies, such as [agent]"
    for section, keys in (("tasks", ("overrides", "low", "high")), ("algorithms", ("overrides",))):
        if section not in values:
            continue
        entries = values[section]
        if not isinstance(entries, dict) or not entries:
            yield f"{section} must have at least one entry, <name>: {{{', '.join(f'{key}: ...' for key in keys)}}}"
            continue
        for name, entry in entries.items():
            yield from _entry_problems(f"{section}.{name}", entry, keys)


def _entry_problems(path: str, entry: Any, keys: Sequence[str]) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"{path} must have {', '.join(keys)}"
        return
    yield from _key_problems(f"{path}.", entry, keys, ("score_env",) if "low" in keys else ())
    if "overrides" in entry and not _are_texts(entry["overrides"]):
        yield f"{path}.overrides must be a list of overrides as of marlflow train, such as [env.num_agents=2]"
    limits = [entry[key] for key in ("low", "high") if key in entry]
    if not all(isinstance(limit, int | float) and math.isfinite(limit) for limit in limits):
        yield f"{path}.low and {path}.high must be numbers: the scores that count as 0 and as 1"
    elif len(limits) == 2 and not limits[0] < limits[1]:
        yield f"{path}.low must be below {path}.high, not {limits[0]} and {limits[1]}"
    if not isinstance(entry.get("score_env") or {}, dict):
        yield f"{path}.score_env must have settings of env by name, such as {{batched: false}}"


def _key_problems(path: str, values: Mapping[Any, Any], keys: Sequence[str], more: Sequence[str] = ()) -> Iterator[str]:
    yield from (f"{path}{key} is missing" for key in keys if key not in values)
    known = [*keys, *more]
    yield from (absent(f"{path}{key}", str(key), known, path[:-1] or "a suite") for key in values if key not in known)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def scaled_schedules(config: Any, factor: float, path: str = "") -> Iterator[str]:
    """Yield overrides that shorten each schedule with `agent_steps` or `at_agent_steps` by a factor.

    `config` has plain values.
    """
    entries = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    is_schedule = isinstance(config, dict) and any(name in config for name in _LENGTHS) and _makes_schedule(config)
    for key, value in entries:
        here = f"{path}.{key}" if path else str(key)
        if is_schedule and key in _LENGTHS:
            steps = value if isinstance(value, list) else [value]
            scaled = list[int]()
            for one in steps:
                # They have to grow.
                scaled.append(max(scaled[-1] + 1 if scaled else 1, round(factor * float(one))))
            yield f"{here}={scaled if isinstance(value, list) else scaled[0]}".replace(" ", "")
        else:
            yield from scaled_schedules(value, factor, here)


def _makes_schedule(config: dict[str, Any]) -> bool:
    # The checks of the run report targets that cannot be imported.
    return callable(getattr(imported(config.get(TARGET), "", []), "at", None))
