"""Measure optimizer steps of PPO and DQN at several sizes of minibatches: by autograd, by torch.compile, and by XLA.

    OMP_NUM_THREADS=1 python -m benchmarks.learner_sizes [--rows 128 2048] [--no-torch-compile]

MLPs of 64 x 64, 16 observations, 5 actions or 2 forces, one thread. Plain torch is the reference: `nn.Sequential`, the
loss as one writes it, `clip_grad_norm_`, and Adam with `fused=True`; with torch.compile, loss and backward pass are one
graph; for Discrete actions, PPO is also written by hand in JAX. They are compared with updates of marlflow's learner,
with `compile=false` (autograd) and `compile=true` (XLA): of PPO over several minibatches, of DQN over 16 draws with the
target network's updates between them. Figures are microseconds of CPU time per step, the best of several, and in
brackets the share of the core's limit: the operations of the matrix products, as a share of the operations of a product
of 1,024 x 1,024 matrices in the same time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marlflow.algorithms.dqn import DQNLoss
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch, EstimatedBatch, Transitions
from marlflow.compiled import xla
from marlflow.learner.compiled_updates import STEPS_AHEAD
from marlflow.learner.learner import TorchLearner
from marlflow.learner.update_job import TargetUpdate
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.q import QNetwork
from marlflow.policy.torso import MLP

Kind = Literal["ppo, Discrete", "ppo, Box", "dqn, double"]
KINDS: tuple[Kind, ...] = ("ppo, Discrete", "ppo, Box", "dqn, double")
ROWS = (128, 512, 2_048, 8_192)
OBS, ACTIONS, FORCES, WIDTH = 16, 5, 2, 64
MINIBATCHES = 8
"""Of PPO's update."""
_SECONDS, _REPEATS = 0.1, 4


def best_us(run: Callable[[], object], steps: int = 1) -> float:
    """Return microseconds of CPU time per step, the best of several turns; a call of `run` is `steps` steps."""
    # Twice, because XLA may compile once for a few minibatches and once for more.
    run()
    run()
    began, count = time.process_time(), 0
    while time.process_time() - began < _SECONDS:
        run()
        count += 1
    times = []
    for _ in range(_REPEATS):
        began = time.process_time()
        for _ in range(count):
            run()
        times.append((time.process_time() - began) / (count * steps))
    return min(times) * 1e6


def limit_gflops(size: int = 1_024) -> float:
    """Return the core's operations per nanosecond in a product of matrices."""
    a, b, out = (torch.rand(size, size) for _ in range(3))
    return 2.0 * size**3 / (best_us(lambda: torch.mm(a, b, out=out)) * 1e3)


def operations(outputs: int) -> int:
    """Return the operations per row of one network's forward and backward pass."""
    first, others = OBS * WIDTH, WIDTH * WIDTH + WIDTH * outputs
    # Forward, gradients of weights, and, except in the first layer, gradients of inputs.
    return 2 * (2 * first + 3 * others)


def flops(kind: Kind, rows: int) -> float:
    """Return the operations of all matrix products of a step."""
    if kind.startswith("ppo"):
        return rows * (operations(FORCES if kind == "ppo, Box" else ACTIONS) + operations(1))
    forward = 2 * (OBS * WIDTH + WIDTH * WIDTH + WIDTH * ACTIONS)
    # The next observations' values, by the network and by its target.
    return rows * (operations(ACTIONS) + 2 * forward)


