"""Load the policies of a finished run, without Ray and without Hydra."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from marlflow.base.errors import InvalidInput
from marlflow.config.experiment import Experiment
from marlflow.config.recorded import recorded_experiment, recorded_run
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.entrants import Entrants
from marlflow.driver.saved_experiment import checked_experiment
from marlflow.league.sides import sides_of
from marlflow.observe.sinks import METRICS, read_metrics
from marlflow.runtime.run_folders import run_folder
from marlflow.runtime.saved_league import SavedRun, saved_run
from marlflow.runtime.saved_runs import Which, chosen
from marlflow.trained.team import Team


def load(
    run: Path | str,
    checkpoint: Which = None,
    experiment: Experiment | None = None,
    trust: Collection[str] | None = (),
) -> Team:
    """Load the policies of the run in folder `run`, which may still be going on.

    `checkpoint` is `"best"`, the number of env steps of one, or by default the newest whole one. The best has the
    highest metric `checkpoint.best`; if the run had none, the highest `eval_return_mean` of the only policy that
    learned. `experiment` is needed if the run's cannot be built from its folder. Classes outside marlflow that a run of
    somebody else names are imported only if they are in `trust`; None is any. Opens the environment once.

    Raises InvalidInput: the folder of no run, no whole checkpoint, code that is not trusted, another environment.
    """
    base = Path.cwd()
    run_dir = run_folder(run, "mf.load", "load").absolute()
    saved = saved_run(run_dir, chosen(run_dir, checkpoint, lambda: evaluation_scores(run_dir)))
    if experiment is not None:
        checked = checked_experiment(experiment, saved)
        return Team(saved, checked, _entrants(checked, saved, base, trust), None)
    recorded = recorded_run(run_dir)
    with recorded.working():
        experiment = recorded_experiment(run_dir, recorded, trust)
        # The environment is that of the run, because it was recorded; JSON has no tuples, which identities tell apart.
        checked = checked_experiment(experiment, saved, ("policies", "league"))
    return Team(saved, checked, _entrants(checked, saved, base, trust), recorded.started_in)


def _entrants(checked: CheckedExperiment, saved: SavedRun, base: Path, trust: Collection[str] | None) -> Entrants:
    league = checked.experiment.league
    sides, problems = sides_of(None if league is None else league.sides, checked.agents)
    return Entrants(checked, saved, None if problems else sides, base, trust)


def evaluation_scores(run_dir: Path) -> dict[int, float]:
    """Return `eval_return_mean` by env steps, of a run in which one policy learns; {} of others and without reports."""
    try:
        reports = read_metrics(run_dir / METRICS)
        scores = [
            {
                int(policy["eval_env_steps"]): float(policy["eval_return_mean"])
                for policy in report["policies"].values()
                if policy["updates"] and policy["eval_return_mean"] is not None
            }
            for report in reports
        ]
        learning = {name for report in reports for name, policy in report["policies"].items() if policy["updates"]}
    except (InvalidInput, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {env_steps: score for of in scores for env_steps, score in of.items()} if len(learning) == 1 else {}
