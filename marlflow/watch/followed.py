"""A run as it grows: what its folder has, and what was added since. Nothing in it is imported or changed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from marlflow.base.links import check_links
from marlflow.html_report.runs import PLAN, configuration, number, section
from marlflow.html_report.stages import PlanBox, PlanStage, plan_boxes
from marlflow.observe.sinks import METRICS
from marlflow.runs.run_state import UNKNOWN, is_stop_requested, run_state
from marlflow.runs.saved_runs import EXPERIMENT
from marlflow.watch.films import Film, newest_film

LOG: Final = "run.log"
MOST_POINTS: Final = 400
"""Points of a curve that are sent; of more, every second one is left out, again and again."""
_LOG_BYTES, _LOG_LINES = 16_384, 12
_STATES = ("busy", "starved", "blocked")


_Kind: TypeAlias = Literal["return", "length", "info", "loss"]


class CurveName(NamedTuple):
    """The metric of a policy, or of a learner, that a curve shows."""

    kind: _Kind
    metric: str
    owner: str


@dataclass
class Curve:
    """One metric over env steps, of which at most MOST_POINTS points are kept, at equal distances, and the last one."""

    kept: list[tuple[int, float]] = field(default_factory=list)
    every: int = 1
    seen: int = 0
    last: tuple[int, float] = (0, 0.0)

    def add(self, env_steps: int, value: float) -> None:
        """Add a point."""
        self.last = env_steps, value
        if self.seen % self.every == 0:
            self.kept.append(self.last)
        self.seen += 1
        if len(self.kept) > MOST_POINTS:
            self.kept, self.every = self.kept[::2], self.every * 2

    @property
    def points(self) -> list[tuple[int, float]]:
        """The points to draw."""
        return self.kept if self.kept[-1:] == [self.last] else [*self.kept, self.last]


class FollowedRun:
    """What is known of a run in `folder`; `read()` adds what was written since the last call."""

    def __init__(self, folder: Path, name: str) -> None:
        check_links(folder)
        self.folder, self.name = folder, name
        self.state = UNKNOWN
        self.boxes: Sequence[PlanBox] = ()
        self.log: Sequence[str] = ()
        self.config: Mapping[str, Any] = {}
        self.film: Film | None = None
        self.is_stopping = False
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._forget()

    def _forget(self) -> None:
        self.curves: dict[CurveName, Curve] = {}
        self.last: Mapping[str, Any] = {}
        self.before: Mapping[str, Any] = {}
        self._offset, self._last_line = 0, b""

    def read(self) -> bool:
        """Read new reports, the plan, the state and the end of the log; return whether anything has changed."""
        changed = self._read_reports()
        now = run_state(self.folder), newest_film(self.folder), is_stop_requested(self.folder)
        if now != (self.state, self.film, self.is_stopping):
            (self.state, self.film, self.is_stopping), changed = now, True
        if self._is_new(PLAN):
            self.boxes, changed = plan_boxes(_text(self.folder / PLAN)), True
        if self._is_new(EXPERIMENT):
            self.config, changed = configuration(self.folder)[0], True
        if self._is_new(LOG):
            self.log, changed = _end_of(self.folder / LOG), True
        return changed

    def _is_new(self, name: str) -> bool:
        try:
            status = (self.folder / name).stat()
        except OSError:
            return False
        before = self._stamps.get(name)
        self._stamps[name] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return before != self._stamps[name]

    def _read_reports(self) -> bool:
        before = self._stamps.get(METRICS)
        if not self._is_new(METRICS):
            return False
        try:
            with (self.folder / METRICS).open("rb") as file:
                # A resumed run drops the reports after its checkpoint; another file in place of it has none of them.
                # It may have grown again since, so the last line that was read is compared, too.
                is_shorter = file.seek(0, 2) < self._offset
                file.seek(max(0, self._offset - len(self._last_line)))
                is_another = file.read(len(self._last_line)) != self._last_line
                if is_shorter or is_another or (before and before[0] != self._stamps[METRICS][0]):
                    self._forget()
                file.seek(self._offset)
                lines = file.read().split(b"\n")
        except OSError:
            # It was removed, or cannot be read for now: it is looked at again.
            del self._stamps[METRICS]
            return False
        # After the last newline is a line that is still being written.
        self._offset += sum(len(line) + 1 for line in lines[:-1])
        for line in lines[:-1]:
            self._last_line = line + b"\n"
            self._add(line)
        return True

    def _add(self, line: bytes) -> None:
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            return  # `marlflow report` tells of a damaged file; a page that follows goes on with the next line
        if not isinstance(report, dict) or (env_steps := number(report, "env_steps")) is None:
            return
        self.before, self.last = self.last, report
        for name, at, value in _measured(report):
            self.curves.setdefault(name, Curve()).add(int(env_steps if at is None else at), value)

    # -- what the page shows ----------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return what the table of runs and the curves of several runs need."""
        returns = {name: curve for name, curve in self.curves.items() if name.kind == "return"}
        return {
            "name": self.name,
            "state": self.state.name,
            "reason": self.state.reason,
            "is_stopping": self.is_stopping,
            "env_steps": number(self.last, "env_steps") or 0,
            "of_env_steps": number(self.config, "stop", "env_steps"),
            "time_s": number(self.last, "time_s") or 0.0,
            "env_steps_per_s": self._rate(self.last.get("env_steps"), self._compared.get("env_steps")),
            "faults": {name: count for name, count in section(self.last, "faults").items() if number(count)},
            "returns": _pictures(returns),
        }

    def details(self) -> dict[str, Any]:
        """Return all that the page shows of one run: curves, the plan with its figures, log and configuration."""
        return {
            "curves": _pictures(self.curves),
            "plan": [self._box(box) for box in self.boxes],
            "film": None if self.film is None else self._film(self.film),
            "log": list(self.log),
            "config": list(_flat(self.config)),
        }

    @staticmethod
    def _film(film: Film) -> dict[str, Any]:
        # What is new has another address, so that a browser asks for it.
        return {
            "name": film.path.name,
            "env_steps": film.env_steps,
            "type": film.media_type,
            "written": str(film.written_ns),
        }

    def _box(self, box: PlanBox) -> dict[str, Any]:
        stages = section(self.last, "stages")
        plans = (key.rpartition("/")[0] for key in stages)
        # The name of another policy may begin the title, too: that of `red` begins `red-2: dqn`.
        plan = max((plan for plan in plans if _is_named(box.title, plan)), key=len, default="")
        return {"title": box.title, "rows": [[self._stage(plan, stage) for stage in row] for row in box.rows]}

    def _stage(self, plan: str, stage: PlanStage) -> dict[str, Any]:
        of_plan = (key for key in section(self.last, "stages") if key.rpartition("/")[0] == plan)
        key = next((key for key in of_plan if _is_named(stage.label, key.rpartition("/")[2])), "")
        now, before = section(self.last, "stages", key), section(self._compared, "stages", key)
        shares = {name: self._rate(now.get(f"{name}_s"), before.get(f"{name}_s")) for name in _STATES}
        return {
            "label": stage.label,
            "at": stage.place,
            "queue": stage.is_queue,
            "arrows": list(stage.arrows),
            "items_per_s": self._rate(now.get("items"), before.get("items")),
            "rows_per_s": self._rate(now.get("rows"), before.get("rows")),
            "dropped": number(now, "rows_dropped") or 0,
            # It was counted when the report was made: of a run that has ended, it says nothing.
            "waiting": number(now, "waiting") if self.state.name == "running" else None,
            "capacity": stage.capacity,
            **shares,
        }

    @property
    def _compared(self) -> Mapping[str, Any]:
        return self.before if self.state.name == "running" else {}

    def _rate(self, now: object, before: object) -> float | None:
        """Return the change per second between the last two reports, or over a run that has ended; None if unknown."""
        seconds = (number(self.last, "time_s") or 0.0) - (number(self._compared, "time_s") or 0.0)
        value = number(now)
        return None if value is None or seconds <= 0 else max(0.0, (value - (number(before) or 0.0)) / seconds)


