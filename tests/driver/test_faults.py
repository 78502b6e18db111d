"""Faults of environments end the run with a message, or cost their episode, as `faults` says."""

from __future__ import annotations

import bdb
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.base.random import episode_seed
from marlflow.cli.failures import failure
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runs.saved_runs import newest
from marlflow.sampling.receipts import Fault
from tests.driver import breaking_environments, kept_runs
from tests.driver.breaking_environments import (
    AT_STEP,
    Breaks,
    ForgetsAnObservation,
    ForgetsAReward,
    Hangs,
    ObservationIsNaN,
    ObservationOfAnotherShape,
    ObservationOutside,
    Raises,
    RaisesInReset,
    RewardIsNaN,
    UnknownAgent,
    breaks,
)
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.watching import Seen, reports
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO, policies, small_run, without_times
from tests.sentences import wrong_with

SEED = 11
TIMEOUT_S = 1.0  # a step takes a ten-thousandth of it, also where it has to wait for its turn on a busy machine


# The message, and the agent that it names.
KINDS: dict[type[Breaks], tuple[str, str | None]] = {
    Raises: ("step() raised ValueError: the pole snapped", None),
    RaisesInReset: ("reset() raised OSError: no such track", None),
    Hangs: ("step() took longer than env.step_timeout_s (1 s)", None),
    RewardIsNaN: ("the reward is nan, not a finite number", "cart_2"),
    ObservationIsNaN: ("the observation has a NaN at [0]", "cart_1"),
    ObservationOutside: (
        "the observation has 1e+09 at [0], above its bound 4.8; wrappers=clip_observations clips it, "
        "wrappers=widen_bounds takes the bounds away",
        "cart_1",
    ),
    ObservationOfAnotherShape: ("the observation has shape (3,), not (4,)", "cart_1"),
    UnknownAgent: ("agent 'ghost' is not one of possible_agents ('cart_0', 'cart_1', 'cart_2', 'cart_3')", "ghost"),
    ForgetsAReward: (
        "step() gave no reward for an agent that was alive before it; give 0.0 where there is none",
        "cart_3",
    ),
    ForgetsAnObservation: ("step() gave no observation for an agent that is in `agents`", "cart_3"),
}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def run_of(kind: Callable[[], Breaks], budget: mf.Faults | None = None, **changes: Any) -> mf.Experiment:
    timeout_s = TIMEOUT_S if kind is Hangs else None
    given: dict[str, Any] = {
        "env": mf.Env(kind, num_envs=4, step_timeout_s=timeout_s),
        "faults": budget or mf.Faults(),
        "seed": SEED,
        # Each hang lasts as long as it may: a few are enough.
        "env_steps": 80 if kind is Hangs else 480,
        # A window of more steps would never be whole in rounds as short as some of these.
        "policies": policies(hunters=SMALL_PPO, prey=replace(SMALL_DQN, n_step=1)),
        **changes,
    }
    return small_run(**given)


def begun(num_envs: int, episodes: int = 100) -> dict[int, list[int]]:
    """The seeds of each environment's episodes."""
    return {
        env_index: [episode_seed(SEED, env_index, number) for number in range(episodes)]
        for env_index in range(num_envs)
    }


# Rounds of few env steps, so that no worker has many faults in one: the run then ends in order.
SHORT_ROUNDS = mf.Rollouts(num_workers=2, fragment_env_steps=4)


def raised_by(experiment: mf.Experiment, where: Path) -> mf.EnvironmentFailed:
    """A fault ends the run in order, with a report and a checkpoint."""
    with pytest.raises(mf.EnvironmentFailed) as caught:
        mf.train(experiment, where)
    assert failure(caught.value).endswith(f"error: {caught.value.where}: {caught.value.reason}")
    assert newest(where).env_steps == reports(where)[-1]["env_steps"]
    return caught.value


def raised_within_a_round(experiment: mf.Experiment, where: Path) -> mf.EnvironmentFailed:
    """The error of a worker with more faults in one round than the budget."""
    with pytest.raises(mf.StageFailed) as caught:
        mf.train(experiment, where)
    assert (caught.value.plan, caught.value.stage) == ("rollouts", "Collect")
    cause = caught.value.__cause__
    assert isinstance(cause, mf.EnvironmentFailed)
    assert failure(caught.value).endswith(f"error: {cause.where}: {cause.reason}")
    return cause


# -- without a budget -----------------------------------------------------------------------------------------------


@each_kind
def test_the_run_ends_and_says_where_and_what(kind: type[Breaks], tmp_path: Path) -> None:
    cause = raised_by(run_of(kind, rollouts=SHORT_ROUNDS), tmp_path)
    reason, agent = KINDS[kind]
    assert cause.reason == reason
    found = re.fullmatch(
        r"environment cartpole_team_v0, env (\d), episode seed (\d+), env step (\d+)(?:, agent '(\w+)')?", cause.where
    )
    assert found is not None
    env_index, seed, step, named = found.groups()
    assert int(seed) in begun(4)[int(env_index)]
    assert breaks(int(seed))
    assert named == agent
    assert int(step) == (0 if kind is RaisesInReset else AT_STEP)
    assert isinstance(cause, mf.EnvironmentHung) == (kind is Hangs)
    if kind in (Raises, RaisesInReset, Hangs):
        assert breaking_environments.__file__ in cause.user_traceback
        assert "marlflow/sampling" not in cause.user_traceback


