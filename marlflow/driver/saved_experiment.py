"""The experiment of a finished run, checked for acting and evaluation instead of training."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from marlflow.base.errors import CheckpointUnusable
from marlflow.config.experiment import Experiment, PlacementOverrides, Rollouts, RunPlacement, RuntimeConfig
from marlflow.config.validation import CheckedExperiment, ready
from marlflow.driver.checkpointing import identity_differences
from marlflow.driver.other_runs import with_saved_members
from marlflow.runtime.resources import Machines
from marlflow.runtime.saved_league import SavedRun
from marlflow.runtime.spec import Resources

# It needs none of the resources that training was given.
_PLENTY = Machines([{"CPU": 1e6, "GPU": 1e6}], here=False)


def checked_experiment(
    experiment: Experiment, run: SavedRun, parts: Collection[str] = ("env", "policies", "league")
) -> CheckedExperiment:
    """Check the experiment of a run, without its placement; opens the environment once.

    Raises ConfigInvalid with every problem, and CheckpointUnusable if these `parts` are not those of the run.
    """
    checked = ready(with_saved_members(_without_placement(experiment), run.run_dir), _PLENTY)
    if problems := list(identity_differences(run.checkpoint, checked, parts)):
        raise CheckpointUnusable(problems)
    return checked


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
        runtime=RuntimeConfig("inline"),
        record=None,
    )
