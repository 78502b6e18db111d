"""A plan as a tree of text and as a Mermaid flowchart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.operators import place_of
from marlflow.flow.plan import AnyPlan, Plan, Together, all_stages, owners

_SHAPES = {
    Kind.SOURCE: ("([", "])"),
    Kind.GATHER: ("[/", "/]"),
    Kind.SPLIT: ("{{", "}}"),
    Kind.FORK: ("{{", "}}"),
    Kind.MERGE: ("{{", "}}"),
    Kind.QUEUE: ("[(", ")]"),
}


def label(stage: Flow[Any]) -> str:
    """A stage in a few words: its name, what it was given, how much it holds."""
    if stage.kind is Kind.QUEUE:
        return f"{stage.name}({stage.capacity}, {stage.full})"
    if stage.kind is Kind.FORK:
        return f"fork({len(stage.branches)}, capacity={stage.capacity}, {stage.full})"
    if stage.kind is Kind.MERGE:
        return f"{stage.name}: {stage.pace}"
    own_name = stage.shown.split("(")[0] == stage.name
    return stage.shown if own_name else f"{stage.name}: {stage.shown}"


def tree(plan: AnyPlan) -> str:
    """The plan as indented text, one line for each stretch of stages in one place."""
    return "\n".join(_together(plan) if isinstance(plan, Together) else _plan(plan, frozenset()))


def _together(plan: Together) -> Iterator[str]:
    waiting = [one.name for one in plan.plans if one.waits_for_rounds]
    yield f"together, in rounds: {plan.rounds}" + (f", which wait for {', '.join(waiting)}" if waiting else "")
    yield "├── " + " → ".join(_stretches(plan.source, frozenset()))
    for number, one in enumerate(plan.plans, 1):
        last = number == len(plan.plans)
        lines = list(_plan(one, plan.shared))
        yield ("└── " if last else "├── ") + lines[0]
        yield from (("    " if last else "│   ") + line for line in lines[1:])


def _plan(plan: Plan, shared: frozenset[int]) -> Iterator[str]:
    title = f": {plan.title}" if plan.title and plan.title != plan.name else ""
    yield f"plan {plan.name}{title}" + (f"   {plan.pace}" if plan.pace is not None else "")
    ends = plan.ends()
    drawn: set[int] = set()
    for number, (side, end) in enumerate(ends.items(), 1):
        last = number == len(ends)
        lines = list(_flow(end, shared, drawn))
        yield ("└── " if last else "├── ") + f"{side}: {lines[0]}"
        yield from (("    " if last else "│   ") + line for line in lines[1:])


def _flow(end: Flow[Any], shared: frozenset[int], drawn: set[int]) -> Iterator[str]:
    line = _line(end, shared)
    head = line[0]
    yield " → ".join(_stretches(end, shared))
    if head.kind is Kind.MERGE:
        for number, (side, before) in enumerate(zip(head.sides, head.inputs, strict=True), 1):
            last = number == len(head.sides)
            lines = list(_flow(before, shared, drawn))
            yield ("└── " if last else "├── ") + f"{side}: {lines[0]}"
            yield from (("    " if last else "│   ") + rest for rest in lines[1:])
    elif head.kind is Kind.BRANCH and head.inputs[0].kind is Kind.FORK:
        fork = head.inputs[0]
        if id(fork) in drawn:
            yield f"└── from the same {label(fork)}"
            return
        drawn.add(id(fork))
        lines = list(_flow(fork, shared, drawn))
        yield f"└── from {lines[0]}"
        yield from ("    " + rest for rest in lines[1:])


def _line(end: Flow[Any], shared: frozenset[int]) -> list[Flow[Any]]:
    """The stages in a row that lead to `end`, back to where the row begins."""
    line = [end]
    while len(line[0].inputs) == 1 and line[0].kind is not Kind.MERGE:
        before = line[0].inputs[0]
        if id(before) in shared or (line[0].kind is Kind.BRANCH and before.kind is Kind.FORK):
            break
        line.insert(0, before)
    return line


def _stretches(end: Flow[Any], shared: frozenset[int]) -> Iterator[str]:
    """Labels in order; neighbours of one place stand together in brackets, with the place."""
    group: list[str] = []
    at = None
    for stage in _line(end, shared):
        place = place_of(stage.operator)
        if group and place is not at:
            yield _bracket(group, at)
            group = []
        at = place
        if stage.kind is Kind.BRANCH:
            yield f"[{stage.branch}]"
        elif place is None:
            yield label(stage)
        else:
            group.append(label(stage))
    if group:
        yield _bracket(group, at)


def _bracket(group: list[str], place: Any) -> str:
    return f"[{' → '.join(group)}] at {place.name}"


def mermaid(plan: AnyPlan) -> str:
    """The plan as a Mermaid flowchart, one box for each plan."""
    stages, owner = all_stages(plan), owners(plan)
    ids = {id(stage): f"s{number}" for number, stage in enumerate(stages)}
    lines = ["flowchart LR"]
    for name in dict.fromkeys(owner[id(stage)] for stage in stages):
        lines.append(f'  subgraph {_identifier(name)}["{_title(plan, name)}"]')
        for stage in stages:
            if owner[id(stage)] == name and stage.kind is not Kind.BRANCH:
                left, right = _SHAPES.get(stage.kind, ("[", "]"))
                lines.append(f'    {ids[id(stage)]}{left}"{_escape(_with_place(stage))}"{right}')
        lines.append("  end")
    lines += [f"  {arrow}" for stage in stages for arrow in _arrows(stage, ids)]
    return "\n".join(lines) + "\n"


def _arrows(stage: Flow[Any], ids: dict[int, str]) -> Iterator[str]:
    if stage.kind is Kind.BRANCH:
        return
    for position, before in enumerate(stage.inputs):
        text = stage.sides[position] if stage.kind is Kind.MERGE else ""
        while before.kind is Kind.BRANCH:
            text = str(before.branch) if before.inputs[0].kind is Kind.SPLIT else text
            before = before.inputs[0]
        yield f"{ids[id(before)]} -->{f'|{text}|' if text else ''} {ids[id(stage)]}"


def _title(plan: AnyPlan, name: str) -> str:
    for one in plan.plans if isinstance(plan, Together) else (plan,):
        if one.name == name:
            title = f"{name}: {one.title}" if one.title and one.title != name else name
            return _escape(f"{title} ({one.pace})" if one.pace is not None else title)
    return _escape(f"{name} ({plan.rounds})" if isinstance(plan, Together) else name)


def _with_place(stage: Flow[Any]) -> str:
    place = place_of(stage.operator)
    return f"{label(stage)}\n{place.name}" if place is not None else label(stage)


def _identifier(name: str) -> str:
    return "p_" + re.sub(r"\W", "_", name)


def _escape(text: str) -> str:
    return text.replace('"', "#quot;").replace("\n", "<br/>")
