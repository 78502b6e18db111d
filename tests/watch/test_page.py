"""The page and its server: who may see it, what it says, and that it draws what the runs have."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from filelock import FileLock

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import description_of
from marlflow.runs.run_state import LOCK, STATE, STOP, is_stop_requested, write_state
from marlflow.watch.films import newest_film
from marlflow.watch.followed import FollowedRun
from marlflow.watch.server import COOKIE, HOST, WatchServer, serve
from tests.html_report import browser
from tests.html_report.written import config, policy, report, write_run

TOKEN = "a-token"
WAIT_S = 60


@contextmanager
def served(*folders: Path, control: bool = False) -> Iterator[tuple[WatchServer, int]]:
    """Serve runs in a thread; yields the watch and its port."""
    watch = WatchServer([FollowedRun(folder, folder.name) for folder in folders], TOKEN, every_s=0.1, control=control)
    server = uvicorn.Server(uvicorn.Config(watch.app(), host=HOST, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield watch, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.force_exit = server.should_exit = True
        thread.join()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to be so"
        time.sleep(0.05)
    return found


def runs(folder: Path, count: int) -> list[Path]:
    made = []
    for number in range(count):
        reports = [report(steps, {"prey": policy(trained=number + steps / 100)}) for steps in (100, 200, 300)]
        made.append(write_run(folder / f"run_{number}", reports, config(number)))
        write_state(made[-1], "finished", "stop.env_steps=300")
    return made


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


def answer(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    with closing(http.client.HTTPConnection(HOST, port, timeout=WAIT_S)) as connection:
        connection.request(method, path, headers=headers)
        with connection.getresponse() as given:
            return Answer(given.status, given.headers, given.read())


def cookie(port: int, token: str = TOKEN) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}_{port}={token}"}


def origin(port: int) -> dict[str, str]:
    return {"Origin": f"http://{HOST}:{port}"}


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder, as its process does."""
    write_state(folder, "running")
    with FileLock(folder / LOCK):
        yield


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in (LOCK, STATE)}


@pytest.mark.parametrize("path", ["/", "/events", "/film", "/watch.js", "/?token=wrong", "/events?token=a-token"])
def test_nothing_is_served_without_the_token(path: str, tmp_path: Path) -> None:
    with served(*runs(tmp_path, 1)) as (_, port):
        refused = answer(port, path)
        assert (refused.status, b"run_0" in refused.body) == (403, False)
        assert answer(port, path, **cookie(port, "wrong")).status == 403


def test_the_token_of_the_address_becomes_a_cookie(tmp_path: Path) -> None:
    with served(*runs(tmp_path, 1)) as (_, port):
        first = answer(port, f"/?token={TOKEN}")
        assert (first.status, first.headers["location"]) == (303, "/")
        assert "HttpOnly" in first.headers["set-cookie"]
        assert "SameSite=strict" in first.headers["set-cookie"]
        assert b"marlflow watch" in answer(port, "/", **cookie(port)).body


def test_other_names_of_this_machine_and_other_methods_are_refused(tmp_path: Path) -> None:
    with served(*runs(tmp_path, 1)) as (_, port):
        assert answer(port, "/", Host="rebound.example", **cookie(port)).status == 400
        assert answer(port, "/", method="POST", **cookie(port)).status == 405


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/events", "/film", "/stop", "/stop?run=0", "/watch.js"])
def test_without_control_no_request_changes_anything(method: str, path: str, tmp_path: Path) -> None:
    (folder,) = runs(tmp_path, 1)
    before = contents(folder)
    with running(folder), served(folder) as (_, port):
        assert answer(port, path, method, **cookie(port), **origin(port)).status in (404, 405)
    assert contents(folder) == before


def test_with_control_only_the_page_itself_asks_a_running_run_to_stop(tmp_path: Path) -> None:
    folder, ended = runs(tmp_path, 2)
    with running(folder), served(folder, ended, control=True) as (watch, port):
        foreign = [{}, {"Origin": "null"}, {"Origin": f"http://{HOST}:{port + 1}"}, {"Origin": "http://other.example"}]
        for headers in foreign:
            assert answer(port, "/stop?run=0", "POST", **cookie(port), **headers).status == 403
        assert answer(port, "/stop?run=0", "POST", **origin(port)).status == 403  # no token
        assert answer(port, "/stop?run=0", "POST", **cookie(port, "wrong"), **origin(port)).status == 403
        assert answer(port, "/stop?run=0", "GET", **cookie(port), **origin(port)).status == 405
        for other in ("1", "2", "-1", "", "..", "0/../1", str(folder)):
            assert answer(port, f"/stop?run={other}", "POST", **cookie(port), **origin(port)).status == 409
        assert not is_stop_requested(folder)
        assert answer(port, "/stop?run=0", "POST", **cookie(port), **origin(port)).status == 204
        assert is_stop_requested(folder)
        assert not is_stop_requested(ended)
        watch.look()
        assert watch.runs[0].summary()["is_stopping"]
        assert answer(port, "/stop?run=0", "POST", **cookie(port), **origin(port)).status == 204  # asked twice


