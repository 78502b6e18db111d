"""Measure what a page costs its run: CPU time of a run that serves one, unread or read, beside one without.

The runs of a round have the same seed, so they make the same computations. They are processes of their own, which run
at the same time, so that whatever else the machine does slows down all alike; what is compared is their CPU time, as
the system counts it. The reader of a page is in this process, and is not counted.

A page works by the clock: it looks at the folder once a second. So what it adds is also given as the share of a core,
over the time that the runs took, which is the share of the run itself if that has a core of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
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


def _seconds(case: str, run: subprocess.Popen[str]) -> tuple[float, float]:
    """Return the CPU time of a run in seconds, of user and system, and how long it took, once it has ended."""
    began_s = time.perf_counter()
    for line in run.stdout or ():
        if case == "read" and (address := _ADDRESS.search(line)):
            threading.Thread(target=_read, args=address.groups(), daemon=True).start()
    _, status, used = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise RuntimeError(f"{run.args} ended with {run.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began_s


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


def measure(seeds: Sequence[int], env_steps: int) -> Iterator[dict[str, tuple[float, float]]]:
    """Yield the CPU time and the duration, in seconds, of the runs of each round, by case."""
    for seed in seeds:
        times: dict[str, tuple[float, float]] = {}

        def wait(case: str, run: Any, times: dict[str, tuple[float, float]] = times) -> None:
            times[case] = _seconds(case, run)

        with tempfile.TemporaryDirectory() as folder:
            runs = {case: _begun(case, env_steps, seed, Path(folder, case)) for case in _CASES}
            waiting = [threading.Thread(target=wait, args=one) for one in runs.items()]
            for thread in waiting:
                thread.start()
            for thread in waiting:
                thread.join()
        shown = (f"{case} {times[case][0]:.2f} s in {times[case][1]:.0f} s" for case in _CASES)
        print(f"  seed {seed}: {', '.join(shown)}", flush=True)
        yield times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--env-steps", type=int, default=200_000)
    given = parser.parse_args(arguments)
    seeds = range(given.first_seed, given.first_seed + given.rounds)
    found = list(measure(seeds, given.env_steps))
    cpu_s = mean(times["none"][0] for times in found)
    print(f"{given.rounds} rounds of {given.env_steps:,} env steps, mean CPU time {cpu_s:.1f} s, without a page")
    for case in _CASES[1:]:
        added = [times[case][0] - times["none"][0] for times in found]
        of_run = [more / times["none"][0] for more, times in zip(added, found, strict=True)]
        of_core = [more / times[case][1] for more, times in zip(added, found, strict=True)]
        for whole, shares in (("CPU time", of_run), ("a core", of_core)):
            share = mean_estimate(shares)
            interval = f"95 % interval {share.low:+.2%} to {share.high:+.2%}"
            print(f"a page that is {case}: {share.value:+.2%} of {whole}, {interval} (at most {TARGET:.0%})")


if __name__ == "__main__":
    main()
