"""Streams of the rows of other policies: each learner gets all rows of its sources, once, whoever else gets them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.sampling.protocol import Round

POLICIES = ("a", "b", "c")


def fragments_of(rows: list[tuple[int, ...]]) -> list[mf.Fragment]:
    """A round of one fragment per worker and policy; `rows` are each worker's."""
    return [
        mf.Fragment(policy, worker, 3, worker == len(rows) - 1, count, count // 2, (f"{policy}{worker}",))
        for worker, counts in enumerate(rows)
        for policy, count in zip(POLICIES, counts, strict=True)
    ]


sources = st.dictionaries(st.sampled_from(POLICIES), st.permutations(POLICIES).flatmap(
    lambda order: st.integers(1, 3).map(lambda count: tuple(order[:count]))
))  # fmt: skip


@given(rows=st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=4), union=sources, wanted=st.integers(0, 40))
def test_each_learner_gets_the_rows_of_its_sources_once(
    rows: list[tuple[int, ...]], union: dict[str, tuple[str, ...]], wanted: int
) -> None:
    fragments = fragments_of(rows)
    routed = list(mf.ByPolicy(union=union)(Round(3, (), fragments)))
    for learner in POLICIES:
        expected, found = union.get(learner, (learner,)), [item for name, item in routed if name == learner]
        of_sources = [one for one in fragments if one.policy in expected]
        assert [one.worker for one in found] == list(range(len(rows))), "one fragment for each worker"
        assert [one.closes_round for one in found] == [False] * (len(rows) - 1) + [True] * bool(rows)
        assert sum(one.rows for one in found) == sum(one.rows for one in of_sources)
        assert sum(one.rows_carried for one in found) == sum(one.rows_carried for one in of_sources)
        payloads = Counter(payload for one in found if one.rows for payload in one.payloads)
        whole = Counter(payload for one in of_sources if one.rows for payload in one.payloads)
        assert payloads == whole, "each source's rows once, and only these"
        concat = mf.Concat(agent_steps=wanted)
        made = [packed for one in found for packed in concat.add(one)]
        total = sum(one.rows for one in of_sources)
        assert [packed.rows for packed in made] == ([total] if rows and total >= max(1, wanted) else [])


def test_learners_of_another_name_and_joint_ones_keep_their_streams() -> None:
    round = Round(3, (), fragments_of([(1, 2, 4)]))
    split = mf.ByPolicy({"mixer": ("a", "b")}, {"c": "own"}, {"own": ("c", "a")})
    assert [(name, item.rows) for name, item in split(round)] == [("own", 5), ("mixer", 3)]


def test_a_source_without_rows_is_said() -> None:
    with pytest.raises(mf.PlanInvalid, match=r"'a' has rows of \['cats'\], but rows come only from \['a', 'b', 'c'\]"):
        list(mf.ByPolicy(union={"a": ("a", "cats")})(Round(3, (), fragments_of([(1, 2, 4)]))))
