"""A Ray that is started for a run cannot be reached by others: not from the network, not without its token."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest

from marlflow.base.errors import ConfigInvalid, RuntimeFailed
from marlflow.runtime.forked.template import SWITCH_VARIABLE
from marlflow.runtime.ray import local_ray as local
from marlflow.runtime.ray.local_ray import start_local

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
DRIVER = """
from dataclasses import replace
from marlflow.config.experiment import RunPlacement, Rollouts
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.spec import LearnerPlacement, Resources
from tests.runtime.driven_runs import driven
from tests.runtime.small_runs import policies, small_run, SMALL_PPO

SHARE = 0.1
experiment = small_run(
    "ray",
    policies=policies(cart=SMALL_PPO),
    mapping=None,
    placement=RunPlacement(learners=LearnerPlacement(num_learners=2, num_cpus=SHARE)),
    rollouts=Rollouts(num_workers=1, fragment_env_steps=40, placement=Resources(num_cpus=SHARE)),
)
with driven(experiment, RayRuntime(object_store_bytes=100 * 2**20)) as run:
    run.play(2)
    print("playing", flush=True)
    input()
"""
JOIN = """
import sys
import ray
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1])
except ray.exceptions.AuthenticationError:
    print("refused")
else:
    print("let in")
"""


@dataclass(frozen=True)
class Running:
    """A run under way: who listens where, as (process name, address, port), its HOME and folder of sessions.

    `daemons` are the commands of the processes that the driver itself has started.
    """

    listening: list[tuple[str, str, int]]
    home: Path
    sessions: Path
    daemons: list[str]

    @property
    def gcs(self) -> str:
        (port,) = [port for name, _, port in self.listening if name == "gcs_server"]
        return f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    with (
        tempfile.TemporaryDirectory(prefix="s") as folder,
        subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A folder of pytest's own has too long a name for a socket.
            env={**environment(home), "PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder},
        ) as driver,
    ):
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "playing\n"
            this = psutil.Process(driver.pid)
            processes = [this, *this.children(recursive=True)]
            listening = [socket for process in processes for socket in sockets(process)]
            yield Running(listening, home, Path(folder), [" ".join(process.cmdline()) for process in this.children()])
            driver.communicate("\n", timeout=120)
            assert driver.returncode == 0
        finally:
            driver.kill()


def environment(home: Path) -> dict[str, str]:
    """This process's, with a home of its own and nothing said of tokens."""
    return {**{name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}, "HOME": str(home)}


def sockets(process: psutil.Process) -> Iterator[tuple[str, str, int]]:
    try:
        for found in process.net_connections(kind="inet"):
            if found.status == psutil.CONN_LISTEN:
                yield process.name(), found.laddr.ip, found.laddr.port
    except psutil.NoSuchProcess:  # an idle worker of Ray's
        return


def is_loopback(address: str) -> bool:
    found = ip_address(address)
    return (found.ipv4_mapped or found if isinstance(found, IPv6Address) else found).is_loopback


def test_every_process_listens_on_loopback_only(running: Running) -> None:
    processes = {name for name, _, _ in running.listening}
    assert {"gcs_server", "raylet"} <= processes
    assert any(name.startswith("ray::RolloutActor") for name in processes)
    assert sum(name.startswith("ray::Host") for name, _, _ in running.listening) >= 2, "learners that learn together"
    assert [where for where in running.listening if not is_loopback(where[1])] == []


def test_only_what_a_run_uses_is_started(running: Running) -> None:
    """No autoscaler, no dashboard and no monitor of logs: each is half a second of a core at every start."""
    started = [
        command.split()[0 if "/gcs_server" in command or "/raylet" in command else 1] for command in running.daemons
    ]
    assert sorted(Path(program).name for program in started) == ["gcs_server", "parent.py", "raylet"]


@pytest.mark.parametrize("token", [None, "0" * 64])
def test_a_client_without_the_token_is_refused_from_loopback_too(
    running: Running, tmp_path: Path, token: str | None
) -> None:
    assert joined(running, environment(running.home) | {"RAY_AUTH_MODE": "token"}) == "let in"
    without = {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    assert joined(running, environment(tmp_path) | without) == "refused"


def joined(running: Running, variables: dict[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", JOIN, running.gcs],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return ran.stdout.strip()


def test_the_token_and_the_folder_of_sessions_are_the_users_alone(running: Running) -> None:
    assert stat.S_IMODE((running.home / ".ray" / "auth_token").stat().st_mode) == 0o600
    (closed,) = running.sessions.iterdir()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert [path.name for path in (closed / "ray").glob("session_2*")]


def test_a_token_that_others_can_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("1" * 64, encoding="utf-8")
    token.chmod(0o644)
    local._protect_token()
    assert (stat.S_IMODE(token.stat().st_mode), token.read_text(encoding="utf-8")) == (0o600, "1" * 64)


def test_a_folder_of_sessions_that_is_somebody_elses_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(local.ray, "init", never)
    monkeypatch.setattr(local.ray, "shutdown", lambda: None)  # of what was begun; the tests' own Ray stays
    (tmp_path / "elsewhere").mkdir()
    local.sessions_folder().parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RuntimeFailed, match="is not a folder of this user's"):
        start_local()


def test_a_ray_whose_daemons_are_late_is_started_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    late = "The current node timed out during startup."
    outcomes: list[str | None] = []

    def init(**settings: Any) -> None:
        if (problem := outcomes.pop(0)) is not None:
            raise Exception(problem)

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv(SWITCH_VARIABLE, "0")  # no workers come
    monkeypatch.setattr(local.ray, "init", init)
    monkeypatch.setattr(local.ray, "shutdown", lambda: None)  # of what was begun; the tests' own Ray stays
    outcomes += [late, None]
    assert start_local().sessions == []
    outcomes += [late, late]
    with pytest.raises(RuntimeFailed, match="timed out during startup"):
        start_local()
    outcomes += ["no port is free"]
    with pytest.raises(RuntimeFailed, match="no port is free"):
        start_local()
    assert not outcomes


def test_an_address_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.ray, "init", never)
    with pytest.raises(ConfigInvalid, match="is no address of this machine"):
        start_local("203.0.113.7")


def test_with_an_address_of_its_own_it_is_asked_for_that_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv(SWITCH_VARIABLE, "0")  # no workers come
    monkeypatch.setattr(local.ray, "init", lambda **settings: asked.append(settings))
    start_local("127.0.0.1", num_cpus=1)
    assert [(each["_node_ip_address"], each["num_cpus"]) for each in asked] == [("127.0.0.1", 1)]


def never(**_: object) -> None:
    raise AssertionError("Ray was started")
