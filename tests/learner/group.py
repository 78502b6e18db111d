"""Learners in processes of their own, which follow a leader, or lead for a moment and die."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.batches.sequences import Sequences, SequenceTransitions, cut_sequences
from marlflow.learner.compute import ON_CPU, Compute
from tests.algorithms.extra import entropy_floor
from tests.learner.experience import ACTIONS, FEATURES, estimated, transitions

ANSWER_S = 60
SEEN = spaces.Box(-1.0, 1.0, (FEATURES,))
DISCRETE, CONTINUOUS = Spaces(SEEN, spaces.Discrete(ACTIONS)), Spaces(SEEN, spaces.Box(-1.0, 1.0, (2,)))


def _ppo_with_an_extra_loss(seed: int, on: Compute = ON_CPU) -> mf.TorchLearner:
    extra = {"floor": mf.ExtraLoss(partial(entropy_floor, floor=9.0), mf.Linear(0.1, 0.0, 100))}
    return mf.PPO(learning_rate=1e-3, extra_losses=extra).learner(
        "hunter", {"hunter": mf.Member(DISCRETE, mf.MLP((8,)))}, seed, on
    )


def _ppo(of: Spaces, seed: int, on: Compute, beta: float | None = None) -> mf.TorchLearner:
    return mf.PPO(learning_rate=1e-3, parts={"near": None if beta is None else mf.KLToReference(beta)}).learner(
        "hunter", {"hunter": mf.Member(of, mf.MLP((8,)))}, seed, on
    )


def near_reference(rows: int, seed: int) -> mf.EstimatedBatch:
    batch = estimated(rows, seed)
    kl = np.random.default_rng(seed).standard_normal(rows).astype(np.float32)
    return mf.EstimatedBatch({**batch.columns, "kl_to_reference": kl}, batch.segments)


def _dqn(dueling: bool, seed: int, on: Compute) -> mf.TorchLearner:
    return mf.DQN(learning_rate=1e-3, optimizer=mf.Adam(eps=1e-5), dueling=dueling).learner(
        "prey", {"prey": mf.Member(DISCRETE, mf.MLP((8,)))}, seed, on
    )


def _recurrent_ppo(seed: int, on: Compute = ON_CPU) -> mf.TorchLearner:
    return mf.RecurrentPPO(learning_rate=1e-3).learner(
        "hunter", {"hunter": mf.Member(DISCRETE, mf.GRU(6, (8,)))}, seed, on
    )


def sequences(rows: int, seed: int) -> Sequences:
    """Sequences of lengths from 1 to 3."""
    batch, generator = estimated(rows, seed, masked=True), np.random.default_rng(seed)
    memory = generator.standard_normal((rows, 6)).astype(np.float32)
    return cut_sequences(mf.EstimatedBatch({**batch.columns, "memory": memory}, batch.segments), 3)


def continuous(rows: int, seed: int) -> mf.EstimatedBatch:
    batch = estimated(rows, seed)
    actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (rows, 2)).astype(np.float32)
    return mf.EstimatedBatch({**batch.columns, "action": actions}, batch.segments)


def _r2d2(seed: int, on: Compute = ON_CPU) -> mf.TorchLearner:
    config = mf.R2D2(sequence_agent_steps=3, burn_in_agent_steps=2, learning_rate=1e-3)
    return config.learner("prey", {"prey": mf.Member(DISCRETE, mf.GRU(6, (8,)))}, seed, on)


def sequence_transitions(rows: int, seed: int) -> SequenceTransitions:
    """Sequences of all lengths from 1 to 3, each after a burn-in of 2."""
    rng, lengths = np.random.default_rng(seed), list[int]()
    while sum(lengths) < rows:
        lengths.append(min(int(rng.integers(1, 4)), rows - sum(lengths)))
    length, count = np.array(lengths, np.int64)[:, None], len(lengths)
    reward, discount = rng.random((2, count, 3)).astype(np.float32)
    return SequenceTransitions(
        obs=rng.standard_normal((count, 6, FEATURES)).astype(np.float32),
        valid=np.arange(-2, 4) <= length,
        memory=rng.standard_normal((count, 6)).astype(np.float32),
        trained=np.arange(3) < length,
        action=rng.integers(0, ACTIONS, (count, 3)),
        reward=reward,
        discount=discount,
        following=np.minimum(np.arange(3) + 2, length),
        weight=rng.random(count).astype(np.float32),
        row_id=np.arange(count) + 100,
        version=np.zeros(rows, np.int64),
    )


def _td3(seed: int, on: Compute = ON_CPU) -> mf.TorchLearner:
    """Two loss groups, of which one learns on every other minibatch, and noise."""
    return mf.TD3(learning_rate=1e-3).learner("prey", {"prey": mf.Member(CONTINUOUS, mf.MLP((8,)))}, seed, on)


def continuous_transitions(rows: int, seed: int) -> mf.Transitions:
    actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (rows, 2)).astype(np.float32)
    return replace(transitions(rows, seed), action=actions)


class ApartSAC(mf.SAC):
    """SAC whose critics and actor may be trained by stages of their own."""

    capabilities = replace(
        mf.SAC.capabilities, loss_groups=dict.fromkeys(("critics", "actor", "temperature"), mf.Transitions)
    )


def _sac(seed: int, on: Compute = ON_CPU) -> mf.TorchLearner:
    return ApartSAC(learning_rate=1e-3).learner("prey", {"prey": mf.Member(DISCRETE, mf.MLP((8,)))}, seed, on)


class Kind(NamedTuple):
    """The maker of a learner, and its batch."""

    learner: Callable[..., mf.TorchLearner]
    """Called with a seed, and a `Compute` if it is not a CPU."""
    batch: Callable[[int, int], mf.EstimatedBatch | Sequences | mf.Transitions | SequenceTransitions]


KINDS = {
    "ppo": Kind(
        lambda seed, on=ON_CPU: _ppo(DISCRETE, seed, on), lambda rows, seed: estimated(rows, seed, masked=True)
    ),
    "ppo by autograd": Kind(lambda seed, on=ON_CPU: _ppo(CONTINUOUS, seed, on), continuous),
    "ppo near a reference": Kind(lambda seed, on=ON_CPU: _ppo(DISCRETE, seed, on, 0.1), near_reference),
    "ppo with an extra loss": Kind(_ppo_with_an_extra_loss, estimated),
    "recurrent ppo": Kind(_recurrent_ppo, sequences),
    "r2d2": Kind(_r2d2, sequence_transitions),
    "dqn": Kind(lambda seed, on=ON_CPU: _dqn(False, seed, on), transitions),
    "dqn by autograd": Kind(lambda seed, on=ON_CPU: _dqn(True, seed, on), transitions),
    "td3": Kind(_td3, continuous_transitions),
    "sac": Kind(_sac, transitions),
}


class Process(NamedTuple):
    """One that serves, and the way to it."""

    process: BaseProcess
    connection: Connection

    def follow(self, kind: str, address: str, rank: int, world_size: int) -> None:
        self.connection.send(("follow", kind, address, rank, world_size))

    def answer(self) -> Any:
        """The result of its task: a state, a text, or an address."""
        assert self.connection.poll(ANSWER_S), "no answer"
        return self.connection.recv()

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)


@contextmanager
def processes(count: int) -> Iterator[Sequence[Process]]:
    # One process imports torch, and the others are forks of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    started = []
    for _ in range(count):
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there,), daemon=True)
        process.start()
        there.close()
        started.append(Process(process, here))
    try:
        yield started
    finally:
        for process, _ in started:
            process.kill()
        for process, connection in started:
            process.join()
            process.close()
            connection.close()


def serve(connection: Connection) -> None:
    """Runs the tasks that it gets, one after the other; it has another seed than the leader, so other parameters."""
    torch.set_num_threads(1)
    while True:
        task, kind, *where = connection.recv()
        learner = KINDS[kind].learner(99)
        if task == "lead":
            _lead_and_die(connection, learner, kind)
        address, rank, world_size = where
        try:
            learner.follow(address, rank, world_size)
        except mf.ActorLost as error:
            connection.send(str(error))
        else:
            connection.send(learner.state())


def _lead_and_die(connection: Connection, learner: mf.TorchLearner, kind: str) -> None:
    connection.send(learner.lead(2))
    learner.update(KINDS[kind].batch(6, 0))
    os._exit(1)
