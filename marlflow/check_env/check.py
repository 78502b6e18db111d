"""The steps of `marlflow check-env`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gymnasium import spaces as gym
from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.errors import ConfigInvalid, EnvironmentFailed, MarlflowError
from marlflow.base.progress import progress
from marlflow.check_env.api import as_note, compare_batched, run_tests
from marlflow.check_env.findings import Findings
from marlflow.check_env.outcome import Kind, Masks, Trial
from marlflow.check_env.play import Played, play
from marlflow.check_env.reproduce import difference, difference_if_drawn
from marlflow.check_env.seats import Seats, seats_of, suitable
from marlflow.check_env.speed import measure_speed
from marlflow.check_env.summary import episodes_of, groups_of, unbalanced
from marlflow.config.environment import environment_maker, environment_name, opened
from marlflow.config.experiment import Env
from marlflow.config.records import played_environment
from marlflow.env import EnvAdapter
from marlflow.env.batched.protocol import BatchedEnv
from marlflow.env.batched.single import as_pettingzoo
from marlflow.env.make import render_modes
from marlflow.env.wrappers.managed_aec import managed_of
from marlflow.sampling.watchdog import close_within

BUDGET_S = 60
_DRAWN = "rgb_array"


def check_environment(env: Env, episodes: int = 200, seed: int = 0, budget_s: float = BUDGET_S) -> Trial:
    """Check an environment with PettingZoo's tests and random episodes, and measure its speed.

    `budget_s`: seconds for the episodes. Raises ConfigInvalid if the environment cannot be created.
    """
    if episodes < 1:
        raise ConfigInvalid([f"episodes must be at least 1, not {episodes}"])
    env = played_environment(env)
    progress("opening the environment")
    envs: list[Any] = []
    findings = Findings(environment_name(env))

    def make_first() -> Any:
        made = environment_maker(env)()
        findings.kind = _kind(made)
        envs.append(as_pettingzoo(made))
        return envs[-1]

    # Warnings of the environment become notes of the result.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            with opened(make_first, env) as adapter:
                findings.agents = tuple(adapter.agents)
                state = _state_space(adapter, findings)
                findings.state = None if state is None else f"{state.dtype} {state.shape}"
                seats = seats_of(adapter, envs[0], state)
                if (managed := managed_of(envs[0])) is not None:
                    findings.notes.append(managed.turns)
        except ConfigInvalid as error:
            if not isinstance(error.__cause__, EnvironmentFailed):
                raise
            # The environment was created, but failed when it was opened.
            findings.failed(error.__cause__)
        else:
            _try(env, seats, episodes, seed, budget_s, findings)
            findings.about_tests()
    findings.notes += [as_note(warning) for warning in caught]
    return findings.trial(seed)


def _try(env: Env, seats: Seats, episodes: int, seed: int, budget_s: float, findings: Findings) -> None:
    maker = environment_maker(env)

    def make_env() -> Any:
        return as_pettingzoo(maker())

    progress("PettingZoo's own tests")
    masks: Masks = next((group.masks for group in seats.groups if group.masks != "none"), "none")
    findings.tests = run_tests(make_env, findings.kind, masks, findings.notes, env.step_timeout_s)
    findings.tests += compare_batched(make_env, maker.make_batched, seats, seed, env.step_timeout_s)
    progress("the networks of its policies")
    fits = {group.name: suitable(group.spaces, seats.has_tasks) for group in seats.groups}
    if not findings.playable(seats):
        findings.groups = groups_of(seats, fits, Played())
        return

    played = play(make_env, seats, seed, episodes, budget_s, env.step_timeout_s)
    mismatch = unbalanced(played, played.ledger, seats, seed) if played.ledger and played.results else None
    findings.groups = groups_of(seats, fits, played)
    findings.episodes = episodes_of(played, mismatch is None if played.results else None, seed, episodes, budget_s)
    findings.about_play(played, seats, mismatch)
    # Replays and speed would only fail in the same way.
    if played.failure is not None:
        return
    progress("the same episodes again")
    if _compare_replay(make_env, seats, seed, findings):
        if findings.reproducible and any(_has_picture(group.spaces.observation) for group in seats.groups):
            findings.about_drawing(_drawn_difference(env, make_env, seed, findings.notes))
        progress("its speed")
        try:
            findings.speed = measure_speed(make_env, seats, fits, env.num_envs, seed)
        except Exception as error:  # noqa: BLE001  (the other results must not be lost)
            findings.notes.append(f"its speed could not be measured: {type(error).__name__}: {error}")


def _compare_replay(make_env: Callable[[], Any], seats: Seats, seed: int, findings: Findings) -> bool:
    """Note whether a seed determines the episodes; return False if the environment failed."""
    try:
        findings.differs = difference(make_env, seed) or ""
        if not seats.reproducible:
            findings.differs = findings.differs or 'its metadata["reproducible"] is False'
        findings.reproducible = not findings.differs
    except MarlflowError as error:
        findings.failed(error)
        return False
    findings.about_reproducing()
    return True


def _has_picture(space: gym.Space[Any]) -> bool:
    if isinstance(space, gym.Dict | gym.Tuple):
        return any(map(_has_picture, space.values() if isinstance(space, gym.Dict) else space))
    return isinstance(space, gym.Box) and len(space.shape) >= 2


def _drawn_difference(env: Env, make_env: Callable[[], Any], seed: int, notes: list[str]) -> str | None:
    """Return how episodes differ when the environment is made with render_mode=rgb_array; None if they do not.

    None, too, if it has a render mode, cannot be made with this one, or fails then, of which there is a note.
    """
    made = make_env()
    modes, mode = render_modes(made), getattr(made, "render_mode", None)
    close_within(made.close, name := environment_name(env))
    if mode is not None or _DRAWN not in (modes or ()):
        return None
    maker = environment_maker(replace(env, arguments={**env.arguments, "render_mode": _DRAWN}))
    try:
        close_within(as_pettingzoo(maker()).close, name)
    except Exception:  # noqa: BLE001  (whatever a factory raises that does not take the argument)
        return None
    try:
        return difference_if_drawn(make_env, lambda: as_pettingzoo(maker()), seed)
    except MarlflowError as error:
        notes.append(f"with render_mode={_DRAWN} it fails, so whether agents see the same was not compared: {error}")
        return None


def _kind(env: Any) -> Kind:
    if isinstance(env, AECEnv | ParallelEnv):
        return "AEC" if isinstance(env, AECEnv) else "Parallel"
    return "AEC" if isinstance(env, BatchedEnv) and env.turn_based else "Parallel"


def _state_space(adapter: EnvAdapter, findings: Findings) -> gym.Box | None:
    try:
        return adapter.state_space()
    except EnvironmentFailed as failure:
        # Only central critics need the state, so this does not matter for other algorithms.
        findings.notes.append(f"env.{failure.reason}")
        return None
