"""A run's requests are compared with the resources; resources that it does not set are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.config.experiment import PlacementOverrides, Policy, Rollouts, RunPlacement
from marlflow.runtime.resources import ResourceRequest, bundles, explicit, problems, requests_of, without_cuda
from marlflow.runtime.spec import InferencePlacement, LearnerPlacement, Resources
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_spec
from tests.sentences import sentences


def test_every_process_of_a_run_is_asked_for() -> None:
    three, own = (
        PlacementOverrides(num_learners=3),
        PlacementOverrides(num_cpus=2, num_gpus=0, node="10.0.0.7", replay="own"),
    )
    spec = small_spec(
        policies={"hunters": Policy(SMALL_PPO, SMALL, three), "prey": Policy(SMALL_DQN, SMALL, own)},
        rollouts=Rollouts(num_workers=2, fragment_env_steps=40, placement=Resources(num_cpus=0.5)),
        placement=RunPlacement(LearnerPlacement(num_gpus=1), inference=InferencePlacement(num_gpus=0.5, device="cpu")),
    )
    assert requests_of(spec) == [
        ResourceRequest("rollout worker 0", Resources(num_cpus=0.5)),
        ResourceRequest("rollout worker 1", Resources(num_cpus=0.5)),
        ResourceRequest("learner hunters", Resources(num_gpus=1)),
        ResourceRequest("learner hunters rank 1", Resources(num_gpus=1)),
        ResourceRequest("learner hunters rank 2", Resources(num_gpus=1)),
        ResourceRequest("learner prey", Resources(num_cpus=2, node="10.0.0.7")),
        ResourceRequest("replay prey", Resources(node="10.0.0.7"), colocate_with="learner prey"),
        ResourceRequest("inference", Resources(num_gpus=0.5)),
    ]
    assert [request.name for request in requests_of(small_spec())] == [
        "rollout worker 0",
        "rollout worker 1",
        "learner hunters",
        "learner prey",
    ]


def test_what_is_missing_is_named_with_who_asked_for_it() -> None:
    asked = [
        ResourceRequest("rollout worker 0", Resources(num_cpus=1.5)),
        ResourceRequest("learner prey", Resources(num_cpus=3, num_gpus=1, resources={"fpga": 2})),
        ResourceRequest("learner hunters", Resources()),
    ]
    assert sentences(problems(asked, {"CPU": 4.0, "GPU": 0.0, "fpga": 1.0})) == [
        "the run asks for 4.5 CPU (1.5 for rollout worker 0, 3 for learner prey), but there are 4; "
        "lower the reservations, or leave num_cpus unset for an equal share",
        "the run asks for 1 GPU (1 for learner prey), but there are 0; "
        "lower the reservations, or use CPUs (placement=cpu)",
        "the run asks for 2 fpga (2 for learner prey), but there is 1; lower the reservations",
    ]
    assert sentences(problems(asked, {"CPU": 5.0, "GPU": 1.0, "fpga": 2.0})) == []


def test_what_others_hold_is_told_apart_from_what_is_not_there() -> None:
    asked = [
        ResourceRequest("rollout worker 0", Resources(num_cpus=1)),
        ResourceRequest("learner prey", Resources(num_cpus=2)),
    ]
    assert sentences(problems(asked, {"CPU": 1.0}, whole={"CPU": 4.0})) == [
        "the run asks for 3 CPU (1 for rollout worker 0, 2 for learner prey), but of 4 only 1 is free, and other runs "
        "hold the rest; wait until they have ended, or lower the reservations"
    ]
    (never,) = sentences(problems(asked, {"CPU": 1.0}, whole={"CPU": 2.0}))
    assert "but there is 1; lower the reservations, or leave num_cpus unset" in never


def test_a_share_of_nothing_is_a_problem() -> None:
    asked = [ResourceRequest("rollout worker 0", Resources(num_cpus=2)), ResourceRequest("learner prey", Resources())]
    assert sentences(problems(asked, {"CPU": 2.5})) == []
    assert sentences(problems(asked, {"CPU": 2.0})) == [
        "of 2 CPU 0 are left to share among learner prey; lower the reservations"
    ]
    assert sentences(problems(asked, {"CPU": 2.0}, whole={"CPU": 4.0})) == [
        "of 4 CPU other runs leave 2, of which 0 are left to share among learner prey; wait until they have ended, or "
        "lower the reservations"
    ]
    assert len(sentences(problems(asked, {"CPU": 1.0}))) == 1


def test_fractions_that_add_up_are_no_problem() -> None:
    tenths = [ResourceRequest(f"worker {number}", Resources(num_cpus=0.1)) for number in range(10)]
    assert sentences(problems(tenths, {"CPU": 1.0})) == []
    assert len(sentences(problems([*tenths, ResourceRequest("one more", Resources(num_cpus=0.1))], {"CPU": 1.0}))) == 1


def test_a_machine_that_is_not_there_is_a_problem() -> None:
    asked = [ResourceRequest("learner prey", Resources(node="10.0.0.9"))]
    of = "placement.node=10.0.0.9 of learner prey: no machine of the cluster has this address"
    machines = {"CPU": 4.0, "node:10.0.0.1": 1.0, "node:__internal_head__": 1.0}
    assert sentences(problems(asked, machines)) == [f"{of}; there are 10.0.0.1"]
    assert sentences(problems(asked, {"CPU": 4.0})) == [of]
    assert sentences(problems(asked, {"CPU": 4.0, "node:10.0.0.9": 1.0})) == []


def test_a_resource_that_is_not_there_names_the_one_that_was_meant() -> None:
    asked = [ResourceRequest("learner prey", Resources(resources={"fasst": 1}))]
    of = "the run asks for 1 fasst (1 for learner prey), but there are 0: no machine has a resource of this name"
    machines = {"CPU": 4.0, "memory": 1e9, "node:10.0.0.1": 1.0}
    assert sentences(problems(asked, machines)) == [f"{of}; there are none"]
    assert sentences(problems(asked, {**machines, "fast": 2.0})) == [f"{of}; did you mean 'fast'?"]


def test_only_what_is_named_counts_as_asked() -> None:
    assert explicit(Resources()) == {}
    assert explicit(Resources(num_cpus=0)) == {}
    assert explicit(Resources(num_cpus=2, num_gpus=0.5, resources={"fpga": 1}, node="n")) == {
        "CPU": 2,
        "GPU": 0.5,
        "fpga": 1,
        "node:n": 0.001,
    }


placements = st.lists(
    st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])).map(lambda cpus: Resources(num_cpus=cpus)),
    min_size=1,
    max_size=8,
)


@given(placements=placements, cpus=st.integers(1, 16))
def test_what_is_left_is_shared_equally_and_never_more_than_there_is(placements: list[Resources], cpus: int) -> None:
    asked = [ResourceRequest(str(number), placement) for number, placement in enumerate(placements)]
    available = {"CPU": float(cpus)}
    if sentences(problems(asked, available)):
        return
    found = bundles(asked, available).taken
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
    found = bundles(requests_of(small_spec()), {"CPU": cpus})
    assert found.bundles == found.taken == [{"CPU": share}] * 4
    assert found.bundle_of == [0, 1, 2, 3]


def test_other_resources_are_kept_beside_a_share() -> None:
    asked = [ResourceRequest("learner prey", Resources(num_gpus=1, resources={"fpga": 2}))]
    assert bundles(asked, {"CPU": 1.0, "GPU": 1.0, "fpga": 2.0}).bundles == [{"CPU": 1.0, "GPU": 1, "fpga": 2}]


def test_a_process_that_takes_nothing_has_no_bundle() -> None:
    found = bundles(
        [ResourceRequest("idle", Resources(num_cpus=0)), ResourceRequest("busy", Resources(num_cpus=2))], {"CPU": 2.0}
    )
    assert found.bundles == [{"CPU": 2}]
    assert found.bundle_of == [None, 0]


# -- several machines -----------------------------------------------------------------------------------------------


def test_what_must_be_together_is_one_bundle() -> None:
    asked = [
        ResourceRequest("learner prey", Resources(num_cpus=2, num_gpus=0.5, node="n")),
        ResourceRequest("learner hunters", Resources(num_cpus=1)),
        ResourceRequest("replay prey", Resources(num_cpus=1, node="n"), colocate_with="learner prey"),
    ]
    found = bundles(asked, {"CPU": 4.0, "GPU": 1.0, "node:n": 1.0})
    assert found.bundles == [{"CPU": 3, "GPU": 0.5, "node:n": 0.002}, {"CPU": 1}]
    assert found.bundle_of == [0, 1, 0]
    assert found.taken[0] == {"CPU": 2, "GPU": 0.5, "node:n": 0.001}


def test_what_no_single_machine_has_is_a_problem() -> None:
    machines = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0}]
    together = [
        ResourceRequest("learner prey", Resources(num_cpus=6)),
        ResourceRequest("replay prey", Resources(num_cpus=3), colocate_with="learner prey"),
        ResourceRequest("learner hunters", Resources(num_cpus=3, num_gpus=0.5)),
    ]
    assert sentences(problems(together, {"CPU": 12.0, "GPU": 1.0})) == []
    assert sentences(problems(together, {"CPU": 12.0, "GPU": 1.0}, machines)) == [
        "learner prey with replay prey asks for 9 CPU on one machine, and the largest of the 2 can give 8 CPU; "
        "lower the reservation"
    ]
    both = [ResourceRequest("learner hunters", Resources(num_cpus=6, num_gpus=1))]
    (problem,) = sentences(problems(both, {"CPU": 12.0, "GPU": 1.0}, machines))
    assert "asks for 6 CPU, 1 GPU on one machine" in problem


@given(
    machines=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    named=st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), max_size=4),
    open_ended=st.integers(1, 12),
)
def test_a_share_is_so_small_that_every_bundle_finds_a_machine(
    machines: list[int], named: list[float], open_ended: int
) -> None:
    asked = [ResourceRequest(f"named {number}", Resources(num_cpus=cpus)) for number, cpus in enumerate(named)]
    asked += [ResourceRequest(f"open {number}", Resources()) for number in range(open_ended)]
    free = [{"CPU": float(cpus)} for cpus in machines]
    available = {"CPU": float(sum(machines))}
    found = bundles(asked, available, free)
    share = found.taken[-1]["CPU"]
    assert share >= 0.01
    if share > 0.01:
        left = [float(cpus) for cpus in machines]
        for bundle in sorted((bundle["CPU"] for bundle in found.bundles), reverse=True):
            left[next(number for number, cpus in enumerate(left) if cpus >= bundle - 1e-9)] -= bundle
    assert share <= bundles(asked, available).taken[-1]["CPU"]


def test_sixteen_processes_fit_three_machines_of_four_cpus() -> None:
    asked = [ResourceRequest(str(number), Resources()) for number in range(16)]
    machines = [{"CPU": 4.0}] * 3
    assert bundles(asked, {"CPU": 12.0}).bundles == [{"CPU": 0.75}] * 16  # of which five fit on each
    assert bundles(asked, {"CPU": 12.0}, machines).bundles == [{"CPU": 0.66}] * 16


def test_a_gpu_that_torch_does_not_see_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    spec = small_spec(
        policies={
            "hunters": Policy(SMALL_PPO, SMALL, PlacementOverrides(num_gpus=1)),
            "prey": Policy(SMALL_DQN, SMALL, PlacementOverrides(num_gpus=1, device="cpu")),
        },
        placement=RunPlacement(inference=InferencePlacement(num_gpus=0.5)),
    )
    assert without_cuda(spec) == [
        f"{who} is to compute on cuda, and torch sees no GPU here; install a torch with CUDA, or set its device=cpu"
        for who in ("learner 'hunters'", "the inference actor")
    ]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert without_cuda(spec) == []
