"""Environments that go wrong, and checkpoints that are made to: for faults.py."""

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

from marlflow.env.cartpole_team import CartPoleTeam


class Faulty(CartPoleTeam):
    """In some episodes, at the fifth env step, does what its subclass says."""

    def __init__(self) -> None:
        super().__init__(max_cycles=50)
        self._goes_wrong = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A new episode."""
        self._goes_wrong = seed is not None and seed % 3 == 1
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        """An env step, or what goes wrong."""
        made = super().step(actions)
        return self.spoil(*made) if self._goes_wrong and self._cycles == 5 else made

    def spoil(self, *made: Any) -> Any:
        """What goes wrong with what was made."""
        raise NotImplementedError


class Raises(Faulty):
    """Raises."""

    def spoil(self, *made: Any) -> Any:
        """A wheel comes off."""
        raise RuntimeError("the wheel came off")


class GoesBlind(Faulty):
    """Shows a NaN."""

    def spoil(self, observations: Any, *others: Any) -> Any:
        """One cart sees nothing."""
        return {**observations, "cart_1": np.full(4, np.nan, np.float32)}, *others


class Unpaid(Faulty):
    """Leaves a reward out."""

    def spoil(self, observations: Any, rewards: Any, *others: Any) -> Any:
        """One cart receives nothing, not even 0."""
        return observations, {agent: reward for agent, reward in rewards.items() if agent != "cart_1"}, *others


class Hangs(Faulty):
    """Never comes back."""

    def spoil(self, *made: Any) -> Any:
        """For ever."""
        while True:
            pass


class Jackpot(Faulty):
    """Pays more than can be squared in float32."""

    def spoil(self, observations: Any, rewards: Any, *others: Any) -> Any:
        """A fortune each."""
        return observations, dict.fromkeys(rewards, 1e38), *others


class Sticks(CartPoleTeam):
    """Cannot be closed."""

    def close(self) -> None:
        """It sticks."""
        raise RuntimeError("the door sticks")


class NeverCloses(CartPoleTeam):
    """Takes for ever to close."""

    def close(self) -> None:
        """For ever."""
        while True:
            pass


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """The system lets no file of this process grow beyond so many bytes, as a full disk would not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def with_other_notes(checkpoint: Path) -> None:
    """What its manifest says of the run has another shape, and its hash is right."""
    _rewrite(checkpoint, lambda content: content["notes"].update(reports="many", identity=[]))


def no_space(descriptor: int) -> NoReturn:
    """What stands in for os.fsync on a full disk."""
    del descriptor
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def untouched(checkpoint: Path) -> None:
    """Leaves it as it is."""


def _file(checkpoint: Path) -> Path:
    return checkpoint / "learner.ppo_team.safetensors"


def flipped(checkpoint: Path) -> None:
    """One bit of a file is another."""
    data = bytearray(_file(checkpoint).read_bytes())
    data[-1] ^= 1
    _file(checkpoint).write_bytes(data)


def truncated(checkpoint: Path) -> None:
    """Half of a file is missing."""
    data = _file(checkpoint).read_bytes()
    _file(checkpoint).write_bytes(data[: len(data) // 2])


def of_another_format(checkpoint: Path) -> None:
    """As a later version might have written it."""
    manifest = checkpoint / "checkpoint.json"
    manifest.write_text(
        json.dumps({**json.loads(manifest.read_text(encoding="utf-8")), "format": 99}), encoding="utf-8"
    )


def with_a_pickle(checkpoint: Path) -> None:
    """A file is a pickle, and the manifest agrees: every hash in it is right."""
    data = b"cos\nsystem\n(S'touch owned'\ntR."
    _file(checkpoint).write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _rewrite(checkpoint, lambda content: content["files"].update({"learner.ppo_team": entry}))


def _rewrite(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest, and its hash with it."""
    manifest = checkpoint / "checkpoint.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    del content["sha256"]
    change(content)
    whole = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    manifest.write_text(json.dumps({**content, "sha256": hashlib.sha256(whole).hexdigest()}), encoding="utf-8")


def with_a_link(checkpoint: Path) -> None:
    """A file is a link to another one."""
    data = _file(checkpoint)
    data.rename(checkpoint.parent / "elsewhere")
    data.symlink_to(checkpoint.parent.resolve() / "elsewhere")
