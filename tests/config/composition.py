"""Composes as the command line does."""

from marlflow.checks.validation import from_config, ready
from marlflow.config.checked import CheckedExperiment
from marlflow.config.compose import composing
from marlflow.config.experiment import Experiment
from marlflow.config.overrides import Prepared, prepare


def prepared(*overrides: str, multirun: bool = False) -> Prepared:
    with composing():
        return prepare(overrides, multirun=multirun)


def experiment_of(*overrides: str) -> Experiment:
    job = prepared(*overrides)
    return from_config(job.config, job.problems)


def ready_of(*overrides: str) -> CheckedExperiment:
    return ready(experiment_of(*overrides))


def algorithms(made: CheckedExperiment) -> dict[str, str]:
    return {name: policy.algorithm.name for name, policy in made.spec.policies.items()}
