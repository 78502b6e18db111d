"""Measure what a page costs its run: CPU time of a run that serves one, unread or read, beside one without.

The runs of a round have the same seed, so they make the same computations. They are processes of their own, which run
at the same time, so that whatever else the machine does slows down all alike; what is compared is their CPU time, as
the system counts it. The reader of a page is in this process, and is not counted.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from statistics import mean
from typing import Any

from marlflow.league.comparison import mean_estimate

TARGET = 0.01
_SETTING = ("experiment=cartpole_team_ppo_dqn", "runtime=inline", "log.console=none")
_CASES = ("none", "unread", "read")
_ADDRESS = re.compile(r"http://([0-9.]+):(\d+)/\?token=(\S+)")


def _begun(case: str, env_steps: int, seed: int, folder: Path) -> subprocess.Popen[str]:
    asked = [*_SETTING, f"stop.env_steps={env_steps}", f"seed={seed}", f"hydra.run.dir={folder}"]
    command = [sys.executable, "-m", "marlflow", "train", *asked, *([] if case == "none" else ["sinks=page"])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _cpu_s(case: str, run: subprocess.Popen[str]) -> float:
    """Return the CPU time of a run in seconds, of user and system, once it has ended."""
    for line in run.stdout or ():
        if case == "read" and (address := _ADDRESS.search(line)):
            threading.Thread(target=_read, args=address.groups(), daemon=True).start()
    _, status, used = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise RuntimeError(f"{run.args} ended with {run.returncode}")
    return used.ru_utime + used.ru_stime


def _read(host: str, port: str, token: str) -> None:
    """Read the stream of events of a page until it ends, as an open page does."""
    connection = HTTPConnection(host, int(port))
    connection.request("GET", f"/?token={token}")
    answer = connection.getresponse()
    cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
    answer.read()
    connection.request("GET", "/events?run=0", headers={"Cookie": cookie})
    stream = connection.getresponse()
    while stream.readline():
        pass


def measure(rounds: int, env_steps: int) -> Iterator[list[float]]:
    """Yield the CPU times of each round: of a run without a page, with one that nobody reads, and with one reader."""
    for number in range(rounds):
        times: dict[str, float] = {}

        def wait(case: str, run: Any, times: dict[str, float] = times) -> None:
            times[case] = _cpu_s(case, run)

        with tempfile.TemporaryDirectory() as folder:
            runs = {case: _begun(case, env_steps, number, Path(folder, case)) for case in _CASES}
            waiting = [threading.Thread(target=wait, args=one) for one in runs.items()]
            for thread in waiting:
                thread.start()
            for thread in waiting:
                thread.join()
        print(f"  round {number + 1}: " + ", ".join(f"{case} {times[case]:.2f} s" for case in _CASES), flush=True)
        yield [times[case] for case in _CASES]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--env-steps", type=int, default=200_000)
    given = parser.parse_args(arguments)
    found = list(measure(given.rounds, given.env_steps))
    print(
        f"{given.rounds} rounds of {given.env_steps:,} env steps, mean CPU time {mean(one[0] for one in found):.1f} s"
    )
    for place, case in enumerate(_CASES[1:], 1):
        share = mean_estimate([times[place] / times[0] - 1 for times in found])
        added = mean_estimate([times[place] - times[0] for times in found])
        print(
            f"a page that is {case}: {share.value:+.2%} of CPU time (95 % interval {share.low:+.2%} to "
            f"{share.high:+.2%}; at most {TARGET:.0%}), {added.value:+.2f} s ({added.low:+.2f} to {added.high:+.2f})"
        )


if __name__ == "__main__":
    main()
