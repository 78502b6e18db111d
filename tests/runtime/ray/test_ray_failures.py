"""With Ray, too, what a user's code raises is what the user sees, and what cannot be had is refused at once."""

from __future__ import annotations

import itertools
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.random import episode_seed
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runs.saved_runs import newest
from marlflow.runtime.ray import workers
from tests.runtime.ray.processes import assert_no_actor_is_left
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run
from tests.sentences import refusals

pytestmark = pytest.mark.usefixtures("ray_session")
ONE_WORKER = mf.Rollouts(num_workers=1, fragment_env_steps=80)


def look_up(batch: mf.Batch) -> mf.Batch:
    """A user's function, which does well with the few rows that it is tried on before the run."""
    if batch.rows > 10:
        batch.columns["nothing of this name"]
    return batch


@dataclass(frozen=True)
class BrokenPPO(mf.PPO):
    """PPO with a stage that raises in front of its estimates."""

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replay: mf.Replay | None = None) -> mf.Plan:
        plan = super().plan(experience, learner, replay)
        publish = plan.output
        learn = publish.inputs[0]
        normalize = learn.inputs[0]
        advantages = normalize.inputs[0]
        advantages = replace(advantages, inputs=(advantages.inputs[0].then(look_up, at=learner, name="Broken"),))
        normalize = replace(normalize, inputs=(advantages,))
        return replace(plan, output=replace(publish, inputs=(replace(learn, inputs=(normalize,)),)))


def test_a_stage_that_raises_is_named_and_its_own_traceback_is_told(tmp_path: Path) -> None:
    algorithm = BrokenPPO(batch_agent_steps=50, minibatch_agent_steps=10)
    with pytest.raises(mf.StageFailed) as caught:
        mf.train(
            small_run("ray", policies=policies(hunters=algorithm, prey=mf.Random()), rollouts=ONE_WORKER), tmp_path
        )
    failed = caught.value
    assert (failed.stage, failed.plan) == ("Broken", "hunters")
    assert failed.reason == "KeyError: 'nothing of this name'"
    assert "DropStale -> Broken -> Advantages -> Normalize -> Learn" in failed.path
    assert isinstance(failed.__cause__, KeyError)
    told = "".join(traceback.format_exception(failed.__cause__))
    assert 'batch.columns["nothing of this name"]' in told
    assert "in look_up" in told
    assert "site-packages/ray" not in told
    assert_no_actor_is_left()


def choose_badly(obs: Array, action_mask: Array | None, generator: mf.RowRandom) -> Array:
    """A user's policy that divides by zero."""
    raise ZeroDivisionError(f"{len(obs)} rows by nothing")


def test_a_policy_that_raises_on_a_worker_shows_its_own_lines(tmp_path: Path) -> None:
    with pytest.raises(mf.StageFailed) as caught:
        mf.train(
            small_run("ray", policies=policies(hunters=SMALL_PPO, prey=mf.Scripted(choose_badly)), rollouts=ONE_WORKER),
            tmp_path,
        )
    assert (caught.value.plan, caught.value.stage) == ("rollouts", "Collect")
    cause = caught.value.__cause__
    assert isinstance(cause, mf.UserCodeFailed)
    assert cause.where == f"scripted policy {__name__}.choose_badly"
    assert cause.reason == "raised ZeroDivisionError: 8 rows by nothing"
    assert "in choose_badly" in cause.user_traceback
    assert "site-packages" not in cause.user_traceback
    assert_no_actor_is_left()


def test_resources_that_are_not_there_are_refused_before_anything_starts(tmp_path: Path) -> None:
    greedy = {
        "hunters": mf.Policy(SMALL_PPO, SMALL, mf.PlacementOverrides(num_cpus=64)),
        "prey": mf.Policy(SMALL_DQN, SMALL, mf.PlacementOverrides(num_gpus=3, resources={"fpga": 1})),
    }
    cpus, gpus, fpgas = refusals(mf.ConfigInvalid, mf.train, small_run("ray", policies=greedy), tmp_path)
    assert cpus.startswith("the run asks for 64 CPU (64 for learner hunters), but there are ")
    assert gpus.startswith("the run asks for 3 GPU (3 for learner prey), but there are 0")
    assert fpgas.startswith("the run asks for 1 fpga (1 for learner prey), but there are 0")
    assert_no_actor_is_left()


class Closing(CartPoleTeam):
    """Its first environment hangs when it is closed, in a loop of C's that no signal interrupts; the other raises."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._first = seed == episode_seed(0, 0, 0) or getattr(self, "_first", False)
        return super().reset(seed, options)

    def close(self) -> None:
        if self._first:
            sum(itertools.repeat(0))
        raise RuntimeError("it sticks")


@pytest.mark.slow
def test_environments_are_closed_once_everything_is_kept_and_cannot_hold_the_end_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_CLOSE_TIMEOUT_S", 3.0)
    made = small_run("ray", 80, env=mf.Env(Closing, num_envs=2), policies=policies(hunters=SMALL_PPO, prey=mf.Random()))
    result = mf.train(made, tmp_path)
    assert result.stopped_by == "stop.env_steps=80"
    assert result.metrics["faults"]["closes_failed"] == 2
    assert newest(tmp_path).env_steps == 80
    assert_no_actor_is_left()
