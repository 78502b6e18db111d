"""JaxMARL's own IPPO on MPE_simple_spread_v3: run it with a Python that has jaxmarl; prints JSON per update.

    python benchmarks/peers/jaxmarl_ippo.py CHECKOUT 300000 0 SETTINGS

Arguments are a checkout of JaxMARL's repository, since its wheel has no algorithms, env steps, the seed, and settings
as JSON, as in benchmarks/against_jaxmarl.py. The first line has the seconds until the first update is over,
imports and compilation included. The whole run is one compiled call, which reports each update to a replacement of
wandb.
"""

import importlib.util
import json
import sys
import time
import types
from pathlib import Path

AGENTS = 3


def main(checkout, env_steps, seed, settings):
    """Train."""
    wall, updates = time.perf_counter(), 0
    batch = settings["num_envs"] * settings["rollout_env_steps"]

    def log(metric):
        nonlocal updates
        updates += 1
        line = {
            "env_steps": updates * batch,
            "cpu_s": time.process_time(),
            "wall_s": time.perf_counter() - wall,
            # Its wrapper logs returns times the number of agents.
            "return_mean": float(metric["returned_episode_returns"]) / AGENTS,
        }
        print(json.dumps(line), flush=True)

    sys.modules["wandb"] = types.SimpleNamespace(log=log)
    path = Path(checkout) / "baselines" / "IPPO" / "ippo_ff_mpe.py"
    spec = importlib.util.spec_from_file_location("ippo_ff_mpe", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)

    import jax

    config = {
        "LR": settings["learning_rate"],
        "NUM_ENVS": settings["num_envs"],
        "NUM_STEPS": settings["rollout_env_steps"],
        "TOTAL_TIMESTEPS": env_steps,
        "UPDATE_EPOCHS": settings["epochs"],
        "NUM_MINIBATCHES": settings["minibatches"],
        "GAMMA": settings["discount"],
        "GAE_LAMBDA": settings["gae_lambda"],
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
        "ENV_NAME": "MPE_simple_spread_v3",
        "ENV_KWARGS": {},
        "ANNEAL_LR": False,
    }
    done = jax.jit(theirs.make_train(config))(jax.random.PRNGKey(seed))
    jax.block_until_ready(done)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
