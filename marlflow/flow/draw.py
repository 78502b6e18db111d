"""Plans as a text tree and as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from marlflow.flow.flow import Flow, Kind
from marlflow.flow.plan import AnyPlan, Plan, Together, WorkBetweenRounds, all_stages, owners, plans_of

_SHAPES = {
    Kind.SOURCE: ("([", "])"),
    Kind.GATHER: ("[/", "/]"),
    Kind.SPLIT: ("{{", "}}"),
    Kind.FORK: ("{{", "}}"),
    Kind.MERGE: ("{{", "}}"),
    Kind.QUEUE: ("[(", ")]"),
}


_ROW_WIDTH = 88


def label(stage: Flow[Any]) -> str:
    """Return a stage's name, settings and capacity."""
    full = "" if stage.full == "wait" else f", {stage.full}"
    if stage.kind is Kind.QUEUE:
        return f"{stage.name}({stage.capacity}{full})"
    if stage.kind is Kind.FORK:
        return f"{stage.name}({len(stage.branches)}, capacity={stage.capacity}{full})"
    if stage.kind is Kind.MERGE:
        return f"{stage.name}, {stage.pace}" + (f"; hands on {stage.emitted_side}" if stage.emitted_side else "")
    if stage.kind is Kind.BRANCH:
        return stage.name
    is_default_name = stage.description.split("(")[0] == stage.name
    return stage.description if is_default_name else f"{stage.name}: {stage.description}"


# -- the tree ---------------------------------------------------------------------------------------------------


def tree(plan: AnyPlan) -> str:
    """Render the plan as indented text, each row of stages above its inputs."""
    return "\n".join(_together(plan) if isinstance(plan, Together) else _plan(plan, frozenset()))


def _together(plan: Together) -> Iterator[str]:
    yield f"{plan.name}: {_round_text(plan)}"
    branches = [list(_rows(plan.source, frozenset(), set()))]
    branches += [list(_plan(member, plan.shared)) for member in plan.plans]
    branches += [list(_work(work)) for work in plan.between_rounds]
    for number, branch in enumerate(branches, 1):
        yield from _indented(branch, last=number == len(branches))


def _work(work: WorkBetweenRounds) -> Iterator[str]:
    yield f"{work.name}: {work.title}"
    width = max(len(name) for name, _, _ in work.rows) + 1
    for number, (name, steps, when) in enumerate(work.rows, 1):
        yield from _indented([f"{name + ':':{width}} {' → '.join(steps)}   {when}"], last=number == len(work.rows))


def _round_text(plan: Together) -> str:
    waiting = [member.name for member in plan.plans if member.waits_for_rounds]
    if plan.rounds == "asynchronous":
        return "asynchronous, each worker a round of its own"
    if not waiting:
        return "in rounds that wait for no plan"
    relation = "overlapping the learning of" if plan.rounds == "overlap" else "in lockstep with"
    return f"in rounds, {relation} {', '.join(waiting)}"


def _plan(plan: Plan, shared: frozenset[int]) -> Iterator[str]:
    yield _heading(plan) + (f"   {plan.pace}" if plan.pace is not None else "")
    ends = plan.ends()
    if len(ends) == 1:
        yield from _indented(list(_rows(plan.output, shared, set())), last=True)
    else:
        yield from _sides(ends, shared, set())


def _heading(plan: Plan) -> str:
    return f"{plan.name}: {plan.title}" if plan.title and plan.title != plan.name else plan.name


def _sides(ends: Mapping[str, Flow[Any]], shared: frozenset[int], drawn: set[int]) -> Iterator[str]:
    width = max(len(side) for side in ends)
    for number, (side, end) in enumerate(ends.items(), 1):
        first, *others = _rows(end, shared, drawn)
        yield from _indented([f"{side + ':':{width + 1}} {first}", *others], last=number == len(ends))


def _rows(end: Flow[Any], shared: frozenset[int], drawn: set[int]) -> Iterator[str]:
    row = _row(end, shared)
    yield from _wrap(_labels_by_place(row))
    yield from _feeding_rows(row[0], shared, drawn)


def _feeding_rows(head: Flow[Any], shared: frozenset[int], drawn: set[int]) -> Iterator[str]:
    if head.kind is Kind.MERGE:
        yield from _sides(dict(zip(head.sides, head.inputs, strict=True)), shared, drawn)
    elif head.kind is Kind.BRANCH and id(head.inputs[0]) not in shared:
        splitter = head.inputs[0]
        # A fork or split is drawn once; its other branches refer to it.
        if id(splitter) in drawn:
            yield f"└── of {splitter.name}, above"
            return
        drawn.add(id(splitter))
        first, *others = _rows(splitter, shared, drawn)
        yield from _indented([f"of {first}", *others], last=True)


