"""The inline runtime: one process, one thread, deterministic to the bit, convenient with a debugger."""

from marlflow.runtime.inline.place import InlinePlace
from marlflow.runtime.inline.runtime import InlineRuntime

__all__ = ["InlinePlace", "InlineRuntime"]
