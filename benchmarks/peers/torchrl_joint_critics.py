"""Record what torchrl's DDPGLoss, TD3Loss, SACLoss and DiscreteSACLoss compute with critics of all agents' actions.

For tests/algorithms/test_joint_critics_against_torchrl.py. Run it with a Python that has torchrl 0.14 and torch 2.13:
`python benchmarks/peers/torchrl_joint_critics.py`. It does not import marlflow: networks and rows are made here, and
recorded with the results. torchrl has no absent agents; an agent that terminated is absent in the next row's inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import DDPGLoss, DiscreteSACLoss, SACLoss, TD3Loss, ValueEstimators

FILE = Path(__file__).resolve().parents[2] / "tests" / "algorithms" / "torchrl_joint_critics.npz"
ROWS, AGENTS, OBS, SIZE, ACTIONS = 8, 3, 4, 2, 5
HIDDEN = 6
DISCOUNT, NOISE, CLIP, TEMPERATURE = 0.9, 0.3, 0.4, 0.2

Arrays = dict[str, np.ndarray[Any, Any]]


class Actor(nn.Module):
    """One tanh layer from an agent's observation to `outputs` numbers, squashed if `tanh`.

    Other inputs are ignored: TD3Loss passes critics only the inputs that actors have too.
    """

    def __init__(self, outputs: int, tanh: bool) -> None:
        super().__init__()
        self.torso, self.head = nn.Linear(OBS, HIDDEN), nn.Linear(HIDDEN, outputs)
        self.tanh = tanh

    def forward(self, obs: Tensor, *ignored: Tensor) -> Tensor:
        """Return [..., agents, outputs]."""
        found: Tensor = self.head(torch.tanh(self.torso(obs)))
        return torch.tanh(found) if self.tanh else found


class Critic(nn.Module):
    """One tanh layer from what all agents see and do, which are present, and the agent, to its `outputs` values.

    Of the agent itself the action is `action`, of the others `taken`. With several outputs its own action is 0.
    """

    def __init__(self, size: int, outputs: int) -> None:
        super().__init__()
        self.torso = nn.Linear(AGENTS * (OBS + size + 1) + AGENTS, HIDDEN)
        self.head = nn.Linear(HIDDEN, outputs)

    def forward(self, obs: Tensor, taken: Tensor, present: Tensor, action: Tensor | None = None) -> Tensor:
        """Return [..., agents, outputs]."""
        own = torch.zeros_like(taken) if action is None else action * present
        is_own = torch.eye(AGENTS, dtype=torch.bool).unsqueeze(-1)
        actions = torch.where(is_own, own.unsqueeze(-3), (taken * present).unsqueeze(-3)).flatten(-2)
        seen = [obs.flatten(-2).unsqueeze(-2), actions, present.flatten(-2).unsqueeze(-2), torch.eye(AGENTS)]
        rows = torch.cat([part.expand(*obs.shape[:-1], -1) for part in seen], -1)
        found: Tensor = self.head(torch.tanh(self.torso(rows)))
        return found


def rows() -> dict[str, Tensor]:
    """Make the rows: [rows, agents, ...]."""
    random = np.random.default_rng(0)
    terminated = random.random((ROWS, AGENTS, 1)) < 0.3
    following = (~terminated).astype(np.float32)
    made = {
        "obs": random.standard_normal((ROWS, AGENTS, OBS)),
        "next_obs": random.standard_normal((ROWS, AGENTS, OBS)) * following,
        "box_action": random.uniform(-1.0, 1.0, (ROWS, AGENTS, SIZE)),
        "reward": 2.0 * random.standard_normal((ROWS, AGENTS, 1)),
        "noise": random.standard_normal((ROWS, AGENTS, 2 * SIZE)),
        "discrete_noise": random.standard_normal((ROWS, AGENTS, ACTIONS)),
    }
    tensors = {name: torch.from_numpy(array.astype(np.float32)) for name, array in made.items()}
    tensors["discrete_action"] = torch.from_numpy(random.integers(0, ACTIONS, (ROWS, AGENTS)))
    return {**tensors, "terminated": torch.from_numpy(terminated), "following": torch.from_numpy(following)}


def data(made: dict[str, Tensor], action: Tensor, taken: Tensor, next_taken: Tensor) -> TensorDict:
    """Return rows in torchrl's layout."""
    ends = {"reward": made["reward"], "terminated": made["terminated"], "done": made["terminated"]}
    following = {"obs": made["next_obs"], "taken": next_taken, "present": made["following"], **ends}
    present = torch.ones(ROWS, AGENTS, 1)
    agents = {"obs": made["obs"], "action": action, "taken": taken, "present": present}
    return TensorDict({"agents": agents, "next": {"agents": following}}, [ROWS])


