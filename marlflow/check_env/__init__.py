"""`marlflow check-env`: checks an environment before training, and measures its speed."""

from marlflow.check_env.check import check_environment, quietly
from marlflow.check_env.outcome import Trial

__all__ = ["Trial", "check_environment", "quietly"]
