"""A place that is here: stages run at once, in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marlflow.base.batch import Batch, Transitions
from marlflow.base.items import Packed
from marlflow.flow import Outcome
from marlflow.runtime.chain import opened, run_chain


@dataclass(frozen=True, slots=True)
class InlinePlace:
    """Named like the actor it stands for, so that a plan prints the same for every runtime."""

    name: str

    def prepare(self, operators: Sequence[Any]) -> Callable[[Sequence[Any]], Outcome]:
        """A call of all operators in order."""

        def call(items: Sequence[Any]) -> Outcome:
            taken = [opened(payloads) if (payloads := getattr(item, "payloads", None)) else item for item in items]
            outputs, times = run_chain(operators, taken)
            return Outcome([_packed(output) for output in outputs], times)

        return call


def _packed(output: Any) -> Any:
    return Packed(output.rows, (output,)) if isinstance(output, Batch | Transitions) else output
