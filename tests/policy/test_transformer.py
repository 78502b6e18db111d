"""The transformer against plain loops; what comes later changes nothing, nor does padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from scipy.special import erf

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.q import QNetwork
from marlflow.policy.torso import CNN, build_torso
from marlflow.policy.transformer import TokenTransformer, Transformer

LENGTH, VOCABULARY, SMALL = 5, 7, Transformer(num_layers=2, hidden_size=12, num_heads=3)


def tokens_of(length: int = LENGTH) -> Spaces:
    return Spaces(gym.MultiDiscrete([VOCABULARY] * length), gym.Discrete(3))


def torso(length: int = LENGTH, seed: int = 0) -> TokenTransformer:
    """A transformer whose parameters are all arbitrary: zeros and ones would hide mistakes."""
    module, features = build_torso(tokens_of(length), SMALL, torch.Generator().manual_seed(seed))
    assert isinstance(module, TokenTransformer)
    assert features == SMALL.hidden_size
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def rows_of(tokens: Any) -> torch.Tensor:
    """What the column `obs` has of these tokens, int [N, T]."""
    tokens = np.asarray(tokens)
    spaces = tokens_of(tokens.shape[1])
    return torch.from_numpy(spaces.encoder().stack(list(tokens)))


def some_tokens(rows: int, seed: int = 3) -> Array:
    """Sequences of every number of tokens, padded at the end."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, VOCABULARY, (rows, LENGTH))
    return np.where(np.arange(LENGTH) < generator.integers(0, LENGTH + 1, (rows, 1)), tokens, 0)


# -- plain loops, in float64 ----------------------------------------------------------------------------------------


def dense(x: Array, named: dict[str, Array], layer: str) -> Array:
    weight, bias = named[f"{layer}.weight"], named[f"{layer}.bias"]
    return np.array([sum(w * v for w, v in zip(ws, x, strict=True)) + b for ws, b in zip(weight, bias, strict=True)])


def normed(x: Array, named: dict[str, Array], layer: str) -> Array:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return (x - mean) / math.sqrt(variance + 1e-5) * named[f"{layer}.weight"] + named[f"{layer}.bias"]


def attended(inputs: list[Array], named: dict[str, Array], layer: str) -> list[Array]:
    query, key, value = ([dense(x, named, f"{layer}.{part}") for x in inputs] for part in ("query", "key", "value"))
    width, outputs = SMALL.hidden_size // SMALL.num_heads, []
    for position in range(len(inputs)):
        joined = np.zeros(SMALL.hidden_size)
        for head in range(SMALL.num_heads):
            own = range(head * width, (head + 1) * width)
            scores = [
                sum(query[position][i] * key[at][i] for i in own) / math.sqrt(width) for at in range(position + 1)
            ]
            weights = np.exp(np.array(scores) - max(scores))
            for at, weight in enumerate(weights / weights.sum()):
                for i in own:
                    joined[i] += weight * value[at][i]
        outputs.append(dense(joined, named, f"{layer}.output"))
    return outputs


def features_by_loops(module: TokenTransformer, tokens: Array) -> Array:
    """The features of one sequence, of which only the tokens are read: padding is not even computed."""
    named = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in module.state_dict().items()}
    said = max(1, int(np.count_nonzero(tokens)))
    xs = [named["embedding.weight"][:, tokens[at]] + named["positions"][at] for at in range(said)]
    for block in range(SMALL.num_layers):
        name = f"blocks.{block}"
        mixed = attended([normed(x, named, f"{name}.attention_norm") for x in xs], named, f"{name}.attention")
        xs = [x + more for x, more in zip(xs, mixed, strict=True)]
        for at, x in enumerate(xs):
            wide = dense(normed(x, named, f"{name}.dense_norm"), named, f"{name}.wide")
            xs[at] = x + dense(wide * 0.5 * (1.0 + erf(wide / math.sqrt(2.0))), named, f"{name}.narrow")
    return normed(xs[-1], named, "norm")


