"""Faulty environments and damaged checkpoints for faults.py."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from marlflow.env.games.cartpole_team import CartPoleTeam


class Faulty(CartPoleTeam):
    """Fails at the fifth env step of some episodes, in the way that the subclass defines."""

    def __init__(self) -> None:
        super().__init__(max_cycles=50)
        self._goes_wrong = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._goes_wrong = seed is not None and seed % 3 == 1
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        made = super().step(actions)
        return self.spoil(*made) if self._goes_wrong and self._cycles == 5 else made

    def spoil(self, *made: Any) -> Any:
        """Return the step's result with the fault."""
        raise NotImplementedError


class Raises(Faulty):
    """Raises an exception."""

    def spoil(self, *made: Any) -> Any:
        raise RuntimeError("the wheel came off")


class GoesBlind(Faulty):
    """Returns a NaN observation."""

    def spoil(self, observations: Any, *others: Any) -> Any:
        return {**observations, "cart_1": np.full(4, np.nan, np.float32)}, *others


class Unpaid(Faulty):
    """Leaves out a reward."""

    def spoil(self, observations: Any, rewards: Any, *others: Any) -> Any:
        return observations, {agent: reward for agent, reward in rewards.items() if agent != "cart_1"}, *others


class Hangs(Faulty):
    """Never returns."""

    def spoil(self, *made: Any) -> Any:
        while True:
            pass


class Jackpot(Faulty):
    """Returns a reward whose square overflows float32."""

    def spoil(self, observations: Any, rewards: Any, *others: Any) -> Any:
        return observations, dict.fromkeys(rewards, 1e38), *others


class Sticks(CartPoleTeam):
    """Raises when it is closed."""

    def close(self) -> None:
        raise RuntimeError("the door sticks")


class NeverCloses(CartPoleTeam):
    """Never finishes closing."""

    def close(self) -> None:
        while True:
            pass


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Limit the size of all files that this process writes, in bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def with_other_notes(checkpoint: Path) -> None:
    """Change the shape of the run's notes in the manifest, with a correct hash."""
    _rewrite(checkpoint, lambda content: content["notes"].update(reports="many", identity=[]))


def no_space(descriptor: int) -> NoReturn:
    """Raise ENOSPC: replaces os.fsync on a full disk."""
    del descriptor
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def untouched(checkpoint: Path) -> None:
    """Leave the checkpoint unchanged."""


def _file(checkpoint: Path) -> Path:
    return checkpoint / "learner.ppo_team.safetensors"


def flipped(checkpoint: Path) -> None:
    """Flip one bit of a file."""
    data = bytearray(_file(checkpoint).read_bytes())
    data[-1] ^= 1
    _file(checkpoint).write_bytes(data)


def truncated(checkpoint: Path) -> None:
    """Cut a file in half."""
    data = _file(checkpoint).read_bytes()
    _file(checkpoint).write_bytes(data[: len(data) // 2])


def of_another_format(checkpoint: Path) -> None:
    """Change the format number, as a later version would."""
    manifest = checkpoint / "checkpoint.json"
    manifest.write_text(
        json.dumps({**json.loads(manifest.read_text(encoding="utf-8")), "format": 99}), encoding="utf-8"
    )


def with_a_pickle(checkpoint: Path) -> None:
    """Replace a file by a pickle, with correct hashes in the manifest."""
    data = b"cos\nsystem\n(S'touch owned'\ntR."
    _file(checkpoint).write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _rewrite(checkpoint, lambda content: content["files"].update({"learner.ppo_team": entry}))


def _rewrite(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest, and update its hash."""
    manifest = checkpoint / "checkpoint.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    del content["sha256"]
    change(content)
    whole = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    manifest.write_text(json.dumps({**content, "sha256": hashlib.sha256(whole).hexdigest()}), encoding="utf-8")


def with_a_link(checkpoint: Path) -> None:
    """Replace a file by a symbolic link to another one."""
    data = _file(checkpoint)
    data.rename(checkpoint.parent / "elsewhere")
    data.symlink_to(checkpoint.parent.resolve() / "elsewhere")
