"""An algorithm of a user's own is a name, capabilities, fields, a network, losses and a plan; the rest is derived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.warmup import WarmupActor
from tests.algorithms.conversations import SPACES as CONVERSATION
from tests.algorithms.parts import CONTINUOUS, DISCRETE, SMALL, make_learner
from tests.learner.experience import ACTIONS, FEATURES, transitions

SEEN = Spaces(spaces.Box(-1.0, 1.0, (FEATURES,)), spaces.Discrete(ACTIONS))


class Imitating(nn.Module):
    def __init__(self, of: Any, model: Any, seed: int) -> None:
        super().__init__()
        self.actor = stochastic_actor(of, model, torch.Generator().manual_seed(seed))


class Likelihood:
    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of it is scheduled."""

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        outputs = module.actor(minibatch["obs"])
        logp, _ = module.actor.log_prob_and_entropy(outputs, minibatch["action"], None)
        return mf.LossTerms(-logp.mean(), {"logp": logp.mean().detach()})


@dataclass(frozen=True)
class Minimal(mf.LearningAlgorithm):
    """The least that an algorithm can be."""

    name: ClassVar[str] = "minimal"
    capabilities: ClassVar[mf.Capabilities] = mf.Capabilities(("Discrete", "Box"), "offline", mf.Batch)

    learning_rate: float = 0.1

    def network(self, of: Any, model: Any, seed: int) -> Imitating:
        return Imitating(of, model, seed)

    def losses(self, of: Any) -> Likelihood:
        return Likelihood()


@dataclass(frozen=True)
class Replaying(mf.OffPolicyActorCritic):
    """The least that an algorithm with a replay can be."""

    name: ClassVar[str] = "replaying"
    capabilities: ClassVar[mf.Capabilities] = mf.Capabilities(
        ("Discrete", "Box"), "off-policy", mf.Transitions, replay=True
    )

    learning_rate: float = 0.1
    learning_starts_agent_steps: int = 5
    replay_agent_steps: int = 50
    discount: float = 0.9

    def network(self, of: Any, model: Any, seed: int) -> Imitating:
        return Imitating(of, model, seed)

    def losses(self, of: Any) -> list[mf.LossGroup]:
        return [mf.LossGroup("actor", lambda module: module.actor.parameters(), Likelihood(), learning_rate=0.5)]


def test_a_learner_is_made_of_network_losses_and_fields() -> None:
    learner = make_learner(Minimal(), seed=3)
    reference = Imitating(DISCRETE, SMALL, 3)
    for ours, theirs in zip(learner.module.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    (group,) = learner.parameters.groups
    assert (group.name, group.optimizer.learning_rate, group.optimizer.max_grad_norm) == ("all", 0.1, float("inf"))
    assert (learner.trains_on, learner.parameters.target_module) == (mf.Batch, None)


def test_an_algorithm_with_a_replay_has_a_target_a_replay_and_acts_uniformly_first() -> None:
    algorithm = Replaying()
    learner = make_learner(algorithm, SEEN)
    assert learner.parameters.target_module is not None
    assert [group.optimizer.learning_rate for group in learner.parameters.groups] == [0.5]
    assert isinstance(algorithm.actor(DISCRETE, SMALL, 0), WarmupActor)
    assert algorithm.replay("hunter", {}, 0).name == "hunter"
    update = learner.update(transitions(8))
    assert update.updates == 1


@pytest.mark.parametrize(
    "algorithm", [a for a in SHIPPED if a.capabilities.learns], ids=lambda algorithm: algorithm.name
)
def test_an_actor_takes_what_its_learner_publishes(algorithm: Any) -> None:
    model = mf.GRU(6, (4,)) if algorithm.capabilities.memory == "needed" else SMALL
    of = DISCRETE if "Discrete" in algorithm.capabilities.actions else CONTINUOUS
    of = CONVERSATION if isinstance(algorithm, mf.ArCHer) else of
    of = replace(of, state=spaces.Box(0.0, 1.0, (3,), np.float32), num_agents=2, seats=(0, 1))
    learner, actor = (
        algorithm.learner("hunter", {"hunter": mf.Member(of, model)}, 1, ON_CPU),
        algorithm.actor(of, model, 2),
    )
    actor.load_flat(learner.published[learner.name].flat)
    np.testing.assert_array_equal(actor.flat(), learner.published[learner.name].flat)


def test_what_an_algorithm_has_to_give_is_named() -> None:
    class Nothing(mf.LearningAlgorithm):
        capabilities = Minimal.capabilities

    with pytest.raises(NotImplementedError, match=r"Nothing has no network\(spaces, model, seed\)"):
        Nothing().actor(DISCRETE, SMALL, 0)
    with pytest.raises(NotImplementedError, match=r"Nothing has no losses\(spaces\)"):
        Nothing().losses(DISCRETE)
