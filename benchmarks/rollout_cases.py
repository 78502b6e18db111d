"""The environments for the rollout worker's benchmark: how each is made, and its target share of bare speed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import supersuit
import torch

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.batches.items import as_it_is
from marlflow.env import open_adapter
from marlflow.env.batched.versions import batched_maker
from marlflow.env.factories import import_factory
from marlflow.env.make import make_environment
from marlflow.policy.actor import Actor
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.torso import CNN, MLP
from marlflow.sampling import RolloutWorker, Rule, SamplerConfig
from marlflow.sampling.mapping import assign, group


@dataclass(frozen=True, slots=True)
class Case:
    """One environment in one worker, and its target share of bare env steps per second.

    There are `num_envs` environments with `ticks` steps in each collect; a turn of the measurement takes at least
    `turn_s` seconds. `wrappers` count as environment. With `pixels`, the time in the CNN is left out of the ratio.
    `rules` are the mapping; without rules, each group of agents has a policy of its own.
    """

    name: str
    target: float
    factory: str
    wrappers: Sequence[Callable[[Any], Any]] = ()
    rules: Sequence[Rule] = ()
    num_envs: int = 32
    ticks: int = 128
    turn_s: float = 0.25
    pixels: bool = False

    def make(self) -> Any:
        """Make one environment with its wrappers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pygame and others have their say at their first import
            return make_environment(self.factory, {}, self.wrappers)

    def missing(self) -> str | None:
        """Return why the environment cannot be made here, or None."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_factory(self.factory)
        except ConfigInvalid as error:
            return str(error)
        return None

    def worker(self, num_envs: int | None = None, batched: bool = False) -> RolloutWorker:
        """Make a worker with a randomly initialized MLP of 64 x 64 or CNN for each policy; all rows count.

        `batched`: its environments are stepped by one call.
        """
        adapter = open_adapter(self.make())
        rules = self.rules or [Rule(f"{name}*", name) for name in dict.fromkeys(map(group, adapter.agents))]
        actors: dict[str, Actor] = {}
        for agent, policy in assign(adapter.agents, rules).items():
            if policy not in actors:
                seen = Spaces(adapter.observation_space(agent), adapter.action_space(agent), adapter.masked(agent))
                torso = CNN() if self.pixels else MLP(hidden_sizes=(64, 64))
                actors[policy] = stochastic_actor(seen, torso, torch.Generator().manual_seed(0))
        adapter.close()
        makers = {policy: partial(as_it_is, actor) for policy, actor in actors.items()}
        make_batched = batched_maker(self.factory, {}, self.wrappers, batched)
        env_indices = range(num_envs or self.num_envs)
        return RolloutWorker(SamplerConfig(self.make, env_indices, rules, seed=0, make_batched=make_batched), makers)


def _gray(env: Any) -> Any:
    return supersuit.color_reduction_v0(env, mode="full")


def _small(env: Any) -> Any:
    return supersuit.resize_v1(env, x_size=84, y_size=84)


def _stacked(env: Any) -> Any:
    return supersuit.frame_stack_v2(env, stack_size=4)


CASES = (
    Case(
        "cartpole_team",
        0.55,
        "marlflow.env.games.cartpole_team.parallel_env",
        rules=(Rule("cart_[01]", "left"), Rule("cart_[23]", "right")),
        num_envs=128,
        ticks=64,
    ),
    Case("connect_four", 0.60, "pettingzoo.classic.connect_four_v3.env"),
    Case("leduc_holdem", 0.60, "pettingzoo.classic.leduc_holdem_v4.env"),
    Case("simple_spread", 0.80, "mpe2.simple_spread_v3.parallel_env"),
    Case("knights_archers_zombies", 0.85, "pettingzoo.butterfly.knights_archers_zombies_v11.parallel_env", turn_s=1.0),
    Case(
        "pistonball",
        0.85,
        "pettingzoo.butterfly.pistonball_v6.parallel_env",
        wrappers=(_gray, _small, _stacked),
        num_envs=2,
        ticks=32,
        turn_s=1.0,
        pixels=True,
    ),
)
