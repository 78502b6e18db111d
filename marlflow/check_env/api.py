"""Runs PettingZoo's own environment tests, and one of marlflow's own for batched versions; collects their warnings."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
import warnings
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pettingzoo

from marlflow.base.arrays import Array
from marlflow.base.errors import DEBUGGER_QUIT, MarlflowError
from marlflow.base.info_columns import InfoColumn, InfoColumns
from marlflow.batches.batch import Batch
from marlflow.check_env.outcome import BATCHED_TEST, Kind, Masks, TestOutcome
from marlflow.check_env.play import random_actor
from marlflow.check_env.seats import Seats
from marlflow.env.batched.versions import BatchedMaker
from marlflow.env.episode_location import their_frames
from marlflow.observe.first_lines import FirstLines
from marlflow.sampling import Receipt, RolloutWorker, SamplerConfig
from marlflow.sampling.watchdog import Overdue, Watchdog, close_within

_METHODS = ("observation_space", "action_space")


class SameSpaces:
    """Replaces equal spaces by the first one, and remembers the methods that made them, in order.

    PettingZoo's API test ends at the first method that returns a copy, so it would check nothing else. Spaces that
    differ in value are passed on, and fail it.
    """

    def __init__(self) -> None:
        self.copied: dict[str, None] = {}

    def of(self, env: Any) -> Any:
        """Return the environment, with both of its methods replaced."""
        for name in _METHODS:
            setattr(env, name, self._same(name, getattr(env, name)))
        return env

    def _same(self, name: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        first: dict[Any, Any] = {}

        def space(agent: Any) -> Any:
            made = method(agent)
            kept = first.setdefault(agent, made)
            if kept is made or kept != made:
                return made
            self.copied[name] = None
            return kept

        return space

    def note(self) -> str:
        """Return the note on methods that made copies; "" if none did."""
        if not self.copied:
            return ""
        methods = " and ".join(f"{name}(agent)" for name in self.copied)
        return (
            f"{methods} returned a new object at each call. Training compares spaces by value and is not affected, but "
            "PettingZoo asks for the same object: env.action_space(agent).seed(7) would seed a copy that nobody "
            "samples from. Keep spaces in a dictionary, or decorate the method with functools.lru_cache(maxsize=None)"
        )


# Env steps (of an AEC environment: times agents) that each test takes at most; PettingZoo's own default is 1,000.
_CYCLES = 250
_PETTINGZOO = str(Path(pettingzoo.__file__).parent)
_PETTINGZOO_TESTS = str(Path(_PETTINGZOO, "test"))
# PettingZoo's messages about tables whose agents differ from `agents`, or lack one of them.
_OTHER_AGENTS = re.compile(r"agents should not be given an? (reward|termination|truncation|info) if they were")
_NONE = {"reward": "0.0", "termination": "False", "truncation": "False", "info": "{}"}
# PettingZoo warns about every Dict observation, even about its own convention for action masks.
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
    except (Exception, SystemExit) as error:  # noqa: BLE001  (any error is the test's result)
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


def _message(error: BaseException) -> str:
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


_NUM_ENVS = 3
# Fragments of several lengths, so that episodes are cut at many places.
_TICKS = (1, 6, 40, 3, 100)


def compare_batched(
    make_env: Callable[[], Any],
    make_batched: BatchedMaker | None,
    seats: Seats,
    seed: int,
    step_timeout_s: float | None,
) -> tuple[TestOutcome, ...]:
    """Collect random rows of the same episodes by both, and compare all of them, number for number.

    Returns nothing if there is no batched version.
    """
    if make_batched is None:
        return ()
    if not seats.reproducible:
        why = 'its metadata["reproducible"] is False: an episode in a batch is another one than alone'
        return (TestOutcome(BATCHED_TEST, "left out", why),)
    actors = {policy: partial(random_actor, spaces) for policy, spaces in seats.spaces.items()}
    workers: list[RolloutWorker] = []
    try:
        # In infos of AEC environments, no sum can be read.
        keys = make_batched.info_keys() if seats.parallel else ()
        columns = InfoColumns(tuple(InfoColumn(key, key, policies=frozenset(actors)) for key in keys))
        for make in (make_batched, None):
            config = SamplerConfig(make_env, range(_NUM_ENVS), seats.mapping, seed, make_batched=make, columns=columns)
            workers.append(RolloutWorker(config, actors, Watchdog(step_timeout_s)))
        for ticks in _TICKS:
            (receipt, batches), (single_receipt, single_batches) = (worker.collect(ticks) for worker in workers)
            if (found := _difference(batches, single_batches) or _of_results(receipt, single_receipt)) is not None:
                return (TestOutcome(BATCHED_TEST, "failed", f"{found} from the same episode stepped alone"),)
    except MarlflowError as error:
        return (TestOutcome(BATCHED_TEST, "failed", str(error)),)
    finally:
        for worker in workers:
            worker.close()
    return (TestOutcome(BATCHED_TEST, "passed"),)


def _difference(batches: Mapping[str, Batch], others: Mapping[str, Batch]) -> str | None:
    for policy, batch in batches.items():
        other = others[policy]
        # Segments are compared first: rows can be compared only if they belong to the same steps.
        for name, column in {**batch.segments, **batch.columns}.items():
            expected = {**other.segments, **other.columns}[name]
            if (row := _first_difference(column, expected)) is not None:
                return f"{name} of {policy!r} differs in row {row}"
    return None


def _of_results(receipt: Receipt, other: Receipt) -> str | None:
    pairs = zip(receipt.episodes, other.episodes, strict=False)
    differing = next((ours.env for ours, theirs in pairs if ours != theirs), None)
    if differing is None and len(receipt.episodes) == len(other.episodes):
        return None
    return f"the result of an episode differs (env {differing})"


def _first_difference(column: Array, other: Array) -> int | None:
    if column.shape != other.shape or column.dtype != other.dtype:
        return 0
    # NaN is not equal to itself: log-probabilities of actions that were drawn from no density, for example.
    differing = (column != other) & ((column == column) | (other == other))  # noqa: PLR0124
    differs = differing.reshape(len(column), -1).any(axis=1) if len(column) else np.zeros(0, bool)
    return int(differs.argmax()) if differs.any() else None
