"""Frozen entries over Ray: what inline plays, sent once to each process that seats them, and again to a successor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import marlflow as mf
from marlflow.batches.items import Weights
from marlflow.checks.validation import ready
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.ray import RayRuntime, remote_worker
from marlflow.runtime.ray.inference import CACHED_VERSIONS
from marlflow.runtime.ray.rollout_actor import without_parameters
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy, Request, Round
from marlflow.sampling.receipts import Fault
from tests.driver.kept_runs import assert_equal, by_env, kept, without_times
from tests.driver.past_selves import against_past_selves
from tests.driver.psro_runs import league_of, psro_run
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL, SMALL_PPO

pytestmark = pytest.mark.usefixtures("ray_session")

HALF, WHOLE = 440, 640
MAIN = mf.Policy(replace(SMALL_PPO, batch_agent_steps=60, minibatch_agent_steps=32), SMALL)
# The purpose of processes is not tested here.
UNEQUAL = {"object_store", "stages"}


def said(run_dir: Path) -> list[Any]:
    """The reports of a run, without times and what only a run over Ray has."""
    return [{k: v for k, v in without_times(report).items() if k not in UNEQUAL} for report in reports(run_dir)]


def test_a_run_against_frozen_selves_goes_on_as_it_would_have_and_as_inline(tmp_path: Path) -> None:
    inline, parts = tmp_path / "inline", tmp_path / "parts"
    mf.train(against_past_selves(MAIN, WHOLE), inline)
    mf.train(against_past_selves(MAIN, HALF, "ray"), parts)
    result = mf.resume(against_past_selves(MAIN, WHOLE, "ray"), parts)
    assert result.metrics["faults"]["episodes_abandoned"] == 0
    assert_equal(said(parts), said(inline))
    one, other = kept(inline), kept(parts)
    assert any(name.startswith("frozen.") for name in one)
    for trees in (one, other):
        trees["workers"] = by_env(trees["workers"])
        trees["driver"].pop("flow")  # it has the meters of stages
    assert_equal(one, other)


@pytest.mark.slow
def test_a_league_over_ray_plays_the_matches_that_it_plays_inline(tmp_path: Path) -> None:
    inline, over_ray = tmp_path / "inline", tmp_path / "ray"
    mf.train(psro_run("matrix_brps", 1_000, mf.PSRO(agent_steps=300, games=12)), inline)
    mf.train(psro_run("matrix_brps", 1_000, mf.PSRO(agent_steps=300, games=12), "ray"), over_ray)
    assert league_of(over_ray)["mode"]["iteration"] == 1
    assert_equal(league_of(over_ray), league_of(inline))
    assert_equal(said(over_ray), said(inline))


class Play:
    """Rounds of 20 env steps, in which environment c seats `main` against the entry that `seats` has for it."""

    def __init__(self, runtime: Runtime, experiment: mf.Experiment) -> None:
        spec = ready(experiment).spec
        self.faults: list[Fault] = []
        self.workers: Any = runtime.start(spec, self.faults.append).workers
        self._flat = spec.learners["main"].learner().published["main"].flat
        self._put = ray.put if isinstance(runtime, RayRuntime) else lambda flat: flat
        self._frozen: dict[str, FrozenPolicy] = {}

    def _weights(self, version: int) -> Weights:
        factor = np.float32(1 + version / 10)
        return Weights(version, self._put(self._flat * factor))

    def entries(self, names: Sequence[str]) -> Mapping[str, FrozenPolicy]:
        for name in names:
            if name != "main" and name not in self._frozen:
                self._frozen[name] = FrozenPolicy("main", self._weights(int(name.removeprefix("main@"))))
        return {name: self._frozen[name] for name in names if name != "main"}

    def round(self, number: int, seats: Sequence[str], forget: Sequence[str] = ()) -> Round:
        matchups = {env_index: [{"cart_0": "main", "cart_1": seat}] * 20 for env_index, seat in enumerate(seats)}
        weights, frozen = {"main": self._weights(number)}, self.entries(list(dict.fromkeys(seats)))
        made: Any = self.workers.collect(Request(number, weights, {}, matchups, frozen, forget))
        return asyncio.run(made)

    def evaluate(self, entry: str) -> Any:
        seats = [{"cart_0": entry, "cart_1": "main"}, {"cart_0": "main", "cart_1": entry}]
        modes = {entry: "greedy", "main": "sampled"}
        made = self.workers.evaluate(
            EvaluationRequest([3, 1 << 41], {"main": self._weights(0)}, seats, modes, self.entries([entry]))
        )
        return [(one.returns, one.matchup) for one in asyncio.run(made).episodes]


def opened(made: Round) -> dict[int, Any]:
    """The actions of each worker's rows."""
    found = {}
    for fragment in made.fragments:
        (payload,) = fragment.payloads
        batch = ray.get(payload) if isinstance(payload, ray.ObjectRef) else payload
        found[fragment.worker] = (batch["action"].tolist(), batch["version"].tolist(), batch["obs"].tolist())
    return found


