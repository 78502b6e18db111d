"""The plan of a run as boxes of stages, and speed, time shares of stages and faults of groups of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marlflow.html_report.groups import RunGroup
from marlflow.html_report.runs import ReportedRun, number, section

_BOX = re.compile(r'\s*subgraph \w+\["(?P<title>.*)"\]')
_NODE = re.compile(r'\s*(?P<id>\w+)(?P<shape>\(\[|\[\(|\[/|\{\{|\[)"(?P<label>.*)"')
_ARROW = re.compile(r'\s*(?P<start>\w+) -\.?->(?:\|"(?P<text>.*)"\|)? (?P<end>\w+)$')
_CAPACITY = re.compile(r"\((?P<items>\d+)(, drop_oldest)?\)$")
_ENTITIES = {"#quot;": '"', "#lt;": "<", "#gt;": ">", "<br/>": "\n", "#35;": "#"}


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage in a drawn plan: its label and place, and arrows that lead elsewhere than to the next stage."""

    label: str
    place: str
    is_queue: bool
    arrows: tuple[str, ...]

    @property
    def capacity(self) -> int | None:
        """Items that fit into a queue, which its label has: `newest(4, drop_oldest)`; None for other stages."""
        found = _CAPACITY.search(self.label) if self.is_queue else None
        return int(found["items"]) if found else None


@dataclass(frozen=True, slots=True)
class PlanBox:
    """One plan, as rows of stages, each of which feeds the next one in its row."""

    title: str
    rows: tuple[tuple[PlanStage, ...], ...]


def plan_boxes(mermaid: str) -> list[PlanBox]:
    """Return the plans of a run's plan.mmd; empty for a text of another form."""
    titles, members = list[str](), list[list[str]]()
    labels, queues = dict[str, str](), set[str]()
    arrows = list[tuple[str, str, str]]()
    for line in mermaid.splitlines():
        if box := _BOX.fullmatch(line):
            titles.append(_unescaped(box["title"]))
            members.append([])
        elif arrow := _ARROW.fullmatch(line):
            arrows.append((arrow["start"], arrow["end"], _unescaped(arrow["text"] or "")))
        elif members and (node := _NODE.match(line)):
            labels[node["id"]] = _unescaped(node["label"])
            members[-1].append(node["id"])
            queues |= {node["id"]} if node["shape"] == "[(" else set()
    return [
        PlanBox(title, tuple(tuple(row) for row in _rows(of, labels, queues, arrows)))
        for title, of in zip(titles, members, strict=True)
    ]


def _rows(
    members: Sequence[str], labels: dict[str, str], queues: set[str], arrows: Sequence[tuple[str, str, str]]
) -> Iterator[list[PlanStage]]:
    linked = {(start, end) for start, end, text in arrows if not text}
    row = list[PlanStage]()
    for place, one in enumerate(members):
        following = members[place + 1] if place + 1 < len(members) else ""
        elsewhere = tuple(
            text or labels.get(end, "").partition("\n")[0]
            for start, end, text in arrows
            if start == one and (text or end != following)
        )
        label, _, at = labels[one].partition("\n")
        row.append(PlanStage(label, at, one in queues, elsewhere))
        if (one, following) not in linked:
            yield row
            row = []


def _unescaped(text: str) -> str:
    for sign, meaning in _ENTITIES.items():
        text = text.replace(sign, meaning)
    return text


_STATES = ("busy_s", "starved_s", "blocked_s")


@dataclass(frozen=True, slots=True)
class StageShare:
    """Shares of a run's time that a stage was busy, waited for input and waited for room; means over runs.

    They do not add up to 1 where calls of a stage overlap, or a stage has several processes.
    """

    plan: str
    stage: str
    busy: float
    starved: float
    blocked: float


@dataclass(frozen=True, slots=True)
class GroupSpeed:
    """Env steps per second and seconds, means over the runs of a group; both include evaluations."""

    env_steps_per_s: float | None
    time_s: float


def speed(group: RunGroup) -> GroupSpeed:
    """Return the speed of a group."""
    rates = [run.env_steps / run.time_s for run in group.runs if run.time_s > 0]
    return GroupSpeed(_mean(rates) if rates else None, _mean([run.time_s for run in group.runs]))


def stage_shares(group: RunGroup) -> list[StageShare]:
    """Return the shares of all stages that have times, in the order of their plans."""
    runs = [run for run in group.runs if run.time_s > 0]
    names = dict.fromkeys(name for run in runs for name in section(run.last, "stages"))
    shares = list[StageShare]()
    for name in names:
        of_runs = [run for run in runs if name in section(run.last, "stages")]
        busy, starved, blocked = (
            _mean([(number(run.last, "stages", name, state) or 0.0) / run.time_s for run in of_runs])
            for state in _STATES
        )
        if busy or starved or blocked:
            plan, _, stage = name.rpartition("/")
            shares.append(StageShare(plan, stage, busy, starved, blocked))
    return shares


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def faults(run: ReportedRun) -> dict[str, int]:
    """Return the faults of a run that were counted, by name."""
    names = section(run.last, "faults")
    return {name: int(count) for name in names if (count := number(run.last, "faults", name))}
