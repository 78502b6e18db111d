"""Tries an environment before anything is trained in it: does it keep the rules, and what would learners get?"""

from marlflow.check_env.check import check_environment, quietly
from marlflow.check_env.outcome import Trial

__all__ = ["Trial", "check_environment", "quietly"]
