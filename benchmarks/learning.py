"""Run the demo over Ray on several seeds: time until both policies reach a mean return of 150, and if it lasts.

Returns are over the last 100 training episodes, with exploration, on seeds of which no results were reported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.seeds import fresh_seeds
from marlflow.observe.sinks import read_metrics

TARGET_RETURN = 150.0


def reached(records: Sequence[dict[str, Any]], policy: str) -> int | None:
    """Return the index of the first report in which the policy's mean return is at the target, or None."""
    means = [record["policies"][policy]["return_mean"] or 0.0 for record in records]
    return next((at for at, mean in enumerate(means) if mean >= TARGET_RETURN), None)


def report() -> None:
    """Train and print."""
    seeds, successes = fresh_seeds(5), 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            command = ["marlflow", "train", "experiment=cartpole_team_ppo_dqn", f"seed={seed}", "log.console=none"]
            command[0] = str(Path(sys.executable).with_name("marlflow"))
            subprocess.run([*command, f"hydra.run.dir={folder}"], check=True)
            records = list(read_metrics(Path(folder) / "metrics.jsonl"))
        last = records[-1]
        found = {policy: reached(records, policy) for policy in last["policies"]}
        successes += None not in found.values()
        ratio = last["stages"]["dqn_team/Learn"]["items"], last["stages"]["dqn_team/Insert"]["rows"]
        print(
            f"seed {seed}: {'; '.join(_shown(records, policy, at) for policy, at in found.items())}; "
            f"{last['env_steps']:,} env steps in {last['time_s']:.0f} s; DQN made {ratio[0]:,} updates of "
            f"{ratio[1]:,} rows",
            flush=True,
        )
    print(f"{successes} of {len(seeds)} seeds reached {TARGET_RETURN:.0f} with both policies", flush=True)


def _shown(records: Sequence[dict[str, Any]], policy: str, at: int | None) -> str:
    if at is None:
        return f"{policy} never"
    first, last = records[at], records[-1]["policies"][policy]
    evaluated = [mean for one in records if (mean := one["policies"][policy]["eval_return_mean"]) is not None]
    lowest = min(record["policies"][policy]["return_mean"] for record in records[at:])
    return (
        f"{policy} after {first['time_s']:.1f} s and {first['env_steps']:,} env steps, then {lowest:.0f} at the "
        f"lowest, {last['return_mean']:.0f} at the end (greedily {evaluated[-1]:.0f})"
    )


if __name__ == "__main__":
    report()
