"""Tries an environment before anything is trained in it: does it keep the rules, and what would learners get?"""

from marlflow.experiment.trial.check import check_environment, quietly
from marlflow.experiment.trial.outcome import Trial

__all__ = ["Trial", "check_environment", "quietly"]
