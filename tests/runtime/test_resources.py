"""What a run asks for is said against what there is; what it leaves open is shared out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.experiment.experiment import Policy, Rollouts
from marlflow.runtime.resources import Asked, asked_by, bundles, explicit, problems
from marlflow.runtime.spec import Placement
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_spec


def test_every_process_of_a_run_is_asked_for() -> None:
    own = Placement(num_cpus=2, node="10.0.0.7", replay="own")
    spec = small_spec(
        policies={"hunters": Policy(SMALL_PPO, SMALL, Placement(num_gpus=1)), "prey": Policy(SMALL_DQN, SMALL, own)},
        rollouts=Rollouts(num_workers=2, fragment_env_steps=40, placement=Placement(num_cpus=0.5)),
    )
    assert asked_by(spec) == [
        Asked("rollout worker 0", Placement(num_cpus=0.5)),
        Asked("rollout worker 1", Placement(num_cpus=0.5)),
        Asked("learner hunters", Placement(num_gpus=1)),
        Asked("learner prey", own),
        Asked("replay prey", Placement(node="10.0.0.7")),
    ]
    assert [asked.what for asked in asked_by(small_spec())] == [
        "rollout worker 0",
        "rollout worker 1",
        "learner hunters",
        "learner prey",
    ]


def test_what_is_missing_is_named_with_who_asked_for_it() -> None:
    asked = [
        Asked("rollout worker 0", Placement(num_cpus=1.5)),
        Asked("learner prey", Placement(num_cpus=3, num_gpus=1, resources={"fpga": 2})),
        Asked("learner hunters", Placement()),
    ]
    assert problems(asked, {"CPU": 4.0, "GPU": 0.0, "fpga": 1.0}) == [
        "the run asks for 4.5 CPU (1.5 for rollout worker 0, 3 for learner prey), but there are 4; "
        "lower the reservations, or leave num_cpus unset for an equal share",
        "the run asks for 1 GPU (1 for learner prey), but there are 0; "
        "lower the reservations, or leave num_cpus unset for an equal share",
        "the run asks for 2 fpga (2 for learner prey), but there is 1; "
        "lower the reservations, or leave num_cpus unset for an equal share",
    ]
    assert problems(asked, {"CPU": 5.0, "GPU": 1.0, "fpga": 2.0}) == []


def test_a_share_of_nothing_is_a_problem() -> None:
    asked = [Asked("rollout worker 0", Placement(num_cpus=2)), Asked("learner prey", Placement())]
    assert problems(asked, {"CPU": 2.5}) == []
    assert problems(asked, {"CPU": 2.0}) == [
        "of 2 CPU 0 are left to share among learner prey; lower the reservations, or wait until other runs have ended"
    ]
    assert len(problems(asked, {"CPU": 1.0})) == 1


def test_fractions_that_add_up_are_no_problem() -> None:
    tenths = [Asked(f"worker {number}", Placement(num_cpus=0.1)) for number in range(10)]
    assert problems(tenths, {"CPU": 1.0}) == []
    assert len(problems([*tenths, Asked("one more", Placement(num_cpus=0.1))], {"CPU": 1.0})) == 1


def test_a_machine_that_is_not_there_is_a_problem() -> None:
    asked = [Asked("learner prey", Placement(node="10.0.0.9"))]
    (problem,) = problems(asked, {"CPU": 4.0, "node:10.0.0.1": 1.0})
    assert "node:10.0.0.9" in problem
    assert "learner prey" in problem


def test_only_what_is_named_counts_as_asked() -> None:
    assert explicit(Placement()) == {}
    assert explicit(Placement(num_cpus=0)) == {}
    assert explicit(Placement(num_cpus=2, num_gpus=0.5, resources={"fpga": 1}, node="n")) == {
        "CPU": 2,
        "GPU": 0.5,
        "fpga": 1,
        "node:n": 0.001,
    }


placements = st.lists(
    st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])).map(lambda cpus: Placement(num_cpus=cpus)),
    min_size=1,
    max_size=8,
)


@given(placements=placements, cpus=st.integers(1, 16))
def test_what_is_left_is_shared_equally_and_never_more_than_there_is(placements: list[Placement], cpus: int) -> None:
    asked = [Asked(str(number), placement) for number, placement in enumerate(placements)]
    available = {"CPU": float(cpus)}
    if problems(asked, available):
        return
    found = bundles(asked, available)
    for placement, bundle in zip(placements, found, strict=True):
        if placement.num_cpus is not None:
            assert bundle.get("CPU", 0.0) == placement.num_cpus
    shares = {bundle["CPU"] for placement, bundle in zip(placements, found, strict=True) if placement.num_cpus is None}
    assert len(shares) <= 1
    assert all(0.01 <= share <= 1.0 for share in shares)
    named = sum(placement.num_cpus or 0.0 for placement in placements)
    if shares or named:
        assert sum(bundle.get("CPU", 0.0) for bundle in found) <= cpus + 1e-9


@pytest.mark.parametrize(("cpus", "share"), [(2.0, 0.5), (3.0, 0.75), (4.0, 1.0), (64.0, 1.0)])
def test_the_default_run_fits_small_machines(cpus: float, share: float) -> None:
    found = bundles(asked_by(small_spec()), {"CPU": cpus})
    assert found == [{"CPU": share}] * 4


def test_other_resources_are_kept_beside_a_share() -> None:
    asked = [Asked("learner prey", replace(Placement(), num_gpus=1, resources={"fpga": 2}))]
    assert bundles(asked, {"CPU": 1.0, "GPU": 1.0, "fpga": 2.0}) == [{"CPU": 1.0, "GPU": 1, "fpga": 2}]