@pytest.mark.slow
def test_weights_of_an_entry_are_sent_once_to_each_process_that_seats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[str]] = []

    def watched(request: Any) -> Any:
        if request.matchups is not None:  # what all workers get alike has neither
            sent.append(list(request.frozen))
        return without_parameters(request)

    monkeypatch.setattr(remote_worker, "without_parameters", watched)
    runtime, same = RayRuntime(), InlineRuntime()
    try:
        play, inline = (
            Play(runtime, against_past_selves(MAIN, WHOLE, "ray")),
            Play(same, against_past_selves(MAIN, WHOLE)),
        )

        def round(number: int, seats: Sequence[str], forget: Sequence[str] = ()) -> list[list[str]]:
            sent.clear()
            assert opened(play.round(number, seats, forget)) == opened(inline.round(number, seats, forget))
            return list(sent)

        # Environments 0 and 2 belong to worker 0.
        assert round(0, ["main@1", "main@1", "main@2", "main"]) == [["main@1", "main@2"], ["main@1"]]
        assert round(1, ["main@1", "main@2", "main@2", "main@1"]) == [[], ["main@2"]]
        sent.clear()
        assert play.evaluate("main@3") == inline.evaluate("main@3")
        assert sent == [["main@3"], ["main@3"]]
        assert round(2, ["main@3"] * 4, forget=["main@1"]) == [[], []]
        # The successor of a lost worker has nothing, and is sent what its own matchups seat.
        lost = play.workers.all[1]
        ray.kill(lost.actor)
        sent.clear()
        assert [receipt.worker for receipt in play.round(3, ["main@2"] * 4).receipts] == [0]
        assert [fault.kind for fault in play.faults] == ["workers_lost"]
        asyncio.run(play.workers.wait_for_all())
        sent.clear()
        assert len(play.round(4, ["main@2"] * 4).receipts) == 2
        assert sent == [[], ["main@2"]]
    finally:
        runtime.close()
        same.close()


@pytest.mark.slow
def test_a_run_whose_actions_one_actor_chooses_goes_on_against_its_frozen_selves(tmp_path: Path) -> None:
    placement = mf.RunPlacement(inference=mf.InferencePlacement(num_cpus=0.5))
    mf.train(against_past_selves(MAIN, 200, "ray", placement=placement), tmp_path)
    running = [
        env_index["running"]["matchup"] for env_index in kept(tmp_path)["workers"]["envs"] if env_index["running"]
    ]
    assert any("@" in entry for matchup in running for entry in matchup.values())
    result = mf.resume(against_past_selves(MAIN, 320, "ray", placement=placement), tmp_path)
    assert result.metrics["faults"]["episodes_abandoned"] == 0


@pytest.mark.slow
def test_one_actor_acts_for_more_entries_than_it_would_keep_versions() -> None:
    placement = mf.RunPlacement(inference=mf.InferencePlacement(num_cpus=0.5))
    inline, over_ray = InlineRuntime(), RayRuntime()
    try:
        experiment = against_past_selves(MAIN, WHOLE)
        alone, asking = Play(inline, experiment), Play(over_ray, replace(experiment, placement=placement))
        for first in range(0, 3 * CACHED_VERSIONS, 4):
            seats = [f"main@{1 + first + env_index}" for env_index in range(4)]
            assert opened(alone.round(first, seats)) == opened(asking.round(first, seats))
        assert alone.evaluate("main@2") == asking.evaluate("main@2")
    finally:
        inline.close()
        over_ray.close()
