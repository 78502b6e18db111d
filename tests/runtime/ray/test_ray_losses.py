"""A process that cannot be replaced ends the run, with the requested and the free resources in the error."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import worker

from marlflow.algorithms.scripted import Random
from marlflow.base.errors import ActorLost, StageFailed
from marlflow.config.experiment import Env, PlacementOverrides, Policy, Rollouts
from marlflow.runtime.ray import RayRuntime, actors, handles
from marlflow.runtime.ray.actors import Actors
from marlflow.runtime.ray.handles import RestartableHost
from marlflow.runtime.ray.private_api import log_raylets_messages
from tests.runtime.driven_runs import driven
from tests.runtime.ray.deadly import Deadly, DeadlyPPO, kill
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run

pytestmark = pytest.mark.usefixtures("ray_session")


@ray.remote(num_cpus=0)
class Mute:
    """A process of a group that follows, or hangs, for as long as it lives."""

    def lead(self, name: str, world_size: int) -> str:
        return "address"

    def meet(self, name: str) -> None:
        return None

    def follow(self, name: str, address: str, rank: int, world_size: int) -> None:
        self.hang()

    def hang(self) -> None:
        threading.Event().wait()


def test_a_run_without_any_worker_waits_for_one_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "step"
    experiment = small_run(
        "ray",
        env=Env(partial(Deadly, marker), num_envs=2),
        policies=policies(hunters=SMALL_PPO, prey=Random()),
        rollouts=Rollouts(num_workers=1, fragment_env_steps=20),
    )
    with driven(experiment, RayRuntime()) as run:
        marker.touch()
        run.play(3)
        assert [len(round.receipts) for round in run.rounds] == [1, 1, 1]
        assert [fault.kind for fault in run.faults] == ["workers_lost"]
        monkeypatch.setattr(actors, "RESTART_TIMEOUT_S", 0.0)
        marker.touch()
        with pytest.raises(StageFailed) as caught:
            run.play(3)
    assert isinstance(caught.value.__cause__, ActorLost)
    assert "rollout worker 0 asks for 1 CPU, of which it has a reservation" in str(caught.value)
    assert "free are" in str(caught.value)


@pytest.mark.slow
def test_a_learner_that_does_not_come_back_ends_the_run(tmp_path: Path) -> None:
    algorithm = DeadlyPPO(
        batch_agent_steps=50, minibatch_agent_steps=50, marker=tmp_path / "stage", barred=tmp_path / "barred"
    )
    apart = Policy(replace(SMALL_DQN, learning_starts_agent_steps=20), SMALL, PlacementOverrides(replay="own"))
    experiment = small_run("ray", policies={"hunters": Policy(algorithm, SMALL), "prey": apart})
    with driven(experiment, RayRuntime()) as run:
        run.play(3)
        kill(run.parts.replays["prey"].actor)
        # How soon the loss is noticed depends on the machine.
        for _ in range(20):
            run.play(3)
            if run.faults:
                break
        assert [fault.kind for fault in run.faults] == ["replays_lost"]
        assert run.updates["prey"][-1].version >= run.updates["prey"][0].version
        algorithm.marker.touch()
        algorithm.barred.touch()
        with pytest.raises(StageFailed) as caught:
            run.play(6)
    assert isinstance(caught.value.__cause__, ActorLost)
    assert "learner hunters died, and its successor could not begin: ValueError: no weights were found" in str(
        caught.value
    )


def test_learners_of_one_policy_die_and_come_back_together() -> None:
    together = {"hunters": Policy(SMALL_PPO, SMALL, PlacementOverrides(num_learners=2)), "prey": Policy(Random())}
    one_worker = Rollouts(num_workers=1, fragment_env_steps=80)
    with driven(small_run("ray", policies=together, rollouts=one_worker), RayRuntime()) as run:
        for rank in (1, 0):
            run.play(4)
            before = run.parts.published()["hunters"].version
            ray.kill(run.parts.learners["hunters"].place.host.processes[rank])
            run.play(6)
            assert run.updates["hunters"][-1].version > before
        assert [(fault.kind, fault.where) for fault in run.faults] == [("learners_lost", "learner hunters")] * 2
        assert len({update.version for update in run.updates["hunters"]}) == len(run.updates["hunters"])


def test_a_leader_that_does_not_notice_the_loss_of_a_follower_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handles, "FOLLOWER_CHECK_S", 0.01)
    host = RestartableHost("learner hunters", Actors({}), {}, lambda _: None, ["learner hunters rank 1"])
    host.processes = [Mute.remote(), Mute.remote()]
    host.actor = host.processes[0]
    host._form_group()

    async def answer_of_a_hanging_call() -> None:
        ray.kill(host.processes[1])
        await host.answer(host.actor.hang.remote())

    try:
        with pytest.raises(ray.exceptions.RayActorError):
            asyncio.run(answer_of_a_hanging_call())
    finally:
        ray.kill(host.actor)


class AnyActors(Actors):
    """Kills actors that it has not started."""

    def kill(self, actor: Any) -> None:
        ray.kill(actor)


class LosesOneAgain(RestartableHost):
    """A group of two whose second process is lost once more while the first one waits for it."""

    starts = 0

    def start(self) -> list[Any]:
        self.processes = [Mute.remote(), Mute.remote()]
        self.actor = self.processes[0]
        self.starts += 1
        if self.starts == 2:
            return [process.meet.remote(self.name) for process in self.processes]
        waiting = [process.hang.remote() for process in self.processes]
        ray.kill(self.processes[1])
        return waiting


@pytest.mark.parametrize("blocking", [False, True])
def test_a_group_that_loses_a_process_while_it_meets_starts_again_at_once(blocking: bool) -> None:
    host = LosesOneAgain("learner hunters", AnyActors({}), {}, lambda _: None, ["learner hunters rank 1"])
    try:
        lost = ActorLost("its machine was lost")
        host.restart_blocking(lost) if blocking else asyncio.run(host.restart(0, lost, 0, 0))
        assert host.starts == 2
    finally:
        for process in host.processes:
            ray.kill(process)


def test_what_raylets_say_of_lost_processes_is_logged(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "marlflow")
    show = log_raylets_messages()
    try:
        for who in ("raylet", 7):
            worker.print_to_stdstream({"lines": [f"said by {who}"], "pid": who, "is_err": False}, ignore_prefix=True)
    finally:
        show()
    worker.print_to_stdstream({"lines": ["said later"], "pid": "raylet", "is_err": False}, ignore_prefix=True)
    assert caplog.messages == ["Ray's raylet: said by raylet"]
    out, err = capfd.readouterr()
    assert [text in out + err for text in ("said by raylet", "said by 7", "said later")] == [False, True, True]