def test_equals_plain_loops_which_never_look_at_padding() -> None:
    module, tokens = torso(), some_tokens(24)
    assert set(np.count_nonzero(tokens, 1)) == set(range(LENGTH + 1))
    expected = np.array([features_by_loops(module, row) for row in tokens])
    np.testing.assert_allclose(module(rows_of(tokens)).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_what_comes_later_changes_nothing_and_what_came_before_changes_all_after_it() -> None:
    module, tokens = torso(), some_tokens(8) + 1
    tokens[tokens >= VOCABULARY] = 1
    hidden = [module.hidden(rows_of(tokens).unflatten(1, (LENGTH, VOCABULARY)))]
    for position in range(LENGTH):
        changed = tokens.copy()
        changed[:, position] = tokens[:, position] % (VOCABULARY - 1) + 1
        after = module.hidden(rows_of(changed).unflatten(1, (LENGTH, VOCABULARY)))
        torch.testing.assert_close(after[:, :position], hidden[0][:, :position], rtol=0, atol=0)
        assert ((after[:, position:] - hidden[0][:, position:]).abs().amax(2) > 1e-4).all()


def test_more_room_for_padding_changes_nothing() -> None:
    short, long = torso(LENGTH), torso(LENGTH + 4)
    with torch.no_grad():
        for name, parameter in long.named_parameters():
            given = dict(short.named_parameters())[name]
            (parameter[:LENGTH] if name == "positions" else parameter).copy_(given)
    tokens = some_tokens(12)
    padded = np.concatenate([tokens, np.zeros((12, 4), np.int64)], 1)
    torch.testing.assert_close(long(rows_of(padded)), short(rows_of(tokens)))


def test_the_same_tokens_at_other_positions_are_others() -> None:
    module = torso()
    one, other = module(rows_of([[1, 2, 3, 0, 0], [2, 1, 3, 0, 0]]))
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("network", ["actor and critic", "shared", "action values"])
def test_every_parameter_learns_as_actor_and_critic_and_as_q_network(network: str) -> None:
    rows = rows_of(some_tokens(64))
    if network == "action values":
        module: Any = QNetwork(tokens_of(), SMALL, dueling=True, seed=0)
        total = module(rows).square().sum()
    else:
        module = ActorCritic(tokens_of(), SMALL, None if network == "shared" else SMALL, seed=0)
        logits, value = module(rows)
        assert value.shape == (64,)
        total = logits[:, 0].sum() + value.square().sum()
    total.backward()
    without = [name for name, parameter in module.named_parameters() if not parameter.grad.any()]
    # A constant added to all keys changes no attention.
    assert [name for name in without if not name.endswith("key.bias")] == []


@pytest.mark.parametrize(
    ("observation", "found"),
    [
        (gym.Box(-1.0, 1.0, (4,)), r"not numbers of shape \(4,\)"),
        (gym.Discrete(9), r"not Discrete\(9\)"),
        (gym.MultiDiscrete([9, 9, 8]), "whose positions have different vocabularies"),
        (gym.MultiDiscrete([9] * 17), "not 17 of them"),
        (gym.MultiDiscrete([[9, 9], [9, 9]]), "not MultiDiscrete"),
        (gym.Tuple([gym.MultiDiscrete([9, 9]), gym.Discrete(2)]), r"not MultiDiscrete\(\[9 9\]\) and Discrete\(2\)"),
    ],
)
def test_what_it_cannot_see_is_one_error(observation: gym.Space[Any], found: str) -> None:
    with pytest.raises(ConfigInvalid, match=rf"sees up to 16 tokens of one vocabulary.*{found}.*; use MLP") as error:
        build_torso(Spaces(observation, gym.Discrete(2)), Transformer(), torch.Generator())
    assert len(error.value.problems) == 1


def test_heads_divide_the_units_and_cnn_is_no_answer_to_tokens() -> None:
    with pytest.raises(ConfigInvalid, match="divides its hidden_size among its heads, and 32 is no multiple of num_h"):
        build_torso(tokens_of(), Transformer(num_heads=3), torch.Generator())
    with pytest.raises(ConfigInvalid):
        build_torso(tokens_of(), CNN(), torch.Generator())