def test_what_was_learned_until_then_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    raised_by(run_of(Raises, rollouts=SHORT_ROUNDS), parts)
    allowed = run_of(Raises, mf.Faults(env_errors=1_000), rollouts=SHORT_ROUNDS, env_steps=240)
    result, expected = mf.resume(allowed, parts), mf.train(allowed, whole)
    assert result.metrics["faults"]["env_errors"] == expected.metrics["faults"]["env_errors"] > 1
    assert_equal(kept_runs.without_times(kept(whole)), kept_runs.without_times(kept(parts)))


def test_without_a_larger_budget_it_ends_again_with_the_next(tmp_path: Path) -> None:
    experiment = run_of(Raises, rollouts=SHORT_ROUNDS, env_steps=10_000)
    first = raised_by(experiment, tmp_path)
    with pytest.raises(mf.EnvironmentFailed) as caught:
        mf.resume(experiment, tmp_path)
    assert caught.value.where != first.where
    assert reports(tmp_path)[-1]["faults"]["env_errors"] >= 2


def test_many_in_one_round_end_it_within_the_round_and_what_was_kept_before_stands(tmp_path: Path) -> None:
    experiment = run_of(Raises, rollouts=mf.Rollouts(2, 80), checkpoint=mf.CheckpointConfig(every_env_steps=1))
    cause = raised_within_a_round(experiment, tmp_path)
    assert cause.reason == "step() raised ValueError: the pole snapped"
    assert not (tmp_path / "checkpoints").exists(), "it was the first round"
    assert reports(tmp_path)[-1]["faults"]["env_errors"] == 2, "the second in a round is one too many"


# -- within a budget ------------------------------------------------------------------------------------------------


@each_kind
def test_within_the_budget_the_episode_is_given_up_and_counted_and_the_run_learns_on(
    kind: type[Breaks], tmp_path: Path, seen: Seen
) -> None:
    which = "env_hangs" if kind is Hangs else "env_errors"
    result = mf.train(run_of(kind, mf.Faults(**{which: 1_000})), tmp_path)
    faults = [fault for receipt in seen.receipts for fault in receipt.faults]
    counts = result.metrics["faults"]
    assert counts[which] == len(faults) > 1
    assert sum(counts[other] for other in ("env_errors", "env_hangs")) == len(faults)
    check_episodes(seen, faults)
    check_rows(result, faults)
    if kind is not Hangs:
        assert all(result.metrics["learners"][name]["updates"] > 0 for name in ("hunters", "prey"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Raises, Hangs], ids=lambda kind: kind.__name__)
def test_workers_of_their_own_process_give_up_the_same_episodes(
    kind: type[Breaks], tmp_path: Path, seen: Seen, ray_session: None
) -> None:
    result = mf.train(run_of(kind, mf.Faults(1_000, 1_000), runtime="ray", env_steps=80), tmp_path)
    faults = [fault for receipt in seen.receipts for fault in receipt.faults]
    assert {fault.kind for fault in faults} == {"env_hangs" if kind is Hangs else "env_errors"}
    check_episodes(seen, faults)
    check_rows(result, faults)


def check_episodes(seen: Seen, faults: list[Fault]) -> None:
    """Every episode that was begun and is not running ended well or is a fault, once, as its seed says."""
    ended = Counter((episode.env, episode_seed(SEED, episode.env, episode.episode)) for episode in seen.episodes)
    words = [re.search(r"env (\d), episode seed (\d+)", fault.where) for fault in faults]
    given_up = Counter((int(found[1]), int(found[2])) for found in words if found is not None)
    assert not any(breaks(seed) for _, seed in ended)
    assert all(breaks(seed) for _, seed in given_up)
    following: dict[int, int] = {}
    for receipt in seen.receipts:
        following.update(receipt.next_episodes)
    over = Counter(
        (env_index, seed) for env_index, seeds in begun(4, 400).items() for seed in seeds[: following[env_index] - 1]
    )
    assert ended + given_up == over


def check_rows(result: mf.Result, faults: list[Fault]) -> None:
    """Every decision is a row of its policy or was lost; each fault lost the decisions since the last round."""
    sampled = sum(policy["agent_steps_sampled"] for policy in result.metrics["policies"].values())
    lost = result.metrics["faults"]["rows_lost"]
    assert lost == sum(fault.rows_lost for fault in faults)
    assert sampled + lost == result.metrics["agent_steps"]
    assert all(fault.rows_lost <= 4 * AT_STEP for fault in faults)


def test_the_same_seed_gives_the_same_run_faults_included(tmp_path: Path) -> None:
    runs = [mf.train(run_of(Raises, mf.Faults(env_errors=1_000)), tmp_path / name).metrics for name in ("one", "again")]
    assert without_times(runs[0]) == without_times(runs[1])


