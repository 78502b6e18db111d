"""Tests that kinds of faults are those that have a budget and are reported."""

from dataclasses import fields

from marlflow.base.errors import FaultKind
from marlflow.config.experiment import Faults
from marlflow.driver.run_metrics import FAULTS


def test_every_kind_has_a_budget_and_is_reported_by_its_name() -> None:
    assert [kind.value for kind in FaultKind] == [field.name for field in fields(Faults)]
    assert {kind.value for kind in FaultKind} <= {*FAULTS, "updates_skipped"}
    assert all(type(name) is str for name in FAULTS)
    assert [kind for kind in FaultKind if kind.of_environment] == ["env_errors", "env_hangs"]
