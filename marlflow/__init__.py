"""marlflow: multi-agent reinforcement learning as dataflow."""

__version__ = "0.1.0"
