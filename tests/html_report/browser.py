"""A headless Chromium, driven through its DevTools protocol by pipes."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 120


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


# Chromium reads commands from descriptor 3 and answers on 4.
_START = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """A tab: what it logged, which addresses it asked for, and the values of JavaScript expressions in it."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._received = b""
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            received = os.read(self._answers, 1 << 20)
            assert received, "the browser has ended"
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        if "method" in answer:
            self.events.append(answer)
        return answer

    def open(self, path: Path | str, width: int, dark: bool = False) -> None:
        """Open a file, or an address on this machine, and wait until it is loaded."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @property
    def messages(self) -> list[str]:
        """Everything on the console."""
        methods = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in methods]

    @property
    def requests(self) -> list[str]:
        """The addresses of everything that was loaded, without data in the page itself."""
        sent = (event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [url for one in sent if not (url := one["request"]["url"]).startswith("data:")]


@contextmanager
def page(profile: Path) -> Iterator[Page]:
    """Open a tab of a browser that has no network."""
    command = [
        str(executable()),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    start = [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), *command]
    process = subprocess.Popen(start, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        tab = Page(ours_out, ours_in)
        yield tab
        with suppress(AssertionError, OSError):
            tab._session = {}
            tab.call("Browser.close")
    finally:
        for end in (ours_in, ours_out):
            os.close(end)
        try:
            process.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