def test_a_request_to_stop_is_not_written_through_a_link(tmp_path: Path) -> None:
    (folder,) = runs(tmp_path, 1)
    with running(folder), served(folder, control=True) as (_, port):
        (folder / STOP).symlink_to(tmp_path / "elsewhere")
        assert answer(port, "/stop?run=0", "POST", **cookie(port), **origin(port)).status == 409
    assert not (tmp_path / "elsewhere").exists()


def film(folder: Path, name: str, data: bytes = b"a film", checkpoint: int = 200) -> Path:
    """A film as `marlflow play --video` writes it, with its description."""
    (folder / name).write_bytes(data)
    described = {"video": name, "checkpoint": checkpoint}
    description_of(folder / name).write_text(json.dumps(described), encoding="utf-8")
    return folder / name


def test_the_newest_film_is_served(tmp_path: Path) -> None:
    (folder,) = runs(tmp_path, 1)
    with served(folder) as (watch, port):
        assert answer(port, "/film?run=0", **cookie(port)).status == 404
        os.utime(film(folder, "old.webm", b"old"), ns=(1, 1))
        film(folder, "new.mp4", b"new", checkpoint=300)
        watch.look()
        shown = watch.runs[0].details()["film"]
        assert (shown["name"], shown["env_steps"], shown["type"]) == ("new.mp4", 300, "video/mp4")
        given = answer(port, f"/film?run=0&written={shown['written']}", **cookie(port))
        assert (given.status, given.headers["content-type"], given.body) == (200, "video/mp4", b"new")
        assert answer(port, "/film?run=0").status == 403


def test_a_pipe_in_place_of_a_description_is_no_film(tmp_path: Path) -> None:
    description_of(film(tmp_path, "a.mp4")).unlink()
    os.mkfifo(tmp_path / "a.mp4.json")
    assert newest_film(tmp_path) is None


def test_only_films_of_the_folder_itself_are_served(tmp_path: Path) -> None:
    folder, other = runs(tmp_path, 2)
    secret = film(tmp_path, "secret.mp4", b"secret")
    (folder / "linked.mp4").symlink_to(secret)
    (folder / "linked.mp4.json").write_text('{"video": "linked.mp4", "checkpoint": 1}', encoding="utf-8")
    film(folder, "page.html", b"<script>")
    film(other, "another.gif")
    (folder / "bare.mp4").write_bytes(b"not described")
    (folder / "named.mp4").write_bytes(b"described as another")
    (folder / "named.mp4.json").write_text('{"video": "../secret.mp4", "checkpoint": 1}', encoding="utf-8")
    (folder / "folder.mp4").mkdir()
    film(folder, "growing.mp4")
    os.utime(folder / "growing.mp4", ns=(2**62, 2**62))  # written after its description: a new one is under way
    with served(folder) as (_, port):
        for asked in ("0", "1", "..", "../run_1", str(other), "0&name=../secret.mp4", "0/../../secret.mp4"):
            assert answer(port, f"/film?run={asked}", **cookie(port)).status == 404
        for path in ("/film/../secret.mp4", "/secret.mp4", "/film/linked.mp4", "/linked.mp4", "/../secret.mp4"):
            assert answer(port, path, **cookie(port)).status == 404


def test_events_have_the_details_of_the_chosen_run_and_then_what_is_new(tmp_path: Path) -> None:
    first, second = runs(tmp_path, 2)
    with served(first, second) as (watch, port), closing(http.client.HTTPConnection(HOST, port)) as connection:
        connection.request("GET", "/events?run=1", headers=cookie(port))
        events = connection.getresponse()
        told = [json.loads(line[6:]) for line in (events.readline() for _ in range(4)) if line.startswith(b"data: ")]
        assert [(run["name"], "details" in run) for run in told] == [("run_0", False), ("run_1", True)]
        with (first / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(report(400, {"prey": policy(trained=9.0)})) + "\n")
        watch.look()
        new = next(json.loads(line[6:]) for line in iter(events.readline, b"") if line.startswith(b"data: "))
        (picture,) = new["returns"]
        assert (new["name"], picture["series"][0]["points"][-1]) == ("run_0", [400, 9.0])
        events.close()


