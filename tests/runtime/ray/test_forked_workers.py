"""A private Ray's workers are forks of one process, and nothing that they would find otherwise is different."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from marlflow.cli import main as cli
from marlflow.runtime.forked import template, worker
from marlflow.runtime.forked.template import SOCKET_VARIABLE, SWITCH_VARIABLE, WORKER, Template, kill_sessions
from marlflow.runtime.ray.local_ray import LocalRay

TELL = """
import json, os, signal, sys
print(json.dumps({
    "words": sys.argv, "folder": os.getcwd(), "environment": os.environ.get("SAID"), "parent": os.getppid(),
    "has torch": "torch" in sys.modules, "has ray": "ray" in sys.modules, "path": sys.path[0],
    "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}))
print("to standard error", file=sys.stderr)
"""


class Probe:
    """An actor that reports on its process."""

    def draws(self) -> tuple[int, float, float]:
        return os.getppid(), float(np.random.random()), random.random()  # noqa: NPY002  the global generator is meant

    def finds(self) -> dict[str, Any]:
        return {
            "torch": "torch" in sys.modules,
            "first killed": Path("/proc/self/oom_score_adj").read_text(),
            "leads its group": os.getpgrp() == os.getpid(),
        }


@pytest.mark.slow
def test_workers_of_ray_are_forks_that_draw_different_numbers(ray_session: None) -> None:
    actors = [ray.remote(Probe).options(num_cpus=0.1).remote() for _ in range(3)]
    drawn = ray.get([actor.draws.remote() for actor in actors])
    found = ray.get(actors[0].finds.remote())
    for actor in actors:
        ray.kill(actor)
    assert len({parent for parent, _, _ in drawn}) == 1, "all have the template as their parent"
    assert len({first for _, first, _ in drawn}) == len({second for _, _, second in drawn}) == 3
    # Ray kills the process group of a worker that ends, which must not be that of the others.
    assert found == {"torch": True, "first killed": "1000\n", "leads its group": True}


def test_a_fork_is_what_python_would_be_and_the_template_ends_with_its_driver(tmp_path: Path) -> None:
    program = tmp_path / "tell.py"
    program.write_text(TELL, encoding="utf-8")
    started = Template()
    ask = (
        "import sys; from marlflow.runtime.forked.worker import forked; sys.exit(not forked(sys.argv[1], sys.argv[2:]))"
    )
    with started.for_workers():
        words = [str(program), "--a", "b c"]
        # As what asks is started at once, it waits until the template has imported everything.
        ran = subprocess.run(
            [sys.executable, "-c", ask, os.environ[SOCKET_VARIABLE], *words],
            cwd=tmp_path,
            env={**os.environ, "SAID": "hello"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert SOCKET_VARIABLE not in os.environ or os.environ[SOCKET_VARIABLE] != str(started._socket)
    assert json.loads(ran.stdout) == {
        "words": words,
        "folder": str(tmp_path),
        "environment": "hello",
        "parent": started.session,
        "has torch": True,
        "has ray": False,
        "path": str(tmp_path),
        "interrupts": True,
    }
    assert ran.stderr == "to standard error\n"
    assert started._process.stdin is not None
    started._process.stdin.close()  # as the kernel does when the driver is killed
    assert started._process.wait() == 0
    assert not started._socket.parent.exists()
    started.close()


SLEEP = "import time; print('up', flush=True); time.sleep(1_000)"


@pytest.mark.parametrize("ending", ["closed", "driver killed"])
def test_workers_that_were_starting_and_what_rays_daemons_started_end_with_the_run(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """None of them has noticed yet that its raylet has ended."""
    program, started = tmp_path / "sleep.py", Template()
    program.write_text(SLEEP, encoding="utf-8")
    daemon = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.fork(); {SLEEP}"], stdout=subprocess.PIPE, start_new_session=True
    )
    request.addfinalizer(lambda: kill_sessions([daemon.pid]))
    started.guard(daemon.pid)
    assert daemon.stdout is not None
    assert daemon.stdout.read(6).count(b"up") == 2
    (agent,) = psutil.Process(daemon.pid).children()
    with started.for_workers():
        assert worker.forked(os.environ[SOCKET_VARIABLE], [str(program)])
    (fork,) = psutil.Process(started.session).children()
    if ending == "closed":
        monkeypatch.setattr(ray, "shutdown", lambda: None)  # of the tests' own Ray
        LocalRay([daemon.pid, started.session], started).close()
    else:
        assert started._process.stdin is not None
        started._process.stdin.close()  # as the kernel does
        assert started._process.wait() == 0
    _, left = psutil.wait_procs([agent, fork], timeout=15)
    assert (daemon.wait(), left) == (-signal.SIGKILL, [])
    daemon.stdout.close()
    assert not started._socket.parent.exists()


def test_without_a_template_a_worker_starts_as_ray_would_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: executed.append(words))
    monkeypatch.setattr(sys, "argv", [str(WORKER), "--node-ip-address=127.0.0.1"])
    for path in ("", "/nowhere"):
        monkeypatch.setenv(SOCKET_VARIABLE, path)
        worker.main()
    ((python, script, *words), again) = executed
    assert again == [python, script, *words]
    assert (python, words) == (sys.executable, ["--node-ip-address=127.0.0.1"])
    assert Path(script) == Path(ray.__file__).with_name("_private") / "workers" / "default_worker.py"
    assert Path(script).is_file()


def test_forks_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH_VARIABLE, "0")
    monkeypatch.setattr(template, "Template", None)
    assert template.taken() is None


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["train", "no_such=1"], True),
        (["resume", "nowhere"], True),
        (["train", "runtime=inline", "no_such=1"], False),
        (["plan", "no_such=1"], False),
    ],
)
def test_only_a_command_that_may_start_ray_begins_a_template(
    words: list[str], begins: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(template, "begin", lambda: begun.append(True))
    monkeypatch.setattr(sys, "argv", ["marlflow", *words])
    assert cli.main() == 2
    assert begun == [True] * begins
    assert cli.main(words) == 2, "called by a program, it begins none"
    assert begun == [True] * begins
    assert capsys.readouterr().err.startswith("error: ")
