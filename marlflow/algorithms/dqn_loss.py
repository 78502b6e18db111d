"""The (double) Q-learning loss, and its closed form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from marlflow.base.batch import Array
from marlflow.learner.closed_form.blocks import in_blocks
from marlflow.learner.closed_form.q_learning import TransitionRows, q_learning_gradient
from marlflow.learner.loss import LossTerms
from marlflow.losses.q_learning import double_q_learning_target, huber_loss, q_learning_target, td_error
from marlflow.policy.q import QNetwork, QPass

_COLUMNS = "obs", "action", "reward", "discount", "weight", "next_obs", "next_mask"


class DQNLoss:
    """The Huber loss of (double) Q-learning's TD errors, importance-weighted; priorities are absolute TD errors."""

    def __init__(self, double: bool = True, huber_delta: float = 1.0) -> None:
        self.double, self.huber_delta = double, huber_delta

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.huber_delta = values.get("huber_delta", self.huber_delta)

    def __call__(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        q_tm1 = module(minibatch["obs"])
        error = self._error(q_tm1, module, target_module, minibatch)
        total = (huber_loss(error, self.huber_delta) * minibatch["weight"]).mean()
        with torch.no_grad():
            priorities = error.abs()
            terms = {"td": total.detach(), "td_error_mean": priorities.mean(), "q_mean": q_tm1.mean()}
        return LossTerms(total, terms, priorities)

    def in_closed_form(
        self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms | None:
        """Write the gradients of the same loss, for small networks on a CPU; see learner.loss."""
        if not QPass.fits(module):
            return None
        errors: list[Array] = []

        def write(block: Mapping[str, Tensor], share: float) -> dict[str, float]:
            terms, error = self._write_gradients(module, target_module, block, share)
            errors.append(error)
            return terms

        rows = {name: minibatch[name] for name in _COLUMNS if name in minibatch}
        with torch.inference_mode():
            terms = in_blocks(module, rows, write)
        return LossTerms(None, terms, torch.from_numpy(abs(np.concatenate(errors))))

    def _write_gradients(
        self, module: QNetwork, target_module: QNetwork, block: Mapping[str, Tensor], share: float
    ) -> tuple[dict[str, float], Array]:
        """Write the gradients of the mean over `block`, times `share`; return the terms, times `share`, and errors."""
        forward, next_obs, mask = QPass(module, block["obs"]), block["next_obs"], block.get("next_mask")
        q_t_value = target_module(next_obs)
        q_t_selector = module(next_obs) if self.double else q_t_value
        rows = TransitionRows(
            action=block["action"].numpy(),
            r_t=block["reward"].numpy(),
            discount_t=block["discount"].numpy(),
            weight=block["weight"].numpy(),
            mask_t=None if mask is None else mask.numpy(),
        )
        terms, d_q, error = q_learning_gradient(
            forward.q.numpy(), q_t_selector.numpy(), q_t_value.numpy(), rows, self.huber_delta
        )
        # Writes the parameters' gradients, so no backward pass is needed: the loss is None above.
        forward.pull(torch.from_numpy(d_q if share == 1.0 else d_q * np.float32(share)))
        return {name: share * term for name, term in terms.items()}, error

    def priorities(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return each row's absolute TD error, [N]."""
        return self._error(module(minibatch["obs"]), module, target_module, minibatch).abs()

    def _error(
        self, q_tm1: Tensor, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]
    ) -> Tensor:
        return td_error(q_tm1, minibatch["action"], self._target(module, target_module, minibatch))

    def _target(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        next_obs, mask = minibatch["next_obs"], minibatch.get("next_mask")
        with torch.no_grad():
            q_t = target_module(next_obs)
            if not self.double:
                return q_learning_target(minibatch["reward"], minibatch["discount"], q_t, mask)
            # The online network selects the next action, the target network evaluates it.
            return double_q_learning_target(minibatch["reward"], minibatch["discount"], module(next_obs), q_t, mask)
