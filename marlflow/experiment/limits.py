"""Numbers that make no sense, wherever in an experiment they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from marlflow.experiment.experiment import Experiment, Policy, RuntimeChoice
from marlflow.experiment.placing import placement_problems

_LEAST_STORE_BYTES = 75 * 2**20
"""With less Ray does not start."""


def number_problems(experiment: Experiment) -> Iterator[str]:
    """One sentence for each number that is too small."""
    env, rollouts, stop = experiment.env, experiment.rollouts, experiment.stop
    at_least_one = {
        "env.copies": env.copies,
        "rollouts.num_workers": rollouts.num_workers,
        "rollouts.fragment_env_steps": rollouts.fragment_env_steps,
        "stop.env_steps": stop.env_steps,
        "evaluation.every_env_steps": experiment.evaluation.every_env_steps,
        "log.every_env_steps": experiment.log.every_env_steps,
        "checkpoint.every_env_steps": experiment.checkpoint.every_env_steps,
        "checkpoint.keep": experiment.checkpoint.keep,
    }
    found = list(_too_small(at_least_one, 1))
    yield from found
    at_least_zero = {
        "evaluation.episodes": experiment.evaluation.episodes,
        "evaluation.final_episodes": experiment.evaluation.final_episodes,
        "stop.grace_s": stop.grace_s,
        "checkpoint.replay_max_env_steps": experiment.checkpoint.replay_max_env_steps,
        **{f"faults.{kind}": allowed for kind, allowed in asdict(experiment.faults).items()},
    }
    yield from _too_small(at_least_zero, 0)
    for path, seconds in {"stop.time_s": stop.time_s, "env.step_timeout_s": env.step_timeout_s}.items():
        if seconds is not None and seconds <= 0:
            yield f"{path} must be more than 0 seconds, not {seconds:g}"
    if not found:
        yield from _shares(experiment)
    yield from _store_problems(experiment.runtime)
    yield from placement_problems(experiment)
    for name, policy in experiment.policies.items():
        yield from _policy_numbers(f"policies.{name}", policy)
    yield from _policy_numbers("default_policy", experiment.default_policy)


def _shares(experiment: Experiment) -> Iterator[str]:
    copies, workers = experiment.env.copies, experiment.rollouts.num_workers
    if copies < workers:
        yield (
            f"env.copies ({copies}) is less than rollouts.num_workers ({workers}), and each worker needs a copy; "
            f"raise env.copies or lower rollouts.num_workers"
        )
        return
    most, steps = -(-copies // workers), experiment.rollouts.fragment_env_steps
    if steps < most:
        yield (
            f"rollouts.fragment_env_steps ({steps}) is less than the {most} copies that a worker steps at once; "
            f"raise it to at least {most}, or lower env.copies"
        )


def _store_problems(runtime: RuntimeChoice) -> Iterator[str]:
    size = runtime.object_store_bytes
    if size is None:
        return
    if size < _LEAST_STORE_BYTES:
        yield f"runtime.object_store_bytes must be at least {_LEAST_STORE_BYTES} (75 MiB), not {size}"
    if runtime.address is not None:
        yield (
            "runtime.object_store_bytes is for a Ray that is started here, but "
            f"runtime.address={runtime.address} joins one that is running; leave one of them out"
        )


def _policy_numbers(path: str, policy: Policy) -> Iterator[str]:
    at_least_one = {
        f"{path}.stop.agent_steps": policy.stop.agent_steps,
        f"{path}.queue_fragments": policy.queue_fragments,
    }
    yield from _too_small(at_least_one, 1)


def _too_small(values: Mapping[str, float | None], least: int) -> Iterator[str]:
    for path, value in values.items():
        if value is not None and value < least:
            yield f"{path} must be at least {least}, not {value:g}"
