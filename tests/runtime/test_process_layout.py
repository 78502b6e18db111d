"""Where each process of a run could go: on machines that have room, on GPUs that are not given away twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from marlflow.runtime.resources import ResourceRequest, place_processes, problems, total
from marlflow.runtime.spec import Resources


def asked(*takes: Resources) -> list[ResourceRequest]:
    return [ResourceRequest(f"process {number}", one) for number, one in enumerate(takes)]


def machines_of(takes: list[ResourceRequest], machines: list[dict[str, float]], spread: bool) -> list[int | None]:
    seats = place_processes(takes, machines, spread)
    assert seats is not None
    return [seat.machine for seat in seats]


def test_as_few_machines_as_possible_or_as_many() -> None:
    four, machines = asked(*[Resources(num_cpus=1)] * 4), [{"CPU": 4.0}] * 3
    assert machines_of(four, machines, spread=False) == [0, 0, 0, 0]
    assert machines_of(four, machines, spread=True) == [0, 1, 2, 0]
    assert machines_of(asked(Resources(num_cpus=0), *[Resources(num_cpus=3)] * 2), machines, spread=False) == [
        None,
        0,
        1,
    ]


def test_shares_of_a_gpu_lie_on_one() -> None:
    shares = asked(*[Resources(num_cpus=1, num_gpus=share) for share in (0.5, 0.5, 0.4, 2)])
    seats = place_processes(shares, [{"CPU": 8.0, "GPU": 4.0}], spread=False)
    assert seats is not None
    assert [seat.gpus for seat in seats] == [(0,), (0,), (1,), (2, 3)]


def test_what_does_not_fit_together_has_no_arrangement() -> None:
    whole = asked(*[Resources(num_cpus=2)] * 3)
    assert place_processes(whole, [{"CPU": 3.0}, {"CPU": 3.0}], spread=False) is None
    shares = asked(*[Resources(num_cpus=1, num_gpus=0.6)] * 3)
    assert place_processes(shares, [{"CPU": 8.0, "GPU": 2.0}], spread=False) is None


reservations = st.builds(
    Resources,
    num_cpus=st.sampled_from([None, 0.0, 0.5, 1.0, 3.0]),
    num_gpus=st.sampled_from([0.0, 0.0, 0.3333, 0.5, 1.0, 2.0]),
)
amounts = st.fixed_dictionaries({"CPU": st.integers(1, 8).map(float), "GPU": st.integers(0, 3).map(float)})


@given(
    takes=st.lists(reservations, min_size=1, max_size=8),
    machines=st.lists(amounts, min_size=1, max_size=4),
    spread=st.booleans(),
)
def test_nothing_is_given_twice(takes: list[Resources], machines: list[dict[str, float]], spread: bool) -> None:
    wanted = asked(*takes)
    if problems(wanted, total(machines), machines):
        return
    seats = place_processes(wanted, machines, spread)
    if seats is None:
        return
    assert [seat.name for seat in seats] == [one.name for one in wanted]
    given_away: Counter[tuple[int, str]] = Counter()
    on_gpu: Counter[tuple[int, int]] = Counter()
    for seat in seats:
        if seat.machine is None:
            assert not seat.resources
            continue
        for resource, amount in seat.resources.items():
            given_away[seat.machine, resource] += amount  # type: ignore[assignment]  # fractions are meant
        gpus = seat.resources.get("GPU", 0.0)
        assert len(seat.gpus) == (gpus if gpus >= 1 else gpus > 0)
        for gpu in seat.gpus:
            on_gpu[seat.machine, gpu] += min(gpus, 1.0)  # type: ignore[assignment]
            assert gpu < machines[seat.machine]["GPU"]
    assert all(amount <= machines[machine][resource] + 1e-6 for (machine, resource), amount in given_away.items())
    assert all(amount <= 1 + 1e-6 for amount in on_gpu.values())
