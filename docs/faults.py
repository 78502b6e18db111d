"""Provoke every kind of fault, and write the resulting messages to docs/faults.md.

python docs/faults.py              write the page; takes some minutes
python docs/faults.py --check      compare the page with the messages, except for paths and numbers
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.killed_drivers import SETTINGS, Command, started  # noqa: E402  where it is, is only known above
from docs import faulty, ray_faults  # noqa: E402
from marlflow.cli.main import main as marlflow  # noqa: E402

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Troubleshooting

What can go wrong in a run, the message, and what is lost. [faults.py](faults.py) provoked each of these faults and
copied the messages. A *budget* is the number of faults of one kind that a run may have before it ends: `marlflow train
faults.env_errors=20`. When a run exceeds a budget, it finishes its round, takes a checkpoint, and ends; resume it with
`marlflow resume RUN faults.env_errors=40`. All faults are counted in `metrics.jsonl` under `faults`, and `run.log` says
what broke, where, and why. If your own code raises, the error begins with its traceback, which is left out here. The
last column names the settings that matter, with their defaults or with the values of the message.

"""
QUIET = [word for word in SETTINGS if not word.startswith("log.console")]
INLINE = [
    "train",
    *QUIET,
    "runtime=inline",
    "log.console=plain",
    "log.jsonl=false",
    "stop.env_steps=800",
    "hydra.run.dir=run",
]
ENDLESS = ["train", *SETTINGS, "stop.env_steps=900000000", "hydra.run.dir=run", "checkpoint.every_env_steps=400"]
# One round of two env steps of each environment, so that one fault is not followed by others before the run can end in
# order.
ONE_FAULT = [
    "rollouts.fragment_env_steps=2",
    "policies.dqn_team.algorithm.n_step=1",
    "log.every_env_steps=100000",
    "checkpoint.every_env_steps=200",
]


@dataclass(frozen=True)
class Fault:
    """A row of the table: `provoke` runs a command in an empty folder; `says` is the pattern of the output to show."""

    what: str
    provoke: Callable[[], str]
    says: str
    lost: str
    setting: str


def run(*words: str) -> str:
    """Run `marlflow train` here with the usual arguments and `words`, and return its output."""
    return said(*INLINE, *words)


def said(*words: str) -> str:
    """Run a command here, and return its output."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
        marlflow(list(words))
    return heard.getvalue()


def env(name: str) -> tuple[str, ...]:
    """Return the arguments for an environment of `faulty`."""
    return (f"env._target_=docs.faulty.{name}", "~env.num_agents", "~env.max_cycles", "~env.velocities")


def full_disk(*words: str) -> str:
    """Run while the disk refuses every checkpoint."""
    with patch("marlflow.runs.checkpoints.os.fsync", faulty.no_space):
        return run(*words)


def full_reports(*words: str) -> str:
    """Run while no file can become larger than its first reports, after the run's trial that its folder has room."""
    with faulty.no_file_beyond(16_000), patch("marlflow.config.folders._TRIAL_BYTES", 1):
        return run("log.jsonl=true", "log.every_env_steps=40", "checkpoint.every_env_steps=null", *words)


def never_closes() -> str:
    """Run with environments that cannot be closed within the time limit, which is short here."""
    with patch("marlflow.sampling.watchdog.CLOSE_TIMEOUT_S", 0.2):
        return run(*env("NeverCloses"), "env.num_envs=1", "rollouts.num_workers=1", "evaluation.episodes=0")


def spoiled(spoil: Callable[[Path], Any], *words: str, stop: int = 800) -> str:
    """Resume a run after `spoil` has damaged its newest checkpoint, and return the output."""
    run(f"stop.env_steps={stop}", "log.console=none")
    spoil(Path("run") / "checkpoints" / str(stop))
    return said("resume", "run", "stop.env_steps=1000", "log.console=plain", *words)


def only_one(spoil: Callable[[Path], Any]) -> str:
    """Resume a run whose only checkpoint is damaged, and return the output."""
    return spoiled(spoil, stop=200)


def signalled(number: signal.Signals) -> str:
    """Send a signal to a run in its own process; after SIGKILL, resume it too. Return the output."""
    with started([*ENDLESS, "runtime=inline"], Path.cwd()) as command:
        command.wait_for("1,000 env steps")
        command.send(number)
        command.ends()
    more = said("resume", "run", "stop.env_steps=1000", "log.console=plain") if number == signal.SIGKILL else ""
    return "\n".join([*command.said, more])


