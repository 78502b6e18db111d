"""A matchmaker that freezes a version of `main` every few rounds, and lets it begin again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pettingzoo.classic import tictactoe_v3

import marlflow as mf
from marlflow.env.games import cartpole_team
from tests.runtime.small_runs import small_run

CARTS = mf.Env(cartpole_team.parallel_env, {"max_cycles": 50, "num_agents": 2}, num_envs=4)
TURNS = mf.Env(tictactoe_v3.env, {}, num_envs=4)


class Resetting(mf.Matchmaker):
    """Seats `main` against `rival` or a frozen version of itself; resets it in every `every`-th round, after a freeze.

    `to` is where it begins; `newest` is the version that was frozen last.
    """

    def __init__(self, every: int = 5, to: str = "fresh", policy: str = "main") -> None:
        self.every, self.to, self.policy = every, to, policy
        self.rounds = 0
        self.frozen: list[str] = []
        self.asked_for: list[mf.Reset] = []

    def reset_policies(self) -> Sequence[str]:
        return [self.policy]

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> mf.PopulationChange:
        self.rounds += 1
        if self.rounds % self.every:
            return mf.PopulationChange()
        entry = f"{self.policy}@{len(self.frozen) + 1}"
        self.frozen.append(entry)
        self.asked_for.append(mf.Reset(self.policy, entry if self.to == "newest" else self.to))
        return mf.PopulationChange({entry: self.policy})

    def resets(self) -> Sequence[mf.Reset]:
        resets, self.asked_for = self.asked_for, []
        return resets

    def __call__(self, episode: mf.EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        rivals = ["rival", *self.frozen]
        seats = ["main", rivals[generator.integers(len(rivals))] if episode.episode % 2 else "rival"]
        return dict(zip(agents, generator.permutation(seats).tolist(), strict=True))

    def state(self) -> Any:
        return {"rounds": self.rounds, "frozen": self.frozen}

    def load_state(self, tree: Any) -> None:
        self.rounds, self.frozen = tree["rounds"], tree["frozen"]


def with_resets(
    main: mf.Policy,
    rival: mf.Policy,
    env_steps: int,
    runtime: Literal["inline", "ray"] = "inline",
    matchmaker: object | None = None,
    env: mf.Env = CARTS,
    pace: Literal["lockstep", "overlap"] = "lockstep",
    **changes: Any,
) -> mf.Experiment:
    """Two policies that learn, of which the first begins again every few rounds of 20 env steps for each worker."""
    changes = {"checkpoint": mf.CheckpointConfig(every_env_steps=None), "stop": mf.Stop(env_steps=env_steps)} | changes
    return small_run(
        runtime,
        env=env,
        policies={"main": main, "rival": rival},
        mapping=matchmaker or Resetting(),
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=20, pace=pace),
        **changes,
    )
