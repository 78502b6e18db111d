"""The error message of a failed run."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from marlflow.base.errors import InvalidInput, MarlflowError, StageFailed, UserCodeFailed
from marlflow.base.sentences import shortened


def failure(error: MarlflowError, job: str = "") -> str:
    """Return the message of a failed run: the user's own traceback, if any, and one sentence, each shortened.

    `job` names the run in a sweep.
    """
    prefix = f"error: {job}: " if job else "error: "
    for cause in _causes(error):
        if isinstance(cause, UserCodeFailed):
            text = f"{shortened(cause.user_traceback.rstrip())}\n\n" if cause.user_traceback else ""
            return text + shortened(f"{prefix}{cause.where}: {cause.reason}")
        # Its sentence names the setting at fault, and a traceback would only show marlflow's code.
        if isinstance(cause, InvalidInput):
            return shortened(f"{prefix}{error}")
    if isinstance(error, StageFailed) and error.__cause__ is not None:
        raised = error.__cause__
        text = "".join(traceback.format_exception(type(raised), raised, raised.__traceback__, chain=False))
        return f"{shortened(text.rstrip())}\n\n" + shortened(f"{prefix}{error}")
    return shortened(f"{prefix}{error}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
