"""A person's place in a terminal: the board as text, and the legal actions to choose from."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from marlflow.env.adapter import StepResult
from marlflow.sampling.acting_policy import ActionDecoder
from marlflow.trained.boards import Board
from marlflow.trained.games import Decision, Episode, Stopped
from marlflow.trained.typed_actions import TypedActions, Unreadable

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


class TerminalPerson:
    """Plays `agent` by typing: `person(decision)` asks until the answer is a legal action.

    With `clock_s`, the person has this many seconds for each decision, as in games in which all act at once; then the
    last action is repeated if it is legal, or else the first legal one is taken. As a watcher of the games, it shows
    what the others do, if everybody may know, and how each game ends. `names` says who plays each other agent.
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
