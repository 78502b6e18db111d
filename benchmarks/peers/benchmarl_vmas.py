"""BenchMARL's IPPO or MAPPO on a scenario of VMAS: run it with a Python that has it; prints JSON per iteration.

    python benchmarks/peers/benchmarl_vmas.py ippo balance 180000 0

Arguments are the algorithm, the scenario, env steps and the seed. Each line has the env steps so far, the CPU and wall
seconds so far, and the mean return per agent of the episodes that ended in the iteration. Settings are as in
benchmarks/against_benchmarl_vmas.py.
"""

import json
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from benchmarl.algorithms import IppoConfig, MappoConfig  # noqa: E402
from benchmarl.environments import VmasTask  # noqa: E402
from benchmarl.experiment import Callback, Experiment, ExperimentConfig  # noqa: E402
from benchmarl.models.mlp import MlpConfig  # noqa: E402

ALGORITHMS = {"ippo": IppoConfig, "mappo": MappoConfig}


class Report(Callback):
    """Prints a line at the end of each iteration."""

    def __init__(self):
        super().__init__()
        self.cpu, self.wall, self.env_steps, self.returns = time.process_time(), time.perf_counter(), 0, torch.zeros(0)

    def on_batch_collected(self, batch):
        """Take the returns of the episodes that ended."""
        self.env_steps += batch.numel()
        over = batch["next", "done"].squeeze(-1)
        self.returns = batch["next", "agents", "episode_reward"][over].mean(dim=(-1, -2))
        self.sampled = time.process_time() - self.cpu

    def on_train_end(self, training_td, group):
        """Print."""
        line = {
            "env_steps": self.env_steps,
            "cpu_s": time.process_time() - self.cpu,
            "sampled_s": self.sampled,
            "wall_s": time.perf_counter() - self.wall,
            "return_mean": float(self.returns.mean()) if len(self.returns) else None,
        }
        print(json.dumps(line), flush=True)


def configuration(settings, env_steps, folder):
    """Return the settings that both algorithms share."""
    config = ExperimentConfig.get_from_yaml()
    own = {
        "gamma": settings["discount"],
        "lr": settings["learning_rate"],
        "adam_eps": 1e-5,
        "clip_grad_val": 0.5,
        "max_n_frames": env_steps,
        "on_policy_collected_frames_per_batch": settings["batch_env_steps"],
        "on_policy_n_envs_per_worker": settings["num_envs"],
        "on_policy_n_minibatch_iters": settings["epochs"],
        "on_policy_minibatch_size": settings["minibatch_env_steps"],
        "evaluation": False,
        "render": False,
        "loggers": [],
        "create_json": False,
        "save_folder": folder,
    }
    for name, value in own.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    return config


def run(algorithm, scenario, env_steps, seed, settings):
    """Train."""
    torch.set_num_threads(settings["cores"])
    made = ALGORITHMS[algorithm].get_from_yaml()
    made.entropy_coef, made.critic_coef, made.lmbda = 0.01, 0.5, settings["gae_lambda"]
    task = VmasTask[scenario.upper()].get_from_yaml()
    model = MlpConfig(num_cells=settings["hidden"], activation_class=torch.nn.Tanh, layer_class=torch.nn.Linear)
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(settings, env_steps, folder)
        Experiment(task, made, model, seed, config, callbacks=[Report()]).run()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
