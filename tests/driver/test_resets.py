"""Runs in which a policy begins again: nothing of the time before reaches it, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.batches.sequences import Sequences
from marlflow.checks.validation import ready
from marlflow.driver.league import LearnerResets
from marlflow.driver.round_hooks import BetweenRounds
from marlflow.runs.saved_runs import newest
from marlflow.sampling.protocol import Drain, Request
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.resetting import CARTS, TURNS, Resetting, with_resets
from tests.driver.resumed_runs import resumed_exactly
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO

PPO = replace(SMALL_PPO, batch_agent_steps=60, minibatch_agent_steps=32)
DQN = replace(SMALL_DQN, learning_starts_agent_steps=30, train_every_agent_steps=4, prioritized=True)
MAINS = {
    "ppo": mf.Policy(PPO, SMALL),
    "dqn": mf.Policy(DQN, SMALL),
    "impala": mf.Policy(mf.IMPALA(batch_agent_steps=70, learning_rate=1e-3), SMALL),
    "recurrent_ppo": mf.Policy(
        mf.RecurrentPPO(batch_agent_steps=60, epochs=2, minibatch_agent_steps=32, sequence_agent_steps=8),
        mf.GRU(8, (8,)),
    ),
}
RIVAL = mf.Policy(PPO, SMALL)


@dataclass
class Watched:
    """The inputs of learners and replays, and their states before and after each reset."""

    taken: list[tuple[str, int, int]] = field(default_factory=list)
    """Who took rows, its resets so far, and the rows' lowest version."""
    before: list[dict[str, Any]] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """The parameters of each policy's published versions."""
    floors: dict[str, list[int]] = field(default_factory=lambda: {"main": [0], "rival": [0]})
    """The lowest version of each policy's rows since each of its resets."""


def _states(resets: LearnerResets) -> dict[str, Any]:
    runtime: Any = resets._runtime
    states = {name: learner.state() for name, learner in runtime._learners.items()}
    return states | {f"replay {name}": replay.state() for name, replay in runtime._replays.items()}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen = Watched()
    update, insert, publish = mf.TorchLearner.update, mf.StoredReplay.insert, mf.TorchLearner.publish
    reset_learner = LearnerResets.reset_learner

    def note(name: str, versions: Any) -> None:
        if len(versions):
            seen.taken.append((name, len(seen.floors[name]) - 1, int(versions.min())))

    def watched_update(learner: mf.TorchLearner, batch: Any, *arguments: Any, **named: Any) -> Any:
        if hasattr(batch, "columns"):
            note(learner.name, batch.version if isinstance(batch, Sequences) else batch["version"])
        return update(learner, batch, *arguments, **named)

    def watched_insert(replay: Any, batch: Any) -> Any:
        note(replay.name, batch["version"])
        return insert(replay, batch)

    def watched_publish(learner: mf.TorchLearner) -> Any:
        published = publish(learner)
        for policy, weights in published.items():
            key = policy, weights.version
            assert key not in seen.versions, f"version {weights.version} of {policy} was published twice"
            seen.versions[key] = weights.flat.tobytes()
        return published

    def watched_reset(resets: LearnerResets, reset: mf.Reset, *arguments: Any) -> None:
        seen.before.append(_states(resets))
        reset_learner(resets, reset, *arguments)
        seen.after.append(_states(resets))
        seen.floors[reset.policy].append(seen.after[-1][reset.policy]["version"])

    monkeypatch.setattr(mf.TorchLearner, "update", watched_update)
    monkeypatch.setattr(mf.StoredReplay, "insert", watched_insert)
    monkeypatch.setattr(mf.TorchLearner, "publish", watched_publish)
    monkeypatch.setattr(LearnerResets, "reset_learner", watched_reset)
    return seen


def may_be_a_version_old(policy: mf.Policy) -> mf.Policy:
    """The policy with `max_staleness` 1 if it drops stale rows, for rounds that overlap."""
    algorithm: Any = policy.algorithm
    return (
        replace(policy, algorithm=replace(algorithm, max_staleness=1))
        if "max_staleness" in {setting.name for setting in fields(algorithm)}
        else policy
    )


Run = tuple[str, str, Literal["lockstep", "overlap"]]
ENVS = {"parallel": CARTS, "aec": TURNS}
RUNS: list[Run] = list(product(MAINS, ENVS, ("lockstep", "overlap")))
FACTORS = [list(MAINS), list(ENVS), ["lockstep", "overlap"]]


