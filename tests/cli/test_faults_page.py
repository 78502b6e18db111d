"""docs/faults.md says what really happens: the faults that one process can provoke, each provoked again."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import ray_faults
from docs.faults import PAGE, QUICK, SLOW, Fault, line, mask

pytestmark = pytest.mark.slow


def page() -> list[str]:
    return [mask(row) for row in PAGE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.what)
def test_the_page_says_what_a_fault_comes_to(fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert mask(line(fault)) in page()


def test_every_fault_has_its_line() -> None:
    by_hand = {mask(row) for row in ray_faults.BY_HAND}
    told = [row.split(" | ")[0].removeprefix("| ") for row in page() if row.startswith("| ") and row not in by_hand]
    of_ray = [mask(fault.what) for fault in ray_faults.FAULTS]
    assert told == ["Fault", *(fault.what for fault in [*QUICK, *SLOW]), "Fault", *of_ray]
