"""Averaging of gradients computed by several workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marlflow.batches.items import Gradients


def mean_gradients(gradients: Sequence[Gradients]) -> Gradients:
    """Return the mean of gradients, weighted by rows; raises ValueError without any."""
    if not gradients:
        raise ValueError("expected at least one gradient, got none")
    # A gradient of no rows has no loss terms, and no mean version.
    nonempty = [gradient for gradient in gradients if gradient.rows] or gradients[:1]
    rows = sum(gradient.rows for gradient in nonempty)
    shares = [gradient.rows / rows if rows else 1.0 for gradient in nonempty]
    weighted = list(zip(nonempty, shares, strict=True))
    flat = np.average([gradient.flat for gradient in nonempty], axis=0, weights=shares).astype(np.float32)
    loss = {name: sum(gradient.loss[name] * share for gradient, share in weighted) for name in nonempty[0].loss}
    version_mean = sum(gradient.version_mean * share for gradient, share in weighted)
    carried = sum(gradient.rows_carried for gradient in nonempty)
    at_death = sum(gradient.rows_bootstrapped_at_death for gradient in nonempty)
    return Gradients(flat, rows, loss, version_mean, carried, at_death)
