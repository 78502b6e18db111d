"""Ray itself is watched: what is found, when, and that what is left of a Ray of our own is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray._private import services, worker

from marlflow.base.errors import ActorLost, RuntimeFailed
from marlflow.runtime.forked.template import kill_sessions
from marlflow.runtime.ray import health, runtime
from marlflow.runtime.ray.actors import cause
from marlflow.runtime.ray.health import MAX_FAILED_CONNECTS, Endpoints, Watch, dead_daemon
from marlflow.runtime.ray.local_ray import start_local

pytestmark = pytest.mark.slow


def test_a_loss_is_told_once_and_remembered() -> None:
    looks: Iterator[str | None] = iter([None, None, "the raylet is gone"])
    told, is_told = list[str](), threading.Event()

    def on_loss(loss: str) -> None:
        told.append(loss)
        is_told.set()

    watch = Watch(lambda: next(looks), on_loss, every_s=0.0)
    assert is_told.wait(60)
    watch.close()
    assert (told, watch.loss) == (["the raylet is gone"], "the raylet is gone")


@pytest.mark.parametrize("ends", [False, True])
def test_a_loss_is_logged_if_the_run_does_not_end(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logged, is_told, is_logged = list[Any](), threading.Event(), threading.Event()
    monkeypatch.setattr(health, "PATIENCE_S", 3600.0 if ends else 0.0)
    monkeypatch.setattr(health.log, "error", lambda *words: (logged.append(words), is_logged.set()))
    watch = Watch(lambda: "the raylet is gone", lambda _: is_told.set(), every_s=0.0)
    assert is_told.wait(60)
    assert ends or is_logged.wait(60)
    watch.close()
    assert [words[1] for words in logged] == ["the raylet is gone"] * (not ends)


def test_a_watch_that_is_closed_looks_no_more() -> None:
    watch = Watch(lambda: None, lambda _: pytest.fail("nothing was lost"), every_s=3600.0)
    watch.close()
    assert watch.loss is None


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("raylet", -9, "Ray's raylet, process 7, was killed (SIGKILL): by a user, or by the kernel because memory"),
        ("gcs_server", -11, "Ray's control service (GCS), process 7, was ended (SIGSEGV)"),
        ("raylet", -7, "Ray's raylet, process 7, was ended (SIGBUS): perhaps because /dev/shm, which holds rows"),
        ("gcs_server", 1, "Ray's control service (GCS), process 7, ended with exit code 1"),
        ("monitor", -9, None),
        ("log_monitor", 1, None),
    ],
)
def test_only_daemons_that_no_run_goes_on_without_are_missed(
    kind: str, code: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = SimpleNamespace(pid=7, returncode=code)
    monkeypatch.setattr(worker, "_global_node", SimpleNamespace(dead_processes=lambda: [(kind, dead)]))
    found = dead_daemon()
    assert found is None if said is None else (found or "").startswith(said)


def test_a_server_of_a_cluster_is_lost_when_it_does_not_answer_again_and_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoints = Endpoints({"raylet": server.getsockname()})
        assert [endpoints.unreachable() for _ in range(2 * MAX_FAILED_CONNECTS)] == [None] * 2 * MAX_FAILED_CONNECTS
        port = server.getsockname()[1]
    *before, last = [endpoints.unreachable() for _ in range(MAX_FAILED_CONNECTS)]
    assert before == [None] * (MAX_FAILED_CONNECTS - 1)
    assert last is not None
    assert last.startswith(f"Ray's raylet at 127.0.0.1:{port} does not answer any more")


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, process_group=0)
print(child.pid, flush=True)
child.wait()
"""


def test_all_processes_of_a_session_are_killed_and_no_others() -> None:
    """Also those in process groups of their own, as Ray's workers are, and whose parent is dead already."""
    started: Any
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with subprocess.Popen(
            [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as started:
            child = psutil.Process(int(started.stdout.readline()))
            started.kill()
            started.wait()
            kill_sessions([started.pid])
            assert psutil.wait_procs([child], timeout=60)[1] == []
        assert other.poll() is None
        other.kill()


WITHOUT_GCS = """
import psutil
from marlflow.runtime.ray.local_ray import start_local
from marlflow.runtime.ray.private_api import object_store_bytes

local = start_local(num_cpus=1, object_store_memory=100 * 2**20, include_dashboard=False)
(gcs,) = (one for one in psutil.Process().children(recursive=True) if one.name() == "gcs_server")
gcs.kill()
gcs.wait()
print("asked", object_store_bytes(), flush=True)
local.kill()
"""


def test_a_report_does_not_wait_for_a_lost_control_service() -> None:
    """Ray's own calls to a lost one cannot be interrupted, and end the process after 60 s."""
    ran = subprocess.run([sys.executable, "-c", WITHOUT_GCS], capture_output=True, text=True, timeout=300, check=False)
    assert [line for line in ran.stdout.splitlines() if line.startswith("asked ")] != [], ran.stderr


def test_a_ray_that_does_not_start_leaves_no_process_and_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def starts_half(**_: Any) -> None:
        started.append(services.ConsolePopen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        assert os.getsid(started[0].pid) == started[0].pid
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ray, "init", starts_half)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    popen = services.ConsolePopen
    with pytest.raises(RuntimeFailed, match=r"Ray could not be started: OSError: .* No space left on device; see that"):
        start_local(num_cpus=1)
    assert started[0].wait() == -signal.SIGKILL
    started[0].stdin.close()
    assert services.ConsolePopen is popen


def test_of_a_process_that_ray_ended_for_memory_only_the_reason_is_said() -> None:
    reason = "1 worker(s) were killed due to the node running low on memory. Memory was 23GB used / 24GB limit (0.96)"
    error = ray.exceptions.OutOfMemoryError(f"{reason}\nOOM kill reason: Memory usage 7B exceeded\nObject store: [\n")
    assert cause(error) == reason


def test_a_process_that_dies_while_the_run_starts_is_said_not_ray_s_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(_: object) -> None:
        raise ray.exceptions.RayActorError(error_msg="It died.\npid: 7\nip: here\nWorker unexpectedly exits")

    monkeypatch.setattr(ray, "get", died)
    with pytest.raises(ActorLost, match="a process of the run died while it started: process 7 on here: it ended"):
        runtime._wait([object()])
