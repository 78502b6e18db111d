"""Runs PettingZoo's own environment tests, and collects their warnings."""

from __future__ import annotations

import contextlib
import re
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
from marlflow.check_env.same_spaces import SameSpaces
from marlflow.env.episode_location import their_frames
from marlflow.observe.first_lines import FirstLines
from marlflow.sampling.watchdog import Overdue, Watchdog, close_within

# Env steps (of an AEC environment: times agents) that each test takes at most; PettingZoo's own default is 1,000.
_CYCLES = 250
_PETTINGZOO = str(Path(pettingzoo.__file__).parent)
_PETTINGZOO_TESTS = str(Path(_PETTINGZOO, "test"))
# PettingZoo's words for tables whose agents are not those in `agents`, also where one of these is missing.
_OTHER_AGENTS = re.compile(r"agents should not be given an? (reward|termination|truncation|info) if they were")
_NONE = {"reward": "0.0", "termination": "False", "truncation": "False", "info": "{}"}
# PettingZoo warns of every Dict observation, also of its own convention for action masks.
_MASK_WARNINGS = (
    "PettingZoo: Observation space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
    "PettingZoo: Observation is not a NumPy array",
)


def run_tests(
    make_env: Callable[[], Any], kind: Kind, masks: Masks, notes: list[str], step_timeout_s: float | None = None
) -> tuple[TestOutcome, ...]:
    """Run the API test and the seed test; add their warnings to `notes`.

    A test fails if a step or reset takes longer than `step_timeout_s` seconds.
    """
    warned: list[str] = []
    watchdog, spaces = Watchdog(step_timeout_s), SameSpaces()
    with watchdog.on_guard():
        outcomes = _run(lambda: spaces.of(_guarded(make_env(), watchdog)), kind, masks, warned)
    notes += filter(None, [spaces.note()])
    notes += [note for note in warned if masks != "in the observation" or note not in _MASK_WARNINGS]
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
    # The parallel tests take illegal actions where they do not read masks.
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
    except Exception as error:  # noqa: BLE001  (any error is the test's result)
        return TestOutcome(name, "failed", _message(error), _where(error))
    return TestOutcome(name, "passed")


@contextlib.contextmanager
def _quiet(notes: list[str]) -> Iterator[None]:
    # Drops all output except a debugger's prompt.
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
    """Return a warning as one line, with its location unless that is in PettingZoo."""
    text = " ".join(str(warning.message).split())
    if warning.filename.startswith(_PETTINGZOO_TESTS):
        return f"PettingZoo: {text}"
    return f"{warning.category.__name__}: {text} ({warning.filename}:{warning.lineno})"


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    # An assertion without text is quoted as source.
    if isinstance(error, AssertionError):
        if table := _OTHER_AGENTS.match(text):
            return (
                f"after step(), `{table[1]}s` has not exactly the agents in `agents`: give each of them one "
                f"({_NONE[table[1]]} where there is none), and none to agents that were removed"
            )
        frames = traceback.extract_tb(error.__traceback__)
        return text or (frames[-1].line or "an assertion failed" if frames else "an assertion failed")
    return f"{type(error).__name__}: {text}"


def _guarded(env: Any, watchdog: Watchdog) -> Any:
    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            watchdog.begun += 1
            watchdog.inside = True
            try:
                return method(*given, **named)
            finally:
                watchdog.inside = False

        return call

    if watchdog.timeout_s is not None:
        env.step, env.reset = guarded(env.step), guarded(env.reset)
    # The seed test closes environments; closing is checked at the end of the random episodes and must not hang here.
    env.close = partial(close_within, env.close, "PettingZoo's test")
    return env


def _where(error: BaseException) -> str:
    # Without PettingZoo's own frames: the test may have found the error itself.
    frames = [frame for frame in their_frames(error) if not frame.filename.startswith(_PETTINGZOO)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
