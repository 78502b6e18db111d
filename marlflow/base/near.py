"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from marlflow.base.shortened import enumerated


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the most similar name in `known`, if any is similar.

    >>> nearest("num_wrokers", ["num_workers", "pace"])
    'num_workers'
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
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


def absent(path: str, key: str, known: Collection[str], owner: str) -> str:
    """Report an unknown `key`, the last part of `path`; `owner` has the `known` keys.

    >>> absent("rollouts.pase", "pase", ["num_workers", "pace"], "Rollouts")
    "there is no rollouts.pase; did you mean 'rollouts.pace'?"
    """
    close = nearest(key, known)
    if close is None:
        return f"there is no {path}; {owner} takes {enumerated(known) or 'nothing'}"
    return f"there is no {path}; did you mean {path.removesuffix(key) + close!r}?"
