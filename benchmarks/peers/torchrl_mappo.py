"""Record what torchrl's MAPPOLoss and MultiAgentGAE compute, for tests/algorithms/test_mappo_against_torchrl.py.

Run it with a Python that has torchrl 0.14 and torch 2.13: `python benchmarks/peers/torchrl_mappo.py`. It does not
import marlflow: networks, inputs and episodes are made here, and recorded with the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor
from torchrl.modules.distributions import MaskedCategorical
from torchrl.objectives.multiagent import MAPPOLoss
from torchrl.objectives.value import MultiAgentGAE

FILE = Path(__file__).resolve().parents[2] / "tests" / "algorithms" / "torchrl_mappo.npz"
ENVS, STEPS, AGENTS, OBS, STATE, ACTIONS = 2, 7, 3, 4, 5, 4
HIDDEN = 6
DISCOUNT, GAE_LAMBDA, CLIP, ENTROPY, VALUE = 0.97, 0.9, 0.2, 0.02, 0.5
VALUE_CLIP = 0.1


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Make the inputs: [envs, steps, agents, ...], with ends of both kinds at random."""
    random = np.random.default_rng(0)
    shape = (ENVS, STEPS, AGENTS)
    mask = random.random((*shape, ACTIONS)) < 0.6
    action = random.integers(0, ACTIONS, shape)
    np.put_along_axis(mask, action[..., None], True, -1)
    terminated = random.random(shape) < 0.2
    truncated = ~terminated & (random.random(shape) < 0.2)
    numbers = {
        name: random.standard_normal((*shape, size)).astype(np.float32)
        for name, size in {"obs": OBS, "next_obs": OBS, "state": STATE, "next_state": STATE}.items()
    }
    # Within an episode the next observation is the next row's.
    going_on = ~(terminated | truncated)[:, :-1]
    for name in ("obs", "state"):
        numbers[f"next_{name}"][:, :-1][going_on] = numbers[name][:, 1:][going_on]
    return {
        **numbers,
        "action": action,
        "mask": mask,
        "terminated": terminated,
        "truncated": truncated,
        "reward": random.standard_normal(shape).astype(np.float32),
        "behavior_logp": (-1.0 - random.random(shape)).astype(np.float32),
        "old_value_noise": (0.3 * random.standard_normal(shape)).astype(np.float32),
    }


class Critic(nn.Module):
    """Values of state, own observation and one-hot agent id, by one tanh layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(STATE + OBS + AGENTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))

    def forward(self, state: Tensor, obs: Tensor) -> Tensor:
        """Return values [..., agents, 1]."""
        agent = torch.eye(AGENTS).expand(*obs.shape[:-1], AGENTS)
        value: Tensor = self.layers(torch.cat((state, obs, agent), -1))
        return value


def rollout(made: dict[str, np.ndarray[Any, Any]]) -> TensorDict:
    """Return the inputs in torchrl's layout."""
    given = {name: torch.from_numpy(array) for name, array in made.items()}
    done = given["terminated"] | given["truncated"]
    ends = {"reward": given["reward"], "done": done, "terminated": given["terminated"]}
    following = {"obs": given["next_obs"], "state": given["next_state"]}
    return TensorDict(
        {
            "agents": {name: given[name] for name in ("obs", "state", "action", "mask")}
            | {"action_log_prob": given["behavior_logp"]},
            "next": {"agents": following | {name: end.unsqueeze(-1) for name, end in ends.items()}},
        },
        [ENVS, STEPS],
    )


def losses(actor: Any, critic: Any, data: TensorDict, clip_value: float | None) -> dict[str, np.ndarray[Any, Any]]:
    """Return the terms of the loss, and the gradient of their sum by each parameter."""
    loss = MAPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP,
        entropy_coeff=ENTROPY,
        # torchrl's squared error has no factor of a half.
        critic_coeff=VALUE / 2,
        loss_critic_type="l2",
        normalize_advantage=False,
        clip_value=clip_value,
    )
    agents = "agents"
    loss.set_keys(
        action=(agents, "action"),
        sample_log_prob=(agents, "action_log_prob"),
        value=(agents, "state_value"),
        advantage=(agents, "advantage"),
        value_target=(agents, "value_target"),
    )
    for parameter in loss.parameters():
        parameter.grad = None
    found = loss(data)
    (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
    gradients = {name: parameter.grad for name, parameter in loss.named_parameters() if parameter.grad is not None}
    terms = {name: found[name].detach() for name in ("loss_objective", "loss_critic", "loss_entropy")}
    return {
        **{f"term/{k}": v.numpy() for k, v in terms.items()},
        **{f"grad/{k}": v.numpy() for k, v in gradients.items()},
    }


def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    made = arrays()
    actor_net = nn.Sequential(nn.Linear(OBS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, ACTIONS))
    critic_net = Critic()
    actor = ProbabilisticActor(
        TensorDictModule(actor_net, in_keys=[("agents", "obs")], out_keys=[("agents", "logits")]),
        in_keys={"logits": ("agents", "logits"), "mask": ("agents", "mask")},
        out_keys=[("agents", "action")],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        log_prob_key=("agents", "action_log_prob"),
    )
    seen = [("agents", "state"), ("agents", "obs")]
    critic = TensorDictModule(critic_net, in_keys=seen, out_keys=[("agents", "state_value")])
    estimator = MultiAgentGAE(gamma=DISCOUNT, lmbda=GAE_LAMBDA, value_network=critic, average_gae=False)
    estimator.set_keys(
        advantage=("agents", "advantage"),
        value_target=("agents", "value_target"),
        value=("agents", "state_value"),
        reward=("agents", "reward"),
        done=("agents", "done"),
        terminated=("agents", "terminated"),
    )
    data = rollout(made)
    with torch.no_grad():
        estimator(data)
    estimates = {
        name: data["agents", name].squeeze(-1).numpy() for name in ("state_value", "advantage", "value_target")
    }
    results = {f"estimate/{name}": array for name, array in estimates.items()}
    # Rows are sampled with the values of an older critic, so that clipping values has an effect.
    data["agents", "state_value"] = data["agents", "state_value"] + torch.from_numpy(made["old_value_noise"])[..., None]
    for case, clip_value in {"plain": None, "clipped": VALUE_CLIP}.items():
        results |= {f"{case}/{name}": array for name, array in losses(actor, critic, data.clone(), clip_value).items()}
    weights = {f"actor/{k}": v for k, v in actor_net.state_dict().items()}
    weights |= {f"critic/{k}": v for k, v in critic_net.layers.state_dict().items()}
    inputs = {f"input/{name}": array for name, array in made.items()}
    np.savez_compressed(FILE, **inputs, **{f"weight/{k}": v.numpy() for k, v in weights.items()}, **results)
    print(FILE, FILE.stat().st_size, sorted(name for name in results))


if __name__ == "__main__":
    main()
