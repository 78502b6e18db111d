"""The inline runtime: one process and thread, deterministic to the bit."""

from marlflow.runtime.inline.place import InlinePlace
from marlflow.runtime.inline.runtime import InlineRuntime

__all__ = ["InlinePlace", "InlineRuntime"]
