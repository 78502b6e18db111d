"""Names of who may play in a run's environment, checked against its checkpoint before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from marlflow.base.sentences import meant
from marlflow.runs.checkpoint_notes import notes_of
from marlflow.runs.checkpoints import Checkpoint

RANDOM: Final = "random"
"""Acts uniformly at random; a policy of this name takes precedence."""
MIXTURE: Final = "mixture"
"""The meta-strategy of a run with `league=psro`."""
TEAM: Final = "team"
"""The policies of a run, each for the agents that it played in training."""
EXPORTED: Final = ".safetensors"
"""The ending of the files of `marlflow league --export`."""
FROZEN: Final = "frozen."
"""What the names of the files of frozen policies in a checkpoint begin with."""


def unknown_members(labels: Collection[str], checkpoint: Checkpoint, base: Path) -> Iterator[str]:
    """Yield a problem for each unknown label; none for a run with a league, because its members are not read.

    `base` is where paths begin. Raises CheckpointUnusable if the checkpoint's notes are malformed.
    """
    identity = notes_of(checkpoint).identity
    policies = identity.get("policies")
    if "league" in identity or not isinstance(policies, dict):
        return
    known = [*policies, *frozen_names(checkpoint), RANDOM, TEAM, MIXTURE]
    for label in labels:
        is_elsewhere = ":" in label or label.endswith(EXPORTED) or (base / label).exists()
        if label not in known and not is_elsewhere:
            yield no_member(label, known[:-1])


def frozen_names(checkpoint: Checkpoint) -> list[str]:
    """Return the ids of a checkpoint's frozen entries."""
    return [name.removeprefix(FROZEN) for name in checkpoint.names if name.startswith(FROZEN)]


def no_member(label: str, known: Sequence[str]) -> str:
    """Return the problem of an unknown label."""
    return f"there is no member {label!r}{meant(label, known, 'there are')}"


def unknown_agents(person: str | None, seats: Collection[str], agents: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each seat, and for a person's, that is no agent."""
    for agent in seats:
        if agent not in agents:
            yield f"seats: there is no agent {agent!r}{meant(agent, agents, 'the agents are')}"
    if person is not None and person not in agents:
        yield f"there is no agent {person!r} to play as{meant(person, agents, 'the agents are')}"
