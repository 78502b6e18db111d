"""Replay buffers and their sampling schemes."""

from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay
from marlflow.replay.sampling import Prioritized, Uniform

__all__ = ["Prioritized", "Replay", "ReplayBuffer", "Uniform"]
