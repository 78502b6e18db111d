"""Stands between an environment and whoever plays it, and writes down what the environment shows, is told and issues.

Plain lists, one agent at a time, and none of marlflow's code: what is written here is what rows are held against.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv


@dataclass(eq=False)
class Decision:
    """What an agent was shown, what it did, and every amount it was issued until it was asked again or had ended."""

    shown: bytes
    mask: list[bool] | None
    action: Any
    t_env: int
    issued: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class End:
    """An agent's end, after so many of its decisions; `shown` is None where the environment shows nothing any more."""

    decisions: int
    terminated: bool
    truncated: bool
    shown: bytes | None
    mask: list[bool] | None


@dataclass(eq=False)
class Account:
    """One agent in one episode. `unattributed` came before its first decision, or after an end."""

    decisions: list[Decision] = field(default_factory=list)
    issued: list[float] = field(default_factory=list)
    unattributed: list[float] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    alive: bool = False


class Episode:
    """Everything that happened since a reset."""

    def __init__(self, agents: list[str]) -> None:
        self.accounts = {agent: Account() for agent in agents}
        self.env_steps = 0
        self.over = False

    def decided(self, agent: str, shown: Any, action: Any) -> None:
        account = self.accounts[agent]
        account.decisions.append(Decision(*shown, action, self.env_steps))
        account.alive = True

    def received(self, rewards: dict[str, float]) -> None:
        for agent, reward in rewards.items():
            account = self.accounts[agent]
            amount = float(reward)
            assert type(reward)(amount) == reward, f"{reward!r} is no float64"
            account.issued.append(amount)
            (account.decisions[-1].issued if account.alive else account.unattributed).append(amount)

    def ended(self, agent: str, terminated: bool, truncated: bool, shown: Any, mask: Any) -> None:
        account = self.accounts[agent]
        account.ends.append(End(len(account.decisions), bool(terminated), bool(truncated), shown, mask))
        account.alive = False


Journal = dict[int, Episode]  # by the seed of the reset


def exact(amounts: list[float]) -> Fraction:
    """The sum without any rounding."""
    return sum(map(Fraction, amounts), Fraction(0))


def in_turn(amounts: list[float]) -> float:
    """The float64 sum, one after the other."""
    total = 0.0
    for amount in amounts:
        total += amount
    return total


def digest(row: np.ndarray) -> bytes:
    """Short for the contents of an array."""
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest()


def shown_as(env: Any, agent: str, observation: Any, info: Any) -> tuple[bytes | None, list[bool] | None]:
    """An observation, as a column of its space's own dtype has it (float64 as float32), and the mask."""
    if observation is None:
        return None, None
    space, mask = env.observation_space(agent), (info or {}).get("action_mask")
    if isinstance(space, spaces.Dict) and "action_mask" in space.spaces:
        mask = observation["action_mask"]
        observation, space = observation["observation"], space["observation"]
    if isinstance(space, spaces.Box):
        dtype = np.float32 if space.dtype == np.float64 else space.dtype
        row = np.asarray(observation).astype(dtype)
    else:
        row = np.asarray(spaces.flatten(space, observation)).astype(np.float32)
    return digest(row), None if mask is None else np.asarray(mask).astype(bool).tolist()


class WatchedAEC:
    """Writes the episodes of the AEC environment `env` into `journal`."""

    def __init__(self, env: AECEnv, journal: Journal) -> None:
        self.env, self.journal = env, journal
        self.reset_env, self.step_env = env.reset, env.step

    def reset(self, seed=None, options=None):
        self.reset_env(seed=seed, options=options)
        self.episode = self.journal[seed] = Episode(self.env.possible_agents)

    def step(self, action):
        env, episode = self.env, self.episode
        agent, before = env.agent_selection, list(env.agents)
        shown = shown_as(env, agent, env.observe(agent), env.infos[agent])
        flags = env.terminations[agent], env.truncations[agent]
        dead = any(flags)
        if not dead:
            episode.decided(agent, shown, action)
            episode.env_steps += 1
        self.step_env(action)
        episode.received(env.rewards)
        if dead:
            episode.ended(agent, *flags, *shown)
        for other in before:
            if other not in env.agents and not (dead and other == agent):
                episode.ended(other, *self.flags(other), *_NOTHING)
        episode.over = not env.agents

    def flags(self, agent):
        found = self.env.terminations.get(agent, False), self.env.truncations.get(agent, False)
        return found if any(found) else (False, True)


class WatchedParallel:
    """Writes the episodes of the Parallel environment `env` into `journal`."""

    def __init__(self, env: Any, journal: Journal) -> None:
        self.env, self.journal = env, journal
        self.reset_env, self.step_env = env.reset, env.step

    def reset(self, seed=None, options=None):
        observations, infos = self.reset_env(seed=seed, options=options)
        self.episode = self.journal[seed] = Episode(self.env.possible_agents)
        self.show(observations, infos)
        return observations, infos

    def show(self, observations, infos):
        self.shown = {
            agent: shown_as(self.env, agent, observation, infos.get(agent))
            for agent, observation in observations.items()
        }

    def step(self, actions):
        episode = self.episode
        for agent, action in actions.items():
            episode.decided(agent, self.shown[agent], action)
        episode.env_steps += 1
        observations, rewards, terminations, truncations, infos = self.step_env(actions)
        episode.received(rewards)
        self.show(observations, infos)
        for agent in actions:
            flags = terminations.get(agent, False), truncations.get(agent, False)
            if any(flags) or agent not in self.env.agents:
                episode.ended(agent, *(flags if any(flags) else (False, True)), *self.shown.get(agent, _NOTHING))
        episode.over = not self.env.agents
        return observations, rewards, terminations, truncations, infos


_NOTHING = (None, None)


def watched(env: Any, journal: Journal) -> Any:
    """`env` itself, of whichever kind, with its episodes written into `journal`.

    It is not wrapped, so that whoever looks through wrappers sees what it would see without being watched.
    """
    watcher = (WatchedAEC if isinstance(env, AECEnv) else WatchedParallel)(env, journal)
    env.reset, env.step = watcher.reset, watcher.step
    return env
