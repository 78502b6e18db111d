"""Random network distillation as a part (Burda et al., 2018, arXiv:1810.12894): a bonus for what was seldom seen.

A network with random weights, which never learns, maps observations to features, and a second one learns to predict
them. Its error is large where few rows have been, so it is added to the rewards.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import marlflow as mf


@dataclass(frozen=True)
class RandomNetworkDistillation(mf.Part):
    """Adds `weight` times the prediction error, in units of its running deviation, to each reward."""

    weight: mf.ScheduledFloat = 1.0
    features: int = 32
    hidden: int = 64
    learning_rate: float = 1e-3

    def extend(self, network, algorithm, members, seed):
        (member,) = members.values()
        network.distillation = Distillation(np.prod(member.spaces.obs_shape), self.hidden, self.features, seed)

    def losses(self, groups, algorithm, members):
        predictor = mf.LossGroup(
            "distillation", lambda net: net.distillation.predictor.parameters(), DistillationLoss(), self.learning_rate
        )
        return predictor.beside(groups)

    def stages(self, algorithm):
        return {"fresh": [self.add_bonus]}

    def extra_losses(self):
        # Without a coefficient it is only reported.
        return {"bonus": mf.ExtraLoss(lambda _, rows: rows["bonus"].mean(), coefficient=None)}

    def add_bonus(self, batch: mf.Batch, learner) -> mf.Batch:
        error = learner.estimator("distillation").values(batch["obs"])
        bonus = error / learner.module.distillation.deviation_with(error)
        return batch.with_columns(reward=batch["reward"] + self.now("weight", learner) * bonus, bonus=bonus)


class Distillation(nn.Module):
    """Maps observations [N, ...] to errors [N]; what is no weight of the predictor is saved, but not trained."""

    def __init__(self, size, hidden, features, seed):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = (nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, features))
            self.target = nn.Sequential(*layers).requires_grad_(False)
            self.predictor = nn.Sequential(
                nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, features)
            )
        self.square = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, obs):
        return (self.predictor(obs.float()) - self.target(obs.float())).square().mean(-1)

    def deviation_with(self, error):
        if len(error):
            self.square.lerp_(self.square.new_tensor(np.square(error).mean()), 0.05)
        return float(self.square.sqrt()) + 1e-8


class DistillationLoss:
    """The mean prediction error."""

    def set_schedule(self, values):
        """Do nothing: its learning rate is the group's."""

    def __call__(self, module, target_module, minibatch):
        error = module.distillation(minibatch["obs"]).mean()
        return mf.LossTerms(error, {"distillation": error.detach()})
