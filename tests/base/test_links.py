"""Files of a run that are no files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marlflow.base.links import link_problems


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.log", ".hydra/overrides.yaml", "record/manifest.json"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_named_pipe_is_refused_because_opening_it_would_wait_for_ever(
    name: str, linked: bool, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    pipe = tmp_path / ("pipe" if linked else name)
    os.mkfifo(pipe)
    if linked:
        (tmp_path / name).symlink_to(pipe)
    assert list(link_problems(tmp_path)) == [f"{pipe} is neither a file nor a folder, as a run's are; remove it"]
