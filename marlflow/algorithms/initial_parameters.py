"""Parameters of another run that a policy begins with (a warm start), apart from that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import from_bytes, to_bytes


@dataclass(frozen=True, slots=True)
class InitialParameters:
    """Parameters by name (see `learner.parameters`), float32, from the policy `source` of another run.

    `about` says what that is: its algorithm, version and number of parameters. `sha256` is of all that it publishes.
    """

    tensors: Mapping[str, Array] = field(compare=False, repr=False)
    source: str
    about: str
    sha256: str

    @property
    def described(self) -> str:
        """Text such as `actor, critic of main of runs/c4/a (ppo, version 3, 9,000 parameters, SHA-256 ...)`."""
        parts = dict.fromkeys("actor" if name.startswith("actor.") else "critic" for name in self.tensors)
        return f"{' and '.join(parts)} of {self.source} ({self.about}, SHA-256 {self.sha256})"

    def to_bytes(self) -> bytes:
        """Return the content of a checkpoint's file."""
        return to_bytes({**self._text, "tensors": dict(self.tensors)})

    @property
    def _text(self) -> dict[str, Any]:
        return {"source": self.source, "about": self.about, "sha256": self.sha256}

    @classmethod
    def from_bytes(cls, data: bytes) -> InitialParameters:
        """Return what `to_bytes` was called on; raises CheckpointUnusable if it is malformed."""
        match from_bytes(data):
            case {"source": str(source), "about": str(about), "sha256": str(sha256), "tensors": dict(tensors)} if all(
                isinstance(tensor, np.ndarray) and tensor.dtype == np.float32 for tensor in tensors.values()
            ):
                return cls(tensors, source, about, sha256)
        raise CheckpointUnusable(["it has no source, hash and parameters that a policy begins with"])
