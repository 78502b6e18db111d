"""Train teams on games whose solutions are known, and compare with these; three seeds each.

    python -m benchmarks.team_bars                                     the cases and their bars
    python -m benchmarks.team_bars two_step_qmix 'climbing*'           some of them, by name or pattern
    python -m benchmarks.team_bars '*' --seeds 20,21,22 --report-only  all of them, without training

Settings were chosen on seeds 0 to 2. Runs are inline, in one thread, so that a result does not depend on the machine.
They are kept in runs/team_bars/<case>/<seed>: a run that was interrupted is resumed, one that is complete is not
repeated. With --report-only nothing is trained, and the state of each run so far is shown. A control is a case whose
bar says what an algorithm cannot reach, because it lacks what the game needs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.seeds import add_seeds
from benchmarks.team_case import Case
from benchmarks.team_cases import CASES
from benchmarks.team_values import trained_values
from marlflow.driver.checkpointing import saved_at
from marlflow.observe.sinks import METRICS, read_metrics

FOLDER = Path("runs/team_bars")


def run_dir(case: Case, seed: int) -> Path:
    """Return the folder of a run."""
    return FOLDER / case.name / str(seed)


def train(case: Case, seed: int) -> None:
    """Train until the run is complete; raises CalledProcessError."""
    folder = run_dir(case, seed)
    if (saved := saved_at(folder)) is not None and saved >= case.env_steps:
        return
    marlflow = str(Path(sys.executable).with_name("marlflow"))
    if saved is not None:
        command = [marlflow, "resume", str(folder)]
    else:
        settings = [
            f"seed={seed}",
            "runtime=inline",
            f"log.every_env_steps={case.env_steps // 10}",
            "log.tensorboard=false",
        ]
        # Bars are of greedy play, unless a case says otherwise.
        words = ["evaluation.mode=greedy", *case.words, *settings, "log.console=none"]
        command = [marlflow, "train", *words, f"hydra.run.dir={folder}"]
    print(f"-- {' '.join(command)}", flush=True)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def result(case: Case, seed: int) -> tuple[float, str]:
    """Return the figure of a run that its bar is for, from its last evaluation, and the line that reports it."""
    reports = list(read_metrics(run_dir(case, seed) / METRICS))
    report = next(report for report in reversed(reports) if report["policies"][case.policy][case.metric] is not None)
    evaluated = report["policies"][case.policy]
    value = float(evaluated[case.metric])
    found = f"{value:.4g}"
    if evaluated["eval_return_std"]:
        found += f" +- {evaluated['eval_return_std']:.2g}"
    steps, seconds = reports[-1]["env_steps"], reports[-1]["time_s"]
    return value, f"{found} over {evaluated['eval_episodes']} episodes; {steps:,} env steps in {seconds:.0f} s"


def report(case: Case, seeds: Sequence[int], *, trains: bool = True) -> bool:
    """Train if necessary, and print a line for each seed; return whether all of them meet the bar."""
    met, values = [], []
    for seed in seeds:
        if trains:
            train(case, seed)
        if not (run_dir(case, seed) / METRICS).exists():
            print(f"{case.name} seed {seed}: no run yet", flush=True)
            continue
        value, line = result(case, seed)
        values.append(value)
        met.append(case.is_met(value))
        if case.probe is not None:
            error, text = case.probe(trained_values(case.words, run_dir(case, seed)))
            met[-1] = met[-1] and error <= case.error_at_most
            line += f"; {text} (error {error:.3f}, at most {case.error_at_most:g})"
        if case.count is not None:
            number, text = case.count(run_dir(case, seed))
            met[-1] = met[-1] and case.counted_from <= number <= case.counted_to
            line += f"; {text}"
        verdict = (
            ("as it must" if met[-1] else "NOT AS IT MUST") if case.is_control else ("reached" if met[-1] else "MISSED")
        )
        print(f"{case.name} seed {seed}: {line} (bar {case.bar}: {verdict})", flush=True)
    if case.beside is not None and values:
        met.append(_is_as_good(case, values, CASES[case.beside], seeds))
    return all(met)


def _is_as_good(case: Case, values: Sequence[float], other: Case, seeds: Sequence[int]) -> bool:
    """Print and return whether the mean is no worse than another case's on these seeds, less its standard deviation."""
    beside = [result(other, seed)[0] for seed in seeds if (run_dir(other, seed) / METRICS).exists()]
    if len(beside) < 2:
        print(f"{case.name}: {other.name} has no runs of these seeds yet to compare with", flush=True)
        return True
    mean, reference, spread = fmean(values), fmean(beside), stdev(beside)
    is_as_good = mean >= reference - spread
    verdict = "reached" if is_as_good else "MISSED"
    print(
        f"{case.name}: mean {mean:.2f}, {other.name} {reference:.2f} +- {spread:.2f} (no worse: {verdict})", flush=True
    )
    return is_as_good


def main(arguments: Sequence[str] = (), cases: Mapping[str, Case] = CASES, description: str | None = __doc__) -> int:
    """Train and report the named cases; without any, list them. Return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help="names of cases, or patterns such as 'climbing*'")
    add_seeds(parser, 3)
    parser.add_argument("--report-only", action="store_true", help="train nothing; show the runs as they are")
    options = parser.parse_args(arguments)
    named = [[name for name in cases if fnmatch(name, pattern)] for pattern in options.case]
    if unknown := [pattern for pattern, found in zip(options.case, named, strict=True) if not found]:
        parser.error(f"there is no case {unknown[0]!r}; the cases are {', '.join(cases)}")
    if not options.case:
        for case in cases.values():
            suffix = ", a control" if case.is_control else ""
            print(f"{case.name:32} {case.metric.removeprefix('eval_')} {case.bar}{suffix}")
    names = dict.fromkeys(name for found in named for name in found)
    met = [report(cases[name], options.seeds, trains=not options.report_only) for name in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
