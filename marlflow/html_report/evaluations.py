"""The results of `marlflow evaluate` in the folders of runs: who played whom, with returns and shares of games won."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from marlflow.base.errors import InvalidInput
from marlflow.base.return_units import Units
from marlflow.html_report.groups import RunGroup
from marlflow.html_report.runs import ReportedRun, number, section
from marlflow.html_report.statistics import BootstrapInterval

FOLDER = "evaluations"
"""The folder in a run's folder with its evaluations, which `marlflow.driver.evaluation_files` writes."""
_FORMAT = "marlflow evaluation 1"
TOGETHER = "its own team"
"""The name of the opponent if the run's policies played together, as they were trained."""
_OUTCOMES = ("win", "draw", "loss")


@dataclass(frozen=True, slots=True)
class EvaluatedPair:
    """A line of an evaluation: a policy with its team, or a member against an opponent, on one `side` or on all ("").

    `returns` is the mean over episodes of the return in `units`, and `iqm` its interquartile mean; `outcomes` are the
    shares of games won, drawn and lost, or None where one side's gain is not the others' loss. `ended` is the end of
    the evaluation in UTC, `mode` how the member acted, `env` settings of the environment that are not the run's.
    """

    group: RunGroup
    run: ReportedRun
    number: int
    member: str
    opponent: str
    side: str
    episodes: int
    returns: BootstrapInterval | None
    iqm: float | None
    length: float | None
    outcomes: tuple[BootstrapInterval | None, ...]
    mode: str
    seed: int | None
    checkpoint: str
    env: str
    ended: datetime
    units: Units

    def columns(self) -> dict[str, str | int | float | None]:
        """Return its values by their columns in evaluations.csv; the page has the same numbers."""
        cells: dict[str, str | int | float | None] = {
            "run": str(self.run.folder),
            "group": self.group.name,
            "evaluation": self.number,
            "member": self.member,
            "opponent": self.opponent,
            "side": self.side,
            "episodes": self.episodes,
        }
        for name, one in zip(("return", *_OUTCOMES), (self.returns, *self.outcomes), strict=True):
            value, low, high = (None, None, None) if one is None else (one.value, one.low, one.high)
            cells |= {name: value, f"{name}_low": low, f"{name}_high": high}
        return cells | {
            "units": self.units,
            "iqm": self.iqm,
            "length": self.length,
            "mode": self.mode,
            "seed": self.seed,
            "checkpoint": self.checkpoint,
            "env": self.env,
            "ended": self.ended.isoformat(timespec="seconds"),
        }


def evaluations(groups: Sequence[RunGroup], units: Units = "mean") -> tuple[list[EvaluatedPair], list[str]]:
    """Return all evaluations of the runs, each run's newest first, and a sentence on each file that was left out."""
    found, notes = list[EvaluatedPair](), list[str]()
    for group in groups:
        for run in group.runs:
            paths = [path for path in (run.folder / FOLDER).glob("*.json") if path.stem.isdecimal()]
            for path in sorted(paths, key=lambda path: -int(path.stem)):
                try:
                    found += _read(group, run, path, units)
                except InvalidInput as error:
                    notes.append(f"{error}; it is left out")
    return found, notes


def _read(group: RunGroup, run: ReportedRun, path: Path, units: Units) -> list[EvaluatedPair]:
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput([f"{path} cannot be read: {error}"]) from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InvalidInput([f"{path} is not in the form {_FORMAT!r}"])
    try:
        return list(_pairs(group, run, path, data, units))
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise InvalidInput([f"{path} is not an evaluation: {type(error).__name__}: {error}"]) from error


def _pairs(
    group: RunGroup, run: ReportedRun, path: Path, data: Mapping[str, Any], units: Units
) -> Iterator[EvaluatedPair]:
    # Earlier versions wrote no sums for games against opponents.
    prefix = "team_" if units == "sum" else ""
    lines = [(str(of["policy"]), TOGETHER, "", int(of["episodes"]), of) for of in data["policies"]]
    for of in data["results"]:
        names = str(of["member"]), str(of["opponent"])
        lines.append((*names, "", int(of["games"]), of))
        lines += [(*names, str(side), int(one["games"]), one) for side, one in of["as"].items()]
    ended_s = number(data, "ended_s")
    # Evaluations of earlier versions have no time in them.
    ended = datetime.fromtimestamp(path.stat().st_mtime if ended_s is None else ended_s, UTC)
    seed = number(data, "seed")
    changed = ", ".join(f"env.{name}={value}" for name, value in data.get("env", {}).items())
    for member, opponent, side, episodes, of in lines:
        yield EvaluatedPair(
            group,
            run,
            int(path.stem),
            member,
            opponent,
            side,
            episodes,
            _interval(of, f"{prefix}return"),
            number(of, f"{prefix}iqm"),
            number(of, "length"),
            tuple(_interval(of, name) if _has_winners(of) else None for name in _OUTCOMES),
            _mode(data, member),
            None if seed is None else int(seed),
            str(data["checkpoint"]),
            changed,
            ended,
            units,
        )


def _has_winners(values: Mapping[str, Any]) -> bool:
    # Files of earlier versions have the other key, and still earlier ones neither.
    return bool(values.get("has_winners", values.get("constant_sum", True)))


def _interval(values: Mapping[str, Any], name: str) -> BootstrapInterval | None:
    value = number(values, name, "value")
    return (
        None if value is None else BootstrapInterval(value, number(values, name, "low"), number(values, name, "high"))
    )


def _mode(data: Mapping[str, Any], member: str) -> str:
    """Return how a member acted; "" if the file does not say."""
    modes = data.get("modes")
    acts = section(data, "members", member).get("acts")
    known = modes if isinstance(modes, str) else section(data, "modes").get(member) or data.get("mode") or acts
    return known if isinstance(known, str) else ""
