"""States saved over Ray: bytes that the driver does not open, equal to inline's, for both runtimes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import ray

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import from_bytes
from marlflow.config.experiment import PlacementOverrides, Policy, Rollouts
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.ray import RayRuntime
from marlflow.sampling.saved_state import ResumeReport
from tests.runtime.driven_runs import driven
from tests.runtime.ray.unopened import guarded
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

pytestmark = pytest.mark.usefixtures("ray_session")

POLICIES = {"hunters": Policy(SMALL_PPO, SMALL), "prey": Policy(SMALL_DQN, SMALL, PlacementOverrides(replay="own"))}


def test_what_one_runtime_keeps_the_other_goes_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    inline, over_ray = small_run(policies=POLICIES), small_run("ray", policies=POLICIES)
    with driven(inline, InlineRuntime()) as run:
        run.play(6)
        files = run.runtime.save({}).files
        stored = run.parts.replays["prey"].stored
        versions = {name: learner.version for name, learner in run.parts.learners.items()}
    with driven(over_ray, RayRuntime()) as again, monkeypatch.context() as patch:
        guarded(patch)
        assert again.runtime.restore(files.__getitem__, list(files), 1_000) == ResumeReport()
        kept = again.runtime.save({})
        assert kept.files.keys() == files.keys()
        workers = from_bytes(kept.files["workers"])["envs"], from_bytes(files["workers"])["envs"]
        by_env = [sorted(envs, key=lambda one: one["env"]) for envs in workers]
        assert by_env[0] == by_env[1]
        for name in files.keys() - {"workers"}:
            assert kept.files[name] == files[name], name
        assert {name: weights.version for name, weights in again.parts.published().items()} == versions
        assert again.parts.replays["prey"].stored == stored
        new = again.runtime.save({"prey": kept.replays["prey"][1]}).files
        assert new.keys() == files.keys() - {name for name in files if name.startswith("rows.prey.")}
        # Weights are references, and are sent although a worker of this number had a version of them once.
        assert isinstance(again.parts.published()["hunters"].flat, ray.ObjectRef)
        again.play(2)
        assert [again.rounds[0].receipts[0].policies[name].version for name in versions] == list(versions.values())
        payloads = [payload for fragment in again.rounds[-1].fragments for payload in fragment.payloads]
        packed = again.runtime.pack(payloads)
        unpacked = again.runtime.unpack(packed)
        assert again.runtime.pack(unpacked) == packed
        assert again.runtime.pack([]) == again.runtime.unpack([]) == []
        files = dict(again.runtime.save({}).files)
        other = replace(POLICIES["prey"], algorithm=replace(SMALL_DQN, n_step=SMALL_DQN.n_step + 1))
        broken = {**files, "learner.hunters": files["learner.prey"]}
        with pytest.raises(CheckpointUnusable, match="'hunters'"):
            again.runtime.restore(broken.__getitem__, list(broken), 1_000)
    with driven(small_run(policies=POLICIES, rollouts=Rollouts(1, 80)), InlineRuntime()) as last:
        assert last.runtime.restore(files.__getitem__, list(files), 1_000) == ResumeReport()
        last.play(1)
    changed = small_run(policies={**POLICIES, "prey": other})
    with driven(changed, InlineRuntime()) as last, pytest.raises(CheckpointUnusable, match="n_step"):
        last.runtime.restore(files.__getitem__, list(files), 1_000)
