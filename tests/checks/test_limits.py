"""Numbers that make no sense are refused before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

import marlflow as mf
from marlflow.base.errors import ConfigInvalid
from marlflow.config.experiment import RuntimeConfig
from tests.config.composition import experiment_of
from tests.runtime.small_runs import small_run
from tests.sentences import wrong_with

MIB = 2**20


@pytest.mark.parametrize(
    ("runtime", "problem"),
    [
        (
            RuntimeConfig("ray", object_store_bytes=75 * MIB - 1),
            "runtime.object_store_bytes must be at least 78643200 (75 MiB), not 78643199",
        ),
        (
            RuntimeConfig("ray", address="auto", object_store_bytes=75 * MIB),
            "runtime.object_store_bytes is for a Ray that is started here, but runtime.address=auto joins one that is "
            "running; leave one of them out",
        ),
    ],
)
def test_memory_that_no_object_store_can_have_is_refused(runtime: RuntimeConfig, problem: str) -> None:
    assert wrong_with(replace(small_run(), runtime=runtime)) == [problem]


def test_an_object_store_may_be_as_small_as_ray_lets_it_be() -> None:
    assert wrong_with(replace(small_run(), runtime=RuntimeConfig("ray", object_store_bytes=75 * MIB))) == []


def test_learners_divide_rows_and_of_maml_tasks() -> None:
    """A batch of MAML is counted in rounds of tasks: by default it has `batch_agent_steps=1`."""
    words = ("env=cartpole_family", "policies.cart.placement.num_learners=2")
    mf.plan(experiment_of(*words, "policy@policies.cart=maml"), machines=[{"CPU": 16}])
    with pytest.raises(ConfigInvalid, match=r"2 learners \(num_learners\) would share .*batch_agent_steps=1, "):
        mf.plan(
            experiment_of(*words, "policy@policies.cart=a2c", "policies.cart.algorithm.batch_agent_steps=1"),
            machines=[{"CPU": 16}],
        )