def is_covering(run: Run) -> bool:
    """Whether it is of the half that has every two of algorithm, kind of environment and pace together."""
    return sum(factor.index(level) for factor, level in zip(FACTORS, run, strict=True)) % 2 == 0


def test_half_of_the_runs_have_every_two_factors_together() -> None:
    half = [run for run in RUNS if is_covering(run)]
    assert len(half) == len(RUNS) / 2
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert {(run[first], run[second]) for run in half} == {(run[first], run[second]) for run in RUNS}


@pytest.mark.parametrize(
    ("name", "env", "pace"), [pytest.param(*run, marks=() if is_covering(run) else pytest.mark.slow) for run in RUNS]
)
def test_no_row_of_an_older_version_reaches_what_began_again(
    name: str, env: str, pace: Literal["lockstep", "overlap"], tmp_path: Path, watched: Watched
) -> None:
    main, rival = (may_be_a_version_old(policy) for policy in (MAINS[name], RIVAL))
    mf.train(with_resets(main, rival, 1_200, env=ENVS[env], pace=pace), tmp_path)
    assert len(watched.floors["main"]) > 4
    late = [(who, resets, oldest) for who, resets, oldest in watched.taken if oldest < watched.floors[who][resets]]
    assert not late
    assert len({resets for who, resets, _ in watched.taken if who == "main"}) > 3, "it was to learn again"


def test_what_waits_for_a_batch_is_dropped_and_counted(tmp_path: Path) -> None:
    result = mf.train(with_resets(MAINS["impala"], RIVAL, 1_200), tmp_path)
    stages = result.metrics["stages"]
    dropped = sum(meter["rows_dropped"] for stage, meter in stages.items() if stage.startswith("main/"))
    sampled = result.metrics["policies"]["main"]["agent_steps_sampled"]
    trained = result.metrics["learners"]["main"]["agent_steps_trained"]
    [held] = [items for stage, items in kept(tmp_path)["driver"]["flow"]["held"].items() if stage.startswith("main/")]
    assert dropped > 0
    assert dropped + trained + sum(item["rows"] for item in held) == sampled
    assert not any(meter["rows_dropped"] for stage, meter in stages.items() if stage.startswith("rival/"))


@pytest.mark.parametrize("name", MAINS)
def test_only_the_one_policy_changes_and_it_begins_as_a_new_one(name: str, tmp_path: Path, watched: Watched) -> None:
    experiment = with_resets(MAINS[name], mf.Policy(DQN, SMALL), 900)
    mf.train(experiment, tmp_path)
    spec = ready(experiment).spec.learners["main"]
    assert len(watched.after) > 2
    for number, (before, after) in enumerate(zip(watched.before, watched.after, strict=True), 1):
        assert_equal(before["rival"], after["rival"])
        assert_equal(before["replay rival"], after["replay rival"])
        new = spec.with_fresh_seed(number).learner()
        expected = {**new.state(), "version": before["main"]["version"] + 1}
        assert_equal(after["main"], expected)
        assert not np.array_equal(before["main"]["vector"], after["main"]["vector"])
        if "replay main" in after:
            replay = after["replay main"]
            assert replay["first"] == replay["stop"] == before["replay main"]["stop"] > 0
    assert len({after["main"]["vector"].tobytes() for after in watched.after}) == len(watched.after)


def test_versions_never_repeat_and_a_snapshot_is_of_what_was_learned(tmp_path: Path, watched: Watched) -> None:
    mf.train(with_resets(MAINS["ppo"], RIVAL, 900, matchmaker=Resetting(to="initial")), tmp_path)
    versions = [version for policy, version in watched.versions if policy == "main"]
    assert versions == sorted(versions)
    checkpoint = newest(tmp_path)
    entries = [from_bytes(checkpoint.read(name)) for name in checkpoint.names if name.startswith("frozen.")]
    assert len(entries) > 3
    for entry, before, after in zip(entries, watched.before, watched.after, strict=True):
        assert entry["version"] == before["main"]["version"]
        assert entry["flat"].tobytes() == before["main"]["published"].tobytes()
        assert entry["flat"].tobytes() != after["main"]["published"].tobytes()
    # Every time from the same parameters: those with which the run began.
    assert len({after["main"]["vector"].tobytes() for after in watched.after}) == 1


def test_it_may_begin_with_the_parameters_of_a_frozen_version(tmp_path: Path, watched: Watched) -> None:
    mf.train(with_resets(MAINS["dqn"], RIVAL, 900, matchmaker=Resetting(to="newest")), tmp_path)
    for before, after in zip(watched.before, watched.after, strict=True):
        assert_equal(before["main"]["published"], after["main"]["published"])
        assert_equal(after["main"]["vector"], after["main"]["target"])
        assert not after["main"]["optimizer/all/moment_1"].any()
        assert after["main"]["version"] == before["main"]["version"] + 1