_TOO_WIDE = """
[...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > innerWidth + 1 &&
  !one.closest(".scroll") && !one.closest("pre")).map(one => one.outerHTML.slice(0, 200))
"""


@pytest.mark.slow
@pytest.mark.skipif(browser.executable() is None, reason="there is no browser")
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("count", [1, 100])
def test_a_browser_draws_the_runs(count: int, width: int, tmp_path: Path) -> None:
    folders = runs(tmp_path, count)
    (folders[0] / "run.log").write_text("<b>a line</b>\n", encoding="utf-8")
    with served(*folders) as (_, port), browser.page(tmp_path / "profile") as tab:
        tab.open(f"http://{HOST}:{port}/?token={TOKEN}", width, dark=width == 400)
        until(lambda: tab.value("document.querySelectorAll('#curves figure').length"))
        assert tab.value("document.getElementById('name').textContent") == "run_0"
        assert tab.value("document.getElementById('log').textContent") == "<b>a line</b>"
        assert tab.value("document.getElementById('runs-section').hidden") == (count == 1)
        assert tab.value("document.querySelectorAll('#runs tr').length") == (count if count > 1 else 0)
        ticks = tab.value("[...document.querySelector('#curves svg').querySelectorAll('text')].map(t => t.textContent)")
        assert ticks == ["1", "1.5", "2", "2.5", "3", "0", "100", "200", "300"]
        assert tab.value("[...document.querySelectorAll('.stage b')].map(b => b.textContent)")[0] == "Collect"
        assert tab.value(_TOO_WIDE) == []
        if count > 1:
            tab.value("document.querySelectorAll('#runs button')[7].click()")
            until(lambda: tab.value("document.getElementById('name').textContent") == "run_7")
        assert tab.messages == []
        assert {url.split("/")[2] for url in tab.requests} == {f"{HOST}:{port}"}


@pytest.mark.slow
@pytest.mark.skipif(browser.executable() is None, reason="there is no browser")
def test_a_browser_draws_a_curve_whose_values_differ_by_rounding(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 0.3, 0.30000000000000010]
    reports = [report(100 * place, {"prey": policy(trained=value)}) for place, value in enumerate(values, 1)]
    run = write_run(tmp_path / "run", reports, config())
    with served(run) as (_, port), browser.page(tmp_path / "profile") as tab:
        tab.open(f"http://{HOST}:{port}/?token={TOKEN}", 800, dark=False)
        until(lambda: tab.value("document.querySelectorAll('#curves figure').length"))
        ticks = tab.value("[...document.querySelector('#curves svg').querySelectorAll('text')].map(t => t.textContent)")
        assert ticks[:4] == ["0.29", "0.3", "0.31", "0"]
        assert tab.messages == []


def test_the_command_prints_its_address_and_ends_by_an_interrupt(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, 1)
    # A background job of a shell begins with interrupts ignored, and so do the tests that it runs.
    begin = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", begin + "runpy.run_module('marlflow', run_name='__main__')", "watch", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("watching 1 run; open http://127.0.0.1:")
        process.send_signal(2)
        _, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        watch = WatchServer([FollowedRun(runs(tmp_path, 1)[0], "run")], TOKEN)
        with pytest.raises(ConfigInvalid, match=f"port {port} of 127.0.0.1 cannot be used: .*; port=0 takes any free"):
            serve(watch, port, str)


def test_a_look_that_fails_ends_the_server_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = FollowedRun(runs(tmp_path, 1)[0], "run")
    looks = []

    def read() -> bool:
        looks.append(1)
        if len(looks) > 2:
            raise RuntimeError("the plan cannot be read")
        return True

    said: list[str] = []
    opened: list[threading.Thread] = []

    def say(address: str) -> None:
        said.append(address)
        port = int(address.split(":")[2].split("/", maxsplit=1)[0])
        opened.append(threading.Thread(target=answer, args=(port, "/events"), kwargs=cookie(port)))
        opened[0].start()

    monkeypatch.setattr(followed, "read", read)
    with pytest.raises(RuntimeError, match="the plan cannot be read"):
        serve(WatchServer([followed], TOKEN, every_s=0.05), 0, say)
    opened[0].join()
    assert said[0].startswith(f"http://{HOST}:")


def test_nothing_is_read_while_no_page_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = FollowedRun(runs(tmp_path, 1)[0], "run")
    watch = WatchServer([followed], TOKEN, every_s=0.01)
    monkeypatch.setattr(followed, "read", lambda: pytest.fail("nobody looks"))
    serve(watch, 0, lambda _: threading.Timer(0.3, watch.close).start())
