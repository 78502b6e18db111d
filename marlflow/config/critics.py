"""Check what central critics and `bootstrap_at_death` need of an environment, and give policies its state's space."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import Algorithm, critic_sees, needs_state
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION
from marlflow.config.environment import environment_name
from marlflow.config.experiment import Env, Policy
from marlflow.env import EnvAdapter
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.runtime.spec import PolicySpec


def with_state_space(
    spaces: Mapping[str, Spaces], policies: Mapping[str, Policy], state_space: gym.Box | None
) -> dict[str, Spaces]:
    """Return the spaces by policy, with the global state's for those that need it."""
    needy = {name for name, policy in policies.items() if needs_state(policy.acts_by)}
    return {name: replace(own, state=state_space if name in needy else None) for name, own in spaces.items()}


def critic_environment_problems(env: Env, adapter: EnvAdapter, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield why policies cannot learn in the environment: no state, or turns where deaths need simultaneous steps."""
    for name, policy in policies.items():
        algorithm = policy.acts_by
        subject = f"policy {name!r} ({algorithm.name})"
        # The names in critic_sees are checked with the policy's spaces; joint algorithms are checked by their learner.
        if algorithm.capabilities.state and not algorithm.capabilities.joint and adapter.state_space() is None:
            yield (
                f"{subject} needs the environment's state, and {environment_name(env)} has no state() with a Box for "
                "its state_space; add wrappers=joint_state, or use an algorithm that needs none"
            )
        if _bootstraps_at_death(algorithm) and not adapter.parallel:
            yield (
                f"{subject} cannot bootstrap at a death (bootstrap_at_death) in {environment_name(env)}, an AEC "
                "environment: its agents decide in turns, so there is no value of all survivors right after a death; "
                "set bootstrap_at_death=false, or use the environment's parallel_env"
            )


def recorded_critic_problems(policies: Mapping[str, Policy], recorded: Collection[str]) -> Iterator[str]:
    """Yield why policies cannot learn from records, which have neither states nor other agents."""
    for name in recorded:
        algorithm = policies[name].acts_by
        settings = {
            "critic_sees": critic_sees(algorithm) != OWN_OBSERVATION,
            "bootstrap_at_death": _bootstraps_at_death(algorithm),
        }
        for setting in (setting for setting, is_set in settings.items() if is_set):
            yield (
                f"policy {name!r} ({algorithm.name}) learns from records, which have only what its agents saw; leave "
                f"algorithm.{setting} at its default"
            )


def critic_remarks(env: Env, policies: Mapping[str, PolicySpec]) -> Iterator[str]:
    """Yield a note on recurrent policies whose critic has no memory, though its state is no Markov state."""
    made_by = {getattr(getattr(wrapper, "make", wrapper), "__name__", "") for wrapper in env.wrappers}
    if "joint_state" not in made_by:
        return
    for name, policy in policies.items():
        if isinstance(policy.model, RecurrentTorsoConfig) and "state" in critic_sees(policy.algorithm):
            yield (
                f"policy {name!r}: its critic has no memory, and the state of wrappers=joint_state is only what agents "
                "observe now; if that does not determine the future, keep obs in critic_sees and stack frames"
            )


def _bootstraps_at_death(algorithm: Algorithm) -> bool:
    return bool(getattr(algorithm, "bootstrap_at_death", False))
