"""Makes environments, with their wrappers."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.errors import ConfigInvalid
from marlflow.env.batched.protocol import BatchedEnv
from marlflow.env.batched.versions import Batched, BatchedMaker, batch_wrapped, batched_maker, makes_batches
from marlflow.env.factories import import_factory
from marlflow.env.functional_protocol import FunctionalEnv
from marlflow.env.user_code import does_not_fit, own_lines


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A picklable wrapper with its arguments; `name` is for messages."""

    name: str
    make: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, env: Any) -> Any:
        return self.make(env, **self.arguments)


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """Make environments from a factory or its import path; picklable. `name` is for messages.

    `batched` says whether `make_batched` is to be used, if there is a version for it.
    """

    factory: Callable[..., Any] | str
    arguments: Mapping[str, Any]
    wrappers: Sequence[Callable[[Any], Any]]
    name: str
    batched: Batched = False

    def __call__(self) -> Any:
        if isinstance(self.factory, str):
            return make_environment(self.factory, self.arguments, self.wrappers)
        return wrapped(self.factory(**_for_one(self.factory, self.arguments)), self.wrappers, self.name)

    @property
    def make_batched(self) -> BatchedMaker | None:
        """Makes environments that are stepped by one call; None: they are stepped one by one. Raises ConfigInvalid."""
        return batched_maker(self.factory, self.arguments, self.wrappers, self.batched)

    def without_window(self) -> EnvMaker:
        """Return one whose environments open no window, by `render_mode="human"`."""
        if self.arguments.get("render_mode") != "human":
            return self
        return replace(self, arguments={**self.arguments, "render_mode": None})


def _for_one(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments for one environment, also of a factory that makes batches."""
    return {"num_envs": 1, **arguments} if makes_batches(factory) else arguments


def make_environment(target: str, arguments: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]] = ()) -> Any:
    """Call the factory at `target` (`package.module.name`) and apply `wrappers`, the first one innermost.

    Returns a PettingZoo AECEnv or ParallelEnv, or a BatchedEnv of one environment. Raises ConfigInvalid if the factory
    cannot be imported or called, makes another thing, or a wrapper refuses it.
    """
    factory = import_factory(target)
    given = _for_one(factory, arguments)
    try:
        env = factory(**given)
    except TypeError as error:
        # An error inside the factory is raised unchanged, with its own traceback.
        if not does_not_fit(factory, error, (), given):
            raise
        given_text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        refused = f"does not take {given_text}" if arguments else "cannot be made without arguments"
        raise ConfigInvalid([f"environment {target} {refused}: {error}{own_lines(error)}"]) from error
    return wrapped(env, wrappers, target)


def wrapped(env: Any, wrappers: Sequence[Callable[[Any], Any]], name: str) -> Any:
    """Apply `wrappers`, the first one innermost; raises ConfigInvalid. `name` is for messages."""
    if isinstance(env, BatchedEnv):
        return batch_wrapped(env, wrappers, name)
    if not isinstance(env, AECEnv | ParallelEnv):
        problem = f"{name} makes a {type(env).__name__}, not a PettingZoo AECEnv or ParallelEnv"
        functional = f"; a functional environment is env=functional env.make={name}"
        hint = functional if isinstance(env, FunctionalEnv) else _other_interface_hint(env)
        raise ConfigInvalid([problem + hint])
    for wrapper in wrappers:
        own_name = wrapper.name if isinstance(wrapper, Wrapper) else getattr(wrapper, "__qualname__", repr(wrapper))
        description = f"wrapper {own_name} of environment {name}"
        try:
            outer = wrapper(env)
        except ConfigInvalid as error:
            raise ConfigInvalid(
                [f"{description}: {reason}{_mask_hint(env, reason)}" for reason in error.problems]
            ) from error
        except BdbQuit:
            raise
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            text = f"{description} raised {reason}{_mask_hint(env, reason)}{own_lines(error)}"
            raise ConfigInvalid([text]) from error
        if not isinstance(outer, AECEnv | ParallelEnv):
            raise ConfigInvalid([f"{description} returned {type(outer).__name__}, not an environment"])
        env = outer
    return env


def render_modes(env: Any) -> Sequence[str] | None:
    """Return the render modes that the environment's metadata declare; None if they do not say."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes")
    return None if modes is None else [str(mode) for mode in modes]


def _mask_hint(env: Any, reason: str) -> str:
    # Some Dict observations are only Dicts for their action mask.
    spaces: list[Any] = [env.observation_space(agent) for agent in getattr(env, "possible_agents", ())]
    if "Dict" in reason and any("action_mask" in getattr(space, "spaces", ()) for space in spaces):
        return "; action masks come with its observations, so take them out first: wrappers=[mask_in_info,...]"
    return ""


def _other_interface_hint(env: object) -> str:
    if isinstance(env, type):
        return f"; it returned the class {env.__name__}: call it there"
    methods = ("reset", "step", "observation_space", "action_space")
    if hasattr(env, "possible_agents") and all(callable(getattr(env, method, None)) for method in methods):
        base, name = "AECEnv" if hasattr(env, "observe") else "ParallelEnv", type(env).__name__
        return f"; it has the methods of one, so class Mine({name}, pettingzoo.{base}) of your own, left empty, is one"
    if hasattr(env, "observation_space") and not hasattr(env, "possible_agents") and hasattr(env, "step"):
        of_several = "one of several agents, with Tuple spaces, is env=gymnasium_team"
        return f"; an environment of one agent (gymnasium) is not supported, and {of_several}"
    return ""
