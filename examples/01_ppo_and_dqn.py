"""PPO and DQN side by side, on an environment of one's own.

Couriers learn with PPO, customers with DQN, both from the same rollouts. Read the experiment at the end of this file
first; everything above it is the environment, which uses nothing of marlflow.

    python examples/01_ppo_and_dqn.py          one process, some ten seconds
    python examples/01_ppo_and_dqn.py --ray    workers and learners are separate processes
"""

import json
import sys
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

import marlflow as mf

CELLS = 12
MOVES = (-1, 0, 1)


class Deliveries(ParallelEnv):  # type: ignore[misc]  # PettingZoo's classes have no types
    """`courier_i` and `customer_i` walk on a ring of 12 cells, and are to meet as often as possible.

    Each observes how many cells ahead the other is, and steps back, waits, or steps ahead. When they share a cell, both
    receive 1 and the customer moves to another cell; each step costs a courier 0.1. Two neighbors that step towards
    each other swap places and do not meet, so a pair also needs a convention: who waits.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "deliveries_v0"}

    def __init__(self, pairs: int = 2, max_cycles: int = 40) -> None:
        self.pairs, self.max_cycles = pairs, max_cycles
        self.possible_agents = [f"{role}_{pair}" for role in ("courier", "customer") for pair in range(pairs)]
        self.agents: list[str] = []
        self.sees = {agent: Box(0.0, 1.0, (CELLS,), np.float32) for agent in self.possible_agents}
        self.does = {agent: Discrete(len(MOVES)) for agent in self.possible_agents}
        self.random = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        return self.sees[agent]

    def action_space(self, agent: str) -> Discrete:
        return self.does[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.cycle = 0
        self.courier = self.random.integers(CELLS, size=self.pairs)
        self.customer = self.elsewhere()
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.cycle += 1
        moves = np.array([MOVES[actions[agent]] for agent in self.possible_agents])
        self.courier = (self.courier + moves[: self.pairs]) % CELLS
        self.customer = (self.customer + moves[self.pairs :]) % CELLS
        met = self.courier == self.customer
        received = np.concatenate([met - 0.1 * np.abs(moves[: self.pairs]), met])
        self.customer = np.where(met, self.elsewhere(), self.customer)

        agents, is_over = self.agents, self.cycle >= self.max_cycles
        if is_over:
            self.agents = []
        rewards = dict(zip(agents, received.tolist(), strict=True))
        terminated, truncated = dict.fromkeys(agents, False), dict.fromkeys(agents, is_over)
        return self.observations(), rewards, terminated, truncated, {agent: {} for agent in agents}

    def elsewhere(self) -> Any:
        """Return a random cell for each customer, other than its courier's."""
        return (self.courier + self.random.integers(1, CELLS, size=self.pairs)) % CELLS

    def observations(self) -> dict[str, Any]:
        """Return the observation of each agent."""
        ahead = (self.customer - self.courier) % CELLS
        seen = np.eye(CELLS, dtype=np.float32)[np.concatenate([ahead, -ahead % CELLS])]
        return dict(zip(self.possible_agents, seen, strict=True))


def main() -> None:
    """Train both policies, and print their mean returns."""
    experiment = mf.Experiment(
        env=mf.Env(Deliveries, {"pairs": 2}),
        policies={  # the policy of a group's name plays the group: courier_0 and courier_1, customer_0 and customer_1
            "courier": mf.Policy(mf.PPO(batch_agent_steps=1_500, learning_rate=1e-3)),
            "customer": mf.Policy(mf.DQN(epsilon=mf.Linear(1.0, 0.05, 15_000), learning_rate=1e-3)),
        },
        runtime=mf.RuntimeConfig("ray" if "--ray" in sys.argv else "inline"),
        stop=mf.Stop(env_steps=20_000),
        evaluation=mf.Evaluation(every_env_steps=5_000),
        log=mf.Log(every_env_steps=2_000),
        name="deliveries",
    )
    print(mf.plan(experiment))
    result = mf.train(experiment)

    reports = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    for name, policy in experiment.policies.items():
        first, last = (report["policies"][name]["return_mean"] for report in (reports[0], reports[-1]))
        print(f"{name} ({policy.algorithm.name}): mean return {first:.1f} at first, {last:.1f} in the end")


if __name__ == "__main__":
    main()
