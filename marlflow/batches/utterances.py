"""Utterances: an agent's consecutive decisions, tokens, that together are one action.

An observation shows what its agent has said of the current utterance: a Dict with `utterance`, MultiDiscrete([A + 1] *
L), has a place for each of up to L tokens, 0 for a token not yet said, else 1 + the Discrete action. Nothing else in
the observation changes while an utterance is said, and rewards come with its last token. For ArCHer (Zhou et al., 2024,
arXiv:2402.19446).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from gymnasium import spaces as gym

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.observations import Path
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch

KEY = "utterance"
_PATH: Path = (KEY,)
_REMEDY = "let the environment show what the agent has said, as in docs/algorithms.md, or use ppo"

Tokens: TypeAlias = Array
"""int64 [N, L]: the tokens of an utterance, 1 + action each, and 0 after its end."""


@dataclass(frozen=True, slots=True)
class UtteranceLayout:
    """Where rows of the `obs` column, float32 [N, D], show an utterance: `start` to `stop`, one-hot.

    It has at most `length` tokens of `num_actions` values. It ends with the token `end_token`, if there is one, or
    when it is full.
    """

    start: int
    stop: int
    length: int
    num_actions: int
    end_token: int | None = None

    def said(self, obs: Array) -> Tokens:
        """Return the utterances that rows [N, D] show; raises InvalidInput if a token follows one that is not said."""
        tokens: Array = obs[:, self.start : self.stop].reshape(len(obs), self.length, self.num_actions + 1).argmax(2)
        if (np.diff((tokens > 0).astype(np.int8), axis=1) > 0).any():
            raise InvalidInput([f"observation[{KEY!r}] has a token after a 0, which is a token not yet said"])
        return tokens

    def showing(self, obs: Array, tokens: Tokens) -> Array:
        """Return rows [N, D] that show `tokens` instead."""
        rows = obs.copy()
        one_hot = np.eye(self.num_actions + 1, dtype=rows.dtype)[tokens]
        rows[:, self.start : self.stop] = one_hot.reshape(len(obs), self.stop - self.start)
        return rows

    def silent(self, obs: Array) -> Array:
        """Return rows [N, D] before the first token of their utterance."""
        return self.showing(obs, np.zeros((len(obs), self.length), np.int64))


@dataclass(frozen=True, slots=True)
class Spoken:
    """The utterances in rows of a batch: before each decision, after it, and whether it ended its utterance, bool [N].

    An utterance also ends where its agent terminates. `position` [N] is the number of tokens before the decision.
    """

    before: Tokens
    after: Tokens
    ends: Array
    position: Array


def utterance_problems(spaces: Spaces, end_token: int | None) -> list[str]:
    """Return why observations do not show utterances, with remedies; empty if they do."""
    if not isinstance(spaces.action, gym.Discrete):
        return []
    space = spaces.observation
    shown = space.spaces.get(KEY) if isinstance(space, gym.Dict) else None
    values = spaces.num_actions + 1
    if not isinstance(shown, gym.MultiDiscrete) or shown.nvec.ndim != 1 or (shown.nvec != values).any():
        expected = f"a Dict with {KEY!r}: MultiDiscrete([{values}] * tokens)"
        return [f"needs an observation that is {expected}, not {shown or space}; {_REMEDY}"]
    problems = []
    if spaces.masked:
        problems.append("samples whole utterances, whose tokens have no known action_mask; drop it, or use ppo")
    if spaces.layout().form != "flat":
        problems.append("needs observations without pixels; drop or encode them, by a wrapper")
    if end_token is not None and not 0 <= end_token < spaces.num_actions:
        problems.append(f"ends utterances with the token {end_token}; give one of 0 to {spaces.num_actions - 1}")
    return problems


def utterance_layout(spaces: Spaces, end_token: int | None) -> UtteranceLayout:
    """Return where observations show utterances; raises ConfigInvalid if they do not."""
    if problems := utterance_problems(spaces, end_token):
        raise ConfigInvalid(problems)
    leaf = next(leaf for leaf in spaces.layout().leaves if leaf.path == _PATH)
    shown = leaf.space
    assert isinstance(shown, gym.MultiDiscrete)
    return UtteranceLayout(leaf.start, leaf.stop, len(shown.nvec), spaces.num_actions, end_token)


def spoken(batch: Batch, layout: UtteranceLayout) -> Spoken:
    """Return the utterances in the rows of `batch`.

    Raises InvalidInput if observations do not continue them, or if a reward comes before an utterance's end.
    """
    obs, action = batch.columns["obs"], batch.columns["action"]
    before = layout.said(obs)
    position = np.count_nonzero(before, axis=1)
    if (position == layout.length).any():
        raise InvalidInput([f"an agent decides after a whole utterance of {layout.length} tokens: begin another one"])
    after = before.copy()
    after[np.arange(len(obs)), position] = action + 1
    is_full = position == layout.length - 1
    is_said = is_full if layout.end_token is None else is_full | (action == layout.end_token)
    _verify_continued(batch, layout, np.where(is_said[:, None], 0, after))
    ends = is_said.copy()
    ends[batch.ends()[batch.segments["terminated"]]] = True
    if (batch.columns["reward"][~ends] != 0).any():
        raise InvalidInput(["a reward came before the end of an utterance; let the environment pay at its last token"])
    return Spoken(before, after, ends, position)


def _verify_continued(batch: Batch, layout: UtteranceLayout, expected: Tokens) -> None:
    """Raise InvalidInput unless each observation in a segment, or after one that was cut, shows `expected` tokens."""
    obs, segments, lasts = batch.columns["obs"], batch.segments, batch.ends()
    following = np.empty_like(obs)
    following[:-1] = obs[1:]
    following[lasts] = segments["bootstrap_obs"]
    goes_on = np.ones(len(obs), bool)
    # The observation of an end may show anything.
    goes_on[lasts[segments["terminated"] | segments["truncated"]]] = False
    wrong = goes_on & (layout.said(following) != expected).any(1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        shown, wanted = layout.said(following[row : row + 1])[0].tolist(), expected[row].tolist()
        remedy = "set end_token as the environment ends utterances, or let it show what was said"
        raise InvalidInput([f"observation[{KEY!r}] shows {shown} where {wanted} was expected; {remedy}"])
    saying = goes_on & (expected > 0).any(1)
    if (layout.silent(following[saying]) != layout.silent(obs[saying])).any():
        raise InvalidInput(["an observation changes while an utterance is said; let it change at its end"])
