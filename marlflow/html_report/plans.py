"""The plan of a run as boxes of stages, read from the Mermaid flowchart in its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_BOX = re.compile(r'\s*subgraph \w+\["(?P<title>.*)"\]')
_NODE = re.compile(r'\s*(?P<id>\w+)(?P<shape>\(\[|\[\(|\[/|\{\{|\[)"(?P<label>.*)"')
_ARROW = re.compile(r'\s*(?P<start>\w+) -\.?->(?:\|"(?P<text>.*)"\|)? (?P<end>\w+)$')
_ENTITIES = {"#quot;": '"', "#lt;": "<", "#gt;": ">", "<br/>": "\n", "#35;": "#"}


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage in a drawn plan: its label and place, and arrows that lead elsewhere than to the next stage."""

    label: str
    place: str
    is_queue: bool
    arrows: tuple[str, ...]


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
