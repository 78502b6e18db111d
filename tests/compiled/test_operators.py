"""The table of operators against torch: values, and gradients where there are any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from marlflow.base.errors import NotCompiled
from marlflow.compiled import xla

if True:  # JAX reads its settings when it is imported
    assert not xla.problem()
    import jax
    import jax.numpy as jnp

    from marlflow.compiled.rows import Rows
    from marlflow.compiled.tracing import Traced, traced, value_of

ROWS = 12
# 8 of 12 rows are real in the tests of reductions.
REAL = 8


def rows(real: int = ROWS) -> Rows:
    return Rows(jnp.arange(ROWS) < real, jnp.float32(real))


def compiled(function: Callable[..., Tensor], *args: Any, real: int = ROWS) -> Any:
    return value_of(traced({}, rows(real), lambda: function(*map(Traced, args))))


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": lambda x, y: 2.0 - x + y * 3.0 / (1.0 + x.abs()) - (-y) ** 2 + 1.0 / (2.0 + y.square()),
    "in place": lambda x, y: x.clone().mul_(y).add_(1.0).clamp_(min=-0.5),
    "augmented": lambda x, y: _augmented(x, y),  # noqa: PLW0108  defined below
    "clamped": lambda x, y: x.clamp(-0.5, 0.5) + torch.clamp(y, min=0.1),
    "activations": lambda x, y: torch.tanh(x) + torch.sigmoid(y) + torch.relu(x) + functional.elu(y),
    "softplus": lambda x, y: (
        functional.softplus(x) + functional.gelu(y) + functional.silu(x) + functional.leaky_relu(y)
    ),
    "logs": lambda x, y: torch.log1p(x.square()) + torch.log_softmax(y, -1) + torch.logsumexp(x, -1, keepdim=True),
    "softmax": lambda x, y: (
        x.softmax(-1) * torch.softmax(y, dim=1) + torch.expm1(x) + torch.xlogy(y.abs(), x.abs() + 1)
    ),
    "normal": lambda x, y: torch.special.log_ndtr(x) + torch.erf(y) + (x.abs() + 1).lgamma(),
    "losses": lambda x, y: functional.huber_loss(x, y) + functional.mse_loss(x, y, reduction="none") + smooth(x, y),
    "cross entropy": lambda x, y: functional.cross_entropy(x, y.argmax(-1), reduction="none"),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=0.5) + torch.where(x > y, x, y * 2.0),
    "extremes": lambda x, y: torch.minimum(x, y) + torch.max(x, y) + x.max(-1).values.unsqueeze(-1) + y.amin(1, True),
    "products": lambda x, y: x @ y.T + torch.mm(x, y.t()) + torch.einsum("ni,mi->nm", x, y),
    "linear": lambda x, y: functional.linear(x, y[:3], y[:3, 0]) + torch.addmm(y[:, :3], x, y[:6, :3]),
    "shapes": lambda x, y: (
        torch.cat([x.flatten(), y.reshape(-1)]).view(2, -1).t().unsqueeze(1).squeeze(1).permute(1, 0)
    ),
    "splits": lambda x, y: x.chunk(2, 1)[1] * y.split([3, 3], 1)[0] + torch.stack(x.unbind(1)[:3], 1),
    "index": lambda x, y: x[:, 1:4] + y[..., [0, 2, 4]] + x[:, 0].unsqueeze(-1) + y[:, -1:, None].squeeze(-1),
    "gather": lambda x, y: x.gather(1, y.argmax(1, keepdim=True)) + x.gather(-1, y.argsort(1)[:, :2]).sum(-1, True),
    "masks": lambda x, y: x.masked_fill(y > 0, 0.0) + (x > 0).float() * (y < 0) + (~(x > 0) & (y > 0)).float(),
    "one hot": lambda x, y: (
        functional.one_hot(x.argmax(-1), 6).float() * y + torch.zeros_like(x) + torch.full_like(y, 2.0)
    ),
    "made": lambda x, y: x * torch.arange(6) + torch.eye(6).sum(0) + torch.linspace(0, 1, 6) + torch.ones(6) + y,
    "cumulative": lambda x, y: (
        x.cumsum(1) + y.flip(1) + torch.roll(x, 1, 1) + x.norm(dim=1, keepdim=True) + y.std(1, keepdim=True)
    ),
    "conv": lambda x, y: functional.conv2d(x.view(1, 1, 12, 6), y[:9, 0].view(1, 1, 3, 3), stride=2, padding=1),
    "pool": lambda x, y: functional.max_pool2d(x.view(1, 1, 12, 6), 2) + functional.avg_pool2d(y.view(1, 1, 12, 6), 2),
    "attention": lambda x, y: functional.scaled_dot_product_attention(
        x.view(2, 6, 6), y.view(2, 6, 6), x.view(2, 6, 6)
    ),
    "norm": lambda x, y: (
        functional.layer_norm(x, (6,), y[0], y[1]) + functional.pad(x[:, 1:], (1, 0)) + x.expand(12, 6)
    ),
    "no gradient": lambda x, y: x * y.detach() + _without_gradient(y) * x,
    "repeated": lambda x, y: x.repeat(2, 1)[:12] + y.repeat_interleave(2, 1)[:, :6] + x.tile(1, 1) + x.narrow(1, 0, 6),
}


def smooth(x: Tensor, y: Tensor) -> Tensor:
    return functional.smooth_l1_loss(x, y, beta=0.5) + functional.binary_cross_entropy_with_logits(x, y.sigmoid())


def _augmented(x: Tensor, y: Tensor) -> Tensor:
    own = torch.zeros_like(x)
    own += x
    own *= y
    own[:, 0] = 3.0
    return own


def _without_gradient(y: Tensor) -> Tensor:
    with torch.no_grad():
        return y.exp()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name: str) -> None:
    function, random = FUNCTIONS[name], np.random.default_rng(sum(map(ord, name)))
    given = [random.standard_normal((ROWS, 6)).astype(np.float32) for _ in range(2)]
    tensors = [torch.from_numpy(each.copy()).requires_grad_() for each in given]
    result = function(*tensors)
    np.testing.assert_allclose(
        compiled(function, *map(jnp.asarray, given)), result.detach().numpy(), rtol=2e-5, atol=2e-5
    )
    weight = torch.from_numpy(random.standard_normal(tuple(result.shape)).astype(np.float32))
    (result.float() * weight).sum().backward()
    other = jnp.asarray(weight.numpy())
    found = jax.grad(lambda x, y: jnp.sum(compiled(function, x, y) * other), (0, 1))(*map(jnp.asarray, given))
    for mine, tensor in zip(found, tensors, strict=True):
        expected = np.zeros((ROWS, 6)) if tensor.grad is None else tensor.grad.numpy()
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)


# Where a derivative or a result is a convention of torch's.
SPECIAL: dict[str, tuple[Callable[[Tensor], Tensor], list[list[float]]]] = {
    "norm of zeros": (lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, dim=1), [[0, 0, 0], [1, 2, 2]]),
    "deviation of equals": (lambda x: x.std(1), [[2, 2, 2], [1, 2, 4]]),
    "absolute zero": (lambda x: x.abs(), [[0, -1, 2]]),
    "where as a method": (lambda x: x.where(x > 1.0, x * -3.0), [[0, 1, 2]]),
    "changed in place by an argument": (lambda x: _residual(x * 1.0), [[0, -1, 2]]),
    "a tensor that needs no conversion": (lambda x: _converted(x * 1.0), [[0, -1, 2]]),
    "vector norms of a matrix": (
        lambda x: x.norm(1) + x.norm(torch.inf) + torch.linalg.vector_norm(x, 1) + x.norm(1, 1).sum(),
        [[1, -2], [0, 4]],
    ),
    "clamped whole numbers": (lambda x: x * torch.arange(3).clamp(0.5, 1.5), [[1, 2, 3]]),
    "extremes of equals": (lambda x: x.max(1).values + 2.0 * x.min(0).values[:2], [[3, 0, 3], [0, 0, 0]]),
    "elu at 0": (lambda x: functional.elu(x, 2.0), [[0, -1, 2]]),
    "at the bounds": (lambda x: functional.relu6(x) + functional.hardtanh(x, -2.0, 6.0), [[0, 6, -2]]),
    "clamped at the bounds": (lambda x: x.clamp(-1.0, 2.0), [[-1, 2, 3]]),
    "smooth l1 with beta 0": (lambda x: functional.smooth_l1_loss(x, x * 0.5, beta=0.0), [[0, -1, 2]]),
    "ignored targets": (lambda x: functional.cross_entropy(x, torch.tensor([-100, 2])), [[1, 2, 3], [3, 2, 1]]),
    "attention to nothing": (lambda x: _attention(x, x != 0), [[0, 0, 0], [1, 0, 2]]),
    "attention to nothing, added": (lambda x: _attention(x, torch.where(x != 0, 0.0, -torch.inf)), [[0, 0, 0]]),
    "rows of a table": (lambda x: functional.embedding(torch.tensor([1, 1, 0]), x), [[1, 2], [3, 4]]),
}


def _residual(x: Tensor) -> Tensor:
    changed = functional.relu(x, inplace=True)
    return x + 2.0 * changed


def _converted(x: Tensor) -> Tensor:
    same, other = x.float().to(torch.float32).contiguous(), x.double()
    same += 1.0
    other += 1.0
    return x * x


def _attention(x: Tensor, mask: Tensor) -> Tensor:
    own = x.unsqueeze(-1)
    return functional.scaled_dot_product_attention(own, own, own, mask.unsqueeze(-2))


@pytest.mark.parametrize("name", SPECIAL)
def test_values_and_gradients_at_special_inputs_are_torchs(name: str) -> None:
    function, given = SPECIAL[name]
    tensor = torch.tensor(given, dtype=torch.float32, requires_grad=True)
    result = function(tensor)
    result.sum().backward()
    assert tensor.grad is not None
    array = jnp.asarray(given, jnp.float32)
    np.testing.assert_allclose(compiled(function, array), result.detach().numpy(), rtol=1e-6)
    found = jax.grad(lambda x: jnp.sum(compiled(function, x)))(array)
    np.testing.assert_allclose(found, tensor.grad.numpy(), rtol=1e-5)


# Shape of x, shape of weight, stride, padding, dilation.
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], Any, Any, Any]] = [
    ((3, 2, 6, 7), (5, 2, 3, 3), 1, 0, 1),
    ((2, 3, 11, 9), (4, 3, 4, 3), (3, 2), (1, 2), (1, 2)),
    ((2, 2, 5, 90), (3, 2, 3, 5), 1, "same", 1),
    ((2, 1, 4, 140), (3, 1, 1, 3), (1, 2), 0, (1, 3)),
    ((2, 3, 20), (4, 3, 5), 3, 2, 2),
    ((2, 3, 100), (4, 3, 5), 1, 0, 1),
]


@pytest.mark.parametrize(("x", "weight", "stride", "padding", "dilation"), CONVOLUTIONS)
def test_convolutions_are_torchs(
    x: tuple[int, ...], weight: tuple[int, ...], stride: Any, padding: Any, dilation: Any
) -> None:
    convolve = functional.conv1d if len(x) == 3 else functional.conv2d
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape).astype(np.float32) for shape in (x, weight, weight[:1])]

    def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return convolve(x, weight, bias, stride, padding, dilation).tanh()

    tensors = [torch.from_numpy(each.copy()).requires_grad_() for each in given]
    result = convolved(*tensors)
    arrays = [jnp.asarray(each) for each in given]
    np.testing.assert_allclose(compiled(convolved, *arrays), result.detach().numpy(), rtol=1e-5, atol=1e-5)
    result.square().sum().backward()
    found = jax.grad(lambda *each: jnp.sum(compiled(convolved, *each) ** 2), (0, 1, 2))(*arrays)
    for mine, tensor in zip(found, tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(mine, tensor.grad.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [lambda x: x.sum(1), lambda x: x.cumsum(1), lambda x: x.prod(1)])
def test_bytes_are_added_up_without_wrapping_around(function: Callable[[Tensor], Tensor]) -> None:
    given = np.full((2, 3), 200, np.uint8)
    np.testing.assert_array_equal(compiled(function, jnp.asarray(given)), function(torch.from_numpy(given)).numpy())


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: torch.mean(x, 0),
    "mean of critics": lambda x: torch.stack([x[:, 0], x[:, 1]]).mean(),
    "mean of several for each row": lambda x: x.flatten().mean(),
    "sum": lambda x: x.square().sum() / torch.ones_like(x).sum(),
    "sum of rows": lambda x: x.sum(0),
    "normalized": lambda x: ((x - x.mean()) / (x.std() + 1e-8)).square().sum(0),
    "variance": lambda x: x.var(0, correction=0) + torch.var(x, dim=0),
    "extremes": lambda x: x.amax(0) + x.amin() + x.max(),
    "truth": lambda x: (x > 0).any(0).float() + (x > -9).all(0).float(),
    "dot": lambda x: torch.dot(x[:, 0], x[:, 1]),
    "norm": lambda x: torch.linalg.vector_norm(x) + x.norm(dim=0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "along the row": lambda x: x.mean(1).sum(),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_rows_leave_padding_out(name: str) -> None:
    function, random = REDUCTIONS[name], np.random.default_rng(5)
    given = random.standard_normal((ROWS, 3)).astype(np.float32)
    given[REAL:] = 1e3
    expected = function(torch.from_numpy(given[:REAL])).numpy()
    found = compiled(function, jnp.asarray(given), real=REAL)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a number": (lambda x: x * x.mean().item(), "item() asks for a tensor's numbers"),
    "a condition": (lambda x: x if x.mean() > 0 else -x, "bool() asks for a tensor's numbers"),
    "chosen rows": (lambda x: x[x[:, 0] > 0], "an index of truth values"),
    "random numbers": (lambda x: x + torch.randn(3), "randn() draws random numbers"),
    "dropout": (lambda x: functional.dropout(x, 0.5), "dropout draws random numbers"),
    "no line": (lambda x: torch.fft.fft(x).real, "fft has no line in the table of operators"),
    "an argument": (
        lambda x: torch.cumsum(x, 1, dtype=torch.float64),
        "arguments that the table of operators does not know",
    ),
    "another's memory": (lambda x: KEPT.add_(x.mean()), "add_() changes a tensor that was made outside"),
    "a view": (lambda x: x.clone()[:, 0].mul_(2.0), "mul_() changes a part of another tensor"),
    "what has a view": (lambda x: _stale(x.clone()), "add_() changes a tensor in place that has views"),
    "another type in place": (lambda x: torch.arange(3).add_(0.5) + x, "would change the shape or the type"),
    "bytes as an index": (lambda x: x[(x[:, 0] > 0).to(torch.uint8)], "an index of bytes"),
    "memory of its own": (lambda x: torch.exp(x, out=torch.empty(ROWS, 3)), "arguments that the table"),
    "numpy": (lambda x: x.numpy(), "numpy() asks for a tensor's numbers"),
    "an order of rows": (lambda x: x.argmax(0), "argmax() over the rows of a minibatch"),
}
KEPT = torch.zeros(())


def _stale(x: Tensor) -> Tensor:
    first = x[:, 0]
    x.add_(1.0)
    return first


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_is_named_with_its_line(name: str) -> None:
    function, says = REFUSED[name]
    with pytest.raises(NotCompiled) as error:
        compiled(function, jnp.ones((ROWS, 3)))
    assert says in str(error.value)
    assert "(test_operators.py, line " in str(error.value)
