"""What policies that adapt to tasks ask of a run, before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from marlflow.policy.adapted import AdaptingActor
from marlflow.runtime.spec import RunSpec


def adaptation_problems(spec: RunSpec, has_tasks: bool) -> Iterator[str]:
    """One sentence for each reason why a policy could not adapt.

    No tasks to adapt to (`has_tasks`: whether the environment has any), a phase too short for a step, or an inference
    actor in the way.
    """
    for name in spec.learning:
        policy = spec.policies[name]
        actor = policy.actor()
        if not isinstance(actor, AdaptingActor):
            continue
        subject, phases = f"policy {name!r} ({policy.algorithm.name})", 1 + actor.inner_steps
        if policy.algorithm.capabilities.tasks and not has_tasks:
            yield (
                f"{subject} adapts to tasks, and the environment has none; take a family of them, such as "
                'env=cartpole_family, or say so of your own by metadata["tasks"] = True, if its reset takes '
                'options={"task": n}; or use ppo'
            )
        if spec.ticks < phases:
            least = -(-phases * spec.copies // spec.num_workers)
            yield (
                f"{subject} adapts in {phases} phases of a collect, but each copy takes {spec.ticks} env steps in one; "
                f"raise rollouts.fragment_env_steps to at least {least}, better to {phases} whole episodes of each copy"
            )
        if spec.inference is not None:
            yield (
                f"{subject} adapts on the rollout workers, each copy apart, so no inference actor can act for it; "
                "set placement.inference=null"
            )
