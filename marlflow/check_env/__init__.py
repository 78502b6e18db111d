"""`marlflow check-env`: checks an environment before training, and measures its speed."""

from marlflow.check_env.check import BUDGET_S, check_environment
from marlflow.check_env.outcome import Trial

__all__ = ["BUDGET_S", "Trial", "check_environment"]
