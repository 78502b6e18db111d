"""Stages of meta-learning: inner steps with the rollout workers, and rows laid out by task for the meta-update.

Finn et al., "Model-agnostic meta-learning for fast adaptation of deep networks", 2017,
https://arxiv.org/abs/1703.03400, algorithm 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from marlflow.base.batch import Batch
from marlflow.base.items import Update
from marlflow.flow import Traits
from marlflow.learn.adaptation import AdaptedBatch, TaskBatch, by_task, laid_out, linear_advantages
from marlflow.learn.protocol import Learner
from marlflow.learn.published import PublishedLearner


@dataclass(frozen=True, slots=True)
class Adapt:
    """An inner step of each copy on the rows of its own task, with the rollout workers: what acts there changes.

    Advantages are by a linear critic fitted to each copy's rows, of mean 0 and standard deviation 1 in each copy. After
    the last phase of a collect nothing changes any more.
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    discount: float
    gae_lambda: float

    def __call__(self, batch: Batch, learner: Learner | PublishedLearner) -> AdaptedBatch:
        """`batch` with advantages, and in its segments how often the policy that chose had adapted."""
        if not isinstance(learner, PublishedLearner):
            raise TypeError("Adapt changes what acts, so it can run on the worker only, not beside the learner")
        actor = learner.acting
        now = learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        estimated = linear_advantages(batch, discount, gae_lambda)
        adapted = np.full(len(batch.segments["length"]), actor.taken)
        if actor.taken < actor.inner_steps:
            copies, group = np.unique(estimated["copy"], return_inverse=True)
            actor.adapt(copies, laid_out(estimated, group, len(copies)))
        return AdaptedBatch(estimated.columns, {**estimated.segments, "adapted": adapted})


@dataclass(frozen=True, slots=True)
class ByTask:
    """Lays rows out by task: `inner_steps` phases to adapt on, and one that shows what came of it.

    Of a task without rows in the last phase nothing is left.
    """

    inner_steps: int

    def __call__(self, batch: AdaptedBatch) -> TaskBatch:
        """The tasks, in the order of copies and their tasks' numbers."""
        return by_task(batch, self.inner_steps)


@dataclass(frozen=True, slots=True)
class MetaLearn:
    """Optimizer steps on the learner's meta-loss: each task once per epoch, in minibatches of `minibatch_tasks`."""

    traits: ClassVar[Traits] = Traits(updates=True)

    epochs: int = 1
    minibatch_tasks: int | None = None

    def __call__(self, tasks: TaskBatch, learner: Learner) -> Update:
        """The report of the update, `rows` in agent steps."""
        update = learner.update(tasks, self.epochs, self.minibatch_tasks)
        return replace(update, rows=round(update.rows * tasks.agent_steps / max(1, tasks.rows)))