def test_schedules_count_from_the_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Request] = []
    create = BetweenRounds.next_request

    def noted(self: BetweenRounds) -> Request | Drain | None:
        request = create(self)
        requests.extend([request] if isinstance(request, Request) else ())
        return request

    monkeypatch.setattr(BetweenRounds, "next_request", noted)
    slow = mf.Linear(1.0, 0.0, 100_000)
    main = mf.Policy(replace(DQN, epsilon=slow), SMALL)
    mf.train(with_resets(main, mf.Policy(replace(DQN, epsilon=slow), SMALL), 800), tmp_path)
    main_epsilon, rival_epsilon = ([r.schedules[name]["epsilon"] for r in requests] for name in ("main", "rival"))
    reset_in = [number for number, request in enumerate(requests) if "main" in request.reset]
    assert reset_in == list(range(4, len(requests), 5))
    for number, (before, after) in enumerate(pairwise(main_epsilon), 1):
        assert after == 1.0 if number in reset_in else after < before
    assert all(after < before for before, after in pairwise(rival_epsilon))


@pytest.mark.parametrize("name", MAINS)
def test_a_run_with_resets_goes_on_as_it_would_have(name: str, tmp_path: Path) -> None:
    """From a checkpoint before the first reset, which is before the round that begins at 160, and from a later one."""
    before, later = resumed_exactly(with_resets(MAINS[name], RIVAL, 880, env=TURNS), tmp_path, [160, 480])
    assert [one.half["driver"]["resets"]["main"] for one in (before, later)] == [0, 2]
    assert later.trees["driver"]["resets"] == {"main": 4, "rival": 0}


def test_checkpoints_between_rounds_change_nothing(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    often = mf.CheckpointConfig(every_env_steps=40, keep=2)
    mf.train(with_resets(MAINS["dqn"], RIVAL, 600), one)
    mf.train(with_resets(MAINS["dqn"], RIVAL, 600, checkpoint=often), other)
    assert_equal(kept(one), kept(other))


# -- what is refused ------------------------------------------------------------------------------------------------


class Asking(Resetting):
    """Asks for these resets, in the third round."""

    def __init__(self, resets: Any) -> None:
        super().__init__(every=3)
        self.given = resets

    def resets(self) -> Any:
        return self.given if self.rounds == 3 else ()


@pytest.mark.parametrize(
    ("resets", "problem"),
    [
        ([mf.Reset("rival", "fresh")], "it reset policy 'rival', which is not among its reset_policies"),
        ([mf.Reset("main", "main@7")], "it reset policy 'main' to 'main@7', and there is no such frozen entry"),
        ([mf.Reset("main", "fresh"), mf.Reset("main", "initial")], "it reset policy 'main' twice at once"),
        (["main"], "it gave ['main'], not a sequence of Reset"),
    ],
)
def test_a_reset_that_cannot_be_made_ends_the_run(resets: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(mf.MatchmakerFailed) as caught:
        mf.train(with_resets(MAINS["ppo"], RIVAL, 400, matchmaker=Asking(resets)), tmp_path)
    assert caught.value.where == "matchmaker Asking, resets"
    assert problem in caught.value.reason


class ToTheRivals(Resetting):
    """Resets main to a version of its rival."""

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> Any:
        change = super().change_population(published, agent_steps)
        return replace(change, freeze={f"{entry}, a rival": "rival" for entry in change.freeze})

    def resets(self) -> Sequence[mf.Reset]:
        entries = super().resets()
        return [mf.Reset("main", f"{self.frozen[-1]}, a rival") for _ in entries]

    def __call__(self, episode: Any, agents: Any, generator: Any) -> dict[str, str]:
        return dict(zip(agents, ["main", "rival"], strict=True))


def test_a_version_of_another_network_is_refused_and_one_of_an_equal_network_is_not(tmp_path: Path) -> None:
    wide = mf.Policy(PPO, mf.MLP((24,)))
    with pytest.raises(mf.MatchmakerFailed, match="is a version of policy 'rival', which has another network"):
        mf.train(with_resets(MAINS["ppo"], wide, 400, matchmaker=ToTheRivals()), tmp_path / "refused")
    mf.train(with_resets(MAINS["ppo"], RIVAL, 400, matchmaker=ToTheRivals()), tmp_path / "done")
