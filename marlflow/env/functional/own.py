"""A functional environment of a user's own: `env=functional env.make=package.module.function`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.env.factories import import_factory
from marlflow.env.functional.batch import FunctionalBatch, batch_of
from marlflow.env.user_code import failed_call


def batched_env(
    num_envs: int,
    make: Callable[..., Any] | str,
    parameters: Mapping[str, Any] | None = None,
    max_env_steps: int | None = None,
    render_mode: str | None = None,
) -> FunctionalBatch:
    """Return `num_envs` environments of the `FunctionalEnv` that `make` returns.

    make: a function or class, or its import path.
    parameters: its arguments, by name.
    max_env_steps: env steps after which all agents are truncated; None: the environment alone ends episodes.
    render_mode: `rgb_array`, or None.

    Raises ConfigInvalid.
    """
    name = make if isinstance(make, str) else getattr(make, "__qualname__", repr(make))
    given = dict(parameters or {})

    def made() -> Any:
        factory = import_factory(make) if isinstance(make, str) else make
        try:
            return factory(**given)
        except Exception as error:
            raise ConfigInvalid([f"functional environment {failed_call(factory, error, (), given)}"]) from error

    return batch_of(num_envs, name, ("own", make), given, made, max_env_steps, render_mode)
