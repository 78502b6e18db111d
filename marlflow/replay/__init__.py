"""Experience kept for later: what a replay is, the in-process buffer, and how it chooses rows."""

from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay
from marlflow.replay.sampling import Prioritized, Uniform

__all__ = ["Prioritized", "Replay", "ReplayBuffer", "Uniform"]
