"""One adapter for PettingZoo's AEC and Parallel environments."""

from marlflow.env.make import make_environment
from marlflow.env.turn import Ending, Turn, Window
from marlflow.env.window import open_window

__all__ = ["Ending", "Turn", "Window", "make_environment", "open_window"]
