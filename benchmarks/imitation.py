"""Measure whether BC and MARWIL reach 90 % of the return of a recorded expert, on every seed.

The expert is a team of cart-poles trained by PPO, whose rows are then recorded and learned from offline.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from marlflow.checks.validation import from_config
from marlflow.config.compose import composing
from marlflow.config.experiment import Experiment
from marlflow.config.overrides import prepare
from marlflow.driver.train import resume, train
from marlflow.observe.sinks import read_metrics

SHARE = 0.9
SEEDS = range(3)
TRAINED, RECORDED = 120_000, 20_000
"""Env steps until the expert is one, and env steps of it that are recorded."""
_EXPERT = (
    "env=cartpole_team",
    "policy@policies.team=ppo",
    "mapping=[{match: 'cart_*', policy: team}]",
    "policies.team.algorithm.learning_rate=1e-3",
)
_QUIET = ("runtime=inline", "log.console=none", "log.tensorboard=false")


def best(run_dir: Path) -> float:
    """Return the highest mean return of greedy episodes in a run."""
    found = [record["policies"]["team"]["eval_return_mean"] for record in read_metrics(run_dir / "metrics.jsonl")]
    return max(mean for mean in found if mean is not None)


def expert(folder: Path, seed: int) -> tuple[float, Path]:
    """Train an expert and record it; return its mean return while recording, with exploration, and the records."""
    where = folder / f"expert_{seed}"
    train(_experiment(*_EXPERT, f"seed={seed}", f"stop.env_steps={TRAINED}"), where)
    recorded = _experiment(*_EXPERT, f"seed={seed}", f"stop.env_steps={TRAINED + RECORDED}", "record=dataset")
    metrics = resume(recorded, where).metrics["policies"]["team"]
    returns = [mean for mean in (metrics["return_mean"], metrics["eval_return_mean"]) if mean is not None]
    return max(returns), where / "record"


def imitated(folder: Path, algorithm: str, records: Path, seed: int) -> tuple[float, float]:
    """Return the best return of an algorithm on the records, and its seconds."""
    where, began = folder / f"{algorithm}_{seed}", time.perf_counter()
    train(_experiment(f"experiment=cartpole_team_{algorithm}", f"env.folder={records}", f"seed={seed}"), where)
    return best(where), time.perf_counter() - began


def _experiment(*words: str) -> Experiment:
    with composing():
        prepared = prepare([*words, *_QUIET])
    return from_config(prepared.config, prepared.problems)


def report(seeds: Sequence[int] = SEEDS) -> None:
    """Train, record, imitate, and print."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            target, records = expert(Path(folder), seed)
            print(f"seed {seed}: expert {target:.0f} after {time.perf_counter() - began:.0f} s", flush=True)
            for algorithm in ("bc", "marwil"):
                reached, seconds = imitated(Path(folder), algorithm, records, seed)
                verdict = "reached" if reached >= SHARE * target else "missed"
                print(f"  {algorithm} {reached:.0f} in {seconds:.0f} s: {SHARE:.0%} of it {verdict}", flush=True)


if __name__ == "__main__":
    report()
