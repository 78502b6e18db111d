"""For any plan: no item is lost or doubled, bounds and ratios hold, runs are repeatable, and nothing hangs."""

import asyncio
from collections import Counter

from hypothesis import HealthCheck, event, given, settings

from marlflow.base.errors import Stalled
from marlflow.flow import AgentSteps, Executor, StageId, StageTimes
from marlflow.flow.check import problems
from tests.flow.random_plans import Built, Operator, Spec, Token, Watched, Wire, specs

SAFETY_NET_S = 60.0
MOST_EVENTS = 5_000
many = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Watch:
    """A hook that keeps every event, looks at each that nothing is over its bounds, and stops the run in time."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.events: list[tuple[str, str, int]] = []
        self.executor: Executor | None = None

    def before(self, stage: StageId, items: int) -> None:
        self.event("before", stage, items)

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        self.event("after", stage, items)

    def event(self, when: str, stage: StageId, items: int) -> None:
        self.events.append((when, str(stage), items))
        if len(self.events) > MOST_EVENTS:
            raise RuntimeError("this plan runs for ever")
        assert self.executor is not None
        for edge in self.executor._network.edges:
            assert len(edge.items) <= edge.capacity, f"{edge.stage} holds more than its capacity"
        spec = self.built.spec
        if when == "before" and str(stage) == "rollouts/Read1" and spec.rounds % 2 == 0:
            held = self.executor.held()
            assert not any(count for where, count in held.items() if where.split("/")[0] in self.built.waiting), held
        if len(self.events) == spec.stop_after:
            self.executor.stop()
        if len(self.events) == spec.end_plan_after and spec.plans > 0:
            self.executor.close_plan("p0")


def _run(spec: Spec) -> tuple[Built, Executor | None, Watch, Stalled | None]:
    built = Built(spec)
    plan = built.build()
    watch = Watch(built)
    if problems(plan):
        return built, None, watch, None
    executor = Executor(plan, lambda name, token: built.outputs.setdefault(name, []).append(token), hooks=[watch])
    watch.executor = executor
    if spec.stop_after == 0:
        executor.stop()
    try:
        asyncio.run(asyncio.wait_for(executor.run(), SAFETY_NET_S))
    except Stalled as error:
        return built, executor, watch, error
    return built, executor, watch, None


@many
@given(specs(hops=4))
def test_awaited_operators_landing_in_any_order(spec: Spec) -> None:
    _hold(*_run(spec))


@many
@given(specs(hops=0))
def test_operators_that_return_at_once(spec: Spec) -> None:
    built, executor, watch, stalled = _run(spec)
    _hold(built, executor, watch, stalled)
    again = _run(spec)
    assert again[2].events == watch.events
    assert {name: len(tokens) for name, tokens in again[0].outputs.items()} == {
        name: len(tokens) for name, tokens in built.outputs.items()
    }


def _hold(built: Built, executor: Executor | None, watch: Watch, stalled: Stalled | None) -> None:
    event("rejected" if executor is None else "stalled" if stalled else "ended")
    if executor is None:
        return
    for pace in built.paces:
        _hold_ratio(pace, ended=stalled is None)
    held = executor.held()
    if stalled is None:
        assert not any(held.values()), held
        _hold_conservation(built, executor)
    else:
        assert stalled.waits
        assert {stage for stage, count in held.items() if count} <= {stage for stage, _ in stalled.waits}
        assert all(what for _, what in stalled.waits)


def _hold_conservation(built: Built, executor: Executor) -> None:
    """The outputs of each operator arrived in order at all consumers, or were counted as dropped."""
    meters = executor.meters()
    expected: Counter[Operator] = Counter()
    arrived: Counter[Operator] = Counter()
    buffers: dict[Operator, set[str]] = {}
    for taker, wires in built.wires.items():
        taken = built.outputs.get(taker, []) if isinstance(taker, str) else taker.taken
        assert {token.by for token in taken} <= {wire.producer for wire in wires}
        for wire in wires:
            expected[wire.producer] += len(_given(wire))
            buffers.setdefault(wire.producer, set()).update(wire.buffers)
            if sum(other.producer is wire.producer for other in wires) == 1:
                _hold_order(wire, taken, meters)
        arrived.update(token.by for token in taken if token.by is not None)
    names = {stage.rpartition("/")[2]: meter for stage, meter in meters.items()}
    for operator in expected:
        dropped = sum(_copies(built, operator, buffer) * meters[buffer]["dropped"] for buffer in buffers[operator])
        own = names[operator.name]["dropped"]
        if _alone(built, operator) and not (own and _is_forked(built, operator)):
            assert expected[operator] - arrived[operator] == dropped + own, operator.name


def _given(wire: Wire) -> list[Token]:
    return [token for branch, token in wire.producer.given if branch == wire.branch]


def _copies(built: Built, operator: Operator, buffer: str) -> int:
    """An item that is dropped before a fork is missing behind each of its branches."""
    return sum(
        1 for wires in built.wires.values() for wire in wires if wire.producer is operator and buffer in wire.buffers
    )


def _is_forked(built: Built, operator: Operator) -> bool:
    """Whether a drop directly after the operator, before any buffer, may be of an item with several consumers."""
    branches = Counter(wire.branch for wires in built.wires.values() for wire in wires if wire.producer is operator)
    return any(count > 1 for count in branches.values())


def _alone(built: Built, operator: Operator) -> bool:
    """Whether the buffers behind an operator hold only its items, so that their drops are all of its own."""
    own = {buffer for wires in built.wires.values() for w in wires if w.producer is operator for buffer in w.buffers}
    return not any(
        own & set(w.buffers) for wires in built.wires.values() for w in wires if w.producer is not operator
    ) and not any(_copies(built, operator, buffer) > 1 for buffer in own)


def _hold_order(wire: Wire, taken: list[Token], meters: dict[str, dict[str, int]]) -> None:
    given, arrived = _given(wire), [token for token in taken if token.by is wire.producer]
    rest = iter(given)
    assert all(any(token is other for other in rest) for token in arrived), "out of order, or doubled"
    lost = sum(meters[buffer]["dropped"] for buffer in wire.buffers)
    lost += sum(meter["dropped"] for stage, meter in meters.items() if stage.endswith("/" + wire.producer.name))
    if lost == 0:
        assert arrived == given


def _hold_ratio(pace: Watched, ended: bool) -> None:
    if any(isinstance(share, AgentSteps) for _, share in pace.shares):
        _hold_row_ratio(pace, ended)
    else:
        _hold_item_ratio(pace)


def _hold_item_ratio(pace: Watched) -> None:
    """Until a side leaves, the sides come in exactly the order of their shares, over and over."""
    turn = [side for side, share in pace.shares for _ in range(share if isinstance(share, int) else 0)]
    for position, (what, side, _) in enumerate(pace.log):
        if what == "leave":
            break
        assert side == turn[position % len(turn)]


def _hold_row_ratio(pace: Watched, ended: bool) -> None:
    """No turn is taken before it is earned; at the end, unless a side ran out early, all earned turns were taken."""
    (leader, share), *followers = pace.shares
    assert isinstance(share, AgentSteps)
    turn = [side for side, times in followers for _ in range(times if isinstance(times, int) else 0)]
    rows = items = 0
    leader_left = follower_left = False
    for what, side, count in pace.log:
        earned = max(0, rows - share.starts) // share.per
        if what == "leave":
            leader_left = leader_left or side == leader
            follower_left = follower_left or not leader_left or (side != leader and items < earned * len(turn))
        elif side == leader:
            rows += count
        elif not follower_left:
            assert items < earned * len(turn), "a turn was taken before it was earned"
            assert side == turn[items % len(turn)]
            items += 1
    if ended and pace.log and not follower_left:
        assert items == max(0, rows - share.starts) // share.per * len(turn)