def _indented(lines: Sequence[str], last: bool) -> Iterator[str]:
    yield ("└── " if last else "├── ") + lines[0]
    yield from (("    " if last else "│   ") + line for line in lines[1:])


def _row(end: Flow[Any], shared: frozenset[int]) -> list[Flow[Any]]:
    row = [end]
    while len(row[0].inputs) == 1 and row[0].kind not in (Kind.MERGE, Kind.BRANCH):
        before = row[0].inputs[0]
        # The plan's own part starts after the shared split.
        if before.kind is Kind.BRANCH and id(before) in shared:
            break
        row.insert(0, before)
    return row


def _wrap(labels: Iterable[str]) -> Iterator[str]:
    first, *others = labels
    line = first
    for text in others:
        if len(line) + len(text) > _ROW_WIDTH:
            yield line
            line = f"→ {text}"
        else:
            line += f" → {text}"
    yield line


def _labels_by_place(row: Sequence[Flow[Any]]) -> Iterator[str]:
    for place, stages in groupby(row, key=lambda stage: stage.place):
        labels = " → ".join(label(stage) for stage in stages)
        yield labels if place is None else f"[{labels}] at {place.name}"


# -- the flowchart ----------------------------------------------------------------------------------------------


def mermaid(plan: AnyPlan) -> str:
    """Render the plan as a Mermaid flowchart, one box per plan."""
    stages, owner = all_stages(plan), owners(plan)
    drawn = [stage for stage in stages if stage.kind is not Kind.BRANCH]
    ids = {id(stage): f"s{number}" for number, stage in enumerate(drawn)}
    lines = ["flowchart LR"]
    for number, name in enumerate(dict.fromkeys(owner[id(stage)] for stage in drawn)):
        lines.append(f'  subgraph p{number}["{_escaped(_title(plan, name))}"]')
        for stage in drawn:
            if owner[id(stage)] == name:
                left, right = _SHAPES.get(stage.kind, ("[", "]"))
                place = "" if stage.place is None else f"\nat {stage.place.name}"
                lines.append(f'    {ids[id(stage)]}{left}"{_escaped(label(stage) + place)}"{right}')
        lines.append("  end")
    lines += [f"  {arrow}" for stage in drawn for arrow in _arrows(stage, ids)]
    if isinstance(plan, Together):
        source = next(ids[id(stage)] for stage in drawn if stage.kind is Kind.SOURCE)
        for number, work in enumerate(plan.between_rounds):
            lines += _work_boxes(work, f"b{number}", source)
    return "\n".join(lines) + "\n"


def _work_boxes(work: WorkBetweenRounds, prefix: str, source: str) -> Iterator[str]:
    """Yield a box with a line of steps for each row; dotted arrows connect it with the source of rounds."""
    yield f'  subgraph {prefix}["{_escaped(f"{work.name}: {work.title}")}"]'
    for row, (_, steps, _) in enumerate(work.rows):
        for number, step in enumerate(steps):
            yield f'    {prefix}r{row}s{number}["{_escaped(step)}"]'
    yield "  end"
    for row, (name, steps, when) in enumerate(work.rows):
        ids = [f"{prefix}r{row}s{number}" for number, _ in enumerate(steps)]
        yield f'  {source} -.->|"{_escaped(f"{name}, {when}")}"| {ids[0]}'
        yield from (f"  {one} --> {other}" for one, other in pairwise(ids))
        yield f"  {ids[-1]} -.-> {source}"


def _arrows(stage: Flow[Any], ids: Mapping[int, str]) -> Iterator[str]:
    sides = stage.sides or [""] * len(stage.inputs)
    for side, before in zip(sides, stage.inputs, strict=True):
        splitter = before.inputs[0] if before.kind is Kind.BRANCH else before
        route = str(before.branch) if splitter.kind is Kind.SPLIT else ""
        text = ": ".join(part for part in (route, side) if part)
        yield f"{ids[id(splitter)]} -->" + (f'|"{_escaped(text)}"|' if text else "") + f" {ids[id(stage)]}"


def _title(plan: AnyPlan, name: str) -> str:
    if isinstance(plan, Together) and name == plan.name:
        return f"{name}, {_round_text(plan)}"
    member = next(member for member in plans_of(plan) if member.name == name)
    return _heading(member) + (f", {member.pace}" if member.pace is not None else "")


def _escaped(text: str) -> str:
    # Mermaid reads `#` and `;` as entities, and the browser reads `<` as a tag.
    signs = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "\n": "<br/>"}
    return "".join(signs.get(sign, sign) for sign in text)
