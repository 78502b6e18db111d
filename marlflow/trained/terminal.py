"""A person's place in a terminal: the board as text, the legal actions, and the action that is typed, of any space."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from marlflow.base.arrays import Array
from marlflow.base.sentences import nearest
from marlflow.base.spaces import choices_of, components
from marlflow.env.adapter import StepResult
from marlflow.sampling.acting_policy import ActionDecoder
from marlflow.trained.boards import Board
from marlflow.trained.games import Decision, Episode, Stopped, Watcher

_MOST_LISTED = 40


class Unreadable(Exception):
    """The typed text is no legal action; the message says why."""


class TypedActions:
    """The legal actions of one decision, and how to type them.

    `mask` is bool [A] or None, as in the column `action_mask`. `names` are names of Discrete actions, by number from 0.
    """

    def __init__(self, space: spaces.Space[Any], mask: Array | None, names: Mapping[int, str] | None = None) -> None:
        self._space, self._mask = space, None if mask is None else np.asarray(mask, bool).reshape(-1)
        self._start = int(space.start) if isinstance(space, spaces.Discrete) else 0
        self._names = {number: name for number, name in (names or {}).items() if name}

    def legal(self) -> Array:
        """Return the legal values of a Discrete action, from 0."""
        size = int(self._space.n) if isinstance(self._space, spaces.Discrete) else 0
        return np.arange(size) if self._mask is None else np.flatnonzero(self._mask)

    def listed(self) -> list[str]:
        """Return how each legal Discrete action can be typed, `4` or `4 x(1,1)`; empty for other spaces."""
        if not isinstance(self._space, spaces.Discrete):
            return []
        return [self._label(number) for number in self.legal().tolist()]

    def first(self) -> str:
        """Return how to type the first legal action; of a Box, the one closest to 0."""
        space = self._space
        if isinstance(space, spaces.Discrete):
            return str(self._start + int(self.legal()[0]))
        if isinstance(space, spaces.Box):
            return " ".join(map(repr, np.clip(0.0, space.low, space.high).ravel().tolist()))
        legal = [part[0].argmax() for part in self._parts()]
        return " ".join(map(str, np.array(legal) + self._starts()))

    def form(self) -> str:
        """Return a short description of what to type."""
        space = self._space
        if isinstance(space, spaces.Discrete):
            return "a number, or a name" if self._names else "a number"
        if isinstance(space, spaces.Box):
            return f"{_numbers(space)} {_range(space.low, space.high)}"
        choices, starts = choices_of(space), self._starts().tolist()
        limits = [f"{low} to {low + count - 1}" for low, count in zip(starts, choices, strict=True)]
        same = f"each from {limits[0]}" if len(set(limits)) == 1 else f"from {', '.join(limits)}"
        return f"{_numbers(space)} {same}"

    def read(self, text: str) -> Array:
        """Return the action as a row of the column `action`, counted from 0; raises Unreadable."""
        space = self._space
        if isinstance(space, spaces.Discrete):
            return np.asarray(self._discrete(text.strip()), np.int64)
        words = text.replace(",", " ").split()
        if len(words) != int(np.prod(space.shape or ())):
            raise Unreadable(f"type {self.form()}, with spaces between them")
        if isinstance(space, spaces.Box):
            return self._box(space, words)
        return self._components(words)

    def _label(self, number: int) -> str:
        name = self._names.get(number)
        return f"{self._start + number}" if name is None else f"{self._start + number} {name}"

    def _discrete(self, text: str) -> int:
        legal = self.legal().tolist()
        # A name first: some games name their actions by other numbers.
        by_name = {name.lower(): number for number, name in self._names.items() if number in legal}
        if text.lower() in by_name:
            return by_name[text.lower()]
        try:
            number = int(text) - self._start
        except ValueError:
            close = nearest(text.lower(), list(by_name))
            hint = f"; did you mean {close!r}?" if close else f"; {self._options(legal)}"
            raise Unreadable(f"{text!r} is no action{hint}") from None
        if number not in legal:
            raise Unreadable(f"{text} is not legal now; {self._options(legal)}")
        return int(number)

    def _options(self, legal: Sequence[int]) -> str:
        if len(legal) > _MOST_LISTED:
            return f"type ? to see the {len(legal)} legal actions"
        return f"legal are {', '.join(map(self._label, legal))}"

    def _box(self, space: spaces.Box, words: Sequence[str]) -> Array:
        try:
            values = np.array(words, np.float64).reshape(space.shape)
        except ValueError:
            raise Unreadable(f"{' '.join(words)!r} are no numbers; type {self.form()}") from None
        if not (np.isfinite(values).all() and (values >= space.low).all() and (values <= space.high).all()):
            raise Unreadable(f"{' '.join(words)} is outside of the space; type {self.form()}")
        return values.astype(np.float32)

    def _components(self, words: Sequence[str]) -> Array:
        starts = self._starts()
        try:
            values = np.array(words, np.int64) - starts
        except ValueError:
            raise Unreadable(f"{' '.join(words)!r} are no whole numbers; type {self.form()}") from None
        if (values < 0).any() or (values >= np.array(choices_of(self._space))).any():
            raise Unreadable(f"{' '.join(words)} is outside of the space; type {self.form()}")
        for place, (value, part) in enumerate(zip(values.tolist(), self._parts(), strict=True)):
            if not part[0, value]:
                allowed = ", ".join(map(str, np.flatnonzero(part[0]) + starts[place]))
                raise Unreadable(f"number {place + 1} may not be {words[place]} now; legal are {allowed}")
        return values.reshape(self._space.shape or ())

    def _starts(self) -> Array:
        count = len(choices_of(self._space))
        return np.broadcast_to(np.ravel(getattr(self._space, "start", 0)), count).astype(np.int64)

    def _parts(self) -> list[Array]:
        choices = choices_of(self._space)
        mask = np.ones(sum(choices), bool) if self._mask is None else self._mask
        return components(mask[None], choices)


def _numbers(space: spaces.Space[Any]) -> str:
    count = int(np.prod(space.shape or ()))
    return "a number" if count == 1 else f"{count} numbers"


def _range(low: Array, high: Array) -> str:
    limits = sorted({(float(least), float(most)) for least, most in zip(low.ravel(), high.ravel(), strict=True)})
    if len(limits) == 1:
        return f"from {limits[0][0]:g} to {limits[0][1]:g}"
    return "from " + ", ".join(f"{least:g} to {most:g}" for least, most in zip(low.ravel(), high.ravel(), strict=True))


_HELP, _QUIT = ("?", "help"), ("q", "quit", "exit")
_MOST_NAMED = 100


class Lines(Protocol):
    """Where typed lines come from."""

    def read(self, timeout_s: float | None) -> str | None:
        """Return the next line; None after `timeout_s` seconds. Raises EOFError at the end of the input."""
        ...


class StandardInput:
    """Lines of standard input.

    With a timeout, a thread reads, because no operating system can otherwise end the reading of a line. A line that
    comes after the timeout is dropped.
    """

    def __init__(self) -> None:
        self._asked: queue.Queue[None] = queue.Queue()
        self._read: queue.Queue[str] = queue.Queue()
        self._reader: threading.Thread | None = None
        self._pending = False

    def read(self, timeout_s: float | None) -> str | None:
        if timeout_s is None and self._reader is None:
            return _line(sys.stdin.readline())
        if self._reader is None:
            self._reader = threading.Thread(target=self._serve, daemon=True, name="typed lines")
            self._reader.start()
        if self._pending and not self._read.empty():
            # It was typed for a decision that is over.
            self._read.get()
            self._pending = False
        if not self._pending:
            self._asked.put(None)
            self._pending = True
        try:
            line = self._read.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._pending = False
        return _line(line)

    def _serve(self) -> None:
        while True:
            self._asked.get()
            self._read.put(sys.stdin.readline())


def _line(text: str) -> str:
    if not text:
        raise EOFError
    return text.rstrip("\n")


class TerminalPerson(Watcher):
    """Plays `agent` by typing: `person(decision)` asks until the answer is a legal action.

    With `clock_s`, the person has this many seconds for each decision, as in games in which all act at once; then the
    last action is repeated if it is legal, or else the first legal one is taken. As a watcher of the games, it shows
    the actions of other players, if the game is public, and how each game ends. `names` says who plays each other
    agent.
    """

    def __init__(
        self,
        agent: str,
        board: Board,
        names: Mapping[str, str],
        clock_s: float | None = None,
        console: Console | None = None,
        lines: Lines | None = None,
    ) -> None:
        self.agent = agent
        self._board, self._names, self._clock_s = board, names, clock_s
        self._console = Console(highlight=False) if console is None else console
        self._lines = StandardInput() if lines is None else lines
        self._last: str | None = None
        self._slot: int | None = None

    def __call__(self, decision: Decision) -> Any:
        """Return the action that the person types; raises Stopped at `quit` or the end of the input."""
        self._slot = decision.slot
        typed = TypedActions(decision.space, decision.mask, self._action_names(decision))
        self._say("")
        self._say(self._board.text(self.agent, decision.observation))
        self._list(typed)
        while True:
            answer = self._ask(typed)
            if answer is None:
                return self._decoded(decision, self._default(typed))
            if answer.strip().lower() in _HELP:
                self._list(typed, everything=True)
                self._say("type the number of an action, its name if it has one, or quit to stop")
                continue
            try:
                row = typed.read(answer)
            except Unreadable as problem:
                if answer.strip().lower() in _QUIT:
                    raise Stopped from None
                self._say(str(problem))
                continue
            self._last = answer
            return self._decoded(decision, row)

    def began(self, episode: Episode) -> None:
        """Say which game begins, and who plays."""
        self._slot = self._last = None
        others = ", ".join(f"{agent} is {name}" for agent, name in self._names.items() if agent != self.agent)
        against = f"; {others}" if others else ""
        self._say(f"\ngame {episode.number + 1} of {episode.of}, seed {episode.seed}: you are {self.agent}{against}")

    def decided(self, decision: Decision, action: Any) -> None:
        """Print another agent's action, if all players may know it."""
        if decision.agent != self.agent and self._board.public:
            number = int(action)
            self._say(f"{decision.agent} plays {self._board.action(decision.agent, number) or number}")

    def stepped(self, result: StepResult) -> None:
        """Say that the person's agent ended before the others."""
        if not result.over and any(end.slot == self._slot for end in result.ended):
            self._say(f"{self.agent} is out; the others play on")

    def ended(self, episode: Episode) -> None:
        """Show the end of the game, and the returns."""
        if final := self._board.for_all():
            self._say("")
            self._say(final)
        returns = ", ".join(f"{agent} {value:g}" for agent, value in episode.returns.items())
        self._say(f"\nthe game is over after {episode.env_steps:,} env steps; returns: {returns}")

    def _say(self, text: str) -> None:
        # As Text, because boards have brackets, which rich would take for its markup.
        self._console.print(Text(text))

    def _action_names(self, decision: Decision) -> dict[int, str]:
        space = decision.space
        if not isinstance(space, spaces.Discrete):
            return {}
        legal = TypedActions(space, decision.mask).legal().tolist()
        return {number: self._board.action(self.agent, int(space.start) + number) for number in legal}

    def _list(self, typed: TypedActions, everything: bool = False) -> None:
        listed = typed.listed()
        if not listed:
            self._say(f"your action: {typed.form()}")
        elif len(listed) > _MOST_NAMED and not everything:
            self._say(f"{len(listed)} legal actions; ? lists them")
        else:
            self._console.print(Columns([Text(entry) for entry in listed], padding=(0, 3)))

    def _ask(self, typed: TypedActions) -> str | None:
        clock = "" if self._clock_s is None else f" within {self._clock_s:g} s"
        self._console.print(Text(f"{self.agent}, your action{clock}> "), end="")
        try:
            answer = self._lines.read(self._clock_s)
        except EOFError:
            self._say("")
            raise Stopped from None
        if answer is None:
            self._say("")
        return answer

    def _default(self, typed: TypedActions) -> Any:
        first = typed.first()
        answer = first if self._last is None else self._last
        try:
            row = typed.read(answer)
        except Unreadable:
            # Actions that were legal before may be illegal now.
            row = typed.read(answer := first)
        self._say(f"the time is over, so you play {answer}")
        return row

    def _decoded(self, decision: Decision, row: Any) -> Any:
        return ActionDecoder(self.agent, decision.space).choices(np.asarray(row)[None])[0]
