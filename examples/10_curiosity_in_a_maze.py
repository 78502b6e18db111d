"""Curiosity as a part of PPO: a walker finds the only reward of a maze, 48 steps away, which plain PPO never sees.

The corridor winds four times, and an episode ends after 100 steps, so that random walks do not get far.
`RandomNetworkDistillation` pays for cells that were seldom seen, and PPO's file knows nothing of it.

    python examples/10_curiosity_in_a_maze.py          one process, a minute or two
"""

import sys
from typing import Any, ClassVar

from gymnasium import spaces
from pettingzoo import ParallelEnv
from random_network_distillation import RandomNetworkDistillation

import marlflow as mf

MAZE = (
    "S........",
    "########.",
    ".........",
    ".########",
    ".........",
    "########.",
    ".........",
    ".########",
    "........G",
)
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
WIDTH, STEPS = len(MAZE[0]), 100


class Maze(ParallelEnv):
    """A walker sees its cell, and gets 1 at the goal, where the episode ends."""

    metadata: ClassVar[dict[str, Any]] = {"name": "maze_v0", "render_modes": []}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["walker"]
        self.agents: list[str] = []
        self.cells, self.moves = spaces.Discrete(WIDTH * len(MAZE)), spaces.Discrete(len(MOVES))

    def observation_space(self, agent: str) -> spaces.Space:
        return self.cells

    def action_space(self, agent: str) -> spaces.Space:
        return self.moves

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.at, self.step_count = ["walker"], (0, 0), 0
        return {"walker": 0}, {"walker": {}}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        row, column = (place + by for place, by in zip(self.at, MOVES[actions["walker"]], strict=True))
        if 0 <= row < len(MAZE) and 0 <= column < WIDTH and MAZE[row][column] != "#":
            self.at = row, column
        self.step_count += 1
        is_there = MAZE[self.at[0]][self.at[1]] == "G"
        is_over = self.step_count >= STEPS
        if is_there or is_over:
            self.agents = []
        seen = {"walker": self.at[0] * WIDTH + self.at[1]}
        return (
            seen,
            {"walker": float(is_there)},
            {"walker": is_there},
            {"walker": is_over and not is_there},
            {"walker": {}},
        )


def found(parts: dict[str, mf.Part], seed: int, env_steps: int) -> float:
    """Train, and return the share of episodes at the end in which the goal was reached."""
    ppo = mf.PPO(
        batch_agent_steps=1_024,
        minibatch_agent_steps=256,
        epochs=4,
        learning_rate=1e-3,
        entropy_coefficient=0.01,
        parts=parts,
    )
    experiment = mf.Experiment(
        env=mf.Env(Maze, num_envs=16),
        policies={"walker": mf.Policy(ppo, mf.MLP((64,)))},
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=1_024),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0, final_episodes=100),
        log=mf.Log(every_env_steps=8_192, console="none", tensorboard=False),
        name="curious" if parts else "plain",
        seed=seed,
    )
    return mf.train(experiment).metrics["policies"]["walker"]["eval_return_mean"]


def main() -> None:
    """Train without and with the part, with the seeds on the command line, and print how often the goal is reached."""
    for seed in [int(word) for word in sys.argv[1:]] or [0]:
        plain = found({}, seed, 200_000)
        curious = found({"curiosity": RandomNetworkDistillation(mf.Linear(1.0, 0.0, 200_000))}, seed, 200_000)
        print(f"seed {seed}: plain PPO reaches the goal in {plain:.0%} of episodes, with curiosity in {curious:.0%}")


if __name__ == "__main__":
    main()
