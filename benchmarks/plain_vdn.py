"""VDN on level-based foraging in one file, without marlflow's dataflow: which settings make it learn?

    python -m benchmarks.plain_vdn [--no-last-action] [--reward-unit 1] [--discount 0.99] [--seed 0]

The settings are EPyMARL's (episodes of a replay of 5,000, 32 in an update, an update for each episode, Adam,
soft updates of the target) with an MLP in place of its GRU. Only the game's rules are marlflow's, and their steps are
compiled with the updates. Prints the team's return: in training, and greedily.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Final

from marlflow.compiled.xla import problem

if missing := problem():
    sys.exit(missing)

import jax
import jax.numpy as jnp
import numpy as np

from marlflow.env.functional.lbf import ForagingGame
from marlflow.env.simulators import lbf

EPISODE: Final = 50
ENVS, REPLAY, BATCH, HIDDEN = 16, 5_000, 32, 128
LEARNING_RATE, TAU, MAX_NORM, EXPLORES = 3e-4, 0.01, 10.0, 200_000
CALL: Final = 25
"""Iterations in one compiled call; an iteration is an episode of each environment, and as many updates."""


class Vdn:
    """Collects episodes and updates, as functions of arrays; `options` come from the command line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.game = options, ForagingGame(lbf.parallel_env(options.id, EPISODE).game)
        self.agents = len(self.game.groups["agent"])
        self.actions = int(self.game.action_space("agent_0").n)  # type: ignore[attr-defined]
        self.width = int(self.game.observation_space("agent_0").shape[0])  # type: ignore[index]

    def network(self, key: Any) -> dict[str, Any]:
        """Return random parameters, uniform as torch's; the last layer's are a hundredth."""
        sizes = [self.width + self.actions, HIDDEN, HIDDEN, self.actions]
        layers = {}
        for number, (rows, columns) in enumerate(pairwise(sizes)):
            bound = (0.01 if number == 2 else 1.0) / np.sqrt(rows)
            keys = jax.random.split(jax.random.fold_in(key, number))
            layers[f"w{number}"] = jax.random.uniform(keys[0], (rows, columns), minval=-bound, maxval=bound)
            layers[f"b{number}"] = jax.random.uniform(keys[1], (columns,), minval=-bound, maxval=bound)
        return layers

    def values(self, network: Any, seen: Any, last: Any) -> Any:
        """Return action values [..., agents, actions]; `last` actions are -1 at first."""
        shown = jax.nn.one_hot(last, self.actions) * self.options.last_action
        x = jnp.concatenate([seen, shown], -1)
        for number in range(2):
            x = jax.nn.relu(x @ network[f"w{number}"] + network[f"b{number}"])
        return x @ network["w2"] + network["b2"]

    def episodes(self, network: Any, key: Any, epsilon: Any) -> dict[str, Any]:
        """Play an episode in each environment: [ENVS, EPISODE] of each column, one more of what is seen."""
        start, going = jax.random.split(key)
        state, step = jax.vmap(self.game.reset)(jax.random.split(start, ENVS))
        shape = (ENVS, self.agents)

        def play(carry: Any, key: Any) -> Any:
            state, seen, last, lives = carry
            keys = jax.random.split(key, 3)
            greedy = self.values(network, seen, last).argmax(-1)
            any_action = jax.random.randint(keys[1], shape, 0, self.actions)
            action = jnp.where(jax.random.uniform(keys[0], shape) < epsilon, any_action, greedy)
            state, step = jax.vmap(self.game.step)(jax.random.split(keys[2], ENVS), state, {"agent": action})
            reward, over = step.rewards["agent"].sum(-1) * lives, step.terminated["agent"].reshape(ENVS, -1)[:, 0]
            row = {"seen": seen, "last": last, "action": action, "reward": reward, "over": over, "lives": lives}
            return (state, step.observations["agent"], action, lives & ~over), row

        first = (state, step.observations["agent"], jnp.full(shape, -1), jnp.ones(ENVS, bool))
        end, rows = jax.lax.scan(play, first, jax.random.split(going, EPISODE))
        rows = {**rows, **{name: jnp.concatenate([rows[name], end[n][None]]) for n, name in ((1, "seen"), (2, "last"))}}
        small = {"seen": jnp.int8, "last": jnp.int8, "action": jnp.int8}
        return {name: jnp.swapaxes(of, 0, 1).astype(small.get(name, of.dtype)) for name, of in rows.items()}

    def loss(self, network: Any, target: Any, batch: Any, unit: Any) -> Any:
        """Return the mean squared one-step error of the team's value; the end of the time is an end of the game."""
        seen, last = batch["seen"].astype(jnp.float32), batch["last"]
        q, q_target = self.values(network, seen, last), self.values(target, seen, last)
        chosen = jnp.take_along_axis(q[:, :-1], batch["action"].astype(jnp.int32)[..., None], -1)[..., 0].sum(-1)
        best = jax.lax.stop_gradient(q[:, 1:]).argmax(-1)
        following = jnp.take_along_axis(q_target[:, 1:], best[..., None], -1)[..., 0].sum(-1)
        wanted = batch["reward"] / unit + self.options.discount * ~batch["over"] * following
        lives = batch["lives"]
        return (jnp.square(chosen - jax.lax.stop_gradient(wanted)) * lives).sum() / lives.sum()

    def update(self, replay: Any, filled: Any, carry: Any, key: Any) -> Any:
        """Take an optimizer step on episodes of the replay."""
        network, target, means, squares, count, rewards = carry
        batch = {name: of[jax.random.randint(key, (BATCH,), 0, filled)] for name, of in replay.items()}
        lives = batch["lives"]
        rewards = rewards + jnp.stack([(jnp.square(batch["reward"]) * lives).sum(), lives.sum()])
        measured = jnp.sqrt(jnp.maximum(rewards[0] / rewards[1], 1e-8))
        unit = self.options.reward_unit or measured
        gradient = jax.grad(self.loss)(network, target, batch, unit)
        norm = jnp.sqrt(sum(jnp.square(of).sum() for of in gradient.values()))
        count += 1
        for name, of in gradient.items():
            clipped = of * jnp.minimum(1.0, MAX_NORM / norm)
            means = {**means, name: 0.9 * means[name] + 0.1 * clipped}
            squares = {**squares, name: 0.999 * squares[name] + 0.001 * clipped**2}
            step = (means[name] / (1 - 0.9**count)) / (jnp.sqrt(squares[name] / (1 - 0.999**count)) + 1e-8)
            network = {**network, name: network[name] - LEARNING_RATE * step}
        target = {name: of + TAU * (network[name] - of) for name, of in target.items()}
        return (network, target, means, squares, count, rewards), None

    def iterate(self, carry: Any, key: Any) -> Any:
        """Play episodes, store them, and update as often."""
        learner, replay, place, filled, env_steps = carry
        playing, learning = jax.random.split(key)
        epsilon = jnp.maximum(0.05, 1 - 0.95 * env_steps / EXPLORES)
        rows = self.episodes(learner[0], playing, epsilon)
        # The last episodes of a full replay are moved back, to end with it.
        place = jnp.minimum(place, REPLAY - ENVS)
        replay = {name: jax.lax.dynamic_update_slice_in_dim(of, rows[name], place, 0) for name, of in replay.items()}
        filled = jnp.minimum(filled + ENVS, REPLAY)
        update = partial(self.update, replay, filled)
        learner, _ = jax.lax.scan(update, learner, jax.random.split(learning, ENVS))
        place = jnp.where(place + ENVS >= REPLAY, 0, place + ENVS)
        return (learner, replay, place, filled, env_steps + rows["lives"].sum()), rows["reward"].sum(1).mean()

    def start(self, key: Any) -> Any:
        """Return a new learner and an empty replay."""
        network = self.network(key)
        zeros = {name: jnp.zeros_like(of) for name, of in network.items()}
        rows = jax.eval_shape(lambda key: self.episodes(network, key, 1.0), key)
        replay = {name: jnp.zeros((REPLAY, *of.shape[1:]), of.dtype) for name, of in rows.items()}
        learner = (network, network, zeros, zeros, jnp.float32(0), jnp.zeros(2))
        return learner, replay, jnp.int32(0), jnp.int32(0), jnp.float32(0)


def main(words: Sequence[str]) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", default="Foraging-10x10-3p-3f-v3")
    parser.add_argument("--last-action", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--reward-unit", type=float, default=0.0, help="divides rewards; 0: their root mean square")
    parser.add_argument("--discount", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env-steps", type=int, default=2_000_000)
    options = parser.parse_args(words)
    vdn, key = Vdn(options), jax.random.PRNGKey(options.seed)
    run = jax.jit(lambda carry, key: jax.lax.scan(vdn.iterate, carry, jax.random.split(key, CALL)))
    greedy = jax.jit(lambda network, key: vdn.episodes(network, key, 0.0)["reward"].sum(1).mean())
    carry, began, told = jax.jit(vdn.start)(key), perf_counter(), 0
    while float(carry[-1]) < options.env_steps:
        key, now = jax.random.split(key)
        carry, returns = run(carry, now)
        if float(carry[-1]) >= told:
            told += options.env_steps // 20
            played = [float(greedy(carry[0][0], one)) for one in jax.random.split(now, 12)]
            print(
                f"{float(carry[-1]):11,.0f} env steps, {perf_counter() - began:5.0f} s: return "
                f"{float(returns.mean()):.3f}, greedy {np.mean(played):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
