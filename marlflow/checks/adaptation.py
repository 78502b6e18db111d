"""Check what policies that adapt to tasks require of a run."""

from __future__ import annotations

from collections.abc import Iterator

from marlflow.env.episode_location import raised
from marlflow.policy.adapted import AdaptingActor
from marlflow.runtime.spec import RunSpec


def adaptation_problems(spec: RunSpec, has_tasks: bool) -> Iterator[str]:
    """Yield why a policy cannot adapt, or cannot act at all.

    `has_tasks` is whether the environment has tasks.
    """
    for name in spec.learning:
        policy = spec.policies[name]
        subject = f"policy {name!r} ({policy.algorithm.name})"
        try:
            actor = policy.actor()
        except Exception as error:  # noqa: BLE001  a network of the user's own may raise anything
            yield f"{subject}: what acts cannot be made: {raised(error)}"
            continue
        if not isinstance(actor, AdaptingActor):
            continue
        # One phase for each step of adaptation, and one that acts with the adapted parameters.
        phases = 1 + actor.inner_steps
        if policy.algorithm.capabilities.tasks and not has_tasks:
            yield (
                f"{subject} adapts to tasks, and the environment has none; take a family of them, such as "
                'env=cartpole_family, or say so of your own by metadata["tasks"] = True, if its reset takes '
                'options={"task": n}; or use ppo'
            )
        if spec.ticks < phases:
            # Env steps of all phases over the envs of one worker, rounded up.
            least = -(-phases * spec.num_envs // spec.num_workers)
            yield (
                f"{subject} adapts in {phases} phases of a collect, but an env takes {spec.ticks} env steps in one; "
                f"raise rollouts.fragment_env_steps to at least {least}, better to {phases} whole episodes of each"
            )
        if spec.inference is not None:
            yield (
                f"{subject} adapts on the rollout workers, each env apart, so no inference actor can act for it; "
                "set placement.inference=null"
            )
