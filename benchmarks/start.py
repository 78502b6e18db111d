"""Measure how long commands take to start, as ratios to `python -c "import torch, ray"` in the same run.

    python -m benchmarks.start --repeats 5

All variants take turns, so other load on the machine affects them alike. `train` is the demo, until the first line of
its metrics.jsonl: 5,000 env steps, the first evaluation and the first checkpoint included.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.killed_drivers import PROGRAM

DEMO = "experiment=cartpole_team_ppo_dqn"
IMPORTS = "import torch, ray"
_WORKER = "import marlflow.runtime.ray.rollout_actor, marlflow.algorithms.shipped"
_LINE = f"marlflow train {DEMO} seed="
_POLL_S = 0.005
_GIVE_UP_S = 300.0


def _took_s(*words: str, **variables: str) -> float:
    """Return the seconds that a Python with these arguments takes."""
    began_s = time.perf_counter()
    environment = {**os.environ, **variables}
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began_s


def _first_report_s() -> float:
    """Return the seconds until the first report of the demo, which is then ended."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder, "run", "metrics.jsonl")
        words = ["train", DEMO, f"hydra.run.dir={metrics.parent}", "log.console=none"]
        began_s = time.perf_counter()
        with subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stderr=subprocess.DEVNULL) as process:
            try:
                while not (metrics.exists() and metrics.stat().st_size):
                    if process.poll() is not None or time.perf_counter() - began_s > _GIVE_UP_S:
                        raise RuntimeError(f"the demo made no report; its exit code is {process.poll()}")
                    time.sleep(_POLL_S)
                return time.perf_counter() - began_s
            finally:
                process.send_signal(signal.SIGINT)


# With the seconds that are the target on two quiet cores, if there is one.
VARIANTS: dict[str, tuple[Callable[[], float], float | None]] = {
    f'python -c "{IMPORTS}"': (partial(_took_s, "-c", IMPORTS), None),
    "marlflow --help": (partial(_took_s, "-c", PROGRAM, "--help"), 0.3),
    "tab completion of an override": (
        partial(_took_s, "-c", PROGRAM, "-sc", "query=bash", COMP_LINE=_LINE, COMP_POINT=str(len(_LINE))),
        None,
    ),
    f"marlflow plan {DEMO}": (partial(_took_s, "-c", PROGRAM, "plan", DEMO), 3.0),
    "imports of a rollout worker": (partial(_took_s, "-c", _WORKER), None),
    "marlflow train: first report of the demo": (_first_report_s, 6.0),
}


def report(repeats: int = 5) -> None:
    """Measure and print medians."""
    took_s: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(repeats):
        for name, (measure, _target_s) in VARIANTS.items():
            took_s[name].append(measure())
    imports_s = next(iter(took_s.values()))
    print(f"{'':42}{'seconds':>9}{'ratio':>8}{'target, two quiet cores':>25}")
    for name, (_measure, target_s) in VARIANTS.items():
        ratio = statistics.median(one / other for one, other in zip(took_s[name], imports_s, strict=True))
        target = "" if target_s is None else f"{target_s:g} s"
        print(f"{name:42}{statistics.median(took_s[name]):9.2f}{ratio:8.2f}{target:>25}", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    report(parser.parse_args(words).repeats)


if __name__ == "__main__":
    main()
