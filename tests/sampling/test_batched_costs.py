"""Costs of batched environments: credited by the rules of rewards, wrong ones end an episode, missing ones a run."""

import numpy as np
import pytest

import marlflow as mf
from marlflow.env.batched.single import as_pettingzoo
from tests.sampling.batched_counters import LENGTH, Counters, batched_worker
from tests.sampling.workers import costs_of

BOTH = costs_of("one", "two")


class Costing(Counters):
    """a_0 ends after 3 steps, a_1 after LENGTH; each costs a number of its own in every step, a_0 when dead too."""

    info_keys = ("cost",)
    issued = 0.0

    def stepped(self):
        over = np.stack([self.t == 3, self.t >= LENGTH], axis=1)
        costs = np.stack([2.0**self.t, 0.25 * self.t], axis=1)
        self.issued += costs.sum()
        infos = {"cost": {"a": costs}}
        return mf.BatchedStep(self.see(), {"a": 0.0 * costs}, {"a": over}, {"a": ~over & False}, infos=infos)


def worker_of(change=None, columns=BOTH, tolerated=0):
    envs = []

    def make(count):
        envs.append(Costing(count, change))
        return envs[-1]

    return batched_worker(make, ("one", "two"), columns=columns, tolerated_faults=tolerated), envs


def test_rows_unattributed_and_open_costs_are_what_was_issued() -> None:
    worker, envs = worker_of()
    credited = 0.0
    for ticks in (1, 4, 2, 13, 5):
        receipt, batches = worker.collect(ticks)
        for name, batch in batches.items():
            credited += batch["cost"].sum() + receipt.policies[name].infos_unattributed["cost"]
        for episode in receipt.episodes:
            assert episode.infos["cost"] == {"a_0": sum(2.0**t for t in range(1, 7)), "a_1": 0.25 * 21}
    still_open = worker.state()["tables"]["open"]["cost"].sum()
    assert credited + still_open == envs[0].issued
    worker.close()


def test_a_cost_that_is_no_number_ends_the_episode_of_its_environment_alone() -> None:
    def change(env, made):
        if env.calls == 2:
            made.infos["cost"]["a"][1, 0] = np.nan

    with pytest.raises(mf.EnvironmentFailed, match=r"agent 'a_0'.*the cost is nan, not a finite number"):
        worker_of(change)[0].collect(3)
    receipt, batches = worker_of(change, tolerated=9)[0].collect(LENGTH)
    assert [fault.rows_lost for fault in receipt.faults] == [4]
    assert np.isfinite(batches["one"]["cost"]).all()
    assert [episode.env for episode in receipt.episodes] == [0, 2]
    # It is not read if its policy has no limit.
    receipt, batches = worker_of(change, columns=costs_of("two"))[0].collect(LENGTH)
    assert "cost" not in batches["one"].columns
    assert batches["two"]["cost"].sum() == 3 * 0.25 * 21
    assert [episode.infos["cost"] for episode in receipt.episodes] == [{"a_1": 0.25 * 21}] * 3


@pytest.mark.parametrize(
    ("costs", "reason"),
    [
        (
            lambda made: {},
            r"step\(\) gave no info\['cost'\] .*, and its policy has a column 'cost'; give",
        ),
        (
            lambda made: {"cost": {"a": made.infos["cost"]["a"][:, 0]}},
            r"infos\['cost'\] of shape \[3\] for group 'a', not \[3, 2\]",
        ),
    ],
    ids=["none", "another shape"],
)
def test_a_step_without_costs_or_with_others_is_an_error_of_the_environment(costs, reason) -> None:
    def change(env, made):
        made.infos = costs(made)

    with pytest.raises(mf.EnvironmentFailed, match=reason):
        worker_of(change)[0].collect(1)


def test_a_step_without_costs_is_fine_where_nobody_reads_them() -> None:
    def change(env, made):
        made.infos = {}

    worker_of(change, columns=costs_of())[0].collect(1)


def test_its_pettingzoo_form_has_them_in_infos() -> None:
    env = as_pettingzoo(Costing(1))
    _, infos = env.reset(seed=0)
    assert infos == {"a_0": {}, "a_1": {}}
    seen = []
    while env.agents:
        *_, infos = env.step(dict.fromkeys(env.agents, 0))
        seen.append({agent: info["cost"] for agent, info in infos.items()})
    assert seen == [{"a_0": 2.0**t, "a_1": 0.25 * t} for t in range(1, LENGTH + 1)]
