"""Load the policies of a finished run, without Ray and without Hydra."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from marlflow.config.experiment import Experiment
from marlflow.driver.entrants import Entrants
from marlflow.driver.saved_experiment import finished_run, sides_or_none
from marlflow.runs.saved_runs import Which, run_folder
from marlflow.trained.team import Team


def load(
    run: Path | str,
    checkpoint: Which = None,
    experiment: Experiment | None = None,
    trust: Collection[str] | None = (),
    strict: bool = False,
) -> Team:
    """Load the policies of the run in folder `run`, which may still be in progress.

    `checkpoint` is `"best"`, the number of env steps of one, or by default the newest whole one. The best has the
    highest metric `checkpoint.best`; if the run had none, the highest `eval_return_mean` of its only learner.
    `experiment` is needed if the run's cannot be built from its folder. What a run of somebody else
    names beyond marlflow's parts is imported only if it is in `trust`; None is any. Opens the environment once.

    If that checkpoint is damaged, the one before it is used, and a warning is logged; if `strict`, it is refused. So
    are those of other runs that the team plays against.

    Raises InvalidInput: the folder of no run, no whole checkpoint, code that is not trusted, another environment.
    """
    base = Path.cwd()
    with finished_run(run_folder(run, "mf.load", "load"), checkpoint, experiment, trust, strict) as finished:
        saved, checked = finished.saved, finished.checked
    sides = sides_or_none(checked)
    return Team(saved, checked, Entrants(checked, saved, sides, base, trust, strict), finished.started_in)
