"""Numbers that make no sense, wherever in an experiment they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from marlflow.experiment.experiment import Experiment, Policy
from marlflow.runtime.spec import Placement


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
    }
    found = list(_too_small(at_least_one, 1))
    yield from found
    at_least_zero = {
        "evaluation.episodes": experiment.evaluation.episodes,
        "stop.grace_s": stop.grace_s,
        "faults.env_errors": experiment.faults.env_errors,
        "faults.env_hangs": experiment.faults.env_hangs,
    }
    yield from _too_small(at_least_zero, 0)
    for path, seconds in {"stop.time_s": stop.time_s, "env.step_timeout_s": env.step_timeout_s}.items():
        if seconds is not None and seconds <= 0:
            yield f"{path} must be more than 0 seconds, not {seconds:g}"
    if not found:
        yield from _shares(experiment)
    yield from _placement_problems("rollouts.placement", rollouts.placement)
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


def _policy_numbers(path: str, policy: Policy) -> Iterator[str]:
    at_least_one = {
        f"{path}.stop.agent_steps": policy.stop.agent_steps,
        f"{path}.queue_fragments": policy.queue_fragments,
        f"{path}.placement.num_learners": policy.placement.num_learners,
    }
    yield from _too_small(at_least_one, 1)
    if policy.placement.num_learners > 1:
        many, key = policy.placement.num_learners, f"{path}.placement.num_learners"
        yield f"{key} must be 1, not {many}: several learners of one policy are not possible yet"
    yield from _placement_problems(f"{path}.placement", policy.placement)


def _placement_problems(path: str, placement: Placement) -> Iterator[str]:
    resources = {f"{path}.resources.{name}": amount for name, amount in placement.resources.items()}
    yield from _too_small(
        {f"{path}.num_cpus": placement.num_cpus, f"{path}.num_gpus": placement.num_gpus, **resources}, 0
    )


def _too_small(values: Mapping[str, float | None], least: int) -> Iterator[str]:
    for path, value in values.items():
        if value is not None and value < least:
            yield f"{path} must be at least {least}, not {value:g}"
