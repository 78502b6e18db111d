"""`marlflow benchmark`: algorithms on the tasks of a suite over seeds, resumed where they ended, and one report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.cli.options import Arguments, Command, Option
from marlflow.cli.progress import shown_progress

if TYPE_CHECKING:
    from marlflow.cli.benchmark_runs import BenchmarkPlan, BenchmarkRun, BenchmarkScores
    from marlflow.html_report.suite_report import SuiteResults

PAGE = "report.html"
_FAILED = 1


def run_benchmark(arguments: Arguments) -> int:
    """Run all that has no score, write the report, and return the exit code; raises ConfigInvalid before any run."""
    plan = _plan(arguments)
    with _alone_in(plan.folder):
        return _run(plan, arguments)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other benchmarks out of a folder, whose scores and runs they would replace; raises ConfigInvalid."""
    from filelock import FileLock, Timeout

    from marlflow.config.folders import folder_problems
    from marlflow.runs.run_state import LOCK

    if problems := list(folder_problems("dir", folder)):
        raise ConfigInvalid(problems)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        problem = f"another marlflow benchmark runs in {_shown(folder)}; wait for its end, or choose another dir"
        raise ConfigInvalid([problem]) from error
    try:
        yield
    finally:
        lock.release()
        if missing and [path.name for path in folder.iterdir()] == [LOCK]:
            # Nothing began.
            (folder / LOCK).unlink()
            for path in missing:
                path.rmdir()


def _run(plan: BenchmarkPlan, arguments: Arguments) -> int:
    from marlflow.cli.benchmark_jobs import BenchmarkJobs, Scoring, failure_of
    from marlflow.cli.benchmark_runs import BenchmarkScores
    from marlflow.runtime.resources import local_resources

    with shown_progress():
        runs = plan.runs()
    scores = BenchmarkScores(plan, runs, arguments["episodes"])
    waiting = [run for run in runs if run not in scores]
    parallel = min(arguments["jobs"] or int(local_resources()["CPU"]), max(1, len(waiting)))
    print(_described(plan, runs, waiting, parallel), flush=True)
    env = {task: plan.suite.tasks[task].score_env for task in plan.tasks}
    jobs = BenchmarkJobs(Scoring(plan.suite.policies, env, arguments["episodes"]), parallel)
    try:
        for done, (run, score) in enumerate(jobs.run(waiting), 1):
            if score is None:
                print(f"{run.name} failed: {failure_of(run)}", file=sys.stderr, flush=True)
            else:
                scores.add(run, score)
                print(f"{run.name}: {score:,.4g} ({done} of {len(waiting)})", flush=True)
    except KeyboardInterrupt:
        left = sum(run not in scores for run in runs)
        print(f"{left} of {len(runs)} runs are not complete; the same command continues them", file=sys.stderr)
        raise
    return _report(plan, runs, scores)


def _plan(arguments: Arguments) -> BenchmarkPlan:
    from marlflow.cli.benchmark_runs import BenchmarkPlan, read_suite

    if (name := arguments["suite"]) is None:
        raise ConfigInvalid(["benchmark needs a suite: marlflow benchmark suite=<name>"])
    config_dirs = [str(Path(folder).resolve()) for folder in arguments["config_dir"]]
    suite = read_suite(name, config_dirs)
    problems = [
        f"suite {name} has no {what} {one!r}{meant(one, known, 'there are')}"
        for what, chosen, known in (
            ("task", arguments["tasks"], suite.tasks),
            ("algorithm", arguments["algorithms"], suite.algorithms),
        )
        for one in chosen
        if one not in known
    ]
    if problems:
        raise ConfigInvalid(problems)
    # Another budget has a folder of its own, as its runs have other settings.
    cut = "" if arguments["budget"] == 1 else f"_budget_{arguments['budget']:g}"
    return BenchmarkPlan(
        suite,
        _chosen(arguments["tasks"], suite.tasks),
        _chosen(arguments["algorithms"], suite.algorithms),
        range(arguments["first_seed"], arguments["first_seed"] + arguments["seeds"]),
        arguments["budget"],
        config_dirs,
        Path(arguments["dir"] or f"runs/benchmark/{name}{cut}").absolute(),
    )


def _chosen(names: Sequence[str], known: Collection[str]) -> list[str]:
    return list(dict.fromkeys(names)) or list(known)


def _described(
    plan: BenchmarkPlan, runs: Sequence[BenchmarkRun], waiting: Sequence[BenchmarkRun], parallel: int
) -> str:
    from marlflow.html_report.texts import count

    cut = "" if plan.budget == 1 else f", {plan.budget:g} times what the suite gives"
    parts = [
        f"{plan.suite.name}: {count(len(plan.tasks), 'task')}, {count(len(plan.algorithms), 'algorithm')}, "
        f"{count(len(plan.seeds), 'seed')}: {count(len(runs), 'run')}, "
        f"{sum(run.env_steps for run in runs):,} env steps{cut}"
    ]
    if known := len(runs) - len(waiting):
        parts.append(f"{known} are complete, with scores")
    if resumed := sum(run.state == "resume" for run in waiting):
        parts.append(f"{resumed} {'is' if resumed == 1 else 'are'} resumed")
    if waiting:
        parts.append(f"{parallel} at a time")
    return f"{'; '.join(parts)}; in {_shown(plan.folder)}"


