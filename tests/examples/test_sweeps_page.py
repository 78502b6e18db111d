"""What docs/sweeps.md tells a reader to type works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from marlflow.cli.main import main
from tests.examples.test_documents import REPOSITORY, blocks, commands, said_in

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "sweeps.md"
QUICK = "runtime=inline stop.env_steps=400 rollouts.fragment_env_steps=200 evaluation.final_episodes=1 log.console=none"


def test_the_pages_sweep_leaves_what_the_page_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = commands(PAGE)
    assert main([*shlex.split(line)[1:], *QUICK.split(), "log.tensorboard=false"]) == 0
    (head,) = [told for told in capfd.readouterr().out.splitlines() if told.startswith("job ")]
    assert head.split() == ["job", "settings", "agent", "eval", "ended", "by", "folder"]
    compare, loop = blocks(PAGE, "python")
    (tmp_path / "compare.py").write_text(compare, encoding="utf-8")
    assert main(["report", "runs/rates"]) == 0
    title, *rows = said_in(tmp_path, "compare.py").splitlines()
    assert title.split() == ["group", "measure", "runs", "final_iqm", "final_low", "final_high"]
    runs_of = {(row.split()[0], row.split()[2]) for row in rows}
    assert {rate for rate, _ in runs_of} == {"learning_rate=0.0003", "learning_rate=0.001"}
    assert {runs for _, runs in runs_of} == {"3"}
    (tmp_path / "loop.py").write_text(loop.replace("20_000", "400"), encoding="utf-8")
    assert [told.split()[0] for told in said_in(tmp_path, "loop.py").splitlines()[-3:]] == ["1", "2", "3"]
