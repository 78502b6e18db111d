"""Enumerate the messages of a trained speaker of token_signal, and compute the best ones near a reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.env.games import token_signal

CLASSES, VOCABULARY, LENGTH = 8, 8, 4


@dataclass(frozen=True)
class Spoken:
    """The log-probabilities of all messages for each class, `logp` [C, M], and the class that each is `read` as [M]."""

    logp: Array
    read: Array

    @property
    def right(self) -> Array:
        """The probability to be understood, by class."""
        is_right = self.read == np.arange(CLASSES)[:, None]
        return (np.exp(self.logp) * is_right).sum(1)

    def kl(self, reference: Spoken) -> float:
        """Return the mean divergence of an episode from `reference`, in nats."""
        return float((np.exp(self.logp) * (self.logp - reference.logp)).sum(1).mean())

    def best(self, beta: float) -> float:
        """Return the largest mean reward less `beta` times the divergence from this policy, which the listener hears.

        It is that of the probabilities p exp(r / beta), normalized, for reward r.
        """
        return float(np.mean(beta * np.log(1.0 - self.right + self.right * math.exp(1.0 / beta))))


def spoken(speaker_run: Path, listener_run: Path, mode: Any = "sampled") -> Spoken:
    """Return what the speaker of one run says, and the listener of another understands, both as trained."""
    speaker, listener = mf.load(speaker_run)["speaker"], mf.load(listener_run)["listener"]
    game = token_signal.env(CLASSES, VOCABULARY, LENGTH)
    logp = np.zeros((CLASSES, 1))
    prefixes = np.zeros((1, 0), np.int64)
    for _ in range(LENGTH):
        padded = np.pad(prefixes, ((0, 0), (0, LENGTH - prefixes.shape[1])))
        seen = [np.concatenate([[1 + VOCABULARY + shown], said]) for shown in range(CLASSES) for said in padded]
        rows = speaker.spaces.encoder().stack(seen)
        with np.errstate(divide="ignore"):
            each = np.log(speaker.actor.probabilities(rows, None, mode)).reshape(CLASSES, len(prefixes), VOCABULARY)
        logp = (logp[:, :, None] + each).reshape(CLASSES, -1)
        tokens = np.tile(np.arange(1, 1 + VOCABULARY), len(prefixes))[:, None]
        prefixes = np.concatenate([np.repeat(prefixes, VOCABULARY, 0), tokens], 1)
    assert game.observation_space(token_signal.LISTENER).contains(prefixes[0])
    heard = listener.spaces.encoder().stack(list(prefixes))
    return Spoken(logp, listener.actor.probabilities(heard, None, "greedy").argmax(1))


@dataclass(frozen=True)
class Near:
    """Exact figures of a speaker that learned near a reference: probabilities to be understood, nats, and rewards."""

    right: float
    reference_right: float
    kl_per_decision: float
    gain: float
    """Mean reward less beta times the divergence of an episode."""
    best_gain: float
    """The largest possible one."""

    def __str__(self) -> str:
        return (
            f"understood {self.right:.3f} (reference {self.reference_right:.3f}), KL {self.kl_per_decision:.4f} per "
            f"decision, reward less penalty {self.gain:.3f} (best {self.best_gain:.3f})"
        )


def near(run: Path, reference_run: Path, beta: float) -> Near:
    """Return the figures of the speaker of `run`, whose reference is that of `reference_run`."""
    now, reference = spoken(run, run), spoken(reference_run, reference_run)
    right, kl = float(now.right.mean()), now.kl(reference)
    best = reference.best(beta) if beta else 1.0
    return Near(right, float(reference.right.mean()), kl / LENGTH, right - beta * kl, best)


def _of_case(run: Path, beta: float) -> Near:
    return near(run, run.parents[1] / "token_signal_reference" / run.name, beta)


def near_reference(run: Path) -> tuple[int, str]:
    """Return how many bars of a large beta are missed: a KL below .01, and the reference's share of right answers."""
    found = _of_case(run, 10.0)
    misses = (found.kl_per_decision >= 0.01) + (abs(found.right - found.reference_right) > 0.05)
    return misses, str(found)


def pays_for_leaving(run: Path) -> tuple[int, str]:
    """Return whether a run with beta 0.5 misses the best reward less penalty by more than .03."""
    found = _of_case(run, 0.5)
    return int(found.gain < found.best_gain - 0.03), str(found)


def far_from_reference(run: Path) -> tuple[int, str]:
    """Return whether without a penalty the KL stays below .1, ten times what a large beta allows."""
    found = _of_case(run, 0.0)
    return int(found.kl_per_decision < 0.1), str(found)
