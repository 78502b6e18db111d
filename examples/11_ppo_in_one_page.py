"""PPO in one page (Schulman et al., 2017, arXiv:1707.06347): two carts learn with it, and two with marlflow's own.

python examples/11_ppo_in_one_page.py
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import marlflow as mf


def mlp(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Sequential:
    """Build two layers of 64, with orthogonal weights."""
    layers = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale, generator)
    return layers


class OwnActor(mf.NetworkActor):
    """Chooses actions on the rollout workers, to which the plan publishes its parameters."""

    def __init__(self, inputs: int, actions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = mlp(inputs, actions, 0.01, generator)

    def outputs(self, obs: Tensor, memory: Any) -> tuple[Tensor, Any]:
        return self.layers(obs), memory  # logits [N, A]

    def choose(self, outputs: Tensor, action_mask: Any, mode: str, generator: mf.RowRandom) -> tuple[Any, Any]:
        logp = torch.log_softmax(outputs, -1)
        # A uniform number for each row, of a stream of its own: the games do not depend on the number of workers.
        passed = logp.exp().cumsum(-1) <= torch.from_numpy(generator.uniform())[:, None]
        action = logp.argmax(-1) if mode == "greedy" else passed.sum(-1).clamp(max=logp.shape[-1] - 1)
        return action.numpy(), logp.gather(-1, action[:, None])[:, 0].numpy()


class ActorCritic(nn.Module):
    """The network that the learner trains. Workers get `actor`; `learner.values` in a stage is `critic`."""

    def __init__(self, inputs: int, actions: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.actor = OwnActor(inputs, actions, generator)
        self.value = mlp(inputs, 1, 1.0, generator)

    def critic(self, obs: Tensor) -> Tensor:
        return self.value(obs)[:, 0]


@dataclass(frozen=True)
class GAE:
    """Generalized advantage estimation over whole segments: an agent's rows of one episode, in order."""

    discount: float
    gae_lambda: float

    def __call__(self, batch: mf.Batch, learner: mf.Learner) -> mf.EstimatedBatch:
        value, ends = learner.values(batch["obs"]), batch.ends()
        # The value after a segment's last row is 0 if the agent terminated, else the critic's estimate.
        next_value = np.append(value[1:], 0.0)
        next_value[ends] = np.where(batch.segments["terminated"], 0.0, learner.values(batch.segments["bootstrap_obs"]))
        advantage = batch["reward"] + self.discount * next_value - value
        trace = np.full(batch.rows, self.discount * self.gae_lambda)
        trace[ends] = 0.0
        for t in reversed(range(batch.rows - 1)):
            advantage[t] += trace[t] * advantage[t + 1]
        columns = {"value": value, "value_target": advantage + value}
        columns["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return mf.EstimatedBatch({**batch.columns, **{k: c.astype("f4") for k, c in columns.items()}}, batch.segments)


@dataclass(frozen=True)
class Loss(mf.LossFunction):
    """Equation 9: the clipped surrogate, the critic's squared error, and an entropy bonus."""

    clip_range: float
    entropy_coefficient: float

    def __call__(self, module: ActorCritic, target_module: None, minibatch: dict[str, Tensor]) -> mf.LossTerms:
        logp, advantage = torch.log_softmax(module.actor.outputs(minibatch["obs"], None)[0], -1), minibatch["advantage"]
        entropy = -(logp.exp() * logp).sum(-1).mean()
        ratio = torch.exp(logp.gather(-1, minibatch["action"][:, None])[:, 0] - minibatch["behavior_logp"])
        clipped = ratio.clamp(1 - self.clip_range, 1 + self.clip_range)
        policy = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value = 0.5 * (module.critic(minibatch["obs"]) - minibatch["value_target"]).square().mean()
        terms = {"policy": policy.detach(), "value": value.detach(), "entropy": entropy.detach()}
        return mf.LossTerms(policy + 0.5 * value - self.entropy_coefficient * entropy, terms)


@dataclass(frozen=True)
class OnePagePPO(mf.LearningAlgorithm):
    """The algorithm; its annotated fields are settings, which may be set on the command line, too."""

    name = "one_page_ppo"
    capabilities = mf.Capabilities(("Discrete",), "on-policy", mf.EstimatedBatch)
    learning_rate: float = 3e-4
    max_grad_norm: float = 0.5

    def network(self, spaces: Any, model: Any, seed: int) -> ActorCritic:
        return ActorCritic(spaces.observation.shape[0], int(spaces.action.n), seed)

    def losses(self, spaces: Any) -> Loss:
        return Loss(clip_range=0.2, entropy_coefficient=0.01)

    def plan(self, experience: mf.Flow[Any], learner: mf.Learner, replays: Any) -> mf.Plan:
        batches = experience.gather(mf.Concat(agent_steps=1_000)).then(GAE(0.99, 0.95), at=learner)
        reports = batches.then(mf.Learn(epochs=10, minibatch=128), at=learner).then(mf.Publish(), at=learner)
        return mf.Plan(self.name, output=reports, waits_for_rounds=True)


if __name__ == "__main__":
    policies = {"own": mf.Policy(OnePagePPO()), "shipped": mf.Policy(mf.PPO(batch_agent_steps=1_000))}
    rules = [mf.Rule("cart_[01]", "own"), mf.Rule("cart_[23]", "shipped")]
    env, inline = mf.Env("marlflow.env.games.cartpole_team.parallel_env"), mf.RuntimeConfig("inline")
    mf.train(mf.Experiment(env, policies, rules, stop=mf.Stop(60_000), runtime=inline))
