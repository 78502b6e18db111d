"""Random plans as data, and the plans built from them, whose every operator writes down what it took and gave.

A specification is only whole numbers, so hypothesis can shrink it, and the same one builds the same plan twice. An
operator answers at once, or with a coroutine that lets the event loop go round a given number of times first: so
results land in an order that the specification decides, and nothing sleeps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from hypothesis import strategies as st

import marlflow as mf
from marlflow.flow import Feed, Outcome, Pace, StageCall, StageTimes, Together, merge, together

SMALL = st.integers(0, 11)


@dataclass(frozen=True)
class Spec:
    """The specification of a random plan. Each action is a kind and four numbers, whose meaning depends on the kind."""

    sources: list[tuple[int, int]]
    actions: list[tuple[str, int, int, int, int]]
    ending: tuple[int, int, int]
    hops: list[int]
    rows: list[int]
    plans: int
    rounds: int
    stop_after: int | None
    end_plan_after: int | None


KINDS = ("then", "placed", "placed", "filter", "regroup", "split", "fork", "queue", "merge", "merge")


def specs(hops: int, plans: int = 3) -> st.SearchStrategy[Spec]:
    """Specifications whose operators take up to `hops` rounds of the event loop to answer."""
    return st.builds(
        Spec,
        sources=st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=3),
        actions=st.lists(st.tuples(st.sampled_from(KINDS), SMALL, SMALL, SMALL, SMALL), max_size=9),
        ending=st.tuples(SMALL, SMALL, SMALL),
        hops=st.lists(st.integers(0, hops), min_size=1, max_size=7),
        rows=st.lists(st.integers(0, 9), min_size=1, max_size=5),
        plans=st.integers(0, plans),
        rounds=SMALL,
        stop_after=st.integers(0, 60),
        end_plan_after=st.none() | st.integers(0, 40),
    )


@dataclass(eq=False)
class Token:
    """An item; known by who it is."""

    rows: int
    by: Operator | None = None


@dataclass(frozen=True, init=False)
class Watched(mf.InTurn):
    """An InTurn whose ledger writes down who took turns and who left."""

    def __init__(self, **shares: int | mf.AgentSteps) -> None:
        super().__init__(**shares)
        object.__setattr__(self, "log", [])

    def ledger(self) -> Any:
        inner, log = super().ledger(), self.log
        took, leave = inner.took, inner.leave

        def logged_took(side: str, rows: int) -> None:
            log.append(("took", side, rows))
            took(side, rows)

        def logged_leave(side: str) -> None:
            log.append(("leave", side, 0))
            leave(side)

        inner.took, inner.leave = logged_took, logged_leave  # type: ignore[method-assign]
        return inner


class Operator:
    """Takes tokens, gives new ones, and remembers both."""

    traits = mf.Traits(at_most_one=True, publishes=True)

    def __init__(self, built: Built, name: str, bits: tuple[int, int]) -> None:
        self.built, self.name, self.bits = built, name, bits
        self.taken: list[Token] = []
        self.given: list[tuple[Any, Token]] = []
        built.operators.append(self)

    def make(self, branch: Any = None) -> Token:
        rows = self.built.spec.rows
        token = Token(rows[len(self.given) % len(rows)], self)
        self.given.append((branch, token))
        return token

    def answer(self, value: Callable[[], Any]) -> Any:
        hops = self.built.hops()
        return value() if hops == 0 else _later(value, hops)


async def _later(value: Callable[[], Any], hops: int) -> Any:
    for _ in range(hops):
        await asyncio.sleep(0)
    return value()


class Read(Operator):
    """A source of `count` tokens, or of tokens without end."""

    count: int | None = None
    asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        if self.count is not None and self.asked > self.count:
            return self.answer(self.end)
        return self.answer(self.make)

    def end(self) -> Any:
        raise mf.EndOfFlow


class Change(Operator):
    """One new token for each."""

    def __call__(self, token: Token) -> Any:
        self.taken.append(token)
        return self.answer(self.make)


class Placed(Operator):
    """One new token for each, made in one call with its neighbors."""

    def __call__(self, token: Token) -> Token:
        self.taken.append(token)
        return self.make()


@dataclass(eq=False)
class RandomPlace:
    """Runs stages here, and answers at once or later; it is what they run at, too."""

    built: Built
    name: str = "place"

    @property
    def place(self) -> RandomPlace:
        return self

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Token]], Any]:
        def run(items: Sequence[Token]) -> Outcome:
            times = [StageTimes(0.0, 0.0, 0) for _ in calls]
            return Outcome([reduce(lambda token, call: call(token), calls, item) for item in items], times)

        return lambda items: calls[0].operator.answer(lambda: run(items))


class Filter(Operator):
    """One new token for every second or third."""

    def add(self, token: Token) -> list[Token]:
        self.taken.append(token)
        return [self.make()] if len(self.taken) % (2 + self.bits[0] % 2) == 0 else []


class Regroup(Operator):
    """None, one or two new tokens for each."""

    traits = mf.Traits(publishes=True)

    def add(self, token: Token) -> list[Token]:
        self.taken.append(token)
        return [self.make() for _ in range((len(self.taken) + self.bits[0]) % 3)]


class Route(Operator):
    """Each token to one branch, or to none, or a token to each."""

    branches: tuple[Any, ...] = ()

    def __call__(self, token: Token) -> Iterator[tuple[Any, Token]]:
        self.taken.append(token)
        turn = len(self.taken) * (1 + self.bits[0]) + self.bits[1]
        chosen = self.branches if turn % 5 == 0 else (self.branches[turn % len(self.branches)],) if turn % 7 else ()
        return iter([(branch, self.make(branch)) for branch in chosen])


_CLASSES: dict[str, type[Operator]] = {"filter": Filter, "regroup": Regroup, "placed": Placed}


@dataclass(frozen=True)
class Wire:
    """The way of tokens from one operator to its consumers: by which branch, through which buffers and merges."""

    producer: Operator
    branch: Any
    buffers: tuple[str, ...]

    def through(self, buffer: str) -> Wire:
        """The same way, through one buffer more."""
        return replace(self, buffers=(*self.buffers, buffer))


@dataclass
class Built:
    """A plan, its operators, and between whom tokens travel."""

    spec: Spec
    operators: list[Operator] = field(default_factory=list)
    wires: dict[Operator | str, list[Wire]] = field(default_factory=dict)
    paces: list[Watched] = field(default_factory=list)
    outputs: dict[str, list[Token]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    plan_name: str = "alone"
    answers: int = 0
    waiting: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = RandomPlace(self)

    def hops(self) -> int:
        self.answers += 1
        return self.spec.hops[self.answers % len(self.spec.hops)]

    def name(self, kind: str) -> str:
        self.counts[kind] += 1
        return f"{kind}{self.counts[kind]}"

    def build(self) -> mf.Plan | Together:
        if self.spec.plans == 0:
            sources = [self.read(*bits) for bits in self.spec.sources]
            return self.plan("alone", sources)
        collect, wires = self.read(*self.spec.sources[0])
        names = tuple(f"p{number}" for number in range(self.spec.plans))
        self.plan_name = "rollouts"
        route = self.operator(Route, self.spec.sources[0])
        route.branches, route.name = names, "Route"
        self.wires[route] = wires
        feeds = {
            name: Feed(1 + i, "wait" if i % 3 else "drop_oldest") for i, name in enumerate(names, self.spec.rounds)
        }

        def builder(number: int, name: str) -> Callable[[mf.Flow[Any]], mf.Plan]:
            def build(flow: mf.Flow[Any]) -> mf.Plan:
                self.plan_name = name
                wire = Wire(route, name, (f"{name}/queue",))
                own = [self.read(*bits) for bits in self.spec.sources[1:]] if number == 0 else []
                waits = number % 2 == 0 and self.spec.rounds % 4 < 3
                self.waiting += [name] if waits else []
                return self.plan(name, [(flow, [wire]), *own], waits)

            return build

        builders = {name: builder(number, name) for number, name in enumerate(names)}
        return together(collect, route, builders, feeds, "overlap" if self.spec.rounds % 2 else "lockstep")

    def operator(self, kind: type[Any], bits: tuple[int, int]) -> Any:
        return kind(self, self.name(kind.__name__), bits)

    def read(self, count: int, hops: int) -> tuple[mf.Flow[Any], list[Wire]]:
        operator = self.operator(Read, (count, hops))
        operator.count = None if count == 0 else count
        return mf.source(operator, name=operator.name), [Wire(operator, None, ())]

    def plan(self, name: str, pool: list[tuple[mf.Flow[Any], list[Wire]]], waits: bool = False) -> mf.Plan:
        for action in self.spec.actions:
            self.act(pool, action)
        also = {}
        while len(pool) > 1:
            flow, wires = pool.pop(0)
            tap = self.operator(Change, (0, 0))
            self.wires[tap] = wires
            also[f"side{len(also)}"] = flow.then(tap, name=tap.name)
        output, self.wires[name] = pool[0]
        sides = (*also, "output")
        pace = self.pace(sides, *self.spec.ending) if also else None
        return mf.Plan(name, output, also, pace, waits_for_rounds=waits)

    def pace(self, sides: tuple[str, ...], kind: int, per: int, starts: int) -> Pace:
        if kind % 3 == 0:
            return mf.Freely()
        shares: dict[str, int | mf.AgentSteps] = {side: 1 + (per + i) % 3 for i, side in enumerate(sides)}
        if kind % 3 == 1:
            shares[sides[0]] = mf.AgentSteps(1 + per, starts)
        self.paces.append(Watched(**shares))
        return self.paces[-1]

    def act(self, pool: list[tuple[mf.Flow[Any], list[Wire]]], action: tuple[str, int, int, int, int]) -> None:
        kind, pick, *bits = action
        if kind == "merge" and len(pool) > 1:
            self.merge(pool, pick, bits)
            return
        flow, wires = pool.pop(pick % len(pool))
        full: Any = "wait" if bits[1] % 3 else "drop_oldest"
        capacity, where = 1 + bits[0] % 3, self.plan_name
        if kind == "queue":
            name = self.name("queue_")
            pool.append((flow.queue(capacity, full, name), [w.through(f"{where}/{name}") for w in wires]))
        elif kind == "fork":
            name = self.name("fork_")
            for i, env_index in enumerate(flow.fork(2, capacity, full, name)):
                pool.append((env_index, [w.through(f"{where}/{name}[{i}]") for w in wires]))
        elif kind == "split":
            route = self.operator(Route, (bits[0], bits[1]))
            route.branches = ("x", "y")
            self.wires[route] = wires
            for branch, routed in flow.split(route, route.branches, name=route.name).items():
                pool.append((routed, [Wire(route, branch, ())]))
        else:
            operator = self.operator(_CLASSES.get(kind, Change), (bits[0], bits[1]))
            self.wires[operator] = wires
            pool.append((self.stage(flow, operator), [Wire(operator, None, ())]))

    def stage(self, flow: mf.Flow[Any], operator: Any) -> mf.Flow[Any]:
        if isinstance(operator, Placed):
            return flow.then(operator, at=self.place, name=operator.name)
        if isinstance(operator, Change):
            return flow.then(operator, name=operator.name)
        return flow.gather(operator, name=operator.name)

    def merge(self, pool: list[tuple[mf.Flow[Any], list[Wire]]], pick: int, bits: list[int]) -> None:
        taken = [pool.pop(pick % len(pool)) for _ in range(min(len(pool), 2 + bits[2] % 2))]
        sides = tuple(f"s{number}" for number in range(len(taken)))
        flows = dict(zip(sides, (flow for flow, _ in taken), strict=True))
        name = self.name("merge_")
        wires = [w.through(f"{self.plan_name}/{name}") for _, side in taken for w in side]
        pool.append((merge(self.pace(sides, *bits), name, **flows), wires))
