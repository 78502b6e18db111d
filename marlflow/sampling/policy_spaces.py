"""The observation and action spaces of each policy."""

from __future__ import annotations

from collections.abc import Callable, Collection

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.env import EnvAdapter


def policy_spaces(
    adapter: EnvAdapter, policy_of_agent: Callable[[str], str | None], actors: Collection[str]
) -> dict[str, Spaces]:
    """Return each policy's spaces, from its agents; raises ConfigInvalid with every contradiction."""
    by_policy: dict[str, tuple[str, Spaces]] = {}
    # One masked agent makes the policy masked; its other agents get all-legal masks.
    masked = {policy_of_agent(agent) for agent in adapter.agents if adapter.masked(agent)}
    problems = []
    for agent in adapter.agents:
        policy = policy_of_agent(agent)
        if policy is None or policy not in actors:
            problem = "no policy" if policy is None else f"policy {policy!r}, which has no actor"
            problems.append(f"agent {agent!r} is mapped to {problem}; the policies are {', '.join(actors) or 'none'}")
            continue
        spaces = Spaces(adapter.observation_space(agent), adapter.action_space(agent), policy in masked)
        first, expected = by_policy.setdefault(policy, (agent, spaces))
        if spaces != expected:
            problems.append(
                f"policy {policy!r} plays {first!r} ({expected.observation}, {expected.action}) and "
                f"{agent!r} ({spaces.observation}, {spaces.action}): agents of one policy need the same spaces"
            )
    if problems:
        raise ConfigInvalid(problems)
    return {policy: spaces for policy, (_, spaces) in by_policy.items()}
