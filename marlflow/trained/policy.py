"""One trained policy: actions for batches of observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.random import RowRandom
from marlflow.base.spaces import Spaces
from marlflow.config.imported_policies import space_problem
from marlflow.driver.entrants import Entrant
from marlflow.policy.actor import AskedMode, RecurrentActor
from marlflow.sampling.policy_slots import PolicySlots


class TrainedPolicy:
    """A policy of a checkpoint, a member of a league, or a scripted policy.

        actions = team["prey"].act(observations, action_masks)

    `agents` are those that it can play. `about` says what it is: algorithm, version, env steps, SHA-256 of its
    parameters. If it plays agents with different spaces, or by different networks, it is that of `agent`, by default
    the first.
    """

    def __init__(self, entrant: Entrant, agent: str | None = None) -> None:
        if entrant.mixture or not entrant.policies:
            raise ConfigInvalid([f"{entrant.label!r} is no policy that acts by itself"])
        spec = next(iter(entrant.policies.values())) if agent is None else entrant.policies[agent]
        self.name = entrant.label
        self.agents = tuple(entrant.policies)
        self.about: Mapping[str, Any] = entrant.about
        self.spaces: Spaces = spec.spaces
        self.actor = spec.actor()
        self._entrant, self._spec = entrant, spec
        # The entrant's other networks, by the names of their policies.
        self._others: dict[str, TrainedPolicy] = {}
        self._slots = PolicySlots(self.name, self.actor, self.spaces, 0, False)
        self._random = np.random.default_rng()

    def __repr__(self) -> str:
        return f"<policy {self.name!r} ({self.about.get('algorithm')}) for {', '.join(self.agents)}>"

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a memory."""
        return isinstance(self.actor, RecurrentActor)

    def of_agent(self, agent: str) -> TrainedPolicy:
        """Return the policy as it plays `agent`: another one if it does so by another network or in other spaces."""
        # `random` has the spaces of each agent, and the team of another run a policy for each.
        spec = self._entrant.policies.get(agent, self._spec)
        if spec.name == self._spec.name:
            return self
        if spec.name not in self._others:
            self._others[spec.name] = TrainedPolicy(self._entrant, agent)
        return self._others[spec.name]

    def misfit(self, agent: str, spaces: Spaces) -> str:
        """Return why it cannot play an agent of these `spaces`."""
        saved = getattr(self._spec.algorithm, "saved", None)
        differs = None if saved is None else space_problem(saved, spaces, agent)
        return differs or f"{self.name!r} cannot play agent {agent!r}; it can play {', '.join(self.agents)}"

    def memory(self, rows: int) -> Array | None:
        """Return the memory at the start of `rows` episodes, float32 [rows, ...]; None if it has none."""
        return (
            np.zeros((rows, *self.actor.memory_shape), np.float32) if isinstance(self.actor, RecurrentActor) else None
        )

    def act(
        self,
        observations: Sequence[Any] | Array,
        action_masks: Sequence[Array | None] | Array | None = None,
        memory: Array | None = None,
        mode: AskedMode = "as_learned",
        generator: np.random.Generator | RowRandom | None = None,
    ) -> Array:
        """Return the actions for N observations, [N, ...], as the environment takes them.

        `observations` are without action masks. `action_masks` [N, A] are true where an action is legal; None: all are.
        A recurrent policy updates `memory` in place; begin with `memory(N)`. `mode` is
        as_learned, as its algorithm learns to; greedy, the most likely action; or sampled, drawn from the learned
        distribution with `generator`. Raises InvalidInput for observations that are
        not of the policy's space.
        """
        rows = len(observations)
        if self.is_recurrent and memory is None:
            raise InvalidInput([f"policy {self.name!r} has a memory; give act(..., memory=policy.memory({rows}))"])
        try:
            obs = self._slots.stack(list(observations))
            masks = [None] * rows if action_masks is None else list(action_masks)
            legal = self._slots.stack_masks(masks) if self.spaces.masked else None
        except ObservationOutside as outside:
            raise InvalidInput([f"policy {self.name!r}, row {outside.index}: {outside.reason}"]) from outside
        if not isinstance(generator, RowRandom):
            drawn = (generator or self._random).integers(0, 2**64, rows, np.uint64)
            generator = RowRandom(drawn, np.zeros(rows, np.int64))
        acted = self.actor.act(obs, legal, memory, self._spec.mode(mode), generator)
        if memory is not None and self.is_recurrent:
            memory[...] = acted.memory
        return np.asarray(self._slots.decoder.choices(acted.action))
