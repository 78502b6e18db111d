"""Parts of messages: long lists and texts, which lose their middle and say how much; suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

MOST: Final = 1_980
"""The most characters of a message, which has at most 2,000 with what is printed before it, such as `error: `."""
_MOST_NAMED = 50


def shortened(text: str, most: int = MOST) -> str:
    """Return a text of at most `most` characters: its beginning, the number of parts left out, and its end.

    >>> shortened("agents " + ", ".join(map(str, range(1_000))) + ": none", 100)
    'agents 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... and 988 others ..., 998, 999: none'
    """
    if len(text) <= most:
        return text
    # Room for the note on the parts left out.
    room = max(most - 40, 0)
    head, tail = text[: room * 2 // 3], text[len(text) - room // 3 :]
    if ", " in head[-_LONGEST_NAME:] and ", " in tail[:_LONGEST_NAME]:
        head, tail = head.rpartition(", ")[0], tail.partition(", ")[2]
        others = text[len(head) : len(text) - len(tail)].count(", ") - 1
        return f"{head}, ... and {others:,} others ..., {tail}"
    return f"{head} ... {len(text) - len(head) - len(tail):,} characters ... {tail}"


# A list is recognized by the commas around its names.
_LONGEST_NAME = 120


def enumerated(names: Collection[str], most: int = _MOST_NAMED) -> str:
    """Return names with commas between them: the first `most`, and the number of the others.

    >>> enumerated(["a", "b", "c", "d"], 3), enumerated(["a", "b", "c"], 3)
    ('a, b, c and 1 more', 'a, b, c')
    """
    more = len(names) - most
    return ", ".join(islice(names, most)) + (f" and {more:,} more" if more > 0 else "")


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield the lines of a table, whose columns in `right`, counted from 0, are aligned at the right.

    >>> list(aligned([["name", "games"], ["main", "20"]], right=[1]))
    ['name  games', 'main     20']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def numbered(problems: Collection[str], heading: str) -> str:
    """Return a heading and problems with their numbers, in all at most `MOST` characters: the first ones if many."""
    # The heading has a line, and so has the note on texts left out.
    room = MOST - len(heading) - 40
    each = max(room // max(len(problems), 1), 400) - 10
    lines: list[str] = []
    for number, problem in enumerate(problems, 1):
        line = f"  {number}. {shortened(problem, each)}"
        room -= len(line) + 1
        if room < 0:
            lines.append(f"  ... and {len(problems) - number + 1:,} more")
            break
        lines.append(line)
    return "\n".join([heading, *lines])


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the most similar name in `known`, if any is similar; `name` may be anything that a user gave as one.

    >>> nearest("num_wrokers", ["num_workers", "pace"])
    'num_workers'
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def meant(name: str, known: Collection[str], what: str = "it has") -> str:
    """Suggest the nearest name, or list all.

    >>> meant("pqo", ["ppo", "dqn"]), meant("sarsa", ["ppo", "dqn"], "there are")
    ("; did you mean 'ppo'?", '; there are ppo, dqn')
    """
    close = nearest(name, known)
    if close is None:
        return f"; {what} {enumerated(known)}" if known else "; there are none"
    return f"; did you mean {close!r}?"


def overrides_nothing(one: object, base: type) -> str | None:
    """Return a sentence on an object that overrides no method of its public `base`, perhaps as its own are misspelled.

    >>> class Base:
    ...     def reported(self): ...
    >>> overrides_nothing(type("Mine", (Base,), {"on_report": print})(), Base)
    "Mine overrides no method of marlflow.Base, so nothing would call it; did you mean 'reported'?"
    """
    methods = [name for name, method in vars(base).items() if callable(method) and not name.startswith("_")]
    # Asked of the object, which may have methods that its class has not.
    if any(getattr(getattr(one, name), "__func__", None) is not getattr(base, name) for name in methods):
        return None
    kind = type(one)
    own = [name for name in dir(kind) if not name.startswith("_") and not hasattr(base, name)]
    misspelled = next((name for name in own if nearest(name, methods)), "")
    instead = meant(misspelled, methods, "its methods are")
    return f"{kind.__name__} overrides no method of marlflow.{base.__name__}, so nothing would call it{instead}"


def misspelled_key(path: str, key: str, known: Collection[str], owner: str) -> str:
    """Report an unknown configuration `key`, mostly a misspelled one, at `path`; `owner` has the `known` keys.

    >>> misspelled_key("rollouts.pase", "pase", ["num_workers", "pace"], "Rollouts")
    "there is no rollouts.pase; did you mean 'rollouts.pace'?"
    """
    close = nearest(key, known)
    if close is None:
        return f"there is no {path}; {owner} takes {enumerated(list(dict.fromkeys(known))) or 'nothing'}"
    return f"there is no {path}; did you mean {path.removesuffix(key) + close!r}?"


def kind_of(value: Any) -> str | None:
    """Name the type of a value for error messages; return None if it is not plain data."""
    import numpy as np  # late: help and completion need this module, and no arrays

    kinds: Mapping[str, Any] = {
        "true or false": bool | np.bool_,
        "a number": int | float | np.integer | np.floating,
        "text": str,
        "a mapping {...}": Mapping,
        "a list [...]": list | tuple,
    }
    return next((kind for kind, types_of_it in kinds.items() if isinstance(value, types_of_it)), None)
