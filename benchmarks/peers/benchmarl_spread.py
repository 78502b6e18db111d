"""BenchMARL's MAPPO or QMIX on simple_spread: run it with a Python that has it; prints a line of JSON per iteration.

    python benchmarks/peers/benchmarl_spread.py mappo 200000 0

Arguments are the algorithm, env steps and the seed. Each line has the env steps so far, the seconds of collecting and
learning so far, and the sum of returns, per agent, and the number of the episodes that ended in the iteration.
"""

import itertools
import json
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from benchmarl.algorithms import MappoConfig, QmixConfig  # noqa: E402
from benchmarl.environments.pettingzoo.common import PettingZooClass  # noqa: E402
from benchmarl.experiment import Callback, Experiment, ExperimentConfig  # noqa: E402
from benchmarl.models.mlp import MlpConfig  # noqa: E402
from mpe2 import simple_spread_v3  # noqa: E402
from torchrl.envs.libs.pettingzoo import PettingZooWrapper  # noqa: E402


class Spread(PettingZooClass):
    """simple_spread of mpe2; the task that BenchMARL ships imports pettingzoo.mpe, which is gone.

    Each environment has a seed of its own. In the shipped task all of an experiment's environments have the same.
    """

    numbers = itertools.count()

    def get_env_fun(self, num_envs, continuous_actions, seed, device):
        def make():
            env = simple_spread_v3.parallel_env(max_cycles=25, continuous_actions=continuous_actions)
            own_seed = 1_000 * seed + next(self.numbers)
            return PettingZooWrapper(env, return_state=True, categorical_actions=True, seed=own_seed, device=device)

        return make


class Report(Callback):
    """Prints a line at the end of each iteration."""

    def __init__(self):
        super().__init__()
        self.began, self.env_steps, self.finished = time.perf_counter(), 0, torch.zeros(0)

    def on_batch_collected(self, batch):
        """Take the returns of the episodes that ended."""
        self.env_steps += batch.numel()
        over = batch["next", "done"].squeeze(-1)
        self.finished = batch["next", "agent", "episode_reward"][over].mean(dim=(-1, -2))

    def on_train_end(self, training_td, group):
        """Print."""
        line = {
            "env_steps": self.env_steps,
            "time_s": time.perf_counter() - self.began,
            "returns": float(self.finished.sum()),
            "episodes": len(self.finished),
        }
        print(json.dumps(line), flush=True)


def configuration(algorithm, env_steps, folder):
    """Return the settings of both algorithms, equal to marlflow's in against_benchmarl.py."""
    config = ExperimentConfig.get_from_yaml()
    settings = {
        "prefer_continuous_actions": False,
        "gamma": 0.95,
        "lr": 1e-3 if algorithm == "mappo" else 5e-4,
        "adam_eps": 1e-5 if algorithm == "mappo" else 1e-8,
        "clip_grad_val": 0.5 if algorithm == "mappo" else 10.0,
        "max_n_frames": env_steps,
        "on_policy_collected_frames_per_batch": 1_000,
        "on_policy_n_envs_per_worker": 20,
        "on_policy_n_minibatch_iters": 10,
        "on_policy_minibatch_size": 250,
        "off_policy_collected_frames_per_batch": 1_000,
        "off_policy_n_envs_per_worker": 20,
        "off_policy_n_optimizer_steps": 100,
        "off_policy_train_batch_size": 128,
        "off_policy_memory_size": 100_000,
        "polyak_tau": 0.005,
        "exploration_eps_init": 1.0,
        "exploration_eps_end": 0.05,
        "exploration_anneal_frames": env_steps // 2,
        "evaluation": False,
        "render": False,
        "loggers": [],
        "create_json": False,
        "save_folder": folder,
    }
    for name, value in settings.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    return config


def run(algorithm, env_steps, seed):
    """Train."""
    if algorithm == "mappo":
        made = MappoConfig.get_from_yaml()
        made.entropy_coef, made.critic_coef, made.lmbda = 0.01, 0.5, 0.95
    else:
        made = QmixConfig.get_from_yaml()
    task = Spread("SIMPLE_SPREAD", {"task": "simple_spread_v3", "max_cycles": 25})
    model = MlpConfig(num_cells=[64, 64], activation_class=torch.nn.Tanh, layer_class=torch.nn.Linear)
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(algorithm, env_steps, folder)
        Experiment(task, made, model, seed, config, callbacks=[Report()]).run()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
