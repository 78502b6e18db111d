"""Two time scales: managers choose options every k env steps, and workers that see them act in between.

Sutton, Precup and Singh, 1999, "Between MDPs and semi-MDPs", doi:10.1016/S0004-3702(99)00052-1. Goals as options, and
rewards for reaching them: Nachum et al., 2018, arXiv:1805.08296 (HIRO). The wrapper makes an AEC environment of a
Parallel one, because an AEC agent may act rarely: its row sums the rewards until it acts again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from gymnasium import spaces
from pettingzoo import AECEnv

from marlflow.base.errors import ConfigInvalid
from marlflow.env.agents import declared_agents, matching_agents
from marlflow.env.wrappers.managed_aec import ManagedAEC, ManagerActs, ManagerSees, OptionRules

_AGENT = "{agent}"


def managed(  # noqa: PLR0913, PLR0917  each is a key of the configuration
    env: Any,
    options: int | spaces.Space[Any],
    every: int = 8,
    agents: str = "*",
    manager: str = "manager_{agent}",
    terminate: Callable[..., Any] | None = None,
    intrinsic: Callable[..., Any] | None = None,
    moved: Callable[..., Any] | None = None,
    worker_share: float = 1.0,
    manager_sees: ManagerSees = "obs",
    manager_acts: ManagerActs = "when_due",
) -> Any:
    """Give `agents` (a pattern) of a Parallel environment managers, and make it an AEC environment.

    A manager chooses an option, one of `options` (a number, or a space), at reset, after `every` env steps, and when
    `terminate(observation, option)` holds for all of its workers. `manager` names it; without `{agent}`, one manager
    chooses for all. Workers see `{observation, option, left}`; `left` is the share of `every` that remains.

    Rewards: a manager receives the rewards of its workers, as the environment issues them. A worker receives
    `worker_share` times its own reward, plus `intrinsic(observation, option, next_observation)`.
    `moved(observation, option, next_observation)` returns the option after an env step, such as a relative goal. A
    manager sees its worker's observation, or all workers' if it manages several; with `manager_sees="state"` the state
    of the environment. With `manager_acts="every_env_step"`, it has a row for each env step: one further action means
    to continue, and a mask allows only this action until the option is over. Its discount is then per env step.

    Raises ConfigInvalid for settings and functions that do not fit.
    """
    space: Any = spaces.Discrete(options) if isinstance(options, int) and options >= 1 else options
    problems = _setting_problems(env, space, every, worker_share, manager_sees, intrinsic)
    problems += _acting_problems(manager_acts, space, moved)
    if problems:
        raise ConfigInvalid(problems)
    managers = _managers_of(matching_agents(env, agents), manager, declared_agents(env))
    rules = OptionRules(space, every, terminate, intrinsic, moved, worker_share, manager_sees, manager_acts)
    wrapper = ManagedAEC(env, managers, rules)
    # So that a function with a wrong signature or result is refused before a run.
    wrapper.reset(seed=0)
    wrapper.try_functions()
    return wrapper


def _managers_of(workers: Sequence[str], manager: str, taken: Sequence[str]) -> dict[str, str]:
    managers = {worker: manager.replace(_AGENT, worker) for worker in workers}
    if clashes := sorted(set(managers.values()) & set(taken)):
        raise ConfigInvalid([f"manager={manager!r}: the environment has an agent {clashes[0]!r} already"])
    return managers


def _setting_problems(
    env: Any, space: Any, every: int, worker_share: float, manager_sees: str, intrinsic: Any
) -> list[str]:
    problems = []
    if isinstance(env, AECEnv):
        problems.append("it takes a Parallel environment, in which all agents act at once: name its parallel_env")
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        problems.append(f"options must be a number of at least 1, or a Discrete, MultiDiscrete or Box, not {space!r}")
    if every < 1:
        problems.append(f"every must be at least 1 env step, not {every}")
    if not math.isfinite(worker_share):
        problems.append(f"worker_share must be a finite number, not {worker_share}")
    if worker_share == 0.0 and intrinsic is None:
        problems.append("worker_share=0 without intrinsic leaves workers without rewards: set one of them")
    if manager_sees not in get_args(ManagerSees):
        problems.append(f"manager_sees must be obs or state, not {manager_sees!r}")
    elif manager_sees == "state" and not isinstance(getattr(env, "state_space", None), spaces.Box):
        problems.append("manager_sees=state: the environment has no state_space; put wrappers=joint_state before it")
    return problems


def _acting_problems(manager_acts: str, space: Any, moved: Any) -> Iterator[str]:
    if manager_acts not in get_args(ManagerActs):
        yield f"manager_acts must be when_due or every_env_step, not {manager_acts!r}"
    if manager_acts != "every_env_step":
        return
    if not isinstance(space, spaces.Discrete):
        yield (
            f"manager_acts=every_env_step: to continue is one more number, and options are {space!r}; set options to a "
            "number, or manager_acts=when_due"
        )
    if moved is not None:
        yield "manager_acts=every_env_step: to continue keeps the option as it is; leave moved out, or set when_due"
