"""A learner's update as one function of XLA: minibatches, gradients, clipping, optimizer steps and loss terms.

Minibatches are padded, so that one program serves all minibatches of nearly equal size; reductions over rows leave
padding out (see `rows`). The learner verifies a program against autograd, on a padded minibatch, before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from marlflow.compiled.optimizers import OptimizerStep, State
from marlflow.compiled.rows import Rows

STEPS_PER_CALL = 64
"""Minibatches of one call at most; between calls an update may end."""


class LossValues(NamedTuple):
    """A loss in JAX: `total` [], `terms` [] by name, `priorities` [M] or None, and columns for the groups after it."""

    total: Any
    terms: Mapping[str, Any]
    priorities: Any
    columns: Mapping[str, Any]


LossOfRows: TypeAlias = Callable[[Any, Any, Sequence[Any], Mapping[str, Any], Rows, Mapping[str, Any]], LossValues]
"""(parameters [P], the target's, other tensors of the networks, columns [M, ...], their rows, scheduled values)."""


@dataclass(frozen=True)
class Group:
    """A loss group: its loss, its span of the parameters, and its optimizer's step."""

    name: str
    loss: LossOfRows
    start: int
    stop: int
    every: int
    step: OptimizerStep


class LearnerState(NamedTuple):
    """The state that an update changes: parameters [P], last gradient [P], optimizer states, and the target network.

    `target` [P] are the target network's parameters, [0] without one; `synced` is the number of optimizer steps when
    they were last updated.
    """

    vector: Any
    gradient: Any
    optimizers: tuple[State, ...]
    target: Any
    synced: Any


class Inputs(NamedTuple):
    """The inputs that an update reads and does not change: other tensors of the networks, and the current settings.

    The target network moves by the fraction `tau` every `target_every` optimizer steps; 0 means never.
    """

    others: tuple[Any, ...]
    target_every: Any
    tau: Any
    learning_rates: Any
    max_grad_norms: Any
    scheduled: Mapping[str, Any]


class Steps(NamedTuple):
    """The results of the steps: `terms` [steps, names], with the gradient's norm last; `priorities` [steps, M]."""

    terms: Any
    priorities: Any


def update_program(groups: Sequence[Group], names: list[str], learning: slice) -> Any:
    """Return the jitted update, which appends the names of all terms to `names` while it is traced.

    Outside of `learning`, the trained parameters, a target network's parameters are copied whatever `tau` is.

    `(state, inputs, columns [N, ...], order [steps, M], sizes [steps], count, first number)`: step i trains on the rows
    `order[i, :sizes[i]]` of the columns; the others of `order[i]` are padding. With an order [1, 0], the one step
    trains on the first `sizes[0]` rows. The result is a LearnerState and Steps.
    """
    step = partial(_step, groups, names, learning)

    def update(
        state: LearnerState, inputs: Inputs, columns: Mapping[str, Any], order: Any, sizes: Any, count: Any, number: Any
    ) -> tuple[LearnerState, Steps]:
        if not order.size:
            state, terms, priorities, _ = step(state, inputs, columns, sizes[0], number)
            return state, Steps(terms[None], None if priorities is None else priorities[None])

        def rows_of(at: Any) -> Mapping[str, Any]:
            return {name: jnp.take(column, order[at], axis=0) for name, column in columns.items()}

        shapes = jax.eval_shape(lambda: step(state, inputs, rows_of(0), sizes[0], number))
        logged = jnp.zeros((order.shape[0], *shapes[1].shape), shapes[1].dtype)
        priorities = None if shapes[2] is None else jnp.zeros((order.shape[0], *shapes[2].shape), shapes[2].dtype)

        def body(at: Any, carry: Any) -> Any:
            state, number, logged, priorities = carry
            state, terms, new, taken = step(state, inputs, rows_of(at), sizes[at], number)
            priorities = None if new is None else priorities.at[at].set(new)
            return state, number + taken, logged.at[at].set(terms), priorities

        state, _, logged, priorities = jax.lax.fori_loop(0, count, body, (state, number, logged, priorities))
        return state, Steps(logged, priorities)

    return jax.jit(update)


def gradient_program(loss: LossOfRows, names: list[str], start: int, stop: int) -> Any:
    """Return the jitted gradient [stop - start] of a loss by a span of the parameters, with its LossValues.

    Appends the names of the terms to `names`, as `update_program` does.

    `(parameters [P], the target's, other tensors, columns [M, ...], size, scheduled values)`: the loss is computed over
    the first `size` rows; the others are padding.
    """

    def loss_of(own: Any, vector: Any, target: Any, others: Any, columns: Any, size: Any, scheduled: Any) -> Any:
        count = len(next(iter(columns.values())))
        vector = jax.lax.dynamic_update_slice(vector, own, (start,))
        losses = loss(vector, target, others, columns, Rows(jnp.arange(count) < size, size), scheduled)
        names.extend(name for name in losses.terms if name not in names)
        return losses.total, losses

    def gradient(vector: Any, *given: Any) -> Any:
        (_, losses), gradient = jax.value_and_grad(loss_of, has_aux=True)(vector[start:stop], vector, *given)
        return gradient, losses

    return jax.jit(gradient)


def _step(
    groups: Sequence[Group],
    names: list[str],
    learning: slice,
    state: LearnerState,
    inputs: Inputs,
    columns: Mapping[str, Any],
    size: Any,
    number: Any,
) -> tuple[LearnerState, Any, Any, Any]:
    """Step the groups in order on one minibatch; return state, terms, first priorities, and whether all were taken."""
    count = len(next(iter(columns.values())))
    rows = Rows(jnp.arange(count) < size, size)
    terms: dict[str, Any] = {}
    priorities, squares, alive = None, jnp.zeros(()), jnp.asarray(True)
    for index, group in enumerate(groups):
        due = alive & (number % group.every == 0)
        trained = _trained(group, names, index, inputs, columns, rows)
        if group.every == 1:
            stepped = trained(state)
        else:
            idle = jax.eval_shape(trained, state)
            stepped = jax.lax.cond(due, trained, partial(_idle, idle), state)
        after, own, priority, added, norm = stepped
        # A step whose gradient is not finite is skipped, and so are the steps of the groups after it.
        taken = due & jnp.isfinite(norm)
        state = jax.tree.map(lambda new, old, taken=taken: jnp.where(taken, new, old), after, state)
        state = state._replace(gradient=after.gradient)
        terms |= {name: jnp.where(due, value, jnp.nan) for name, value in own.items()}
        squares = squares + jnp.where(due, norm * norm, 0.0)
        alive = alive & (jnp.isfinite(norm) | ~due)
        priorities = priority if priorities is None else priorities
        columns = {**columns, **added}
    if state.target.size:
        updates = number - 1 + alive
        due = (inputs.target_every > 0) & (updates - state.synced >= inputs.target_every)
        state = jax.lax.cond(due, partial(_synced, inputs.tau, learning, updates), lambda same: same, state)
    logged = jnp.stack([*(jnp.asarray(terms[name], jnp.float32) for name in names), jnp.sqrt(squares)])
    return state, logged, priorities, alive


def _trained(
    group: Group, names: list[str], index: int, inputs: Inputs, columns: Mapping[str, Any], rows: Rows
) -> Callable[[LearnerState], Any]:
    """Return the step of one group: (state, terms, priorities, columns, norm)."""

    def total_loss(own: Any, vector: Any, target: Any) -> Any:
        whole = own.shape == vector.shape
        vector = own if whole else jnp.concatenate([vector[: group.start], own, vector[group.stop :]])
        losses = group.loss(vector, target, inputs.others, columns, rows, inputs.scheduled)
        # In the loss's own order: what JAX returns of a dict is sorted.
        names.extend(name for name in losses.terms if name not in names)
        return losses.total, losses

    def trained(state: LearnerState) -> Any:
        own = state.vector[group.start : group.stop]
        (_, losses), gradient = jax.value_and_grad(total_loss, has_aux=True)(own, state.vector, state.target)
        norm = jnp.sqrt(jnp.sum(gradient * gradient))
        # The gradient's norm is clipped as in `learner.optimizer`.
        limit = inputs.max_grad_norms[index]
        clipped = jnp.where(norm > limit, gradient / (norm / limit), gradient)
        after, optimizer = group.step(own, clipped, state.optimizers[index], inputs.learning_rates[index])
        vector = jax.lax.dynamic_update_slice(state.vector, after, (group.start,))
        shown = jax.lax.dynamic_update_slice(state.gradient, gradient, (group.start,))
        optimizers = (*state.optimizers[:index], optimizer, *state.optimizers[index + 1 :])
        after_step = state._replace(vector=vector, gradient=shown, optimizers=optimizers)
        return after_step, losses.terms, losses.priorities, losses.columns, norm

    return trained


def _synced(tau: Any, learning: slice, updates: Any, state: LearnerState) -> LearnerState:
    """Return the state after a soft update of the target, as `FlatParameters.soft_update` makes it."""
    old, new = state.target[learning], state.vector[learning]
    moved = jnp.where(tau < 0.5, old + tau * (new - old), new - (new - old) * (1.0 - tau))
    return state._replace(target=state.vector.at[learning].set(moved), synced=updates)


def _idle(shapes: Any, state: LearnerState) -> Any:
    _, terms, priority, columns, norm = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
    return state, terms, priority, columns, norm