def keyed(loss: Any, **keys: str) -> Any:
    """Set a loss's keys, and its one-step targets."""
    names = {"reward": "reward", "done": "done", "terminated": "terminated", "action": "action", **keys}
    if isinstance(loss, DDPGLoss):
        names.pop("action")
    loss.set_keys(**{key: ("agents", name) for key, name in names.items()})
    loss.make_value_estimator(ValueEstimators.TD0, gamma=DISCOUNT)
    return loss


def moved(params: Any) -> None:
    """Make a target network differ from the one that is trained."""
    random = torch.Generator().manual_seed(5)
    for leaf in flat(params).values():
        leaf.data.add_(0.3 * torch.randn(leaf.shape, generator=random))


def flat(params: Any) -> dict[str, Tensor]:
    """Return parameters by dotted name, in order of the names."""
    leaves = {".".join(key) if isinstance(key, tuple) else key: leaf for key, leaf in params.items(True, True)}
    return {name.removeprefix("module."): leaves[name] for name in sorted(leaves)}


def recorded(
    case: str, loss: Any, found: Any, terms: dict[str, Tensor], parts: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the terms, weights, and gradients of the sum of the losses."""
    sum(value for name, value in found.items() if name.startswith("loss_")).backward()
    for name, term in terms.items():
        yield f"{case}/term/{name}", term.detach().numpy()
    for part, params in parts.items():
        for name, leaf in flat(params).items():
            yield f"{case}/weight/{part}/{name}", leaf.detach().numpy().copy()
            if getattr(leaf, "grad", None) is not None:
                yield f"{case}/grad/{part}/{name}", leaf.grad.numpy().copy()
    if case.endswith("sac"):
        yield f"{case}/grad/log_temperature", loss.log_alpha.grad.numpy()


def critic_module(size: int, outputs: int, key: str) -> TensorDictModule:
    """Return a critic with torchrl's names of its inputs and of its values."""
    names = ["obs", "taken", "present"] + (["action"] if outputs == 1 else [])
    return TensorDictModule(Critic(size, outputs), [("agents", name) for name in names], [("agents", key)])


def of_target(params: Any, net: nn.Module, obs: Tensor) -> Tensor:
    """Return what `net` with other parameters makes of `obs`."""
    other = copy.deepcopy(net)
    other.load_state_dict(flat(params))
    with torch.no_grad():
        found: Tensor = other(obs)
    return found


def deterministic(case: str, made: dict[str, Tensor]) -> Arrays:
    """Record DDPGLoss or TD3Loss."""
    net = Actor(SIZE, tanh=True)
    seen = [("agents", name) for name in ("obs", "taken", "present")]
    actor = TensorDictModule(net, seen, [("agents", "action")])
    critic = critic_module(SIZE, 1, "state_action_value")
    loss: Any
    if case == "ddpg":
        loss = DDPGLoss(actor, critic, delay_actor=True, delay_value=True, loss_function="l2")
        parts = {"actor": loss.actor_network_params, "critics": loss.value_network_params}
        targets = {"target_actor": loss.target_actor_network_params, "target_critics": loss.target_value_network_params}
    else:
        bounds = (-1.0 * torch.ones(SIZE), torch.ones(SIZE))
        settings = {"policy_noise": NOISE, "noise_clip": CLIP, "delay_actor": True, "delay_qvalue": True}
        loss = TD3Loss(actor, critic, bounds=bounds, loss_function="l2", **settings)
        parts = {"actor": loss.actor_network_params, "critics": loss.qvalue_network_params}
        targets = {
            "target_actor": loss.target_actor_network_params,
            "target_critics": loss.target_qvalue_network_params,
        }
    loss = keyed(loss, state_action_value="state_action_value")
    for params in targets.values():
        moved(params)
    following = of_target(targets["target_actor"], net, made["next_obs"])
    noise = made["noise"][..., :SIZE]
    if case == "td3":
        following = (following + (NOISE * noise).clamp(-CLIP, CLIP)).clamp(-1.0, 1.0)
        torch.randn_like = lambda _: noise
    action = made["box_action"]
    found = loss(data(made, action, action, following))
    value = found["loss_value" if case == "ddpg" else "loss_qvalue"]
    return dict(recorded(case, loss, found, {"critics": value, "actor": found["loss_actor"]}, parts | targets))


def soft(made: dict[str, Tensor]) -> Arrays:
    """Record SACLoss."""
    net = nn.Sequential(Actor(2 * SIZE, tanh=False), NormalParamExtractor(scale_mapping="exp", scale_lb=1e-9))
    actor = ProbabilisticActor(
        TensorDictModule(net, [("agents", "obs")], [("agents", "loc"), ("agents", "scale")]),
        in_keys=[("agents", "loc"), ("agents", "scale")],
        out_keys=[("agents", "action")],
        distribution_class=TanhNormal,
        return_log_prob=True,
        log_prob_key=("agents", "log_prob"),
    )
    settings = {"alpha_init": TEMPERATURE, "target_entropy": -float(SIZE), "loss_function": "l2"}
    loss = SACLoss(actor, critic_module(SIZE, 1, "state_action_value"), num_qvalue_nets=2, **settings)
    loss = keyed(loss, state_action_value="state_action_value", log_prob="log_prob")
    moved(loss.target_qvalue_network_params)
    now, after = made["noise"].chunk(2, -1)
    with torch.no_grad():
        loc, scale = net(made["next_obs"])
        following = torch.tanh(loc + scale * after)
    # Each sample takes the noise of its own rows.
    drawn = {"now": now, "after": after}
    taking = iter(("after", "now"))
    torch.distributions.normal._standard_normal = lambda *_, **__: drawn[next(taking)]
    found = {}
    td = data(made, made["box_action"], made["box_action"], following)
    value, _ = loss.qvalue_v2_loss(td)
    actor_loss, more = loss.actor_loss(td)
    temperature = loss._alpha_loss(more["log_prob"]).mean()
    found = {"loss_qvalue": value.mean(), "loss_actor": actor_loss.mean(), "loss_alpha": temperature}
    parts = {"actor": loss.actor_network_params, "critics": loss.qvalue_network_params}
    parts["target_critics"] = loss.target_qvalue_network_params
    terms = {"critics": found["loss_qvalue"], "actor": found["loss_actor"], "entropy": -more["log_prob"].mean()}
    return dict(recorded("sac", loss, found, terms, parts))


def discrete_soft(made: dict[str, Tensor]) -> Arrays:
    """Record DiscreteSACLoss."""
    net = Actor(ACTIONS, tanh=False)
    actor = ProbabilisticActor(
        TensorDictModule(net, [("agents", "obs")], [("agents", "logits")]),
        in_keys={"logits": ("agents", "logits")},
        out_keys=[("agents", "action")],
        distribution_class=torch.distributions.Categorical,
    )
    settings = {"alpha_init": TEMPERATURE, "target_entropy": 0.7, "loss_function": "l2"}
    critic = critic_module(ACTIONS, ACTIONS, "action_value")
    loss = DiscreteSACLoss(actor, critic, action_space="categorical", num_actions=ACTIONS, **settings)
    loss = keyed(loss, action_value="action_value", value="value")
    moved(loss.target_qvalue_network_params)
    one_hot = torch.nn.functional.one_hot
    uniform = 0.5 * torch.erfc(-made["discrete_noise"].double() / 2.0**0.5)
    with torch.no_grad():
        drawn = (net(made["next_obs"]) - torch.log(-torch.log(uniform))).argmax(-1)
    taken, following = (one_hot(action, ACTIONS).float() for action in (made["discrete_action"], drawn))
    found = loss(data(made, made["discrete_action"], taken, following))
    parts = {"actor": loss.actor_network_params, "critics": loss.qvalue_network_params}
    parts["target_critics"] = loss.target_qvalue_network_params
    terms = {"critics": found["loss_qvalue"], "actor": found["loss_actor"], "entropy": found["entropy"]}
    return dict(recorded("discrete_sac", loss, found, terms, parts))


def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    made = rows()
    results = deterministic("ddpg", made) | soft(made) | discrete_soft(made) | deterministic("td3", made)
    inputs = {f"input/{name}": tensor.numpy() for name, tensor in made.items()}
    np.savez_compressed(FILE, **inputs, **results)
    print(FILE, FILE.stat().st_size)
    for name, array in results.items():
        print(name, array.shape)


if __name__ == "__main__":
    main()
