"""Every shipped loss with the networks that it works with, and a minibatch for each of its loss groups.

The minibatches come from the algorithm's own plan, on rows of its spaces.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.spaces import Spaces
from marlflow.checks.rehearsal import _components, _fragments, _single_learner_run
from marlflow.config.plans import learner_plan
from marlflow.env.spaces_only import observation_rows
from marlflow.flow.rehearsal import rehearse
from marlflow.runtime.spec import LearnerSpec, PolicySpec, RunSpec
from tests.algorithms import conversations

ROWS = 12
STATE = gym.Box(-1.0, 1.0, (3,))
VECTOR, PIXELS = gym.Box(-1.0, 1.0, (4,)), gym.Box(0, 255, (36, 36, 3), np.uint8)
ACTIONS: Mapping[str, gym.Space[Any]] = {
    "Discrete": gym.Discrete(3),
    "Box": gym.Box(-1.0, 1.0, (2,)),
    "MultiDiscrete": gym.MultiDiscrete([2, 3]),
}
MODELS: Mapping[str, Any] = {
    "mlp": mf.MLP((6, 5)),
    "normalized": mf.MLP((6,), normalize_observations=True),
    "cnn": mf.CNN((4,), (5,), (3,), (8,)),
    "gru": mf.GRU(6),
    "lstm": mf.LSTM(6),
}
VARIANTS: Sequence[mf.Algorithm] = (
    mf.PPO(shared_torso=True),
    mf.PPO(parts={"values": mf.PopArt()}, value_clip_range=0.1),
    mf.PPO(parts={"cost": mf.CostLimit(1.0)}),
    mf.PPO(parts={"near": mf.KLToReference(0.1)}),
    mf.MARWIL(parts={"values": mf.PopArt()}),
    mf.MAPPO(critic_sees=("obs", "agent")),
    mf.A2C(shared_torso=True),
    mf.DQN(double=False),
    mf.DQN(dueling=True),
    mf.DQN(prioritized=True, atoms=5),
    mf.DQN(parts={"rewards": mf.RewardUnit()}),
    mf.SAC(parts={"cost": mf.CostLimit(1.0)}),
    mf.MAML(order="first"),
    mf.ArCHer(token_baseline=False),
    mf.VDN(parts={"rewards": mf.RewardUnit()}),
    mf.MADDPG(others="policies"),
    mf.MASAC(others="policies"),
)


@dataclass(frozen=True)
class Case:
    """A learner: its algorithm, the model and the action space of its policies, and how many they are."""

    algorithm: mf.Algorithm
    model: str
    action: str
    policies: int = 1

    def __str__(self) -> str:
        return f"{self.algorithm.name}-{self.model}-{self.action}-{self.policies}"

    def spec(self, algorithm: mf.Algorithm | None = None) -> LearnerSpec:
        """Its learner's, of another algorithm if given."""
        made, policies = algorithm or self.algorithm, []
        for number, seats in enumerate([(0, 1), (2,)][: self.policies]):
            model = MODELS[self.model]
            seen = PIXELS if self.model == "cnn" else VECTOR
            spaces = Spaces(seen, ACTIONS[self.action], state=STATE, num_agents=3, seats=seats)
            if isinstance(made, mf.ArCHer):
                spaces = conversations.SPACES
            policies.append(PolicySpec(f"p{number}", made, model, spaces, seed=number))
        return LearnerSpec("team" if self.policies > 1 else "p0", tuple(policies), made, 0, mf.LearnerPlacement())

    def problems(self) -> Iterator[object]:
        """Yield why the algorithm cannot be used so."""
        policies = self.spec().policies
        for policy in policies:
            yield from self.algorithm.validate(policy.spaces, policy.model)
        if isinstance(self.algorithm, mf.JointAlgorithm):
            yield from self.algorithm.member_problems({one.name: mf.Member(one.spaces, one.model) for one in policies})
        if isinstance(self.algorithm, mf.ArCHer) and self.model != "mlp":
            yield "its observations are those of conversations"


def _cases() -> Iterator[Case]:
    """Yield each algorithm with all models in one action space, and with one model in the others."""
    for algorithm in (*SHIPPED, *VARIANTS):
        first, *others = [one for one in ACTIONS if one in algorithm.capabilities.actions]
        models = MODELS if algorithm in SHIPPED else ("mlp", "gru")
        pairs = [(first, model) for model in models] + [(other, model) for other in others for model in ("mlp", "gru")]
        for (action, model), policies in product(pairs, (1, 2) if algorithm.capabilities.joint else (1,)):
            case = Case(algorithm, model, action, policies)
            if not any(case.problems()):
                yield case


CASES = list(_cases())


@functools.cache
def minibatches(case: Case) -> Mapping[str, Mapping[str, Tensor]]:
    """The first minibatch of each loss group of the case's learner, by name, as its plan would give it."""
    if isinstance(case.algorithm, mf.A3C):
        # Its plan computes gradients with a copy of the learner.
        return minibatches(replace(case, algorithm=mf.A2C()))
    if isinstance(case.algorithm, mf.ArCHer):
        return _conversation(case.spec().learner())
    learner = case.spec()
    run = RunSpec({p.name: p for p in learner.policies}, {learner.name: learner}, {}, lambda: None, 1, 1, 1, 0)
    alone = _single_learner_run(run, learner, STATE, ROWS)
    alone = replace(alone, make_env=functools.partial(_with_costs, alone.make_env))
    parts = _components(alone.learners[learner.name])
    seen: dict[str, Mapping[str, Tensor]] = {}
    trained: Any = parts.learners[learner.name]
    for group in trained.parameters.groups:
        group.add_gradient = functools.partial(_noting, seen, group.name, group.add_gradient)
    kind = mf.JointFragment if learner.is_joint else mf.Fragment
    torch.manual_seed(0)
    fragments = iter(_fragments(alone, parts))
    experience = mf.source(fragments.__next__, name="experience", traits=mf.Traits(emits=kind))
    broken = rehearse(learner_plan(experience, alone.learners[learner.name], parts), experience)
    assert broken is None, broken.failure.__cause__
    assert {*seen} == {group.name for group in trained.parameters.groups}
    return seen


def _noting(seen: dict[str, Any], name: str, add: Any, module: Any, target: Any, minibatch: Any) -> Any:
    seen.setdefault(name, {column: values.clone() for column, values in minibatch.items()})
    return add(module, target, minibatch)


def _with_costs(make_env: Any) -> Any:
    env = make_env()
    step = env.step

    def stepped(actions: Any) -> Any:
        *others, infos = step(actions)
        return *others, {agent: {"cost": 0.5} for agent in infos}

    env.step = stepped
    return env


def _conversation(learner: mf.TorchLearner) -> dict[str, dict[str, Tensor]]:
    generator, spaces = torch.Generator().manual_seed(0), conversations.SPACES
    obs = torch.from_numpy(observation_rows(spaces, ROWS))
    token = torch.randint(0, conversations.ACTIONS, (ROWS,), generator=generator)
    tokens = torch.randint(1, conversations.ACTIONS, (ROWS, conversations.LENGTH), generator=generator)
    reward = torch.randn(ROWS, generator=generator)
    of_tokens = {"obs": obs, "action": token, "advantage": reward}
    noise = torch.randn(ROWS, conversations.LENGTH, generator=generator)
    utterances = {"obs": obs, "action": tokens, "reward": reward, "discount": reward.abs().clamp(max=1.0)}
    of_critics = {**utterances, "next_obs": obs.flip(0), "noise": noise}
    return {group.name: of_critics if group.name == "critics" else of_tokens for group in learner.parameters.groups}
