"""Optimizer steps as JAX functions, equal to torch's up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import torch

State: TypeAlias = Mapping[str, Any]
OptimizerStep: TypeAlias = Callable[[Any, Any, State, Any], tuple[Any, State]]
"""(parameters [P], gradient [P], state, learning rate) -> parameters and state after one step."""


def adam(beta_1: float, beta_2: float, eps: float, weight_decay: float) -> OptimizerStep:
    """Return Adam's step (Kingma and Ba, 2015, arXiv:1412.6980); with `weight_decay`, AdamW's (arXiv:1711.05101).

    The state has `moment_1` and `moment_2` [P] and `steps` [].
    """

    def step(vector: Any, gradient: Any, state: State, learning_rate: Any) -> tuple[Any, State]:
        steps = state["steps"] + 1
        moment_1 = state["moment_1"] + (1 - beta_1) * (gradient - state["moment_1"])
        moment_2 = beta_2 * state["moment_2"] + (1 - beta_2) * gradient * gradient
        scale = jnp.sqrt(1 - beta_2**steps)
        if weight_decay:
            vector = vector * (1 - learning_rate * weight_decay)
        size = learning_rate / (1 - beta_1**steps)
        vector = vector - size * moment_1 / (jnp.sqrt(moment_2) / scale + eps)
        return vector, {"moment_1": moment_1, "moment_2": moment_2, "steps": steps}

    return step


def sgd(
    momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
) -> OptimizerStep:
    """Return the step of stochastic gradient descent; with `momentum`, the state has `momentum_buffer` [P]."""

    def step(vector: Any, gradient: Any, state: State, learning_rate: Any) -> tuple[Any, State]:
        if weight_decay:
            gradient = gradient + weight_decay * vector
        if momentum:
            buffer = momentum * state["momentum_buffer"] + (1 - dampening) * gradient
            gradient = gradient + momentum * buffer if nesterov else buffer
            state = {"momentum_buffer": buffer}
        return vector - learning_rate * gradient, state

    return step


def rmsprop(alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0) -> OptimizerStep:
    """Return RMSprop's step (Tieleman and Hinton, 2012), without momentum; the state has `square_avg` and `step`."""

    def step(vector: Any, gradient: Any, state: State, learning_rate: Any) -> tuple[Any, State]:
        if weight_decay:
            gradient = gradient + weight_decay * vector
        square = alpha * state["square_avg"] + (1 - alpha) * gradient * gradient
        vector = vector - learning_rate * gradient / (jnp.sqrt(square) + eps)
        return vector, {"square_avg": square, "step": state["step"] + 1}

    return step


def torch_step(optimizer: torch.optim.Optimizer) -> OptimizerStep | None:
    """Return the step of an optimizer of torch.optim; None for classes, settings and hooks that are not known here."""
    if any(vars(optimizer).get(name) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "step")):
        return None
    settings = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    if any(settings.get(name) for name in ("amsgrad", "maximize", "centered", "differentiable")):
        return None
    kind = type(optimizer)
    if kind is torch.optim.SGD:
        return sgd(*(settings[name] for name in ("momentum", "dampening", "weight_decay", "nesterov")))
    if kind is torch.optim.RMSprop and not settings["momentum"]:
        return rmsprop(settings["alpha"], settings["eps"], settings["weight_decay"])
    if kind is torch.optim.AdamW or (kind is torch.optim.Adam and not settings["weight_decay"]):
        beta_1, beta_2 = settings["betas"]
        return _with_torch_names(adam(beta_1, beta_2, settings["eps"], settings["weight_decay"]))
    return None


def initial_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Mapping[str, torch.Tensor] | None:
    """Return a state of zeros from which `torch_step` takes torch's first step; None if there is no such state."""
    settings = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        if settings["momentum"] and settings["dampening"]:
            return None  # its first step is not dampened
        vectors = ["momentum_buffer"] * bool(settings["momentum"])
        return {name: torch.zeros_like(parameter) for name in vectors}
    vectors = ["square_avg"] if isinstance(optimizer, torch.optim.RMSprop) else ["exp_avg", "exp_avg_sq"]
    return {"step": torch.tensor(0.0), **{name: torch.zeros_like(parameter) for name in vectors}}


def _with_torch_names(step: OptimizerStep) -> OptimizerStep:
    names = {"moment_1": "exp_avg", "moment_2": "exp_avg_sq", "steps": "step"}

    def renamed(vector: Any, gradient: Any, state: State, learning_rate: Any) -> tuple[Any, State]:
        own = {name: state[theirs] for name, theirs in names.items()}
        vector, after = step(vector, gradient, own, learning_rate)
        return vector, {theirs: after[name] for name, theirs in names.items()}

    return renamed
