"""A plan with a stage of one's own: PPO with a bonus for exploration.

Each agent has a safe whose dial is cleared by the first wrong digit. `plain` learns with PPO and never receives a
reward. `curious` learns with PPO too, but its plan has one more stage, which adds a bonus for rare observations to each
reward (Strehl & Littman, 2008, doi:10.1016/j.jcss.2007.08.009). Both learn at the same time, in the same run.

    python examples/03_a_plan_of_your_own.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.base.schedules import initial_value
from marlflow.batches.batch import Batch
from marlflow.batches.items import Fragment, Update
from marlflow.flow import Flow, Plan
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.stages import Advantages, Concat, DropStale, Learn, Normalize, Publish

CODE = (2, 0, 3, 1, 1, 3, 0, 2, 3, 0)
DIGITS = 4


class Safes(ParallelEnv):  # type: ignore[misc]  # PettingZoo's classes have no types
    """Each agent has its own safe, and observes how many digits of the code it has dialed. Opening the safe gives 1.

    A wrong digit clears the dial. Random actions open it about once in a million attempts.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "safes_v0"}
    possible_agents: ClassVar[list[str]] = ["curious_0", "curious_1", "plain_0", "plain_1"]

    def __init__(self, max_cycles: int = 40) -> None:
        self.max_cycles = max_cycles
        self.agents: list[str] = []
        self.sees = {agent: Box(0.0, 1.0, (len(CODE) + 1,), np.float32) for agent in self.possible_agents}
        self.does = {agent: Discrete(DIGITS) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Box:
        return self.sees[agent]

    def action_space(self, agent: str) -> Discrete:
        return self.does[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self.cycle = list(self.possible_agents), 0
        self.dialled = dict.fromkeys(self.agents, 0)
        return self.observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.cycle += 1
        playing, is_late = self.agents, self.cycle >= self.max_cycles
        for agent in playing:
            is_right = actions[agent] == CODE[self.dialled[agent]]
            self.dialled[agent] = self.dialled[agent] + 1 if is_right else 0
        opened = {agent: self.dialled[agent] == len(CODE) for agent in playing}
        truncated = {agent: is_late and not opened[agent] for agent in playing}
        self.agents = [agent for agent in playing if not (opened[agent] or is_late)]
        rewards = {agent: float(opened[agent]) for agent in playing}
        return self.observations(playing), rewards, opened, truncated, {agent: {} for agent in playing}

    def observations(self, agents: list[str]) -> dict[str, Any]:
        return {agent: np.eye(len(CODE) + 1, dtype=np.float32)[self.dialled[agent]] for agent in agents}


@dataclass
class Curiosity:
    """Adds weight / sqrt(n) to the reward of a row whose observation occurred n times so far.

    The plan runs it at the learner, whose process has the rows; the counts are kept there.
    """

    weight: float
    times_seen: dict[bytes, int] = field(default_factory=dict, repr=False)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the bonus added to its rewards."""
        kinds, kind, times = np.unique(batch["obs"], axis=0, return_inverse=True, return_counts=True)
        for one, more in zip(kinds, times, strict=True):
            self.times_seen[one.tobytes()] = self.times_seen.get(one.tobytes(), 0) + int(more)
        seen = np.array([self.times_seen[one.tobytes()] for one in kinds])
        return batch.with_columns(reward=batch["reward"] + self.weight / np.sqrt(seen[kind.ravel()]))


@dataclass
class Progress:
    """Prints the learner's reports and passes them on. It has no place, so it runs on the driver."""

    every_updates: int = 500
    updates: int = field(default=0, repr=False)

    def __call__(self, update: Update) -> Update:
        """Print the report, and return it unchanged."""
        before, self.updates = self.updates, self.updates + update.updates
        if self.updates // self.every_updates > before // self.every_updates:
            print(f"{update.learner} after {self.updates} updates: entropy {update.loss['entropy']:.2f}")
        return update


@dataclass(frozen=True)
class CuriousPPO(mf.PPO):
    """PPO with one more setting and two more stages; actor, learner, and loss are PPO's."""

    name: ClassVar[str] = "curious_ppo"

    curiosity: float = 0.1

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        reports = (
            experience.gather(Concat(agent_steps=self.batch_agent_steps))
            .then(DropStale(self.max_staleness), at=learner)
            .then(Curiosity(self.curiosity), at=learner)
            .then(Advantages(initial_value(self.discount), initial_value(self.gae_lambda)), at=learner)
            .then(Normalize(), at=learner)
            .then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(Publish(), at=learner)
            .then(Progress())
        )
        return Plan("curious_ppo", output=reports, waits_for_rounds=True)


def main() -> None:
    """Train both policies in one run, and print how many safes each opens."""
    experiment = mf.Experiment(
        env=mf.Env(Safes),
        policies={
            "curious": mf.Policy(CuriousPPO(batch_agent_steps=1_500, learning_rate=1e-3)),
            "plain": mf.Policy(mf.PPO(batch_agent_steps=1_500, learning_rate=1e-3)),
        },
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=40_000),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=5_000),
        name="safes",
    )
    print(mf.plan(experiment))
    result = mf.train(experiment)

    for name in experiment.policies:
        opened = result.metrics["policies"][name]["return_mean"]
        print(f"{name}: opened {opened:.0%} of its safes, over the last 100 episodes")


if __name__ == "__main__":
    main()
