"""Three groups that see different things, and an algorithm that trains the policies of several of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv
from torch import Tensor, nn

import marlflow as mf
from marlflow.base.arrays import Array

WIDTHS = {"speaker": 2, "listener": 3, "walker": 4}
EPISODE = 7


class ThreeGroups(ParallelEnv[str, Array, Any]):
    """One agent of each group: it sees noise, and is paid if its action is 1 where its first number is positive.

    The speaker leaves early, at times.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "three_groups_v0"}

    def __init__(self) -> None:
        self.possible_agents = [f"{group}_0" for group in WIDTHS]
        self.agents: list[str] = []
        self._random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> Box:
        return Box(-1.0, 1.0, (WIDTHS[agent.partition("_")[0]],), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2 if agent != "listener_0" else 3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self._step = self.possible_agents[:], 0
        if seed is not None:
            self._random = np.random.default_rng(seed)
        return self._see(self.agents), {agent: {} for agent in self.agents}

    def _see(self, agents: Sequence[str]) -> dict[str, Array]:
        self._seen = {
            a: self._random.uniform(-1.0, 1.0, WIDTHS[a.partition("_")[0]]).astype(np.float32) for a in agents
        }
        return dict(self._seen)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        playing, self._step = self.agents, self._step + 1
        rewards = {agent: float(int(actions[agent]) == int(self._seen[agent][0] > 0)) for agent in playing}
        terminated = {agent: agent == "speaker_0" and bool(self._random.random() < 0.2) for agent in playing}
        truncated = {agent: self._step >= EPISODE and not terminated[agent] for agent in playing}
        self.agents = [agent for agent in playing if not terminated[agent] and not truncated[agent]]
        return self._see(playing), rewards, terminated, truncated, {agent: {} for agent in playing}


class TeamNetwork(nn.Module):
    """An actor for each policy, and one linear critic of what all of them see."""

    def __init__(self, members: Mapping[str, mf.Member], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.actors = nn.ModuleDict(
            {name: mf.PPO().actor(one.spaces, one.model, seed + n) for n, (name, one) in enumerate(members.items())}
        )
        self.critic = nn.Linear(sum(one.spaces.obs_shape[0] for one in members.values()), 1)


class TeamLoss:
    """The policy gradient of each member by the reward of all, above what the critic expects of what all see."""

    def __init__(self, members: Sequence[str]) -> None:
        self.members = members

    def set_schedule(self, values: Mapping[str, float]) -> None:
        pass

    def __call__(self, module: Any, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        def column(policy: str, name: str) -> Tensor:
            return minibatch[f"{policy}:{name}"][:, 0]  # one agent each

        present = {name: column(name, "present").float() for name in self.members}
        seen = torch.cat([column(name, "obs") for name in self.members], 1)
        reward: Any = sum(column(name, "reward") for name in self.members)
        expected = module.critic(seen)[:, 0]
        advantage = (reward - expected).detach()
        total = ((reward - expected) ** 2).mean()
        for name in self.members:
            actor = module.actors[name]
            logp, _ = actor.log_prob_and_entropy(actor(column(name, "obs")), column(name, "action"), None)
            total = total - (present[name] * logp * advantage).mean()
        return mf.LossTerms(total, {"critic": total.detach()})


@dataclass(frozen=True)
class Team(mf.JointAlgorithm):
    """Trains the policies of a team on joint rows, by one critic."""

    name: ClassVar[str] = "team"
    capabilities: ClassVar[mf.Capabilities] = mf.Capabilities(
        ("Discrete",), "on-policy", mf.JointBatch, joint=True, matchmaking=True
    )

    batch_agent_steps: int = 60
    learning_rate: mf.ScheduledFloat = 0.01

    def network(self, members: Mapping[str, mf.Member], seed: int) -> TeamNetwork:
        return TeamNetwork(members, seed)

    def losses(self, members: Mapping[str, mf.Member]) -> TeamLoss:
        return TeamLoss(tuple(members))

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay]) -> mf.Plan:
        joint = experience.gather(mf.Concat(self.batch_agent_steps)).then(mf.Join(), at=learner)
        learned = joint.then(mf.Learn(epochs=2, minibatch=20), at=learner)
        return mf.Plan("team", learned.then(mf.Publish(), at=learner), waits_for_rounds=True)


SMALL = mf.MLP((8,))


def team_run(env_steps: int = 480, runtime: Literal["inline", "ray"] = "inline", **changes: Any) -> mf.Experiment:
    """Speaker and listener learn together, and a walker learns alone."""
    settings: dict[str, Any] = {
        "policies": {
            "speaker": mf.Policy(model=SMALL),
            "listener": mf.Policy(model=mf.MLP((6,))),
            "walker": mf.Policy(mf.DQN(**DQN), SMALL),
        },
        "learners": {"pair": mf.LearnerConfig(["speaker", "listener"], Team())},
    }
    return joint_run(ThreeGroups, env_steps, runtime, 120, settings | changes)


def joint_run(
    make_env: Any, env_steps: int, runtime: Literal["inline", "ray"], log_every: int, changes: dict[str, Any]
) -> mf.Experiment:
    settings: dict[str, Any] = {
        "rollouts": mf.Rollouts(num_workers=2, fragment_env_steps=20),
        "checkpoint": mf.CheckpointConfig(every_env_steps=None),
        "evaluation": mf.Evaluation(episodes=0),
        "log": mf.Log(every_env_steps=log_every, console="none", tensorboard=False),
    }
    return mf.Experiment(
        env=mf.Env(make_env, num_envs=4),
        **(settings | changes),
        runtime=mf.RuntimeConfig(runtime),
        stop=mf.Stop(env_steps),
    )


DQN: dict[str, Any] = {
    "batch_agent_steps": 16,
    "train_every_agent_steps": 8,
    "learning_starts_agent_steps": 40,
    "replay_agent_steps": 1000,
}