# -- beyond a budget ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3])
def test_beyond_the_budget_the_run_ends_and_says_how_many_were_given_up(
    budget: int, tmp_path: Path, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "marlflow"):
        experiment = run_of(Raises, mf.Faults(env_errors=budget), rollouts=SHORT_ROUNDS, env_steps=10_000)
        cause = raised_by(experiment, tmp_path)
    given_up = "1 episode was" if budget == 1 else f"{budget} episodes were"
    assert cause.reason == (
        f"step() raised ValueError: the pole snapped; {given_up} discarded before, and faults.env_errors allows no more"
    )
    assert "the pole snapped" in cause.user_traceback
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) > budget  # all of the round in which there was one too many
    assert told[budget].startswith(f"{cause.where}: step() raised ValueError: the pole snapped; ")
    detail = [record.getMessage() for record in caplog.records if "doing" in record.getMessage()]
    assert len(detail) == len(told)
    assert all(breaking_environments.__file__ in text for text in detail)
    assert sum(len(receipt.faults) for receipt in seen.receipts) == len(told)
    assert reports(tmp_path)[-1]["faults"]["env_errors"] == len(told)


def test_each_kind_of_fault_has_its_own_budget(tmp_path: Path) -> None:
    cause = raised_by(run_of(Raises, mf.Faults(env_hangs=3), rollouts=SHORT_ROUNDS), tmp_path)
    assert cause.reason == "step() raised ValueError: the pole snapped"


class NeverAgain(Breaks):
    """Once it has been reset, it cannot be reset again, and no copy after it can be."""

    alive = True

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if not NeverAgain.alive:
            raise OSError("the server is gone")
        return CartPoleTeam.reset(self, seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        if self._cycles == AT_STEP:
            NeverAgain.alive = False
            raise OSError("connection lost")
        return CartPoleTeam.step(self, actions)


def test_an_environment_that_cannot_go_on_at_all_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NeverAgain, "alive", True)
    cause = raised_within_a_round(run_of(NeverAgain, mf.Faults(env_errors=7)), tmp_path)
    assert reports(tmp_path)[-1]["faults"]["env_errors"] == 9
    assert cause.reason == (
        "reset() raised OSError: the server is gone; "
        "7 episodes were discarded before, and faults.env_errors allows no more"
    )


def test_of_several_failures_in_one_round_the_first_beyond_its_budget_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = run_of(
        Hangs, rollouts=mf.Rollouts(1, fragment_env_steps=80), log=mf.Log(400, "plain", tensorboard=False)
    )
    cause = raised_within_a_round(experiment, tmp_path)
    assert isinstance(cause, mf.EnvironmentHung)
    assert cause.reason == KINDS[Hangs][0]
    told = capsys.readouterr().out.splitlines()
    (named,) = [line for line in told if "faults.env_hangs allows 0" in line]
    assert named.startswith(f"{cause.where}: its episode was discarded; env_hangs 1")
    assert not [line for line in told if "0 env steps" in line and "updates" in line]  # nothing was made to report of


class Debugged(CartPoleTeam):
    def step(self, actions: dict[str, int]) -> Any:
        raise bdb.BdbQuit


def test_quitting_a_debugger_ends_the_run_as_ctrl_c_does(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="the debugger was quit"):
        mf.train(run_of(Debugged, mf.Faults(env_errors=7)), tmp_path)
    assert reports(tmp_path) == []


# -- what is said ---------------------------------------------------------------------------------------------------


def test_each_fault_is_told_and_counted_those_of_evaluations_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: Seen
) -> None:
    experiment = run_of(
        Raises,
        mf.Faults(env_errors=1_000),
        evaluation=mf.Evaluation(10_000, 30),
        log=mf.Log(400, "plain", tensorboard=False),
        policies=policies(hunters=SMALL_PPO, prey=mf.Random()),
    )
    result = mf.train(experiment, tmp_path)
    said = capsys.readouterr().out.splitlines()
    count = result.metrics["faults"]["env_errors"]
    assert sum("its episode was discarded; env_errors " in line for line in said) == count
    last = f"its episode was discarded; env_errors {count}, and faults.env_errors allows 1000"
    assert any(line.endswith(last) for line in said)
    missing = sum(breaks(episode_seed(SEED, -1, number)) for number in range(30))
    assert missing > 0
    assert count == sum(len(receipt.faults) for receipt in seen.receipts) + 2 * missing
    assert any("faults so far: " in line and f"env errors {count}" in line for line in said)


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"faults": mf.Faults(env_errors=-1)}, "faults.env_errors must be at least 0, not -1"),
        ({"faults": mf.Faults(env_hangs=-2)}, "faults.env_hangs must be at least 0, not -2"),
        (
            {"env": mf.Env(partial(Raises), num_envs=4, step_timeout_s=0.0)},
            "env.step_timeout_s must be at least 0.001 seconds",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(changes: Any, problem: str) -> None:
    [said] = wrong_with(small_run(**changes))
    assert said.startswith(problem)
