"""PettingZoo's own tests of an environment, with what they print and warn of kept apart from what they find."""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pettingzoo

from marlflow.base.errors import DEBUGGER_QUIT
from marlflow.check_env.outcome import Kind, Masks, TestOutcome
from marlflow.check_env.output import FirstLines
from marlflow.env.frames import their_frames
from marlflow.sampling.env_closing import close_within
from marlflow.sampling.watchdog import Overdue, Watchdog

# Env steps (of an AEC environment: times agents) that each test takes at most; PettingZoo's own default is 1,000.
_CYCLES = 250
_PETTINGZOO = str(Path(pettingzoo.__file__).parent)
_OF_PETTINGZOO_TESTS = str(Path(_PETTINGZOO, "test"))


# What is said of every Dict, also of the one that PettingZoo itself has masks in.
_OF_MASKED = (
    "PettingZoo: Observation space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
    "PettingZoo: Observation is not a NumPy array",
)


def run_tests(
    make_env: Callable[[], Any], kind: Kind, masks: Masks, notes: list[str], step_timeout_s: float | None = None
) -> tuple[TestOutcome, ...]:
    """API test and seed test, each on fresh environments; adds to `notes` what PettingZoo warns of.

    A test in which a step or reset takes longer than `step_timeout_s` seconds has failed.
    """
    warned: list[str] = []
    watchdog = Watchdog(step_timeout_s)
    with watchdog.on_guard():
        outcomes = _run(lambda: _watched(make_env(), watchdog), kind, masks, warned)
    notes += [note for note in warned if masks != "in the observation" or note not in _OF_MASKED]
    return outcomes


def _run(make_env: Callable[[], Any], kind: Kind, masks: Masks, notes: list[str]) -> tuple[TestOutcome, ...]:
    try:
        with _quiet(notes):
            from pettingzoo import test
    except ImportError as error:
        return (TestOutcome("PettingZoo's tests", "left out", f"they cannot be imported: {error}"),)
    if kind == "AEC":
        return (
            _outcome("api_test", lambda: test.api_test(make_env(), num_cycles=_CYCLES), notes),
            _outcome("seed_test", lambda: test.seed_test(make_env, num_cycles=_CYCLES), notes),
        )
    api, seed = "parallel_api_test", "parallel_seed_test"
    return (
        TestOutcome(api, "left out", "it does not read masks in infos, and would take illegal actions")
        if masks == "in the info"
        else _outcome(api, lambda: test.parallel_api_test(make_env(), num_cycles=_CYCLES), notes),
        TestOutcome(seed, "left out", "it does not read masks, and would take illegal actions")
        if masks != "none"
        else _outcome(seed, lambda: test.parallel_seed_test(make_env, num_cycles=_CYCLES), notes),
    )


def _outcome(name: str, test: Callable[[], None], notes: list[str]) -> TestOutcome:
    try:
        with _quiet(notes):
            test()
    except Overdue as overdue:
        return TestOutcome(name, "failed", "a step or reset took longer than env.step_timeout_s", _where(overdue))
    except BdbQuit:
        raise KeyboardInterrupt(DEBUGGER_QUIT) from None
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what the test found)
        return TestOutcome(name, "failed", _said(error), _where(error))
    return TestOutcome(name, "passed")


@contextlib.contextmanager
def _quiet(notes: list[str]) -> Iterator[None]:
    """Nothing is printed in here, but for a debugger's; every warning becomes a note, once."""
    printed = cast(Any, FirstLines(sys.stderr, 0))
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if not issubclass(warning.category, DeprecationWarning | PendingDeprecationWarning):
            notes.append(as_note(warning))


def as_note(warning: warnings.WarningMessage) -> str:
    """A warning in one line, and where it comes from unless that is PettingZoo's test."""
    text = " ".join(str(warning.message).split())
    if warning.filename.startswith(_OF_PETTINGZOO_TESTS):
        return f"PettingZoo: {text}"
    return f"{warning.category.__name__}: {text} ({warning.filename}:{warning.lineno})"


def _said(error: Exception) -> str:
    """The assertion's text, or the assertion itself where it has none."""
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError):
        frames = traceback.extract_tb(error.__traceback__)
        return text or (frames[-1].line or "an assertion failed" if frames else "an assertion failed")
    return f"{type(error).__name__}: {text}"


def _watched(env: Any, watchdog: Watchdog) -> Any:
    """The environment, whose steps and resets are watched, and which takes a bounded time to close."""

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            watchdog.begun += 1
            watchdog.inside = True
            try:
                return method(*given, **named)
            finally:
                watchdog.inside = False

        return call

    if watchdog.timeout_s is not None:
        env.step, env.reset = watched(env.step), watched(env.reset)
    # The seed test closes; what comes of it is found where the random episodes end, and must not hang here.
    env.close = partial(close_within, env.close, "PettingZoo's test")
    return env


def _where(error: BaseException) -> str:
    """The innermost line that is the environment's own, `file:line`; empty where the test itself found it."""
    frames = [frame for frame in their_frames(error) if not frame.filename.startswith(_PETTINGZOO)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
