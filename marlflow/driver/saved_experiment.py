"""The experiment of a finished run, checked for acting and evaluation instead of training."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from marlflow.base.errors import CheckpointUnusable, ConfigInvalid, InvalidInput
from marlflow.checks.validation import ready
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment, PlacementOverrides, Rollouts, RunPlacement
from marlflow.config.other_environment import OtherEnv
from marlflow.config.recorded import recorded_experiment, recorded_run
from marlflow.driver.checkpointing import identity_differences
from marlflow.driver.other_runs import with_saved_members
from marlflow.league.sides import Sides, sides_of
from marlflow.observe.sinks import METRICS, read_metrics
from marlflow.runs.saved_league import SavedRun, saved_run
from marlflow.runs.saved_runs import Which, chosen
from marlflow.runtime.resources import Machines
from marlflow.runtime.spec import Resources

# Acting needs none of the resources of training.
_PLENTY = Machines([{"CPU": 1e6, "GPU": 1e6}], here=False)


@dataclass(frozen=True)
class FinishedRun:
    """A run at a checkpoint, and its checked experiment. `started_in`: the folder to work in, if it is trusted."""

    saved: SavedRun
    checked: CheckedExperiment
    started_in: Path | None


@contextmanager
def finished_run(
    run_dir: Path,
    which: Which = None,
    experiment: Experiment | None = None,
    trust: Collection[str] | None = (),
    strict: bool = False,
    env: OtherEnv = None,
) -> Iterator[FinishedRun]:
    """Open a checkpoint of a run; in the context, the working folder is the folder where the run was started.

    Without `experiment`, it is built again from the folder; if another user made the run, names outside marlflow's
    parts are imported only if they are in `trust` (None: all). `env` is another environment, or replaces
    settings of the run's. If `strict`, no checkpoint is used in place of a damaged one. Raises InvalidInput.
    """
    run_dir = run_dir.absolute()
    saved = saved_run(run_dir, chosen(run_dir, which, lambda: evaluation_scores(run_dir), strict))
    if experiment is not None:
        if env:
            raise ConfigInvalid(["env is for the experiment that a run recorded; change the one that is given instead"])
        yield FinishedRun(saved, checked_experiment(experiment, saved), None)
        return
    recorded = recorded_run(run_dir)
    with recorded.working():
        # The environment is the run's, because it was recorded; JSON has no tuples, and identities distinguish them
        # from lists.
        built = recorded_experiment(run_dir, recorded, trust, env)
        checked = checked_experiment(built, saved, ("policies", "league"))
        yield FinishedRun(saved, checked, recorded.started_in)


def checked_experiment(
    experiment: Experiment, run: SavedRun, parts: Collection[str] = ("env", "policies", "league")
) -> CheckedExperiment:
    """Check the experiment of a run, without its placement; opens the environment once.

    Raises ConfigInvalid with every problem, and CheckpointUnusable if these `parts` differ from the run's.
    """
    checked = ready(with_saved_members(_without_placement(experiment), run.run_dir), _PLENTY)
    if problems := list(identity_differences(run.checkpoint, checked, parts)):
        raise CheckpointUnusable(problems)
    return checked


def sides_or_none(checked: CheckedExperiment) -> Sides | None:
    """Return the sides of a game; None if there is only one."""
    league = checked.experiment.league
    sides, problems = sides_of(None if league is None else league.sides, checked.agents)
    return None if problems else sides


def _without_placement(experiment: Experiment) -> Experiment:
    policies = {name: replace(policy, placement=PlacementOverrides()) for name, policy in experiment.policies.items()}
    learners = {name: replace(one, placement=PlacementOverrides()) for name, one in experiment.learners.items()}
    rollouts: Rollouts = replace(experiment.rollouts, placement=Resources())
    return replace(
        experiment,
        policies=policies,
        learners=learners,
        default_policy=replace(experiment.default_policy, placement=PlacementOverrides()),
        rollouts=rollouts,
        placement=RunPlacement(),
        record=None,
    )


def evaluation_scores(run_dir: Path) -> dict[int, float]:
    """Return `eval_return_mean` by env steps, of a run with one learner; {} of others and without reports."""
    scores: dict[int, float] = {}
    try:
        for report in read_metrics(run_dir / METRICS):
            (learner,) = report["learners"].values()
            evaluated = [one["eval_env_steps"] for one in report["policies"].values() if one["eval_env_steps"]]
            if evaluated and learner["eval_return_mean"] is not None:
                scores[int(evaluated[0])] = float(learner["eval_return_mean"])
    except (InvalidInput, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return scores
