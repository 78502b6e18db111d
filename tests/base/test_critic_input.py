"""The rows of a central critic hold state, observation and agent id, whatever the spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import CriticInput, CriticSees, critic_input
from marlflow.policy.torso import LeafReader

NUM_AGENTS = 4
STATES = {
    "floats": gym.Box(-np.inf, np.inf, (2, 2), np.float32),
    "bytes": gym.Box(0, 255, (3,), np.uint8),
    "integers": gym.Box(-(2**31), 2**31 - 1, (2,), np.int32),
}
OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "vector": gym.Box(-1.0, 1.0, (3,)),
    "matrix of bytes": gym.Box(0, 255, (2, 3), np.uint8),
    "one of several": gym.Discrete(3),
    "nested": gym.Dict({"arm": gym.Box(-1.0, 1.0, (2,)), "kind": gym.MultiDiscrete([2, 3])}),
    "nested with pixels": gym.Tuple([gym.Box(0, 255, (2, 2, 1), np.uint8), gym.Box(-5, 5, (1,)), gym.Discrete(2)]),
}


def numbers(space: gym.Space[Any], value: Any) -> list[float]:
    """What a network sees of one value: gymnasium's flat numbers, bytes as fractions of 255."""
    if isinstance(space, gym.Dict):
        return [x for key in space for x in numbers(space[key], value[key])]
    if isinstance(space, gym.Tuple):
        return [x for inner, part in zip(space, value, strict=True) for x in numbers(inner, part)]
    scale = 1 / 255 if isinstance(space, gym.Box) and space.dtype == np.uint8 else 1.0
    return [float(x) * scale for x in np.ravel(gym.flatten(space, value))]


def seen_by_networks(seen: CriticInput, rows: np.ndarray) -> np.ndarray:
    readers = [LeafReader(seen.layout, leaf) for leaf in seen.layout.leaves]
    return torch.cat([read(torch.from_numpy(rows)).flatten(1) for read in readers], 1).numpy()


@pytest.mark.parametrize("sees", [("state", "obs", "agent"), ("agent", "state"), ("obs", "agent")], ids="-".join)
@pytest.mark.parametrize("observation", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_rows_are_the_parts_side_by_side(
    state: gym.Box, observation: gym.Space[Any], sees: tuple[CriticSees, ...]
) -> None:
    spaces = Spaces(observation, gym.Discrete(2), state=state, num_agents=NUM_AGENTS)
    seen = critic_input(spaces, sees)
    assert seen is not None
    rng, lengths, agents = np.random.default_rng(0), [2, 3, 1], [3, 0, 3]
    observation.seed(1)
    state.seed(2)
    observed = [observation.sample() for _ in range(9)]
    # Samples of unbounded spaces are normal; those of integers may be any.
    states = [np.asarray(state.sample() if state.dtype != np.int32 else rng.integers(-99, 99, 2)) for _ in range(9)]
    obs, state_rows = spaces.encoder().stack(observed), np.stack(states).astype(state.dtype)
    batch = mf.Batch(
        {"obs": obs[:6], "state": state_rows[:6], "reward": np.zeros(6)},
        {
            "length": np.array(lengths),
            "agent": np.array(agents),
            "bootstrap_obs": obs[6:],
            "bootstrap_state": state_rows[6:],
        },
    )
    found = seen.added_to(batch)
    assert "state" not in found.columns
    assert "bootstrap_state" not in found.segments
    agent_of_row = [*np.repeat(agents, lengths), *agents]
    expected = []
    for row in range(9):
        part_of = {
            "state": numbers(state, states[row]),
            "obs": numbers(observation, observed[row]),
            "agent": [float(agent_of_row[row] == agent) for agent in range(NUM_AGENTS)],
        }
        expected.append([x for part in sees for x in part_of[part]])
    rows = np.concatenate([found.columns["central"], found.segments["bootstrap_central"]])
    np.testing.assert_allclose(seen_by_networks(seen, rows), expected, rtol=1e-6)


def test_a_critic_of_its_own_observation_is_not_central() -> None:
    assert critic_input(Spaces(gym.Discrete(2), gym.Discrete(2)), ["obs"]) is None


@pytest.mark.parametrize(
    ("sees", "said"),
    [
        ((), "critic_sees is empty"),
        (("obs", "obs"), "sees obs 2 times"),
        (("state",), "add wrappers=joint_state"),
        (("obs", "agent"), "no possible_agents"),
    ],
)
def test_what_there_is_not_cannot_be_seen(sees: tuple[CriticSees, ...], said: str) -> None:
    with pytest.raises(mf.ConfigInvalid, match=said):
        critic_input(Spaces(gym.Discrete(2), gym.Discrete(2)), sees)
