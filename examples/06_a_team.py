"""A team that one learner trains, and a policy that learns alone with another algorithm, in one run.

A lookout and a crane see different things and earn together; one learner trains both with VDN, on what both do in the
same step. On the same rollouts, a truck learns with PPO what the lookout's flags have come to mean. Read
the experiment at the end of this file first; everything above it is the environment, which uses nothing of marlflow.

    python examples/06_a_team.py          one process, some twenty seconds
"""

import json
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

import marlflow as mf

DOCKS = 2
SHIPS = 10


class Harbor(ParallelEnv):  # type: ignore[misc]  # PettingZoo's classes have no types
    """Ten ships come, one per step; the lookout sees the dock of each, and shows one of two flags.

    In the next step, the crane and the truck see that flag, and each goes to a dock. The lookout and the crane receive
    1 each if the crane is where the ship is, the truck receives 1 if it is there itself. At first, flags mean nothing.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "harbor_v0"}
    possible_agents: ClassVar[list[str]] = ["lookout_0", "crane_0", "truck_0"]

    def __init__(self) -> None:
        self.agents: list[str] = []
        # One number for each dock or flag; the crane and the truck also see whether any flag was shown yet.
        widths = {"lookout_0": DOCKS, "crane_0": DOCKS + 1, "truck_0": DOCKS + 1}
        self.sees = {agent: Box(0.0, 1.0, (width,), np.float32) for agent, width in widths.items()}
        self.does = {agent: Discrete(DOCKS) for agent in widths}
        self.random = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        return self.sees[agent]

    def action_space(self, agent: str) -> Discrete:
        return self.does[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.step_number = self.possible_agents[:], 0
        self.flag, self.unloading, self.arriving = DOCKS, -1, int(self.random.integers(DOCKS))
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.step_number += 1
        crane_is_right, truck_is_right = (actions[agent] == self.unloading for agent in ("crane_0", "truck_0"))
        self.flag = actions["lookout_0"]
        self.unloading, self.arriving = self.arriving, int(self.random.integers(DOCKS))

        agents, is_over = self.agents, self.step_number > SHIPS
        if is_over:
            self.agents = []
        rewards = {"lookout_0": crane_is_right, "crane_0": crane_is_right, "truck_0": truck_is_right}
        terminated, truncated = dict.fromkeys(agents, is_over), dict.fromkeys(agents, False)
        as_numbers = {agent: float(reward) for agent, reward in rewards.items()}
        return self.observations(), as_numbers, terminated, truncated, {agent: {} for agent in agents}

    def observations(self) -> dict[str, Any]:
        """Return the observation of each agent."""
        docks, flags = np.eye(DOCKS, dtype=np.float32), np.eye(DOCKS + 1, dtype=np.float32)
        return {"lookout_0": docks[self.arriving], "crane_0": flags[self.flag], "truck_0": flags[self.flag]}


def main() -> None:
    """Train the team and the truck, and print their mean returns."""
    team = mf.VDN(
        batch_agent_steps=128,
        train_every_agent_steps=16,
        learning_starts_agent_steps=1_000,
        learning_rate=2e-3,
        discount=0.5,  # a flag is worth what follows in the next step
        n_step=2,
        target_every_updates=50,
        epsilon=mf.Linear(1.0, 0.02, 6_000),
    )
    experiment = mf.Experiment(
        env=mf.Env(Harbor),
        policies={  # members of a team have a model, and no algorithm of their own
            "lookout": mf.Policy(model=mf.MLP((32,))),
            "crane": mf.Policy(model=mf.MLP((32,))),
            "truck": mf.Policy(mf.PPO(batch_agent_steps=400, learning_rate=5e-3, discount=0.5)),
        },
        learners={"harbor": mf.LearnerConfig(["lookout", "crane"], team)},
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=10_000),
        evaluation=mf.Evaluation(every_env_steps=5_000),
        log=mf.Log(every_env_steps=2_000),
        name="harbor",
    )
    print(mf.plan(experiment))
    result = mf.train(experiment)

    reports = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    for name, algorithm in {"harbor": "vdn", "truck": "ppo"}.items():
        first, last = (report["learners"][name]["return_mean"] for report in (reports[0], reports[-1]))
        print(f"{name} ({algorithm}): {first:.1f} of {SHIPS} ships at first, {last:.1f} in the end")


if __name__ == "__main__":
    main()
