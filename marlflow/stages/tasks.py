"""Meta-learning stages: inner steps on workers, and batches by task for the meta-update.

Finn et al., "Model-agnostic meta-learning for fast adaptation of deep networks", 2017,
https://arxiv.org/abs/1703.03400, algorithm 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from marlflow.batches.batch import Batch
from marlflow.batches.items import Update
from marlflow.flow import Traits
from marlflow.learner.protocol import Learner
from marlflow.learner.published_learner import PublishedLearner
from marlflow.learner.task_batches import AdaptedBatch, TaskBatch, by_task, laid_out, linear_advantages


@dataclass(frozen=True, slots=True)
class Adapt:
    """Takes an inner gradient step per environment on the rows of its task, in the acting policy.

    Each environment has a linear critic, and normalizes advantages. The last phase takes no step.
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    discount: float
    gae_lambda: float

    def __call__(self, batch: Batch, learner: Learner | PublishedLearner) -> AdaptedBatch:
        """Add advantages and, by segment, the inner steps taken."""
        if not isinstance(learner, PublishedLearner):
            raise TypeError("Adapt changes what acts, so it can run only on the worker, not at the learner")
        actor = learner.acting
        now = learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        estimated = linear_advantages(batch, discount, gae_lambda)
        adapted = np.full(len(batch.segments["length"]), actor.taken)
        if actor.taken < actor.inner_steps:
            env_indices, group = np.unique(estimated["env"], return_inverse=True)
            actor.adapt(env_indices, laid_out(estimated, group, len(env_indices)))
        return AdaptedBatch(estimated.columns, {**estimated.segments, "adapted": adapted})


@dataclass(frozen=True, slots=True)
class ByTask:
    """Groups rows by task: `inner_steps` phases, then one that evaluates; tasks without the last one are dropped."""

    inner_steps: int

    def __call__(self, batch: AdaptedBatch) -> TaskBatch:
        return by_task(batch, self.inner_steps)


@dataclass(frozen=True, slots=True)
class MetaLearn:
    """Trains on the meta-loss for `epochs`, in minibatches of `minibatch_tasks`."""

    traits: ClassVar[Traits] = Traits(
        updates=True, not_compiled="its loss takes gradient steps itself, and is differentiated through them"
    )

    epochs: int = 1
    minibatch_tasks: int | None = None

    def __call__(self, tasks: TaskBatch, learner: Learner) -> Update:
        """Return the report, with `rows` in agent steps."""
        update = learner.update(tasks, self.epochs, self.minibatch_tasks)
        # The rows of a TaskBatch are tasks; convert to agent steps.
        return replace(update, rows=round(update.rows * tasks.agent_steps / max(1, tasks.rows)))
