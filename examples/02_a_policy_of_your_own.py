"""A scripted policy of one's own, and a network of one's own that learns to beat it.

Rock, paper, scissors in many rounds. `champion` is a function written by hand: random, except for a habit. `student`
learns with PPO and a network written here, which reads the last rounds in order. It begins with a mean return of zero
and discovers the habit.

    python examples/02_a_policy_of_your_own.py
"""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv
from torch import Tensor, nn

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom

ROCK, PAPER, SCISSORS = range(3)
ROUNDS_SEEN = 3


class RockPaperScissors(ParallelEnv):  # type: ignore[misc]  # PettingZoo's classes have no types
    """20 rounds between `champion` and `student`: 1 for a round won, -1 for a round lost.

    Each observes the last three rounds, oldest first, as [3, 6]: its own throw and the other's, one-hot, or zeros
    before the first round.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "rock_paper_scissors_v0"}
    possible_agents: ClassVar[list[str]] = ["champion", "student"]

    def __init__(self, rounds: int = 20) -> None:
        self.rounds = rounds
        self.agents: list[str] = []
        self.sees = {agent: Box(0.0, 1.0, (ROUNDS_SEEN, 6), np.float32) for agent in self.possible_agents}
        self.does = {agent: Discrete(3) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Box:
        return self.sees[agent]

    def action_space(self, agent: str) -> Discrete:
        return self.does[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        self.played = 0
        self.seen = {agent: np.zeros((ROUNDS_SEEN, 6), np.float32) for agent in self.agents}
        return dict(self.seen), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.played += 1
        rewards, throws = {}, np.eye(3, dtype=np.float32)
        for agent, other in zip(self.agents, reversed(self.agents), strict=True):
            own, theirs = actions[agent], actions[other]
            rewards[agent] = (0.0, 1.0, -1.0)[(own - theirs) % 3]
            self.seen[agent] = np.vstack([self.seen[agent][1:], [np.concatenate([throws[own], throws[theirs]])]])
        agents, is_over = self.agents, self.played >= self.rounds
        if is_over:
            self.agents = []
        terminated, truncated = dict.fromkeys(agents, is_over), dict.fromkeys(agents, False)
        return dict(self.seen), rewards, terminated, truncated, {agent: {} for agent in agents}


def habit(obs: Array, action_mask: Array | None, random: RowRandom) -> Array:  # noqa: ARG001  (every throw is legal)
    """Beat the student's throw of two rounds ago, nine times out of ten; otherwise throw at random.

    A scripted policy: `obs` is [N, 3, 6], and it returns N actions. `random` has an independent stream for each row, so
    the same seed gives the same games for any number of workers.
    """
    two_ago = obs[:, -2, 3:]
    beats_it = (two_ago.argmax(axis=1) + 1) % 3
    anything = (random.uniform() * 3).astype(int)
    has_memory = two_ago.any(axis=1)
    return np.where(has_memory & (random.uniform() < 0.9), beats_it, anything)


class ReadsInOrder(nn.Module):
    """A GRU over the rounds; its last state is the features."""

    def __init__(self, columns: int, hidden_size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(columns, hidden_size, batch_first=True)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features [N, hidden_size] of `obs` [N, rounds, columns]."""
        _, last = self.gru(obs)
        return last[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Reader:
    """The settings of a network of one's own, for a policy's `model`."""

    hidden_size: int = 32

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        """Return the network and its number of features; algorithms add their heads on top."""
        network = ReadsInOrder(obs_shape[-1], self.hidden_size)
        for weights in network.parameters():
            nn.init.uniform_(weights, -0.2, 0.2, generator=generator)
        return network, self.hidden_size


def main() -> None:
    """Train the student, and print its mean returns."""
    experiment = mf.Experiment(
        env=mf.Env(RockPaperScissors),
        policies={
            "champion": mf.Policy(mf.Scripted(habit)),
            "student": mf.Policy(mf.PPO(batch_agent_steps=1_000, learning_rate=3e-3), model=Reader()),
        },
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=30_000),
        evaluation=mf.Evaluation(every_env_steps=5_000),
        log=mf.Log(every_env_steps=2_000),
        name="rock_paper_scissors",
    )
    result = mf.train(experiment)

    reports = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    first, last = (report["policies"]["student"]["return_mean"] for report in (reports[0], reports[-1]))
    print(f"student: {first:+.1f} of 20 rounds at first, {last:+.1f} in the end; who knows the habit expects 16.2")


if __name__ == "__main__":
    main()
