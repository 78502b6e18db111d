"""The probabilities that actors state beside the actions that they choose."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

import marlflow as mf
from marlflow.policy.actor import DistributionActor
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.q import QActor
from marlflow.policy.scripted import RandomActor

ROWS, ACTIONS = 2000, 4
OBS = np.random.default_rng(1).normal(size=(ROWS, 3)).astype(np.float32)
MASK = np.random.default_rng(2).random((ROWS, ACTIONS)) < 0.6
MASK[np.arange(ROWS), np.arange(ROWS) % ACTIONS] = True
RANDOM = mf.RowRandom(np.arange(ROWS, dtype=np.uint64), np.zeros(ROWS, np.uint64))


def actors() -> list[DistributionActor]:
    generator = torch.Generator().manual_seed(3)
    softmax = CategoricalActor(torch.nn.Linear(3, 5), 5, ACTIONS, generator)
    with torch.no_grad():
        softmax.head.weight.mul_(50.0)
    return [softmax, QActor(torch.nn.Linear(3, 5), torch.nn.Linear(5, ACTIONS)), RandomActor(Discrete(ACTIONS))]


@pytest.mark.parametrize("mask", [None, MASK], ids=["all legal", "masked"])
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
@pytest.mark.parametrize("actor", actors(), ids=lambda actor: type(actor).__name__)
def test_probabilities_are_those_of_the_actions(actor: DistributionActor, mode: str, mask: np.ndarray | None) -> None:
    probabilities = actor.probabilities(OBS, mask, mode)  # type: ignore[arg-type]
    assert (probabilities.shape, probabilities.dtype) == ((ROWS, ACTIONS), np.float64)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    if mask is not None:
        assert not probabilities[~mask].any()
    action, logp, _ = actor.act(OBS, mask, None, mode, RANDOM)  # type: ignore[arg-type]
    chosen = probabilities[np.arange(ROWS), action]
    if mode == "greedy" and not isinstance(actor, RandomActor):
        assert (chosen == 1.0).all()
    else:
        np.testing.assert_allclose(chosen, np.exp(logp), rtol=1e-4)
    # Over many rows actions are as frequent as stated, to five standard deviations.
    expected, spread = probabilities.sum(0), np.sqrt((probabilities * (1 - probabilities)).sum(0))
    assert (np.abs(np.bincount(action, minlength=ACTIONS) - expected) <= 5 * spread + 1e-6).all()


@pytest.mark.parametrize("space", [MultiDiscrete([2, 3]), Box(0, 1, (2,))])
def test_only_one_discrete_action_has_a_list_of_probabilities(space: object) -> None:
    with pytest.raises(mf.MarlflowError, match="only of one Discrete action"):
        RandomActor(space).probabilities(OBS, None, "sampled")  # type: ignore[arg-type]
