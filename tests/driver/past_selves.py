"""A matchmaker that freezes a version of a policy every few rounds and seats it against the newest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

import marlflow as mf
from marlflow.env.games import cartpole_team
from tests.runtime.small_runs import small_run


class PastSelves(mf.Matchmaker):
    """Seats `main` against one of the newest `keep` versions of itself; freezes one every `every` rounds.

    `sizes` is how many frozen entries there were in each round.
    """

    def __init__(self, every: int = 2, keep: int = 2) -> None:
        self._every, self._keep = every, keep
        self.rounds = self.frozen_ever = 0
        self.frozen: list[str] = []
        self.sizes: list[int] = []

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> mf.PopulationChange:
        assert set(published) == set(agent_steps) == {"main"}
        self.rounds += 1
        freeze, forget = {}, []
        if self.rounds % self._every == 1:
            self.frozen_ever += 1
            freeze = {f"main@{self.frozen_ever}": "main"}
        elif len(self.frozen) > self._keep:
            forget, self.frozen = self.frozen[: -self._keep], self.frozen[-self._keep :]
        self.frozen += freeze
        self.sizes.append(len(self.frozen))
        return mf.PopulationChange(freeze, forget)

    def __call__(self, episode: mf.EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        seats = ["main", self.frozen[generator.integers(len(self.frozen))]]
        return dict(zip(agents, generator.permutation(seats).tolist(), strict=True))

    def state(self) -> Any:
        return {"rounds": self.rounds, "ever": self.frozen_ever, "frozen": self.frozen, "sizes": self.sizes}

    def load_state(self, tree: Any) -> None:
        self.rounds, self.frozen_ever = tree["rounds"], tree["ever"]
        self.frozen, self.sizes = tree["frozen"], tree["sizes"]


def against_past_selves(
    main: mf.Policy, env_steps: int, runtime: Literal["inline", "ray"] = "inline", **changes: Any
) -> mf.Experiment:
    """Two carts, of which one is a frozen version of the other; an episode lasts about three rounds."""
    experiment = small_run(
        runtime,
        env=mf.Env(cartpole_team.parallel_env, {"max_cycles": 50, "num_agents": 2}, num_envs=4),
        policies={"main": main},
        mapping=PastSelves(),
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=20),
        checkpoint=mf.CheckpointConfig(every_env_steps=None),
    )
    return replace(experiment, **{"stop": mf.Stop(env_steps=env_steps), **changes})