def _pictures(curves: Mapping[CurveName, Curve]) -> list[dict[str, Any]]:
    """Return what the page draws: a title, and a line of points for each policy."""
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, curve in curves.items():
        series.setdefault((name.kind, name.metric), []).append({"name": name.owner, "points": curve.points})
    # An info and a loss may have one name, or that of a return.
    often = Counter(metric for _, metric in series)
    titled = [(metric if often[metric] == 1 or kind == "return" else f"{metric} ({kind})") for kind, metric in series]
    return [{"title": title, "series": lines} for title, lines in zip(titled, series.values(), strict=True)]


def _measured(report: Mapping[str, Any]) -> Iterator[tuple[CurveName, float | None, float]]:
    """Yield the numbers of a report that have curves, each with its env steps and its value.

    The env steps of None are the report's. Those of an evaluation are earlier, if it was made between two reports.
    """
    for policy, values in section(report, "policies").items():
        evaluated_at = number(values, "eval_env_steps")
        named: list[tuple[_Kind, str, float | None, float | None]] = [
            ("return", "return", None, number(values, "return_mean")),
            ("return", "return in evaluation", evaluated_at, number(values, "eval_return_mean")),
            ("length", "episode length", None, number(values, "episode_env_steps_mean")),
            *(("info", name, None, number(value)) for name, value in section(values, "infos").items()),
        ]
        yield from ((CurveName(kind, name, policy), at, value) for kind, name, at, value in named if value is not None)
    for learner, values in section(report, "learners").items():
        losses = [(name, number(value)) for name, value in section(values, "loss").items()]
        yield from ((CurveName("loss", name, learner), None, value) for name, value in losses if value is not None)


def _is_named(label: str, name: str) -> bool:
    """Return whether a label in a drawn plan, such as `Concat(agent_steps=64)`, is that of `name`."""
    return bool(name) and label.startswith(name) and not re.match(r"\w", label[len(name) :])


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", json.dumps(value, default=str)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _end_of(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_BYTES))
            return file.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
