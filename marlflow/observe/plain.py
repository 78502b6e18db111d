"""The console for piped output: one line per policy and report."""

from __future__ import annotations

import sys
from typing import TextIO

from marlflow.observe import wording
from marlflow.observe.rates import rollout_shares, updates_per_s, with_last_evaluations
from marlflow.observe.record import MetricsRecord, PolicyMetrics, RunInfo

# A minimum width, so that reports with and without evaluations align.
_EVALUATION_COLUMNS = 34


class PlainConsole:
    """Writes lines without colors or cursor movement: the run's setup, each report, and a summary."""

    def __init__(self, info: RunInfo, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout
        self._run_dir = info.run_dir
        self._last: MetricsRecord | None = None
        self._closed = False
        self._write(_opening(info))

    def report(self, record: MetricsRecord) -> None:
        """Write one line per policy, and one for new faults."""
        rates = updates_per_s(self._last, record)
        ids = wording.padded(record["policies"])
        evaluated = {policy: _evaluated(metrics) for policy, metrics in record["policies"].items()}
        aligned = wording.padded([" " * _EVALUATION_COLUMNS, *evaluated.values()])
        for policy, metrics in record["policies"].items():
            standing = _standing(metrics, rates[policy], aligned[evaluated[policy]])
            self._write(f"{_clock(record)}  {ids[policy]}  {standing}")
        # Fault counts are totals, so only a change is news.
        if record["faults"] != (self._last["faults"] if self._last else {}):
            faults = wording.faults_phrase(record["faults"])
            if faults:
                self._write(f"{_clock(record)}  faults so far: {faults}")
        self._last = with_last_evaluations(self._last, record)

    def notice(self, text: str) -> None:
        self._write(text)

    def close(self) -> None:
        """Write the summary."""
        if not self._closed:
            self._closed = True
            self._write(f"{_summary(self._last)}; its folder is {self._run_dir}")

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        # A pipe is block-buffered; its reader should see each line at once.
        self._file.flush()


def _opening(info: RunInfo) -> str:
    policies = "; ".join(
        f"{policy} = {about.algorithm} for {wording.agents_phrase(about.agents)}"
        for policy, about in info.policies.items()
    )
    return f"{info.name} (runtime {info.runtime}): {policies}; until {wording.stop_phrase(info.stop)}"


def _clock(record: MetricsRecord) -> str:
    steps, per_s = wording.full_count(record["env_steps"]), wording.speed(record["env_steps_per_s"])
    return f"{wording.duration(record['time_s']):>8}  {steps:>11} env steps {per_s:>7}/s"


def _standing(metrics: PolicyMetrics, rate: float | None, evaluated: str) -> str:
    trained = wording.spread(metrics["return_mean"], metrics["return_std"])
    return (
        f"return {trained:>18}  length {wording.length(metrics['episode_env_steps_mean']):>6}  "
        f"eval {evaluated}  "
        f"updates {wording.full_count(metrics['updates']):>9} {wording.speed(rate):>6}/s  "
        f"staleness {wording.staleness(metrics['staleness_mean']):>4}  loss {wording.loss_terms(metrics['loss'])}"
    )


def _evaluated(metrics: PolicyMetrics) -> str:
    env_steps = metrics["eval_env_steps"]
    if env_steps is None:
        return wording.UNKNOWN
    return f"{_evaluation(metrics)} at {wording.full_count(env_steps)}"


def _evaluation(metrics: PolicyMetrics) -> str:
    how = " ".join([str(metrics["eval_mode"]), *wording.against(metrics["eval_against"])])
    return f"{how} {wording.spread(metrics['eval_return_mean'], metrics['eval_return_std'])}"


def _summary(record: MetricsRecord | None) -> str:
    if record is None:
        return "ended before the first report"
    returns = "; ".join(_final(policy, metrics) for policy, metrics in record["policies"].items())
    steps, episodes = wording.full_count(record["env_steps"]), wording.full_count(record["episodes"])
    shares = wording.shares_phrase(rollout_shares(None, record))
    workers = f" (rollout workers: {shares})" if shares else ""
    took = wording.duration(record["time_s"])
    return f"ended after {took}, {steps} env steps, {episodes} episodes{workers}: {returns}"


def _final(policy: str, metrics: PolicyMetrics) -> str:
    episodes = metrics["eval_episodes"]
    evaluation = (
        "" if episodes is None else f" (eval {_evaluation(metrics)} over {wording.full_count(episodes)} episodes)"
    )
    return f"{policy} return {wording.mean_return(metrics['return_mean'])}{evaluation}"
