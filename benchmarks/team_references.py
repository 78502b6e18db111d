"""Returns of scripted teams in four tasks of mpe2: what the bars of team_bars.py, and of the suite mpe, lie between.

    python -m benchmarks.team_references [episodes]

All of them see the whole world. An agent with a target takes the action after which it would coast nearest to it,
if it were as strong as those of simple_spread (predators are weaker). In
simple_tag and simple_adversary, the other side is played by the trained opponents of the suite, which need JaxMARL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import permutations
from typing import Any

import numpy as np
from mpe2 import simple_adversary_v3, simple_speaker_listener_v4, simple_spread_v3, simple_tag_v3
from numpy.typing import NDArray

import marlflow as mf

Vector = NDArray[np.float64]
Targets = Callable[[Any], list[Vector]]
"""Returns where each agent of the team that moves shall go, given the world."""
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


def chase(world: Any) -> list[Vector]:
    """Send all predators to where the prey is."""
    (prey,) = (agent for agent in world.agents if not agent.adversary)
    return [prey.state.p_pos for agent in world.agents if agent.adversary]


def hide(world: Any) -> list[Vector]:
    """Send an agent to each landmark, so that the adversary cannot tell which is the goal."""
    team = [agent for agent in world.agents if not agent.adversary]

    def total(places: tuple[Vector, ...]) -> float:
        return sum(float(np.linalg.norm(at - agent.state.p_pos)) for at, agent in zip(places, team, strict=True))

    return list(min(permutations(_places(world)), key=total))


def returns(
    env: Any, targets: Targets | None, episodes: int, team: str = "", opponents: mf.Team | None = None
) -> list[float]:
    """Return the mean return of an agent of a team in each episode; without `targets`, its actions are random.

    Names of its agents begin with `team`. Against `opponents`, which play the others, agents go where targets are in
    each env step; otherwise, where they were at the start.
    """
    random, found = np.random.default_rng(0), []
    env.reset(seed=0)
    for _ in range(episodes):
        observations, _ = env.reset()
        world, total = env.unwrapped.world, 0.0
        if opponents is not None:
            opponents.reset()
        goals = targets(world) if targets is not None else []
        movers = [agent for agent in world.agents if agent.movable and agent.name.startswith(team)]
        while env.agents:
            actions = {agent: int(random.integers(env.action_space(agent).n)) for agent in env.agents}
            if opponents is not None:
                others = [agent for agent in env.agents if not agent.startswith(team)]
                actions |= {agent: opponents.act(agent, observations[agent]) for agent in others}
                goals = targets(world) if targets is not None else []
            for agent, goal in zip(movers, goals, strict=bool(goals)):
                actions[agent.name] = toward(goal, agent.state.p_pos, agent.state.p_vel)
            observations, rewards, *_ = env.step(actions)
            total += float(np.mean([reward for agent, reward in rewards.items() if agent.startswith(team)]))
        found.append(total)
    return found


def main(episodes: int = 500) -> None:
    """Print the mean return of an agent in each scripted team, with its standard error."""
    spread: dict[str, Targets | None] = {"random": None, "nearest": nearest, "assigned": assigned}
    listener: dict[str, Targets | None] = {"random": None, "deaf": deaf, "told": told}
    tag: dict[str, Targets | None] = {"random": None, "chase": chase}
    adversary: dict[str, Targets | None] = {"random": None, "hide": hide}
    games = (
        ("simple_spread", simple_spread_v3, spread, "", None),
        ("simple_speaker_listener", simple_speaker_listener_v4, listener, "", None),
        ("simple_tag", simple_tag_v3, tag, "adversary", "gallery:mpe_tag_ppo"),
        ("simple_adversary", simple_adversary_v3, adversary, "agent", "gallery:mpe_adversary_ppo"),
    )
    for name, module, teams, team, opponents in games:
        env = module.parallel_env(max_cycles=25)
        if opponents is not None and find_spec("jaxmarl") is None:
            print(f"{name} is left out: its opponents need pip install 'marlflow[jaxmarl]'", flush=True)
            continue
        loaded = None if opponents is None else mf.load(opponents)
        for scripted, targets in teams.items():
            found = returns(env, targets, episodes, team, loaded)
            print(f"{name} {scripted}: {np.mean(found):.2f} +- {np.std(found) / len(found) ** 0.5:.2f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
