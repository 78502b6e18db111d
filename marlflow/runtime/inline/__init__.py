"""One process, one thread, no Ray: the same plans, the same bits on every run, and a debugger works everywhere."""

from marlflow.runtime.inline.place import InlinePlace
from marlflow.runtime.inline.runtime import InlineRuntime

__all__ = ["InlinePlace", "InlineRuntime"]
