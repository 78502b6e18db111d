"""Kill a run's driver at random moments and resume it, many times; then print the cost.

python -m benchmarks.killed_drivers --runtime inline ray --kills 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PROGRAM = "import sys; from marlflow.cli.main import main; sys.exit(main())"
ROUND, CHECKPOINT = 200, 400  # env steps
SETTINGS = (
    "experiment=cartpole_team_ppo_dqn",
    "env.num_envs=2",
    "rollouts.fragment_env_steps=100",
    "policies.ppo_team.algorithm.batch_agent_steps=700",
    "policies.ppo_team.algorithm.epochs=1",
    "policies.dqn_team.algorithm.learning_starts_agent_steps=300",
    "evaluation.episodes=0",
    f"checkpoint.every_env_steps={CHECKPOINT}",
    f"log.every_env_steps={ROUND}",
    "log.console=plain",
    "log.tensorboard=false",
    "stop.time_s=null",
)
GONE_S = 15.0
"""How long a killed run's processes may take to end."""


class Command:
    """A `marlflow` command in its own process and process group, as a terminal starts it; `said` is its output."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell that starts a command in the background has it ignore SIGINT; the user's terminal does not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
        self._family = {psutil.Process(self._process.pid)}

    def reads(self) -> Iterator[str]:
        """Yield the output lines."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip("\n"))
            yield self.said[-1]

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until `text` was printed `times` times; raises RuntimeError if the command ends before."""
        for line in self.reads():
            times -= text in line
            if not times:
                return
        raise RuntimeError("it ended by itself:\n" + "\n".join(self.said))

    def send(self, number: signal.Signals, group: bool = False) -> None:
        """Send a signal to the driver, or to its process group as Ctrl-C does, and remember the running processes."""
        self._family |= set(self.helpers())
        (os.killpg if group else os.kill)(self._process.pid, number)

    def ends(self) -> int:
        """Read the remaining output, wait, and return the exit code."""
        list(self.reads())
        return self._process.wait()

    def left(self) -> list[psutil.Process]:
        """Return the processes of the last signal that outlive it by more than GONE_S."""
        return psutil.wait_procs(self._family, timeout=GONE_S)[1]

    def helpers(self) -> list[psutil.Process]:
        """Return the processes other than the driver; raises RuntimeError if the driver has ended."""
        if self._process.poll() is not None:
            raise RuntimeError("it ended by itself:\n" + "\n".join([*self.said, *self.reads()]))
        return psutil.Process(self._process.pid).children(recursive=True)

    @property
    def pid(self) -> int:
        """The driver's process id, which is its session's id too."""
        return self._process.pid

    @property
    def family(self) -> frozenset[psutil.Process]:
        """The processes at the last signal."""
        return frozenset(self._family)

    @property
    def size(self) -> int:
        """The number of processes at the last signal."""
        return len(self._family)

    def clear(self) -> None:
        """End the command with all its processes, if it runs."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
        for process in self.left():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def started(words: Sequence[str], folder: Path) -> Iterator[Command]:
    """Start a command that is ended, with all its processes, when the context ends."""
    command = Command(words, folder)
    try:
        yield command
    finally:
        command.clear()


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: the env steps reported and saved before it, and those from which the run continued.

    `gone_s` is the seconds until none of its `processes` was left.
    """

    reported: int
    kept: int
    went_on_from: int
    processes: int
    gone_s: float


def settings(runtime: str, stop_env_steps: int) -> list[str]:
    """Return the arguments of the run that is killed."""
    return ["train", *SETTINGS, f"runtime={runtime}", f"stop.env_steps={stop_env_steps}", "hydra.run.dir=run"]


def killed_run(words: Sequence[str], folder: Path, kills: int, seed: int) -> list[Kill]:
    """Run `words` in `folder`, kill it `kills` times, and let it end; raises RuntimeError if a resume fails."""
    generator, found, run = random.Random(seed), list[Kill](), folder / "run"
    before: tuple[int, int, int, float] | None = None
    while True:
        with started(words, folder) as command:
            command.wait_for("starting" if before is None else "resuming from")
            if before is not None:
                found.append(Kill(before[0], before[1], _went_on_from(command), *before[2:]))
            if len(found) == kills:
                if command.ends() != 0:
                    raise RuntimeError("\n".join(command.said))
                return found
            # Between two lines there is a round, and every other time a checkpoint.
            command.wait_for("env steps", generator.randint(1, 3) + (2 * CHECKPOINT // ROUND if before is None else 0))
            time.sleep(generator.uniform(0.0, 0.06))
            before = _kill(command, run)
        words = ["resume", "run"]


def _kill(command: Command, run: Path) -> tuple[int, int, int, float]:
    command.send(signal.SIGKILL)
    began_s = time.perf_counter()
    command.ends()
    if left := command.left():
        raise RuntimeError(f"{GONE_S:g} s after the driver was killed there are still {left}")
    gone_s = time.perf_counter() - began_s
    kept = [int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    return reports(run)[-1]["env_steps"], max(kept), command.size, gone_s


def _went_on_from(command: Command) -> int:
    text = next(line for line in command.said if line.startswith("resuming from"))
    return int(text.split()[-3].replace(",", ""))


def reports(run: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a metrics.jsonl."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def problems(run: Path, killed: Sequence[Kill], stop_env_steps: int) -> list[str]:
    """Return the broken promises of a run that was killed and has ended."""
    found = [f"it went on from another checkpoint than the newest: {one}" for one in killed if _is_other(one)]
    found += [f"it went back by more than {CHECKPOINT}: {one}" for one in killed if _lost(one) > CHECKPOINT]
    came = [report["env_steps"] for report in reports(run)]
    expected = [*range(ROUND, stop_env_steps + 1, ROUND), stop_env_steps]  # the last is said again when all is learned
    if came != expected:
        found.append(f"reports are of {came} env steps, not of {expected}")
    return found


def _is_other(kill: Kill) -> bool:
    return kill.went_on_from != kill.kept


def _lost(kill: Kill) -> int:
    return kill.reported - kill.went_on_from


def report(runtimes: Sequence[str] = ("inline", "ray"), kills: int = 20, seed: int = 0) -> None:
    """Kill, resume, and print."""
    shared_memory = set(os.listdir("/dev/shm"))
    for runtime in runtimes:
        stop_env_steps = 400 * kills + 2_000
        with tempfile.TemporaryDirectory() as folder:
            killed = killed_run(settings(runtime, stop_env_steps), Path(folder), kills, seed)
            wrong = problems(Path(folder) / "run", killed, stop_env_steps)
        lost = [_lost(one) for one in killed]
        print(
            f"{runtime}: {len(killed)} kills of {max(one.processes for one in killed)} processes; went back "
            f"{sum(lost) / len(lost):.0f} env steps, {max(lost)} at most (a checkpoint every {CHECKPOINT}); "
            f"its processes gone after {max(one.gone_s for one in killed):.1f} s at most; "
            f"new in /dev/shm: {len(set(os.listdir('/dev/shm')) - shared_memory)}; "
            f"wrong: {'; '.join(wrong) or 'nothing'}",
            flush=True,
        )


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", nargs="+", default=["inline", "ray"], choices=["inline", "ray"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    report(asked.runtime, asked.kills, asked.seed)


if __name__ == "__main__":
    main()
