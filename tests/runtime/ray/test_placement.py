"""Where the processes of a run go: on two machines with two GPUs each, in which Ray is made to believe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.runtime.ray.processes import printed_by

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Place:
    """A process: its machine, and the GPUs that it sees there."""

    machine: str
    gpus: tuple[int, ...]


@pytest.fixture(scope="module")
def printed() -> Mapping[str, Mapping[str, Any]]:
    """What two_machines.py prints."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(printed_by("two_machines"))
    return found


def _places(printed: Mapping[str, Mapping[str, Any]], run: str) -> dict[str, Place]:
    for seen in printed[run].values():
        assert seen["visible"] == ",".join(map(str, seen["gpus"]))  # what torch goes by
    return {what: Place(seen["machine"], tuple(seen["gpus"])) for what, seen in printed[run].items()}


@pytest.mark.parametrize("run", ["one_gpu", "gpu_per_policy", "data_parallel", "cluster", "packed"])
def test_a_plan_says_as_many_machines_and_gpus_as_ray_then_gives(
    printed: Mapping[str, Mapping[str, Any]], run: str
) -> None:
    seen, planned = printed[run], printed[f"planned {run}"]
    assert {what: len(seat["gpus"]) for what, seat in planned.items()} == {
        what: len(found["gpus"]) for what, found in seen.items()
    }
    assert len({seat["machine"] for seat in planned.values()}) == len({found["machine"] for found in seen.values()})


def test_a_plan_that_cannot_be_places_nobody(printed: Mapping[str, Mapping[str, Any]]) -> None:
    assert printed["planned beyond_one_machine"] is None
    assert printed["planned beyond_the_cluster"] is None


def test_with_one_gpu_all_learners_see_the_same(printed: Mapping[str, Mapping[str, Any]]) -> None:
    places = _places(printed, "one_gpu")
    assert places["learner hunters"] == places["learner prey"]
    assert len(places["learner prey"].gpus) == 1
    assert not places["rollout worker 0"].gpus


def test_with_a_gpu_per_policy_each_learner_sees_its_own(printed: Mapping[str, Mapping[str, Any]]) -> None:
    places = _places(printed, "gpu_per_policy")
    assert places["learner hunters"] != places["learner prey"]
    assert [len(places[what].gpus) for what in ("learner hunters", "learner prey")] == [1, 1]


def test_each_process_of_a_data_parallel_learner_sees_its_own_gpu(printed: Mapping[str, Mapping[str, Any]]) -> None:
    places = _places(printed, "data_parallel")
    learners = ["learner hunters", "learner hunters rank 1", "learner prey", "learner prey rank 1"]
    assert len({places[what] for what in learners}) == 4
    assert all(len(places[what].gpus) == 1 for what in learners)


def test_on_a_cluster_workers_spread_and_a_learner_is_beside_its_replay(
    printed: Mapping[str, Mapping[str, Any]],
) -> None:
    places = _places(printed, "cluster")
    assert len({places[f"rollout worker {number}"].machine for number in range(4)}) == 2
    assert places["learner hunters"].machine != places["learner prey"].machine
    assert places["learner prey"].machine == places["replay prey"].machine


def test_otherwise_a_run_that_fits_one_machine_stays_on_it(printed: Mapping[str, Mapping[str, Any]]) -> None:
    assert len({place.machine for place in _places(printed, "packed").values()}) == 1


def test_what_no_machine_or_not_all_together_can_give_is_said_at_once(printed: Mapping[str, Mapping[str, Any]]) -> None:
    one, together = printed["beyond_one_machine"], printed["beyond_the_cluster"]
    assert one["problems"] == [
        "learner hunters asks for 6 CPU on one machine, and the largest of the 2 can give 4 CPU; lower the reservation"
    ]
    assert together["problems"] == [
        "the run asks for 6 GPU (3 for learner hunters, 3 for learner prey), but there are 4; lower the reservations, "
        "share GPUs by fractions (placement=one_gpu), or use CPUs (placement=cpu)"
    ]
    assert not one["waited"]
    assert not together["waited"]
