"""The demo on several seeds: how long until both policies reach a mean return of 150, and whether they all do."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from marlflow.observe.sinks import read_metrics

TARGET_RETURN = 150.0
SEEDS = range(5)


def reached(metrics: Path, policy: str) -> tuple[float, int] | None:
    """Seconds and env steps of training at the first report with the target, or None."""
    for record in read_metrics(metrics):
        if (record["policies"][policy]["return_mean"] or 0.0) >= TARGET_RETURN:
            return record["time_s"], record["env_steps"]
    return None


def report() -> None:
    """Trains and prints."""
    successes = 0
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            command = ["marlflow", "train", "experiment=cartpole_team_ppo_dqn", f"seed={seed}", "log.console=none"]
            command[0] = str(Path(sys.executable).with_name("marlflow"))
            subprocess.run([*command, f"hydra.run.dir={folder}"], check=True)
            metrics = Path(folder) / "metrics.jsonl"
            found = {policy: reached(metrics, policy) for policy in ("ppo_team", "dqn_team")}
            last = list(read_metrics(metrics))[-1]
            ratio = last["stages"]["dqn_team/Learn"]["items"], last["stages"]["dqn_team/Insert"]["rows"]
        successes += all(found.values())
        shown = ", ".join(
            f"{policy} never" if at is None else f"{policy} after {at[0]:.1f} s and {at[1]:,} env steps"
            for policy, at in found.items()
        )
        ends = ", ".join(f"{name} {policy['return_mean']:.0f}" for name, policy in last["policies"].items())
        print(
            f"seed {seed}: 150 reached by {shown}; at the end ({last['env_steps']:,} env steps, "
            f"{last['time_s']:.0f} s): {ends}; DQN made {ratio[0]:,} updates of {ratio[1]:,} rows",
            flush=True,
        )
    print(f"{successes} of {len(SEEDS)} seeds reached {TARGET_RETURN:.0f} with both policies", flush=True)


if __name__ == "__main__":
    report()
