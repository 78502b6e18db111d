"""Credit beyond an agent's death, for teams with a common reward.

What a team gains after one of its agents has died may be that agent's merit. With `bootstrap_at_death`, the value after
its last row is not 0 but an estimate of the survivors' (posthumous credit; Cohen et al., 2021, arXiv:2111.05992).
"""

from __future__ import annotations

import numpy as np

from marlflow.base.batch import Array, Batch


def bootstrap_by_survivors(batch: Batch, value: Array, bootstrap: Array) -> Array:
    """Set in `bootstrap` [S] the values of terminated segments that others outlive; return their indices.

    A segment gets the mean value, one env step after its last row, of the agents of this policy in the same env and
    episode that have not terminated: of their rows, `value` [N], or of their bootstraps. All agents must decide at
    every env step, as in Parallel environments. The value is not that of the critic for the dead agent itself, which
    has no rows and so never trained the critic there.
    """
    segments, terminated = batch.segments, batch.segments["terminated"]
    if not terminated.any():
        return np.empty(0, np.int64)
    t_env = batch.columns["t_env"]
    after_end = t_env[batch.ends()] + 1
    # Candidates: all rows, and the bootstraps of segments that did not terminate.
    columns = [
        (np.repeat(segments[name], segments["length"]), segments[name][~terminated])
        for name in ("env", "episode", "lane")
    ]
    columns.append((t_env, after_end[~terminated]))
    env, episode, lane, t = (np.concatenate(pair) for pair in columns)
    values = np.concatenate([value, bootstrap[~terminated]]).astype(np.float64)
    # Rows come first, so an agent whose next segment is in the batch too counts once, by that segment's first row.
    _, first = np.unique(np.stack([episode, lane, t]), axis=1, return_index=True)
    moments = np.stack([env[first], episode[first], t[first]])
    of_dead = np.stack([segments["env"], segments["episode"], after_end])[:, terminated]
    _, group = np.unique(np.concatenate([moments, of_dead], axis=1), axis=1, return_inverse=True)
    group = group.reshape(-1)
    counts = np.bincount(group[: len(first)], minlength=group.max() + 1)
    sums = np.bincount(group[: len(first)], values[first], minlength=group.max() + 1)
    group_of_dead = group[len(first) :]
    survived: Array = np.flatnonzero(terminated)[counts[group_of_dead] > 0]
    group_of_dead = group_of_dead[counts[group_of_dead] > 0]
    bootstrap[survived] = sums[group_of_dead] / counts[group_of_dead]
    return survived
