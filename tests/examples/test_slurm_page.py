"""The script of docs/slurm.md ends, requeues and resumes a run; the sweeps of both pages can be composed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from marlflow.checks.commands import check
from marlflow.cli.arguments import Words, split
from marlflow.cli.job import prepared
from marlflow.cli.options import declared, parse
from marlflow.config.schema import read
from tests.examples.test_documents import REPOSITORY, blocks

pytestmark = pytest.mark.slow

SLURM, SWEEPS = (REPOSITORY / "docs" / name for name in ("slurm.md", "sweeps.md"))
LINES = re.findall(
    r"^marlflow .*$", "".join(blocks(SLURM, "sh")[1:] + blocks(SWEEPS, "sh")).replace("\\\n", " "), re.MULTILINE
)
# Plays a run: writes a checkpoint when it is terminated, as marlflow does.
RUN = """#!/bin/bash
echo "$@" >> calls
run=runs/spread/seed_3
trap 'mkdir -p $run/checkpoints; echo checkpoint >> calls; exit 143' TERM
echo started > started
if [ "$1" = resume ]; then exit 0; fi
while :; do sleep 0.05; done
"""


def test_the_pages_have_sweeps() -> None:
    assert len(LINES) == 5


@pytest.mark.parametrize("line", LINES)
def test_each_sweep_of_the_pages_is_composed_and_its_first_job_can_run(line: str) -> None:
    command, *words = shlex.split(line)[1:]
    if command == "tune":
        arguments = parse(declared("tune"), words)
        parsed = Words(list(arguments.overrides), ["-m"])
    else:
        parsed = split(words, "train")
    ready = prepared(parsed)
    problems = list(ready.problems)
    check(read(ready.config, problems), problems, None)
    assert parsed.multirun


def start(folder: Path) -> subprocess.Popen[bytes]:
    script = blocks(SLURM, "sh")[0]
    (folder / "array.sh").write_text(script, encoding="utf-8")
    for name, text in {"marlflow": RUN, "scontrol": '#!/bin/bash\necho "scontrol $@" >> calls\n'}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    (folder / "started").unlink(missing_ok=True)
    paths = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "17"}
    process = subprocess.Popen(["bash", "array.sh"], cwd=folder, env={**os.environ, **paths})
    while not (folder / "started").exists():
        time.sleep(0.02)
    return process


def test_the_script_of_an_array_requeues_and_resumes_its_run_at_the_time_limit(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == 143
    assert start(tmp_path).wait() == 0
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert calls == [
        "train env=simple_spread runtime=inline seed=3 hydra.run.dir=runs/spread/seed_3",
        "checkpoint",
        "scontrol requeue 17",
        "resume runs/spread/seed_3",
    ]


def test_a_cancelled_task_of_an_array_is_not_requeued(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert calls[1:] == ["checkpoint"]
