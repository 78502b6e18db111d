"""How a run that failed is said."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from marlflow.base.errors import MarlflowError, StageFailed, UserCodeFailed


def failure(error: MarlflowError, job: str = "") -> str:
    """What a run that failed says: the user's own traceback first, where there is one, then one sentence.

    `job` names the run where there are several.
    """
    said = f"error: {job}: " if job else "error: "
    for cause in _causes(error):
        if isinstance(cause, UserCodeFailed):
            own = f"{cause.user_traceback.rstrip()}\n\n" if cause.user_traceback else ""
            return f"{own}{said}{cause.where}: {cause.reason}"
    if isinstance(error, StageFailed) and error.__cause__ is not None:
        raised = error.__cause__
        own = "".join(traceback.format_exception(type(raised), raised, raised.__traceback__, chain=False))
        return f"{own}\n{said}{error}"
    return f"{said}{error}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
