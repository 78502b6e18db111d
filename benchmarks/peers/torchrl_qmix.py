"""Record what torchrl's QMixerLoss computes, for tests/algorithms/test_mixers_against_torchrl.py.

Run it with a Python that has torchrl 0.14 and torch 2.13: `python benchmarks/peers/torchrl_qmix.py`. It does not import
marlflow: networks, inputs and ends are made here, and recorded with the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import QMixer, QValueModule, VDNMixer
from torchrl.objectives import ValueEstimators
from torchrl.objectives.multiagent import QMixerLoss

FILE = Path(__file__).resolve().parents[2] / "tests" / "algorithms" / "torchrl_qmix.npz"
ROWS, AGENTS, OBS, STATE, ACTIONS = 24, 3, 4, 5, 4
HIDDEN, EMBED = 6, 8
DISCOUNT = 0.97


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Make the inputs: [rows, agents, ...], and for the team [rows, ...], with ends of both kinds at random."""
    random = np.random.default_rng(0)
    shape = (ROWS, AGENTS)
    masks = {name: random.random((*shape, ACTIONS)) < 0.6 for name in ("mask", "next_mask")}
    action = random.integers(0, ACTIONS, shape)
    np.put_along_axis(masks["mask"], action[..., None], True, -1)
    np.put_along_axis(masks["next_mask"], random.integers(0, ACTIONS, shape)[..., None], True, -1)
    terminated = random.random(ROWS) < 0.25
    numbers = {f"{when}obs": random.standard_normal((*shape, OBS)) for when in ("", "next_")}
    numbers |= {f"{when}state": random.standard_normal((ROWS, STATE)) for when in ("", "next_")}
    numbers["reward"] = random.standard_normal(ROWS)
    return {
        **{name: array.astype(np.float32) for name, array in numbers.items()},
        **masks,
        "action": action,
        "terminated": terminated,
        "truncated": ~terminated & (random.random(ROWS) < 0.25),
    }


def rows(made: dict[str, np.ndarray[Any, Any]]) -> TensorDict:
    """Return the inputs in torchrl's layout."""
    given = {name: torch.from_numpy(array) for name, array in made.items()}
    following = {"obs": given["next_obs"], "mask": given["next_mask"]}
    ends = {"done": given["terminated"] | given["truncated"], "terminated": given["terminated"]}
    return TensorDict(
        {
            "agents": {name: given[name] for name in ("obs", "mask", "action")},
            "state": given["state"],
            "next": {
                "agents": following,
                "state": given["next_state"],
                "reward": given["reward"].unsqueeze(-1),
                **{name: end.unsqueeze(-1) for name, end in ends.items()},
            },
        },
        [ROWS],
    )


def recorded(mixer: nn.Module, data: TensorDict) -> dict[str, np.ndarray[Any, Any]]:
    """Return the loss, squared errors, weights, target weights, and gradients, with one actor for all agents."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(OBS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, ACTIONS))
    q = TensorDictModule(network, in_keys=[("agents", "obs")], out_keys=[("agents", "action_value")])
    chosen = QValueModule(
        action_value_key=("agents", "action_value"),
        action_mask_key=("agents", "mask"),
        out_keys=[("agents", "action"), ("agents", "action_value"), ("agents", "chosen_action_value")],
        action_space="categorical",
    )
    sees = [("agents", "chosen_action_value")] + (["state"] if isinstance(mixer, QMixer) else [])
    loss = QMixerLoss(
        TensorDictSequential(q, chosen),
        TensorDictModule(mixer, in_keys=sees, out_keys=["chosen_action_value"]),
        action_space="categorical",
        delay_value=True,
    )
    loss.set_keys(
        action=("agents", "action"),
        action_value=("agents", "action_value"),
        local_value=("agents", "chosen_action_value"),
        global_value="chosen_action_value",
    )
    loss.make_value_estimator(ValueEstimators.TD0, gamma=DISCOUNT)
    with torch.no_grad():
        for parameter in loss.parameters():
            # Other weights than the target's, which are the ones at the start.
            parameter.add_(0.3 * torch.randn_like(parameter))
    data = data.clone()
    total = loss(data)["loss"]
    total.backward()
    results = {"loss": total.detach(), "squared_error": data["td_error"].squeeze(-1)}
    for part in ("local_value_network", "mixer_network"):
        for name, parameter in getattr(loss, f"{part}_params").flatten_keys(".").items():
            results[f"weight/{part}/{name}"] = parameter.detach()
            results[f"grad/{part}/{name}"] = parameter.grad
        for name, parameter in getattr(loss, f"target_{part}_params").flatten_keys(".").items():
            results[f"target/{part}/{name}"] = parameter.detach()
    return {name: tensor.numpy() for name, tensor in results.items()}


def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    made = arrays()
    mixers = {"vdn": VDNMixer(AGENTS, "cpu"), "qmix": QMixer((STATE,), EMBED, AGENTS, "cpu")}
    results = {
        f"{case}/{name}": array for case, mixer in mixers.items() for name, array in recorded(mixer, rows(made)).items()
    }
    np.savez_compressed(FILE, **{f"input/{name}": array for name, array in made.items()}, **results)
    print(FILE, FILE.stat().st_size, *sorted(results), sep="\n")


if __name__ == "__main__":
    main()
