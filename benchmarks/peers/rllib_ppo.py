"""RLlib's PPO for all agents of a 4-agent CartPole: run it with a Python that has `ray[rllib]`; prints env steps/s.

Two policies, each for every other agent; batches of 4,000 env steps, 4 epochs of minibatches of 128, MLP 64x64.
"""

import logging
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import ray  # noqa: E402
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402

iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 4
register_env("team", lambda _: MultiAgentCartPole({"num_agents": 4}))
ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
config = (
    PPOConfig()
    .environment("team")
    .env_runners(num_env_runners=2, num_envs_per_env_runner=16)
    .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *_, **__: f"p{agent % 2}")
    .training(train_batch_size=4_000, minibatch_size=128, num_epochs=4, lr=3e-4)
    .rl_module(model_config=model)
)
algorithm = config.build_algo()
algorithm.train()
began, env_steps = time.perf_counter(), 0
for _ in range(iterations):
    env_steps += algorithm.train()["env_runners"]["num_env_steps_sampled"]
print(f"env_steps_per_s {env_steps / (time.perf_counter() - began):.1f}")
