"""ArCHer's losses: of critics of utterances, of the actor's tokens, and of a token's baseline.

Zhou et al., "ArCHer: Training language model agents via hierarchical multi-turn RL", 2024,
https://arxiv.org/abs/2402.19446, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marlflow.learner.loss import LossTerms, Unscheduled
from marlflow.losses.deterministic_policy_gradient import critics_loss
from marlflow.losses.policy_gradient import policy_gradient_loss
from marlflow.policy.utterance import UtteranceNetwork, sampled, showing


class UtteranceCriticsLoss(Unscheduled):
    """Squared errors of Q to reward and next V, and of V to Q of an utterance that the actor samples."""

    def __init__(self, length: int) -> None:
        self.noise_per_row = length
        """A number for each token that is sampled."""

    def __call__(
        self, module: UtteranceNetwork, target_module: UtteranceNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        obs, layout, target = minibatch["obs"], module.layout, target_module.critics
        with torch.no_grad():
            q_target = minibatch["reward"] + minibatch["discount"] * target.v(minibatch["next_obs"])
            v_target = target.q(sampled(module.actor, obs, minibatch["noise"], layout))
        q, v = module.critics.q(showing(obs, minibatch["action"], layout)), module.critics.v(obs)
        q_error, v_error = critics_loss(q, q_target).mean(), critics_loss(v, v_target).mean()
        terms = {"q_error": q_error.detach(), "v_error": v_error.detach(), "q": q.detach().mean()}
        return LossTerms(q_error + v_error, terms)


class TokenActorLoss:
    """Policy gradient of each token by the advantage of its utterance, less the baseline, and an entropy bonus."""

    def __init__(self, entropy_coefficient: float) -> None:
        self.entropy_coefficient = entropy_coefficient

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.entropy_coefficient = values.get("entropy_coefficient", self.entropy_coefficient)

    def __call__(self, module: UtteranceNetwork, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        obs, advantage = minibatch["obs"], minibatch["advantage"]
        residual = advantage
        if module.baseline is not None:
            with torch.no_grad():
                residual = advantage - module.baseline(obs)[0]
        logp, entropy_by_row = module.actor.log_prob_and_entropy(module.actor(obs), minibatch["action"], None)
        policy, entropy = policy_gradient_loss(logp, residual).mean(), entropy_by_row.mean()
        terms = {"policy": policy.detach(), "entropy": entropy.detach(), "advantage": advantage.mean()}
        return LossTerms(policy - self.entropy_coefficient * entropy, terms)


class TokenBaselineLoss(Unscheduled):
    """Squared error of a token's expected advantage of its utterance."""

    def __call__(self, module: UtteranceNetwork, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        assert module.baseline is not None
        error = critics_loss(module.baseline(minibatch["obs"]), minibatch["advantage"]).mean()
        return LossTerms(error, {"baseline_error": error.detach()})
