"""A run that serves its own page, and one that is asked to stop by a file in its folder."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

import marlflow as mf
from marlflow.runs.run_state import STOP, request_stop, run_state
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL_PPO, policies, small_run

ROUND = 80


def run(page: mf.RunPage | None = None, **callbacks: mf.Callback) -> mf.Experiment:
    log = mf.Log(ROUND, console="none", tensorboard=False, sinks={} if page is None else {"page": page})
    return replace(
        small_run(env_steps=20 * ROUND, policies=policies(hunters=SMALL_PPO, prey=mf.Random()), log=log),
        callbacks=callbacks,
    )


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for the request before each round, and not once a second: these runs are short."""
    monkeypatch.setattr("marlflow.driver.stop_conditions._LOOKS_EVERY_S", 0.0)


class Visitor(mf.Callback):
    """Opens the run's page at its second report, as a browser does, and asks the run to stop."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.address, self.seen, self.status = capsys, "", b"", 0

    def reported(self, record: mf.Report) -> None:
        if self.address or record["env_steps"] < 2 * ROUND:
            return
        (self.address,) = re.findall(
            r"until it ends: (http://127.0.0.1:[0-9]+/[?]token=[^ ]+)\n", self.capsys.readouterr().out
        )
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        browser.open(self.address).close()
        base = self.address.partition("?")[0]
        with browser.open(f"{base}events?run=0") as events:
            self.seen = events.readline()
        request = urllib.request.Request(f"{base}stop?run=0", method="POST", headers={"Origin": base[:-1]})
        try:
            self.status = browser.open(request).status
        except HTTPError as error:
            self.status = error.code


def test_a_run_serves_its_page_until_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visitor = Visitor(capsys)
    result = mf.train(run(mf.RunPage(), visitor=visitor), tmp_path)
    assert b'"state": "running"' in visitor.seen
    assert visitor.status == 404  # there is no button
    assert result.stopped_by == f"stop.env_steps={20 * ROUND}"
    assert reports(tmp_path)[-1]["faults"]["callbacks_failed"] == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "marlflow-page"]
    with pytest.raises(URLError):
        urllib.request.urlopen(visitor.address)


@pytest.mark.usefixtures("looks_at_once")
def test_with_control_the_page_stops_the_run_which_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    visitor = Visitor(capsys)
    experiment = run(mf.RunPage(control=True), visitor=visitor)
    result = mf.train(experiment, tmp_path)
    assert visitor.status == 204
    assert result.stopped_by == f"{STOP} in its folder"
    assert (tmp_path / "checkpoints" / str(int(result.metrics["env_steps"]))).is_dir()
    assert mf.resume(run(), tmp_path).stopped_by == f"stop.env_steps={20 * ROUND}"


@pytest.mark.usefixtures("looks_at_once")
def test_a_file_in_its_folder_stops_a_run_and_is_removed(tmp_path: Path) -> None:
    class Asks(mf.Callback):
        def reported(self, record: mf.Report) -> None:
            request_stop(tmp_path)

    stopped = mf.train(run(asks=Asks()), tmp_path)
    assert stopped.stopped_by == f"{STOP} in its folder"
    assert stopped.metrics["env_steps"] < 20 * ROUND
    assert (tmp_path / "checkpoints" / str(int(stopped.metrics["env_steps"]))).is_dir()
    assert (run_state(tmp_path).name, run_state(tmp_path).reason) == ("finished", stopped.stopped_by)
    assert not (tmp_path / STOP).exists()
    request_stop(tmp_path)  # too late: it was to the run as it was
    assert mf.resume(run(), tmp_path).stopped_by == f"stop.env_steps={20 * ROUND}"


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("nowhere")])
def test_a_request_that_no_run_could_see_is_an_error(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / STOP)
    with pytest.raises(FileExistsError):
        request_stop(tmp_path)


def test_a_port_in_use_ends_no_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = mf.train(run(mf.RunPage(port=port)), tmp_path)
    assert result.metrics["faults"]["callbacks_failed"] == 1
    assert f"port {port} of 127.0.0.1 cannot be used" in (tmp_path / "run.log").read_text(encoding="utf-8")


def test_without_the_extra_the_run_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlflow.observe.callback.find_spec", lambda _: None)
    with pytest.raises(mf.ConfigInvalid) as refused:
        mf.train(run(mf.RunPage()), tmp_path / "run")
    (problem,) = refused.value.problems
    assert problem == (
        "log.sinks.page needs the package starlette, which is not installed; pip install 'marlflow[watch]'"
    )
    assert not (tmp_path / "run").exists()