def columns_of(kind: Kind, rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return random rows."""
    floats = ("behavior_logp", "advantage", "value_target", "value", "reward")
    columns: dict[str, Any] = {name: rng.standard_normal(rows).astype(np.float32) for name in floats}
    columns["behavior_logp"] = np.full(rows, -1.6, np.float32)
    columns["obs"], columns["next_obs"] = rng.standard_normal((2, rows, OBS)).astype(np.float32)
    force = np.clip(rng.standard_normal((rows, FORCES)), -1.0, 1.0).astype(np.float32)
    columns["action"] = force if kind == "ppo, Box" else rng.integers(0, ACTIONS, rows)
    columns["discount"] = np.full(rows, 0.99, np.float32)
    return columns


def marlflow_update(kind: Kind, rows: int, columns: Mapping[str, Any], compile: bool) -> Callable[[], object]:
    """Return an update of marlflow's learner, with minibatches of `rows`: one of DQN, all of the columns of PPO."""
    action = spaces.Box(-1.0, 1.0, (FORCES,)) if kind == "ppo, Box" else spaces.Discrete(ACTIONS)
    seen = Spaces(spaces.Box(-1.0, 1.0, (OBS,)), action, num_agents=4)
    settings: dict[str, Any] = {"learning_rate": 3e-4, "compile": compile}
    if kind == "dqn, double":
        network = QNetwork(seen, MLP(), dueling=False, seed=0)
        dqn = TorchLearner("dqn", network, DQNLoss(), trains_on=Transitions, target=True, **settings)
        drawn = [columns[name][:rows] for name in ("obs", "action", "reward", "discount", "next_obs")]
        draw = Transitions(*drawn, np.ones(rows, np.float32), np.arange(rows))
        draws, target = [draw] * STEPS_AHEAD, TargetUpdate(200, 1.0)
        return lambda: dqn.update_each(draws, target)
    module = ActorCritic(seen, MLP(), MLP(), 0)
    loss = PPOLoss(Coefficients())
    ppo = TorchLearner("ppo", module, loss, trains_on=EstimatedBatch, max_grad_norm=0.5, **settings)
    own = {name: column for name, column in columns.items() if name not in ("next_obs", "discount")}
    version = np.zeros(len(columns["obs"]), np.int64)
    batch = Batch({**own, "version": version}, {"carried": np.zeros(1, bool)})
    return lambda: ppo.update(batch, 1, rows)


def network(outputs: int) -> nn.Sequential:
    """Build an MLP."""
    return nn.Sequential(
        nn.Linear(OBS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs)
    )


class PlainPPO(nn.Module):
    """PPO's loss, for Discrete actions or by a Gaussian without clipping."""

    def __init__(self, box: bool) -> None:
        super().__init__()
        self.actor, self.critic = network(FORCES if box else ACTIONS), network(1)
        self.log_std = nn.Parameter(torch.zeros(FORCES)) if box else None

    def forward(self, obs: Tensor, action: Tensor, logp: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        outputs, value = self.actor(obs), self.critic(obs).squeeze(-1)
        if self.log_std is None:
            every = torch.log_softmax(outputs, -1)
            now = every.gather(1, action.unsqueeze(1)).squeeze(1)
            entropy = -(every.exp() * every).sum(-1).mean()
        else:
            normal = torch.distributions.Normal(outputs, self.log_std.exp(), validate_args=False)
            now, entropy = normal.log_prob(action).sum(-1), normal.entropy().sum(-1).mean()
        ratio = torch.exp(now - logp)
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -gain.mean() + 0.5 * 0.5 * (value - target).square().mean() - 0.01 * entropy


class PlainDQN(nn.Module):
    """The loss of double DQN."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.target = network(ACTIONS), network(ACTIONS)
        self.target.requires_grad_(False)

    def forward(self, obs: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Tensor:
        """Return the loss."""
        with torch.no_grad():
            best = self.q(next_obs).argmax(1, keepdim=True)
            target = reward + discount * self.target(next_obs).gather(1, best).squeeze(1)
        found = self.q(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        return nn.functional.smooth_l1_loss(found, target)


def plain_step(kind: Kind, columns: Mapping[str, Any], compiled: bool) -> Callable[[], object]:
    """Return a step of plain torch, that permutes the rows of PPO as marlflow's does."""
    is_ppo = kind.startswith("ppo")
    module: nn.Module = PlainPPO(kind == "ppo, Box") if is_ppo else PlainDQN()
    ppo_names = ("obs", "action", "behavior_logp", "advantage", "value_target")
    names = ppo_names if is_ppo else ("obs", "action", "reward", "discount", "next_obs")
    inputs = [torch.from_numpy(columns[name]) for name in names]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=3e-4, eps=1e-5, fused=True)
    loss_of: Any = torch.compile(module) if compiled else module

    def step() -> None:
        order = torch.randperm(len(inputs[0])) if is_ppo else None
        loss = loss_of(*(inputs if order is None else [column[order] for column in inputs]))
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if is_ppo:
            nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer.step()
        loss.item()

    return step


def jax_steps(columns: Mapping[str, Any]) -> Callable[[], object]:
    """Return an epoch of PPO for Discrete actions as one writes it in JAX: a scan over minibatches, with Adam."""
    problem = xla.problem()
    assert not problem, problem
    import jax
    from jax import numpy as jnp

    names = ("obs", "action", "behavior_logp", "advantage", "value_target")
    taken = {name: jnp.asarray(columns[name]) for name in names}
    order = np.random.default_rng(0).permutation(len(columns["obs"])).reshape(MINIBATCHES, -1)

    def layers(seed: int, outputs: int) -> Any:
        sizes, random = (OBS, WIDTH, WIDTH, outputs), np.random.default_rng(seed)
        weights = [random.normal(size=pair) * pair[0] ** -0.5 for pair in pairwise(sizes)]
        return [(jnp.asarray(weight, jnp.float32), jnp.zeros(weight.shape[1])) for weight in weights]

    def outputs_of(network: Any, obs: Any) -> Any:
        for weight, bias in network[:-1]:
            obs = jnp.tanh(obs @ weight + bias)
        return obs @ network[-1][0] + network[-1][1]

    def loss(networks: Any, rows: Any) -> Any:
        every = jax.nn.log_softmax(outputs_of(networks[0], rows["obs"]))
        now = jnp.take_along_axis(every, rows["action"][:, None], 1)[:, 0]
        entropy = -(jnp.exp(every) * every).sum(-1).mean()
        ratio = jnp.exp(now - rows["behavior_logp"])
        gain = jnp.minimum(ratio * rows["advantage"], jnp.clip(ratio, 0.8, 1.2) * rows["advantage"])
        error = outputs_of(networks[1], rows["obs"])[:, 0] - rows["value_target"]
        return -gain.mean() + 0.5 * 0.5 * (error * error).mean() - 0.01 * entropy

    def step(state: Any, items: Any) -> Any:
        networks, first, second, number = state
        value, gradient = jax.value_and_grad(loss)(networks, {name: column[items] for name, column in taken.items()})
        norm = jnp.sqrt(sum((leaf * leaf).sum() for leaf in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, 0.5 / norm), gradient)
        number = number + 1
        first = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, first, gradient)
        second = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new * new, second, gradient)
        rate, scale = 3e-4 / (1 - 0.9**number), 1 / (1 - 0.999**number)
        networks = jax.tree.map(
            lambda old, mean, square: old - rate * mean / (jnp.sqrt(square * scale) + 1e-5), networks, first, second
        )
        return (networks, first, second, number), value

    epoch = jax.jit(partial(jax.lax.scan, step))
    networks = (layers(0, ACTIONS), layers(1, 1))
    zeros = jax.tree.map(jnp.zeros_like, networks)
    start = (networks, zeros, zeros, jnp.float32(0))
    return lambda: jax.block_until_ready(epoch(start, order))


