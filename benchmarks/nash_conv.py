"""NashConv over env steps of league runs in small games, computed exactly at each checkpoint.

    python -m benchmarks.nash_conv [NAME ...] [--seeds 10 11 12] [--env-steps N] [--points 20]

Each run is inline, in this process. Settings were chosen on seed 0, which is not among the default ones. A bar is on
the last checkpoint; a control has to be at or above its bound at every checkpoint.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, TypeAlias

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from marlflow.base.batch import Array
from marlflow.base.serialization import from_bytes
from marlflow.config.compose import composing
from marlflow.config.experiment import CheckpointConfig, Evaluation, Experiment, Log
from marlflow.config.overrides import prepare
from marlflow.config.schema import from_config
from marlflow.config.validation import CheckedExperiment, ready
from marlflow.driver.train import train
from marlflow.league.exploitability import InformationStates
from marlflow.policy.actor import EvaluationMode
from marlflow.runtime.checkpoint_files import learner_file
from marlflow.runtime.checkpoints import Checkpoint, CheckpointStore
from marlflow.runtime.saved_runs import folder

SEEDS = (10, 11, 12)

Measured: TypeAlias = dict[str, list[tuple[int, float]]]
"""By name: (env steps, NashConv) at each checkpoint."""


@dataclass(frozen=True)
class Entry:
    """A run by name: its overrides, and what is measured at each of its checkpoints.

    `policies` returns policies [S, A] over all information states, by name; the first has the bar `at_most`, those in
    `controls` have lower bounds.
    """

    words: Sequence[str]
    policies: Callable[[InformationStates, CheckedExperiment, Checkpoint], Mapping[str, Array]]
    at_most: float
    controls: Mapping[str, float]


def live_policies(
    modes: Mapping[str, EvaluationMode],
) -> Callable[[InformationStates, CheckedExperiment, Checkpoint], Mapping[str, Array]]:
    """Measure learning policies, acting by `modes`; each plays all roles."""

    def policies(states: InformationStates, checked: CheckedExperiment, checkpoint: Checkpoint) -> Mapping[str, Array]:
        found = {}
        for name, mode in modes.items():
            learner = checked.spec.learners[name].learner()
            learner.load_state(from_bytes(checkpoint.read(learner_file(name))))
            found[name] = states.policy_of(learner.module.actor, mode)
        return found

    return policies


# Any greedy pair of policies in Kuhn poker has a NashConv of at least 1/3, so a best response alone does not pass.
_NFSP = live_policies({"average": "sampled", "response": "greedy"})
ENTRIES: Mapping[str, Entry] = {
    "kuhn_nfsp": Entry(["experiment=kuhn_nfsp"], _NFSP, 0.12, {"response": 1 / 3}),
}


def measured(entry: Entry, seed: int, env_steps: int | None, points: int) -> tuple[Measured, Mapping[str, Any]]:
    """Run an entry once; return the NashConv over env steps, and the last report."""
    experiment = _experiment([*entry.words, "runtime=inline", f"seed={seed}"], env_steps, points)
    checked, found = ready(experiment), Measured()
    arguments = experiment.env.arguments
    states = InformationStates(arguments["game"], arguments.get("parameters"), arguments.get("observation"))
    with tempfile.TemporaryDirectory() as run_dir:
        report = train(experiment, Path(run_dir)).metrics
        store = CheckpointStore(folder(Path(run_dir)), points + 2)
        for number in sorted(int(path.name) for path in folder(Path(run_dir)).iterdir()):
            for name, policy in entry.policies(states, checked, store.at(number)).items():
                found.setdefault(name, []).append((number, states.nash_conv(policy)))
    return found, report


def _experiment(words: Sequence[str], env_steps: int | None, points: int) -> Experiment:
    with composing():
        job = prepare(words)
    experiment = from_config(job.config, job.problems)
    total = env_steps or experiment.stop.env_steps
    assert total is not None
    return replace(
        experiment,
        stop=replace(experiment.stop, env_steps=total),
        checkpoint=CheckpointConfig(every_env_steps=max(1, total // points), keep=points + 2),
        evaluation=Evaluation(episodes=0),
        log=Log(every_env_steps=total, console="none", tensorboard=False),
    )


def passes(entry: Entry, found: Measured) -> bool:
    """Return whether the last NashConv is at most the bar, and no control is ever below its bound."""
    first = next(iter(found.values()))
    within = [value >= least - 1e-6 for name, least in entry.controls.items() for _, value in found[name]]
    return first[-1][1] <= entry.at_most and all(within)


def report(names: Sequence[str], seeds: Sequence[int], env_steps: int | None, points: int) -> bool:
    """Run, print, and return whether all bars and controls hold."""
    all_hold = True
    for name in names:
        entry = ENTRIES[name]
        for seed in seeds:
            began_s = process_time()
            found, metrics = measured(entry, seed, env_steps, points)
            holds = passes(entry, found)
            all_hold &= holds
            print(
                f"{name}, seed {seed}: {metrics['env_steps']:,} env steps, {metrics['episodes']:,} games, "
                f"{process_time() - began_s:.0f} s of CPU; {'holds' if holds else 'fails'} (at most {entry.at_most:g})"
            )
            for measured_policy, values in found.items():
                print(
                    f"  {measured_policy}: " + ", ".join(f"{steps:,} {value:.3f}" for steps, value in values),
                    flush=True,
                )
    return all_hold


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="NashConv over env steps of league runs in small games.")
    parser.add_argument("names", nargs="*", default=list(ENTRIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--env-steps", type=int)
    parser.add_argument("--points", type=int, default=20)
    parsed = parser.parse_args()
    raise SystemExit(0 if report(parsed.names, parsed.seeds, parsed.env_steps, parsed.points) else 1)


if __name__ == "__main__":
    main()
