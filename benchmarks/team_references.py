"""Returns of scripted teams in simple_spread and simple_speaker_listener: what the bars of team_bars.py lie between.

    python -m benchmarks.team_references [episodes]

All of them see the whole world. An agent with a target takes the action after which it would coast nearest to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
from mpe2 import simple_speaker_listener_v4, simple_spread_v3
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Targets = Callable[[Any], list[Vector]]
"""Returns where each agent that moves shall go, given the world at the start of an episode."""
# The directions of the actions: none, left, right, down, up.
_DIRECTIONS = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)], np.float64)
_THRUST, _DT, _KEPT = 5.0, 0.1, 0.75
"""Force of an action on a mass of 1, seconds of an env step, and the share of its speed that an agent keeps in it."""


def toward(target: Vector, position: Vector, velocity: Vector) -> int:
    """Return the action after which an agent would come to rest nearest to its target."""
    speeds = _KEPT * velocity + _THRUST * _DT * _DIRECTIONS
    rests = position + _DT * speeds / (1.0 - _KEPT)
    return int(np.linalg.norm(rests - target, axis=1).argmin())


def _places(world: Any) -> list[Vector]:
    return [landmark.state.p_pos for landmark in world.landmarks]


def nearest(world: Any) -> list[Vector]:
    """Send each agent to the landmark nearest to it."""
    return [min(_places(world), key=lambda place: float(np.linalg.norm(place - a.state.p_pos))) for a in world.agents]


def assigned(world: Any) -> list[Vector]:
    """Send each agent to a landmark of its own, with the least sum of distances."""

    def total(places: tuple[Vector, ...]) -> float:
        pairs = zip(places, world.agents, strict=True)
        return sum(float(np.linalg.norm(place - agent.state.p_pos)) for place, agent in pairs)

    return list(min(permutations(_places(world)), key=total))


def told(world: Any) -> list[Vector]:
    """Send the listener to the landmark that the speaker sees."""
    return [world.agents[0].goal_b.state.p_pos]


def deaf(world: Any) -> list[Vector]:
    """Send the listener to the center of the landmarks, which is best if it knows nothing."""
    return [np.mean(_places(world), axis=0)]


def returns(env: Any, targets: Targets | None, episodes: int) -> list[float]:
    """Return the mean return of an agent in each episode; without `targets`, actions are random."""
    random, found = np.random.default_rng(0), []
    env.reset(seed=0)
    for _ in range(episodes):
        env.reset()
        world, total = env.unwrapped.world, 0.0
        goals = targets(world) if targets is not None else []
        movers = [agent for agent in world.agents if agent.movable]
        while env.agents:
            actions = {agent: int(random.integers(env.action_space(agent).n)) for agent in env.agents}
            for agent, goal in zip(movers, goals, strict=bool(goals)):
                actions[agent.name] = toward(goal, agent.state.p_pos, agent.state.p_vel)
            _, rewards, *_ = env.step(actions)
            total += float(np.mean(list(rewards.values())))
        found.append(total)
    return found


def main(episodes: int = 500) -> None:
    """Print the mean return of each scripted team, with its standard error."""
    spread: dict[str, Targets | None] = {"random": None, "nearest": nearest, "assigned": assigned}
    listener: dict[str, Targets | None] = {"random": None, "deaf": deaf, "told": told}
    games = (
        ("simple_spread", simple_spread_v3, spread),
        ("simple_speaker_listener", simple_speaker_listener_v4, listener),
    )
    for name, module, teams in games:
        env = module.parallel_env(max_cycles=25)
        for team, targets in teams.items():
            found = returns(env, targets, episodes)
            print(f"{name} {team}: {np.mean(found):.2f} +- {np.std(found) / len(found) ** 0.5:.2f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