def killed(process: str, index: int, *words: str) -> str:
    """Kill the `index`th process of this name in a run over Ray, and return the output of the run, which continues."""
    with started([*ENDLESS, "runtime=ray", *words], Path.cwd()) as command:
        command.wait_for("1,000 env steps")
        _named(command, process)[index].kill()
        command.wait_for("it died and is replaced")
        command.wait_for("faults so far")
        command.send(signal.SIGINT)
        command.ends()
        return "\n".join(command.said)


def _named(command: Command, process: str) -> list[Any]:
    found = [one for one in command.helpers() if one.name().startswith(process[:15]) or process in one.cmdline()[0:1]]
    return sorted(found, key=lambda one: one.create_time())


ERROR, NOTICE, ON = r"^error: .*", r"^environment .*: its episode was discarded; .*", r"^to resume from .*"
KEPT = "nothing"
QUICK = [
    Fault("An environment raises, or violates PettingZoo's API", lambda: run(*env("Raises"), *ONE_FAULT),
          f"{ERROR}|{ON}", "the undelivered rows of that episode", "`faults.env_errors: 0`"),
    Fault("The same, within the budget", lambda: run(*env("Raises"), "faults.env_errors=1000"), NOTICE,
          "the undelivered rows of that episode", "`faults.env_errors: 1000`"),
    Fault("An observation has a NaN", lambda: run(*env("GoesBlind"), *ONE_FAULT), f"{ERROR}|{ON}",
          "the undelivered rows of that episode", "`faults.env_errors: 0`"),
    Fault("An environment hangs", lambda: run(*env("Hangs"), *ONE_FAULT, "env.step_timeout_s=0.5"), f"{ERROR}|{ON}",
          "the undelivered rows of that episode", "`env.step_timeout_s`, `faults.env_hangs: 0`"),
    Fault("It hangs when `stop.time_s` ends",
          lambda: run(*env("Hangs"), *ONE_FAULT, "stop.time_s=3", "stop.grace_period_s=1"), f"{ERROR}|{ON}",
          "the undelivered rows of that episode", "`stop.time_s`, `stop.grace_period_s: 30`"),
    Fault("A living agent has no reward", lambda: run(*env("Unpaid"), *ONE_FAULT), f"{ERROR}|{ON}",
          "the undelivered rows of that episode", "`faults.env_errors: 0`"),
    Fault("A loss is not finite", lambda: run(*env("Jackpot")),
          r"^learner .*: a gradient was not finite.*", "that optimizer step", "`faults.updates_skipped: 100`"),
    Fault("Beyond a budget", lambda: run(*env("Jackpot"), "faults.updates_skipped=0"),
          rf"{ERROR}|^that was updates_skipped .*|{ON}", KEPT,
          "`faults.updates_skipped: 0`"),
    Fault("The disk is full", lambda: full_disk("stop.env_steps=1200"),
          r"^checkpoint at .*: it could not be written; .*", "that checkpoint; the one before it is kept",
          "`faults.checkpoints_failed: 3`"),
    Fault("The disk is full when the run ends", lambda: full_disk("stop.env_steps=400"),
          f"{ERROR}|^there is no checkpoint.*",
          "everything after the last checkpoint", "`checkpoint.every_env_steps`"),
    Fault("The disk is full while reports are written", full_reports, r"^.*metrics.jsonl: it could not be written; .*",
          "nothing: lines wait until there is room, and are lost if the run ends before",
          "`faults.reports_failed: 10`"),
    Fault("The disk is full while rows are recorded", lambda: full_reports("record=dataset", "faults.records_failed=0",
                                                                     "faults.checkpoints_failed=99"),
          r"^error: records .*|^that was records_failed .*",
          "everything after the last checkpoint: rows wait in memory",
          "`faults.records_failed: 0`"),
    Fault("An environment's `close()` raises", lambda: run(*env("Sticks")),
          r"^environment .*: it could not be closed; .*", KEPT, "`faults.closes_failed: 100`"),
    Fault("An environment's `close()` hangs", never_closes, r"^environment .*: it could not be closed; .*",
          KEPT, "`faults.closes_failed: 100`; 10 s for all environments of a process"),
    Fault("The newest checkpoint is damaged", lambda: spoiled(faulty.flipped), r"^checkpoint .*|^resuming .*",
          "everything after the checkpoint before it", "`checkpoint.keep: 2`"),
    Fault("A file of the only checkpoint is truncated", lambda: only_one(faulty.truncated), r"^error: .*|^  \d\. .*",
          "the run", "`checkpoint.keep: 2`"),
    Fault("A checkpoint has another format", lambda: only_one(faulty.of_another_format), r"^error: .*|^  \d\. .*",
          KEPT, "the version of marlflow"),
    Fault("A checkpoint has other policies",
          lambda: spoiled(faulty.untouched, "policies.dqn_team.model.hidden_sizes=[8]", "seed=1"),
          r"^error: .*|^  \d\. .*", KEPT, "`seed`, `env`, `policies`"),
    Fault("The notes of a checkpoint have another shape", lambda: only_one(faulty.with_other_notes),
          r"^error: .*|^  \d\. .*", "nothing, once it is removed: the one before it is used", "`checkpoint.keep: 2`"),
    Fault("A tensor's file was replaced by a pickle", lambda: only_one(faulty.with_a_pickle), r"^error: .*|^  \d\. .*",
          "the run; marlflow never unpickles", "`checkpoint.keep: 2`"),
    Fault("A tensor's file was replaced by a symbolic link", lambda: only_one(faulty.with_a_link),
          r"^error: .*|^  \d\. .*",
          "the run; marlflow follows no links", "`checkpoint.keep: 2`"),
    Fault("The cluster has too few resources",
          lambda: said("train", *QUIET, "runtime=ray", "placement.learners.num_gpus=99", "hydra.run.dir=run"),
          r"^error: .*|^  \d\. .*", "nothing: the run did not start", "`placement`, `rollouts.placement`"),
]  # fmt: skip
SLOW = [
    Fault("Ctrl-C", lambda: signalled(signal.SIGINT), rf"^finishing.*|^stopping: .*|{ON}", KEPT,
          "`stop.grace_period_s: 30`"),
    Fault("SIGTERM", lambda: signalled(signal.SIGTERM), rf"^finishing.*|^stopping: .*|{ON}", KEPT,
          "`stop.grace_period_s: 30`"),
    Fault("The driver is killed, and the run resumed", lambda: signalled(signal.SIGKILL), r"^resuming from .*",
          "everything after the last checkpoint, which a resume repeats", "`checkpoint.every_env_steps`"),
    Fault("A rollout worker is killed", lambda: killed("ray::RolloutActor", 0), r"^rollout worker .*: it died and .*",
          "its round, which is not counted, and its episodes", "`faults.workers_lost: 100`"),
    Fault("A learner is killed", lambda: killed("ray::Host", 0), r"^learner .*: it died and .*",
          "its updates since the last checkpoint; a replay in the same process", "`faults.learners_lost: 20`"),
    Fault("A replay is killed", lambda: killed("ray::Host", -1, "placement.learners.replay=own"),
          r"^replay .*: it died and .*",
          "its rows; learning continues when the replay has `learning_starts_agent_steps` again",
          "`faults.replays_lost: 20`"),
]  # fmt: skip


