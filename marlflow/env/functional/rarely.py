"""Work that few environments need in a step, computed only in the steps in which one of the batch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


def rarely(where: Any, function: Callable[..., Any], otherwise: Any, *arguments: Any) -> Any:
    """Return `function(*arguments)` if `where` (a bool array of one environment), else `otherwise`, a like pytree.

    Mapped over environments, `lax.cond` computes both for all of them; this computes `function` for all of them if it
    is needed in any, else for none. `function` may use no arrays but its arguments.
    """

    @custom_vmap
    def chosen(where: Any, otherwise: Any, arguments: Any) -> Any:
        return jax.lax.cond(where, lambda: function(*arguments), lambda: otherwise)

    @chosen.def_vmap
    def _batched(size: int, is_batched: Any, where: Any, otherwise: Any, arguments: Any) -> Any:
        where, otherwise, arguments = jax.tree_util.tree_map(
            lambda leaf, batched: leaf if batched else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))),
            (where, otherwise, arguments),
            tuple(is_batched),
        )

        def needed() -> Any:
            found = jax.vmap(function)(*arguments)
            return jax.tree_util.tree_map(
                lambda new, old: jnp.where(where.reshape(size, *[1] * (new.ndim - 1)), new, old), found, otherwise
            )

        result = jax.lax.cond(where.any(), needed, lambda: otherwise)
        return result, jax.tree_util.tree_map(lambda _: True, result)

    return chosen(where, otherwise, arguments)
