import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marlflow.base.errors import InvalidInput
from marlflow.observe.sinks import frame, rows
from tests.observe.records import record, write


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return write(tmp_path / "metrics.jsonl", record(1), record(2))


def test_a_row_has_each_key_of_a_report_by_its_path(metrics: Path) -> None:
    first, second = rows(metrics)
    assert first["env_steps"] == 1000
    assert second["policies.agent.eval_return_mean"] == 7.25
    assert first["policies.agent.eval_return_mean"] is None
    assert second["learners.agent.loss.td"] == 0.43
    assert second["stages.adversary/Learn.items"] == 2
    assert second["policies.agent.eval_mode"] == "greedy"
    assert not any(isinstance(value, dict) for value in first.values())


def test_without_pandas_the_error_says_what_to_install(metrics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match=r"pandas is not installed; pip install pandas, or read .*metrics\.jsonl"):
        frame(metrics)


def test_with_pandas_the_rows_are_its_rows(metrics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pandas(ModuleType):
        @staticmethod
        def DataFrame(data: Any) -> Any:
            return ("a frame", data)

    monkeypatch.setitem(sys.modules, "pandas", Pandas("pandas"))
    assert frame(metrics) == ("a frame", rows(metrics))


def test_a_run_without_reports_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl does not exist; .* which log\.jsonl=true writes"):
        frame(tmp_path / "metrics.jsonl")