def line(fault: Fault) -> str:
    """Return a fault's row of the table; raises ValueError if the output does not match."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            heard = fault.provoke().replace(os.path.realpath(folder), "...").replace(str(ROOT), "...")
        finally:
            os.chdir(before)
    shown = {mask(found): found.strip() for found in reversed(re.findall(fault.says, heard, re.M))}  # each only once
    if not shown:
        raise ValueError(f"{fault.what}: nothing that was said matches {fault.says}:\n{heard}")
    words = "<br>".join(f"`` {found} ``" for found in reversed(shown.values())).replace("|", "\\|")
    return f"| {fault.what} | {words} | {fault.lost} | {fault.setting} |"


def mask(text: str) -> str:
    """Mask the numbers, which differ between runs."""
    return re.sub(r"\d[\d,.]*", "0", text)


def lines(faults: list[Fault]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| Fault | Message | What is lost | Setting |"
    yield "|---|---|---|---|"
    yield from map(line, faults)


def main() -> int:
    """Write the page, or with --check compare it, and return 1 if it differs."""
    text = HEAD + "\n".join([*lines([*QUICK, *SLOW]), *ray_faults.lines()]) + "\n"
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    before = {mask(then) for then in PAGE.read_text(encoding="utf-8").splitlines()}
    other = [now for now in text.splitlines() if mask(now) not in before]
    sys.stdout.write("\n".join(["these lines are not as they were:", *other, ""]) if other else "as it was\n")
    return bool(other)


if __name__ == "__main__":
    sys.exit(main())
