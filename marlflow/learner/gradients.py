"""Several gradients of one loss as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marlflow.base.items import Gradients


def mean_gradients(gradients: Sequence[Gradients]) -> Gradients:
    """The gradient that all rows would have had at once: the mean, weighted by rows; raises ValueError for none."""
    if not gradients:
        raise ValueError("expected at least one gradient, got none")
    known = [found for found in gradients if found.rows] or gradients[:1]
    rows = sum(found.rows for found in known)
    shares = [found.rows / rows if rows else 1.0 for found in known]
    weighed = list(zip(known, shares, strict=True))
    flat = np.average([found.flat for found in known], axis=0, weights=shares).astype(np.float32)
    loss = {name: sum(found.loss[name] * share for found, share in weighed) for name in known[0].loss}
    version_mean = sum(found.version_mean * share for found, share in weighed)
    return Gradients(flat, rows, loss, version_mean, sum(found.rows_carried for found in known))
