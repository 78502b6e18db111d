"""A joint stream: routed beside the policies' own, gathered like any other, opened by key where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.batches.items import Fragment, Packed
from marlflow.flow import Executor, Feed, Flow, Place, Plan, Traits, source, together
from marlflow.flow.protocols import stage_call
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.protocol import Request, Round
from tests.runtime.small_runs import small_spec
from tests.sentences import refusals

BOTH = ("hunters", "prey")


def fragments_of(rows: list[tuple[int, int]], number: int = 0) -> list[Fragment]:
    """A round of one fragment per worker and policy; `rows` are each worker's."""
    return [
        Fragment(policy, worker, number, worker == len(rows) - 1, count, count // 2, (f"{policy} {number}.{worker}",))
        for worker, counts in enumerate(rows)
        for policy, count in zip(BOTH, counts, strict=True)
    ]


@given(rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4), wanted=st.integers(0, 30))
def test_a_joint_stream_has_a_fragment_for_each_worker_and_its_round_closes_once(
    rows: list[tuple[int, int]], wanted: int
) -> None:
    fragments = fragments_of(rows, 3)
    routed = list(mf.ByPolicy({"mixer": ("prey", "hunters")})(Round(3, (), fragments)))
    joint = [item for name, item in routed if name == "mixer"]
    assert len(joint) == len(routed), "the rows of a policy go to its learner only"
    alone = list(mf.ByPolicy(learners={"prey": "one"})(Round(3, (), fragments)))
    assert alone == [("one" if one.policy == "prey" else one.policy, one) for one in fragments]
    assert [one.worker for one in joint] == list(range(len(rows)))
    assert [one.rows for one in joint] == [sum(counts) for counts in rows]
    assert [one.rows_carried for one in joint] == [sum(count // 2 for count in counts) for counts in rows]
    assert [one.closes_round for one in joint] == [False] * (len(rows) - 1) + [True] * bool(rows)
    assert {(one.policy, one.round, one.keys) for one in joint} <= {("mixer", 3, ("prey", "hunters"))}
    assert [one.payloads for one in joint] == [(f"prey 3.{w}", f"hunters 3.{w}") for w in range(len(rows))]
    concat = mf.Concat(agent_steps=wanted)
    made: list[Any] = [packed for one in joint for packed in concat.add(one)]
    total, kept = sum(map(sum, rows)), [one for one in joint if one.rows]
    whole = Packed(total, sum((one.payloads for one in kept), ()), ("prey", "hunters") * len(kept))
    assert made == ([whole] if rows and total >= max(1, wanted) else [])


def test_what_cannot_be_joined_is_said() -> None:
    round = Round(0, (), fragments_of([(1, 2)]))
    with pytest.raises(
        mf.PlanInvalid, match=r"'mixer' joins \['cats'\], but rows come only from \['hunters', 'prey'\]"
    ):
        list(mf.ByPolicy({"mixer": ("prey", "cats")})(round))
    with pytest.raises(mf.PlanInvalid, match="'prey' has the name of a policy that is not in it"):
        list(mf.ByPolicy({"prey": ("hunters",)})(round))


def batch_of(*rewards: float) -> mf.Batch:
    return mf.Batch({"reward": np.array(rewards)}, {"length": np.array([len(rewards)])})


def test_a_place_opens_an_item_with_keys_into_a_batch_for_each() -> None:
    seen: list[Any] = []
    call = InlinePlace("learner mixer").prepare([stage_call(seen.append)])
    call(
        [
            Packed(4, (batch_of(1), batch_of(2), batch_of(3), batch_of(4)), ("a", "b", "a", "b")),
            Packed(1, (batch_of(5),)),
        ]
    )
    call([Fragment("mixer", 0, 0, True, 1, 0, (batch_of(6),), ("a",))])
    assert [{key: own["reward"].tolist() for key, own in item.items()} for item in (seen[0], seen[2])] == [
        {"a": [1, 3], "b": [2, 4]},
        {"a": [6]},
    ]
    assert isinstance(seen[1], mf.Batch)


# -- beside the policies' own plans ---------------------------------------------------------------------------------


@dataclass
class Somebody:
    """Has a place, which is all that Join asks of a learner."""

    name: str
    place: Place


@dataclass
class Look:
    """Keeps what it is handed."""

    seen: list[Any]

    def __call__(self, item: mf.Batch | mf.JointBatch) -> int:
        self.seen.append(item)
        return item.rows


def run(joint: Mapping[str, tuple[str, ...]], mixer_agent_steps: int = 1) -> dict[str, list[Any]]:
    """Two policies, or a mixer, look at the rows of four rounds on cartpole_team, which nobody learns from."""
    seen: dict[str, list[Any]] = {name: [] for name in (joint or BOTH)}

    def plan(name: str, experience: Flow[Fragment]) -> Plan:
        somebody: Any = Somebody(name, InlinePlace(name))
        rows = experience.gather(mf.Concat(agent_steps=mixer_agent_steps if name == "mixer" else 1))
        looked: Flow[Any] = rows.then(mf.Join(), at=somebody) if name == "mixer" else rows
        return Plan("looks", looked.then(Look(seen[name]), at=somebody))

    runtime = InlineRuntime()
    parts = runtime.start(small_spec())
    weights = parts.published()
    requests = iter([Request(number, weights, {"prey": {"epsilon": 0.5}}) for number in range(4)])
    collect = source(mf.Collect(parts.workers, lambda: next(requests, None)))
    builders = {name: lambda flow, name=name: plan(name, flow) for name in seen}
    try:
        Executor(together(collect, mf.ByPolicy(joint), builders, dict.fromkeys(seen, Feed(4)))).run_sync()
    finally:
        runtime.close()
    return seen


def test_a_mixer_sees_exactly_the_agent_steps_that_the_policies_see() -> None:
    alone, each_round = run({}), run({"mixer": BOTH})
    assert len(each_round["mixer"]) == 4
    assert_the_same_agent_steps(alone, each_round["mixer"])
    at_once = run({"mixer": BOTH}, sum(joint.rows for joint in each_round["mixer"]))
    assert len(at_once["mixer"]) == 1
    assert_the_same_agent_steps(alone, at_once["mixer"])


def assert_the_same_agent_steps(seen: dict[str, list[Any]], mixed: list[mf.JointBatch]) -> None:
    own = {policy: sorted(row for batch in seen[policy] for row in rows_of_batch(batch)) for policy in BOTH}
    for policy, rows in own.items():
        assert rows == sorted(row for joint in mixed for row in rows_of_joint(joint, policy))
    steps = [key for joint in mixed for key in zip(*(joint.keys[name].tolist() for name in KEYS), strict=True)]
    assert sorted(steps) == sorted({row[:3] for rows in own.values() for row in rows})
    assert all(joint.present.any(axis=1).all() for joint in mixed)


KEYS = ("env", "episode", "t_env")


def rows_of_batch(batch: mf.Batch) -> list[tuple[float, ...]]:
    names = (*KEYS, "agent", "action", "reward")
    return list(zip(*(batch[name].tolist() for name in names), strict=True))


def rows_of_joint(joint: mf.JointBatch, policy: str) -> list[tuple[float, ...]]:
    row, seat = np.nonzero(joint.present[:, joint.seats[policy]])
    columns = [joint.keys[name][row] for name in KEYS] + [joint.agents[joint.seats[policy]][seat]]
    columns += [joint.columns[policy][name][row, seat] for name in ("action", "reward")]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_check_knows_which_streams_are_joint() -> None:
    def problems(made: Any, learner: str) -> list[str]:
        rounds: Flow[Any] = source(lambda: None, traits=Traits(emits=Round))
        plan = together(rounds, mf.ByPolicy({"mixer": BOTH}), {learner: made}, {learner: Feed(4)})
        return refusals(mf.PlanInvalid, plan.check)

    somebody: Any = Somebody("one", InlinePlace("one"))
    joined = problems(lambda flow: Plan("p", flow.gather(mf.Concat(1)).then(mf.Join(), at=somebody)), "prey")
    assert joined == ["stage 'Join' of plan 'prey' expects JointBatches, but 'Concat' gives Batch"]
    bare = problems(lambda flow: Plan("p", flow.gather(mf.Concat(1)).then(takes_joint, at=somebody)), "mixer")
    assert bare == [
        "stage 'takes_joint' of plan 'mixer' expects JointBatch, but 'Concat' gives JointBatches; "
        "put .then(Join(), at=learner) between them"
    ]
    forgotten = problems(lambda flow: Plan("p", flow.gather(mf.Concat(1)).then(takes_rows, at=somebody)), "mixer")
    assert forgotten == [
        "stage 'takes_rows' of plan 'mixer' expects Batch, but 'Concat' gives JointBatches; "
        "put .then(JoinSegments(learner.seats), at=learner) between them"
    ]


def takes_joint(batch: mf.JointBatch, _learner: Any) -> int:
    return batch.rows


def takes_rows(batch: mf.Batch, _learner: Any) -> int:
    return batch.rows


def test_a_stream_that_joins_a_policy_without_rows_is_said_in_the_run() -> None:
    with pytest.raises(mf.StageFailed, match="'mixer' joins"):
        run({"mixer": ("hunters", "cats")})
