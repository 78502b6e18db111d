"""Check settings that are each in range but contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.dqn import DQN
from marlflow.base.errors import Problem
from marlflow.config.environment import argument_problems
from marlflow.config.experiment import Experiment, RuntimeConfig
from marlflow.config.placement import cluster_address, cluster_setting
from marlflow.config.records import offline_records
from marlflow.config.settings import setting_problems


def declared_problems(experiment: Experiment) -> Iterator[Problem | str]:
    """Yield a problem for each setting of a wrong type or out of range."""
    yield from setting_problems(experiment)
    env = experiment.env
    if (records := offline_records(env)) is not None:
        yield from setting_problems(records, "env")
        env = replace(env, arguments={key: value for key, value in env.arguments.items() if not hasattr(records, key)})
    yield from argument_problems(env)


def learner_limit_problems(experiment: Experiment) -> Iterator[str]:
    """Yield a problem for each learner whose settings contradict each other."""
    for path, algorithm, placement in experiment.all_learners():
        yield from _replay_problems(f"{path}.algorithm", algorithm)
        learners = placement.num_learners or experiment.placement.learners.num_learners
        yield from _share_problems(path, algorithm, learners)


def env_division_problems(experiment: Experiment) -> Iterator[str]:
    """Yield why the environments cannot be divided among the workers."""
    num_envs, workers = experiment.env.num_envs, experiment.rollouts.num_workers
    if num_envs < workers:
        yield (
            f"env.num_envs ({num_envs}) is less than rollouts.num_workers ({workers}), and each worker needs one; "
            f"raise env.num_envs or lower rollouts.num_workers"
        )
        return
    # Envs are divided evenly, so no worker has more than this.
    most, steps = -(-num_envs // workers), experiment.rollouts.fragment_env_steps
    if steps < most:
        yield (
            f"rollouts.fragment_env_steps ({steps}) is less than the {most} environments that a worker steps at once; "
            f"raise it to at least {most}, or lower env.num_envs"
        )


def store_problems(runtime: RuntimeConfig) -> Iterator[str]:
    """Yield a problem for each setting of a Ray of its own, if the run joins one."""
    if cluster_address(runtime) is None:
        return
    own = {"object_store_bytes": "", "node_ip_address": f"={runtime.node_ip_address}", "dashboard": ""}
    instead = "" if runtime.address is not None else ", or set runtime.address=local"
    for key, value in own.items():
        if getattr(runtime, key):
            yield (
                f"runtime.{key}{value} is for a Ray that is started here, but {cluster_setting(runtime)} joins one "
                f"that is running; leave one of them out{instead}"
            )


def _share_problems(path: str, algorithm: Algorithm, learners: int) -> Iterator[str]:
    for kind in ("minibatch", "batch"):
        # Processes that learn together divide each minibatch among them; an algorithm without minibatches divides the
        # batch; one that learns tasks divides these.
        rows = getattr(algorithm, f"{kind}_agent_steps", None)
        if isinstance(rows, int):
            divides_rows = algorithm.capabilities.learns_on == "learner" and not algorithm.capabilities.tasks
            if divides_rows and learners > rows:
                yield (
                    f"{learners:,} learners (num_learners) would share {path}.algorithm.{kind}_agent_steps={rows:,}, "
                    "and each needs a row; lower the one, or raise the other"
                )
            return


def _replay_problems(path: str, algorithm: Algorithm) -> Iterator[str]:
    batch, held = (getattr(algorithm, f"{kind}_agent_steps", None) for kind in ("batch", "replay"))
    if isinstance(batch, int) and isinstance(held, int) and batch > held:
        yield (
            f"{path}.batch_agent_steps is {batch:,}, and its replay holds {held:,} agent steps; lower it, or raise "
            f"{path}.replay_agent_steps"
        )
    if isinstance(algorithm, DQN) and algorithm.atoms == 1:
        for name, default in {"value_min": DQN.value_min, "value_max": DQN.value_max}.items():
            if (value := getattr(algorithm, name)) != default:
                yield (
                    f"{path}.{name} is {value:g}, and atoms is 1: only with more of them are values distributions over "
                    f"a range; set {path}.atoms=51, or leave {name} out"
                )
