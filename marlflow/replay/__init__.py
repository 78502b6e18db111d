"""Replay buffers and their sampling schemes."""

from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay, SavedReplay
from marlflow.replay.reservoir import Reservoir
from marlflow.replay.sampling import Prioritized, Uniform

__all__ = ["Prioritized", "Replay", "ReplayBuffer", "Reservoir", "SavedReplay", "Uniform"]