def _shown(path: Path) -> str:
    return shlex.quote(os.path.relpath(path))


def _report(plan: BenchmarkPlan, runs: Sequence[BenchmarkRun], scores: BenchmarkScores) -> int:
    from marlflow.html_report.suite_report import iqm_names, notes_on, suite_results, write_suite_report

    found = scores.suite_scores()
    if len(found.missing) == len(runs):
        return _FAILED
    results = suite_results(found)
    scores.write()
    write_suite_report(found, results, plan.folder / PAGE)
    for note in notes_on(found):
        print(f"note: {note}")
    for line in _lines(results, iqm_names(found)):
        print(line)
    print(f"wrote {_shown(plan.folder / PAGE)} and scores.csv; learning curves: marlflow report {_shown(plan.folder)}")
    return _FAILED if found.missing else 0


def _lines(results: SuiteResults, names: str) -> Iterator[str]:
    """Yield the lines of the table: scores on each task, then over tasks."""
    width = max(len(row.algorithm) for row in results.rows)
    task = None
    for row in results.rows:
        if row.task != task:
            task = row.task
            yield f"{task}, score: mean [95 % over seeds], normalized"
        ends = _interval(row.mean.low, row.mean.high, row.digits)
        value = f"{row.mean.value:,.{row.digits}f}{ends}"
        yield f"  {row.algorithm:<{width}}  {value}  {row.normalized:.3f}  n={len(row.scores)}"
    if results.iqms:
        yield f"all tasks, normalized score: {names}"
    for algorithm, one in sorted(results.iqms.items(), key=lambda item: -item[1].value):
        yield f"  {algorithm:<{width}}  {one.value:.3f}{_interval(one.low, one.high, 3)}"


def _interval(low: float | None, high: float | None, digits: int) -> str:
    return "" if low is None or high is None else f" [{low:,.{digits}f}, {high:,.{digits}f}]"


_ABOUT = """
Trains each algorithm on each task of a suite with several seeds, several runs at a time, each in a process and one
thread, and scores its final policies: the mean over episodes of the summed returns of the agents of the suite's
policies, acting as their algorithms learn to. Everything is checked before the first run begins.

A run is what marlflow train would do with the overrides of the suite. It is in dir/TASK/ALGORITHM/SEED, and its
output is in dir/TASK/ALGORITHM/SEED.txt. The same command again skips the runs that are complete, and resumes the
others from their checkpoints; a folder whose runs have other settings is refused.

budget=0.01 is a first look: each run has a hundredth of its env steps, and its schedules are as much shorter.
Batches, replays and warm-ups stay as they are, so learners see few updates: that shows that everything runs, and
says little of who is better. budget=2 gives each run twice its env steps, and its schedules are twice as long. The
report says so too.

It prints the scores, and writes into dir:
  report.html  scores with 95 % intervals over seeds; over all tasks interquartile means of normalized scores,
               performance profiles, and probabilities of improvement (Agarwal et al., 2021)
  scores.csv   the score of each run

A suite is a file suite/NAME.yaml in the folder config_dir: policies, tasks and algorithms with their overrides; see
docs/benchmark.md. marlflow has cartpoles (minutes), lbf (level-based foraging, days), mpe, rware, smax and
overcooked (hours).
"""

COMMAND = Command(
    "benchmark",
    run_benchmark,
    (
        Option("suite", "the suite", value="NAME"),
        Option("algorithms", "algorithms of the suite; by default all", value="NAMES", several=True),
        Option("tasks", "tasks of the suite; by default all", value="NAMES", several=True),
        Option("seeds", "number of seeds", "whole number", "N", 5, low=1),
        Option("first_seed", "the first seed", "whole number", "N", 0, low=0),
        Option("budget", "times the env steps that the suite gives a run", "number", "X", 1.0, low=1e-9, high=1000),
        Option("episodes", "episodes that score a run", "whole number", "N", 100, low=1),
        Option("jobs", "runs at a time; by default one for each CPU", "whole number", "N", low=1),
        Option("dir", "folder of the runs and the report; by default runs/benchmark/NAME", value="FOLDER"),
        Option("config_dir", "a folder with configuration groups of your own", value="FOLDER", several=True),
    ),
    _ABOUT,
    (
        "suite=cartpoles seeds=3",
        "suite=lbf algorithms=ppo,mappo,vdn,qmix seeds=5",
        "suite=lbf budget=0.01 seeds=1",
        "suite=mine config_dir=marlflow_conf",
    ),
    operands="key=value",
    fewest=0,
    most=0,
)
