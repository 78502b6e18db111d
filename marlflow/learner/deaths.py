"""Credit beyond an agent's death, for teams with a common reward.

A team's rewards after the death of one of its agents may be due to that agent. With `bootstrap_at_death`, the value
after its last row is not 0 but an estimate of the survivors' (posthumous credit; Cohen et al., 2021, arXiv:2111.05992).
"""

from __future__ import annotations

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch


def bootstrap_by_survivors(batch: Batch, next_value: Array) -> Array:
    """Set in `next_value` [N] the values after the last rows of agents that others outlive; return which, bool [N].

    Such a row gets the mean next value of the agents of this policy that decided at the same env step of its episode
    and have not terminated. So all agents must decide at every env step, as in Parallel environments. It is not the
    critic's value for the dead agent itself, which has no rows and so never trained the critic there.
    """
    died = np.zeros(batch.rows, bool)
    died[batch.ends()[batch.segments["terminated"]]] = True
    if not died.any():
        return died
    moments = np.stack([batch["env"], batch["episode"], batch["t_env"]])
    _, group = np.unique(moments, axis=1, return_inverse=True)
    group = group.reshape(-1)
    counts = np.bincount(group, ~died)
    sums = np.bincount(group, np.where(died, 0.0, next_value))
    died &= counts[group] > 0
    next_value[died] = (sums / np.maximum(counts, 1.0))[group[died]]
    return died
