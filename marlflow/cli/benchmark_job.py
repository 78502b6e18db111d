"""The process of one run of a benchmark: trains it, plays its final episodes, and prints the score."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marlflow.base.errors import MarlflowError
from marlflow.cli.failures import failure


@dataclass(frozen=True, slots=True)
class BenchmarkJob:
    """A job: `words` are arguments of marlflow that train the run in `folder`, empty if that is done.

    The score is the mean over `episodes` of the sum of the returns of all agents of `policies`, in the run's
    environment with other settings `env`.
    """

    words: Sequence[str]
    folder: str
    policies: Sequence[str]
    env: Mapping[str, Any]
    episodes: int

    def start(self, output: Path) -> subprocess.Popen[str]:
        """Start its process, in one thread; its output goes to a file, but the score to its standard output."""
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("w", encoding="utf-8") as file:
            # In a session of its own: Ctrl-C reaches the command alone, which then ends each process once.
            return subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(asdict(self))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def run(self) -> int:
        """Train and score; return the exit code."""
        from marlflow.cli.main import main

        answer = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        if self.words and (code := main(list(self.words))):
            return code
        try:
            score = self._score()
        except MarlflowError as error:
            print(failure(error), file=sys.stderr)
            return 1
        with os.fdopen(answer, "w") as file:
            file.write(json.dumps(score))
        return 0

    def _score(self) -> float:
        from marlflow.driver.evaluate import evaluate

        evaluated = evaluate(self.folder, episodes=self.episodes, mode="as_learned", env=self.env)
        return math.fsum(of.team.mean.value for of in evaluated.returns if of.policy in self.policies)


def _end_with_command() -> None:
    """Terminate this process in order when the command has ended, however it did."""
    os.read(0, 1)  # nothing is ever written; Python's own stdin would be locked when the process ends
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_command, name="marlflow-command", daemon=True).start()
    sys.exit(BenchmarkJob(**json.loads(sys.argv[1])).run())
