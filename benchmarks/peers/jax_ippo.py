"""IPPO on JaxMARL's MPE_simple_spread_v3, written by hand in JAX; prints JSON per update.

    python benchmarks/peers/jax_ippo.py 300000 0 SETTINGS

Arguments are env steps, the seed, and settings as JSON, as in benchmarks/against_jaxmarl.py. A rollout and its update
are one compiled call without workers, queues, rows with versions, or reports: it shows the speed of a program of one
purpose. The first line has the seconds until the first update is over, imports and compilation included.
"""

import json
import os
import sys
import time
from functools import partial

# One thread, as of the others.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import jaxmarl
import optax

HIDDEN = 64


def network(key, inputs, outputs, last_scale):
    """Return the weights of an MLP of two hidden layers with orthogonal initial values."""
    sizes = [inputs, HIDDEN, HIDDEN, outputs]
    scales = [2**0.5, 2**0.5, last_scale]
    return [
        (jax.nn.initializers.orthogonal(scale)(part, (size, following)), jnp.zeros(following))
        for part, size, following, scale in zip(jax.random.split(key, 3), sizes[:-1], sizes[1:], scales, strict=True)
    ]


def forward(weights, values):
    """Return the MLP's outputs."""
    for matrix, bias in weights[:-1]:
        values = jnp.tanh(values @ matrix + bias)
    matrix, bias = weights[-1]
    return values @ matrix + bias


def log_probability(logits, action):
    """Return the log probability of each action."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def loss(weights, batch):
    """Return PPO's loss with clipped values, as both sides use it."""
    observation, action, old_log_probability, old_value, advantage, target = batch
    actor, critic = weights
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    logits, value = forward(actor, observation), forward(critic, observation)[..., 0]
    logs = jax.nn.log_softmax(logits)
    ratio = jnp.exp(log_probability(logits, action) - old_log_probability)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
    clipped = old_value + jnp.clip(value - old_value, -0.2, 0.2)
    squared = jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
    return 0.5 * 0.5 * squared - surrogate - 0.01 * -(jnp.exp(logs) * logs).sum(-1).mean()


def of_agents(env, values):
    """Return what each agent has as one array of [environments, agents, ...]."""
    return jnp.stack([values[agent] for agent in env.agents], axis=1)


def make_tick(env, num_envs):
    """Return a function of one env step of all environments."""

    def tick(carry, key):
        weights, state, observation, returns = carry
        choose, move = jax.random.split(key)
        logits, value = forward(weights[0], observation), forward(weights[1], observation)[..., 0]
        action = jax.random.categorical(choose, logits)
        by_agent = {agent: action[:, index] for index, agent in enumerate(env.agents)}
        following, state, reward, done, _ = jax.vmap(env.step)(jax.random.split(move, num_envs), state, by_agent)
        reward = of_agents(env, reward)
        returns = returns + reward.mean(1)
        ended = jnp.where(done["__all__"], returns, jnp.nan)
        row = (observation, action, log_probability(logits, action), value, reward, done["__all__"])
        following = of_agents(env, following)
        return (weights, state, following, jnp.where(done["__all__"], 0.0, returns)), (row, ended)

    return tick


def make_update(env, optimizer, settings):
    """Return a compiled function of one rollout and what is learned from it."""
    num_envs, length = settings["num_envs"], settings["rollout_env_steps"]
    tick = make_tick(env, num_envs)

    def advantages(carry, row):
        advantage, following = carry
        value, reward, done = row
        alive = 1.0 - done[:, None]
        delta = reward + settings["discount"] * following * alive - value
        advantage = delta + settings["discount"] * settings["gae_lambda"] * alive * advantage
        return (advantage, value), advantage

    @partial(jax.jit, donate_argnums=0)
    def update(carry):
        weights, moments, state, observation, returns, key = carry
        key, rollout, shuffle = jax.random.split(key, 3)
        start = (weights, state, observation, returns)
        (_, state, observation, returns), (rows, ended) = jax.lax.scan(tick, start, jax.random.split(rollout, length))
        observations, actions, log_probabilities, values, rewards, dones = rows
        last = forward(weights[1], observation)[..., 0]
        _, advantage = jax.lax.scan(
            advantages, (jnp.zeros_like(last), last), (values, rewards, dones.astype(jnp.float32)), reverse=True
        )
        columns = (observations, actions, log_probabilities, values, advantage, advantage + values)
        columns = [column.reshape(-1, *column.shape[3:]) for column in columns]

        def step(carry, rows):
            weights, moments = carry
            gradient = jax.grad(loss)(weights, [column[rows] for column in columns])
            change, moments = optimizer.update(gradient, moments, weights)
            return (optax.apply_updates(weights, change), moments), None

        def epoch(carry, key):
            order = jax.random.permutation(key, len(columns[0])).reshape(settings["minibatches"], -1)
            return jax.lax.scan(step, carry, order)[0], None

        (weights, moments), _ = jax.lax.scan(epoch, (weights, moments), jax.random.split(shuffle, settings["epochs"]))
        return (weights, moments, state, observation, returns, key), jnp.nanmean(ended)

    return update


def main(env_steps, seed, settings):
    """Train."""
    began = time.perf_counter()
    env, num_envs = jaxmarl.make("MPE_simple_spread_v3"), settings["num_envs"]
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(settings["learning_rate"], eps=1e-5))
    update = make_update(env, optimizer, settings)
    first, second, third, key = jax.random.split(jax.random.PRNGKey(seed), 4)
    observation, state = jax.jit(jax.vmap(env.reset))(jax.random.split(first, num_envs))
    observation = of_agents(env, observation)
    inputs, actions = observation.shape[-1], env.action_space(env.agents[0]).n
    weights = network(second, inputs, actions, 0.01), network(third, inputs, 1, 1.0)
    carry = (weights, optimizer.init(weights), state, observation, jnp.zeros(num_envs), key)
    batch = num_envs * settings["rollout_env_steps"]
    for index in range(env_steps // batch):
        carry, ended = jax.block_until_ready(update(carry))
        line = {
            "env_steps": (index + 1) * batch,
            "cpu_s": time.process_time(),
            "wall_s": time.perf_counter() - began,
            "return_mean": float(ended),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