def report(kind: Kind, rows: int, torch_compile: bool = True) -> None:
    """Measure all ways, and print a line."""
    is_ppo = kind.startswith("ppo")
    steps = MINIBATCHES if is_ppo else STEPS_AHEAD
    columns = columns_of(kind, rows * (MINIBATCHES if is_ppo else 1), np.random.default_rng(0))
    one = {name: column[:rows] for name, column in columns.items()}
    times = {"autograd": best_us(plain_step(kind, one, compiled=False))}
    if torch_compile:
        times["torch.compile"] = best_us(plain_step(kind, one, compiled=True))
    if kind == "ppo, Discrete":
        times["JAX by hand"] = best_us(jax_steps(columns), steps)
    for name, compile in (("marlflow by autograd", False), ("marlflow by XLA", True)):
        times[name] = best_us(marlflow_update(kind, rows, columns, compile), steps)
    limit = limit_gflops()
    parts = [f"{name} {us:9.1f} us ({flops(kind, rows) / (us * 1e3) / limit:.2f})" for name, us in times.items()]
    xla = times.pop("marlflow by XLA")
    print(
        f"{kind:13s} {rows:5,} rows: {', '.join(parts)}; {min(times.values()) / xla:.2f} times the best other",
        flush=True,
    )


def main(arguments: Sequence[str] = ()) -> None:
    """Print one line for each algorithm and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--no-torch-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"limit of the core: {limit_gflops():.1f} GFLOP/s; load {os.getloadavg()[0]:.1f}", flush=True)
    for kind in KINDS:
        for rows in options.rows:
            report(kind, rows, not options.no_torch_compile)


if __name__ == "__main__":
    main(sys.argv[1:])
