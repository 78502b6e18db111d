"""Whole runs in one process: every count adds up, every stop stops, and the same seed gives the same numbers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from marlflow.algorithms import ppo as ppo_module
from marlflow.algorithms.scripted import Random, Scripted
from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid, PlanInvalid
from marlflow.base.items import Update
from marlflow.base.random import RowRandom
from marlflow.experiment.experiment import Env, Evaluation, Experiment, Log, Policy, PolicyStop, Rollouts, Stop
from marlflow.experiment.tally import PolicyTally, Tally
from marlflow.experiment.train import Result, train
from marlflow.rollout.fragment import EpisodeResult, Receipt
from marlflow.rollout.mapping import Rule
from marlflow.rollout.stages import Concat
from marlflow.runtime.spec import Placement
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run, without_times

POLICY_KEYS = {
    "return_mean",
    "eval_return_mean",
    "episodes",
    "agent_steps_sampled",
    "agent_steps_trained",
    "updates",
    "version",
    "staleness_mean",
    "stale_rows_dropped",
    "rows_carried",
    "reward_unattributed",
    "loss",
}


def reports(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


class Seen:
    """All that a run told its tally: receipts of rounds, evaluations and reports of learners."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.receipts: list[Receipt] = []
        self.evaluations: list[Sequence[EpisodeResult]] = []
        self.updates: list[Update] = []
        collected, evaluated, updated = Tally.collected, Tally.evaluated, PolicyTally.updated

        def see_collected(tally: Tally, receipts: Sequence[Receipt]) -> None:
            self.receipts += receipts
            collected(tally, receipts)

        def see_evaluated(tally: Tally, results: Sequence[EpisodeResult]) -> None:
            self.evaluations.append(results)
            evaluated(tally, results)

        def see_updated(tally: PolicyTally, update: Update) -> None:
            self.updates.append(update)
            updated(tally, update)

        patch.setattr(Tally, "collected", see_collected)
        patch.setattr(Tally, "evaluated", see_evaluated)
        patch.setattr(PolicyTally, "updated", see_updated)

    @property
    def episodes(self) -> list[EpisodeResult]:
        return [episode for receipt in self.receipts for episode in receipt.episodes]

    def of(self, policy: str) -> list[Update]:
        return [update for update in self.updates if update.policy == policy]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[Concat]:
    """The gathers of PPO's plans, as they are made."""
    made: list[Concat] = []

    def make(agent_steps: int) -> Concat:
        made.append(Concat(agent_steps))
        return made[-1]

    monkeypatch.setattr(ppo_module, "Concat", make)
    return made


# -- what a run leaves ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run with everything switched on."""
    log = Log(every_env_steps=400, console="none", trace=True)
    experiment = small_run(log=log, evaluation=Evaluation(600, 3), objective="policies.prey.return_mean")
    return train(experiment, tmp_path_factory.mktemp("complete"))


def test_the_run_directory_has_all_that_was_promised(complete: Result) -> None:
    names = {path.name for path in complete.run_dir.iterdir()}
    assert {"plan.mmd", "metrics.jsonl", "learning_curves.png", "trace.json", "checkpoints"} <= names
    assert sum(name.startswith("events.out.tfevents.") for name in names) == 1
    assert (complete.run_dir / "plan.mmd").read_text().startswith("flowchart LR\n")
    assert (complete.run_dir / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_checkpoint_is_read_with_safetensors_alone(complete: Result) -> None:
    folder = complete.run_dir / "checkpoints" / "1200"
    assert {path.name for path in folder.iterdir()} == {"hunters.safetensors", "prey.safetensors"}
    for name in ("hunters", "prey"):
        tensors = load_file(folder / f"{name}.safetensors")
        assert {"vector", "moment_1", "moment_2"} <= tensors.keys()
        assert tensors["vector"].dtype == np.float32
        assert np.isfinite(tensors["vector"]).all()
        assert np.abs(tensors["moment_1"]).max() > 0


def test_reports_have_the_keys_that_were_fixed(complete: Result) -> None:
    found = reports(complete.run_dir)
    assert [record["env_steps"] for record in found] == [400, 800, 1_200, 1_200]
    for record in found:
        assert list(record) == [
            "time_s",
            "env_steps",
            "agent_steps",
            "episodes",
            "env_steps_per_s",
            "policies",
            "agents",
            "stages",
            "faults",
            "league",
        ]
        assert list(record["policies"]) == ["hunters", "prey"]
        for policy in record["policies"].values():
            assert set(policy) == POLICY_KEYS
        assert list(record["agents"]) == ["cart_0", "cart_1", "cart_2", "cart_3"]
        for agent in record["agents"].values():
            assert set(agent) == {"return_mean"}
        for stage in record["stages"].values():
            assert set(stage) == {"items", "rows", "busy_s", "starved_s", "blocked_s"}
    assert {"rollouts/Collect", "hunters/Learn", "prey/Insert", "prey/Draw", "prey/queue"} <= found[-1]["stages"].keys()
    assert without_times(found[-1]) == without_times(json.loads(json.dumps(complete.metrics)))


def test_times_are_those_of_this_run(complete: Result) -> None:
    """No stage was busy or waiting for longer than the run has lasted, and each added up to it."""
    for record in reports(complete.run_dir):
        assert record["env_steps_per_s"] > 0
        for name, stage in record["stages"].items():
            spent = stage["busy_s"] + stage["starved_s"] + stage["blocked_s"]
            assert min(stage.values()) >= 0
            assert spent <= record["time_s"] * 1.2 + 0.1, name


def test_totals_never_fall_and_agree_with_each_other(complete: Result) -> None:
    before: Mapping[str, Any] | None = None
    for record in reports(complete.run_dir):
        for name, policy in record["policies"].items():
            assert policy["episodes"] == record["episodes"]
            if before is not None:
                for key in ("episodes", "agent_steps_sampled", "agent_steps_trained", "updates", "version"):
                    assert policy[key] >= before["policies"][name][key]
        assert record["agent_steps"] == sum(policy["agent_steps_sampled"] for policy in record["policies"].values())
        before = record


def test_the_objective_is_the_figure_it_names(complete: Result) -> None:
    assert complete.objective == complete.metrics["policies"]["prey"]["return_mean"]
    assert complete.stopped_by == "stop.env_steps=1200"


def test_nothing_is_written_that_was_not_asked_for(tmp_path: Path) -> None:
    train(small_run(env_steps=80, log=Log(console="none", jsonl=False, tensorboard=False)), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.mmd", "checkpoints"}


# -- the same again -------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path: Path) -> None:
    evaluation = Evaluation(600, 2)
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        train(small_run(seed=seed, evaluation=evaluation), tmp_path / name)
    one, again, other = ([without_times(record) for record in reports(tmp_path / n)] for n in ("one", "again", "other"))
    assert one == again
    assert one[-1]["policies"]["prey"]["loss"] != other[-1]["policies"]["prey"]["loss"]
    assert one[-1]["policies"]["hunters"]["return_mean"] != other[-1]["policies"]["hunters"]["return_mean"]
    for policy in ("hunters", "prey"):
        files = [tmp_path / name / "checkpoints" / "1200" / f"{policy}.safetensors" for name in ("one", "again")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_where_a_replay_lives_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    """With actions that do not depend on weights; how far acting lags behind learning is free, off policy."""
    algorithm = replace(SMALL_DQN, epsilon_start=1.0, epsilon_end=1.0)
    records: list[Any] = []
    for replay in ("with_learner", "own"):
        placement = Placement(replay=replay)
        placed = {"hunters": Policy(SMALL_PPO, SMALL), "prey": Policy(algorithm, SMALL, placement)}
        records.append(without_times(train(small_run(policies=placed), tmp_path / replay).metrics))
        del records[-1]["policies"]["prey"]["staleness_mean"]
    assert records[0] == records[1]
    one, other = (tmp_path / name / "checkpoints" / "1200" / "prey.safetensors" for name in ("with_learner", "own"))
    assert one.read_bytes() == other.read_bytes()


def test_evaluation_counts_nowhere_and_changes_nothing(tmp_path: Path, seen: Seen) -> None:
    with_it = train(small_run(evaluation=Evaluation(300, 3)), tmp_path / "with")
    evaluations = len(seen.evaluations)
    without = train(small_run(), tmp_path / "without")
    assert evaluations == len(seen.evaluations) == 5
    played = seen.evaluations[-1]
    assert [result.episode for result in played] == [0, 1, 2]
    for name, agents in (("hunters", ("cart_0", "cart_1")), ("prey", ("cart_2", "cart_3"))):
        expected = fmean(fmean(result.returns[agent] for agent in agents) for result in played)
        assert with_it.metrics["policies"][name]["eval_return_mean"] == pytest.approx(expected)
        assert without.metrics["policies"][name]["eval_return_mean"] is None
    one, other = (without_times(result.metrics) for result in (with_it, without))
    for record in (one, other):
        for policy in record["policies"].values():
            del policy["eval_return_mean"]
    assert one == other
    files = [tmp_path / name / "checkpoints" / "1200" / "prey.safetensors" for name in ("with", "without")]
    assert files[0].read_bytes() == files[1].read_bytes()


# -- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per", "starts", "fragment"), [(10, 100, 40), (7, 0, 44), (64, 500, 8), (1, 1_000, 100)])
def test_updates_per_row_inserted_are_exact(per: int, starts: int, fragment: int, tmp_path: Path) -> None:
    algorithm = replace(SMALL_DQN, train_every_agent_steps=per, learning_starts_agent_steps=starts, batch_agent_steps=4)
    experiment = small_run(env_steps=700, policies=policies(hunters=algorithm, prey=SMALL_DQN))
    result = train(replace(experiment, rollouts=Rollouts(2, fragment)), tmp_path)
    hunters, stages = result.metrics["policies"]["hunters"], result.metrics["stages"]
    assert stages["hunters/Insert"]["rows"] == hunters["agent_steps_sampled"] > starts
    assert hunters["updates"] == (hunters["agent_steps_sampled"] - starts) // per
    assert hunters["agent_steps_trained"] == 4 * hunters["updates"]
    prey = result.metrics["policies"]["prey"]
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10
    assert prey["version"] == prey["updates"] // 3


def test_before_learning_starts_nothing_is_learned(tmp_path: Path) -> None:
    algorithm = replace(SMALL_DQN, learning_starts_agent_steps=50_000)
    result = train(small_run(policies=policies(hunters=algorithm, prey=Random())), tmp_path)
    hunters = result.metrics["policies"]["hunters"]
    assert (hunters["updates"], hunters["version"], hunters["agent_steps_trained"]) == (0, 0, 0)
    assert hunters["agent_steps_sampled"] > 0


@pytest.mark.parametrize("batch", [1, 200, 333, 5_000])
def test_ppo_trains_on_each_row_once_per_epoch_or_still_holds_it(
    batch: int, tmp_path: Path, gathers: list[Concat], seen: Seen
) -> None:
    algorithm = replace(SMALL_PPO, batch_agent_steps=batch, minibatch_agent_steps=64, epochs=3)
    if batch < 64:
        algorithm = replace(algorithm, minibatch_agent_steps=1, epochs=1)
    result = train(small_run(env_steps=600, policies=policies(hunters=algorithm, prey=Random())), tmp_path)
    hunters = result.metrics["policies"]["hunters"]
    (gather,) = gathers
    held = sum(fragment.rows for fragment in gather.held)
    assert hunters["agent_steps_sampled"] == hunters["agent_steps_trained"] / algorithm.epochs + held
    assert held < batch
    batches = [update.rows // algorithm.epochs for update in seen.of("hunters")]
    assert all(rows >= batch for rows in batches)
    assert hunters["updates"] == sum(
        algorithm.epochs * max(1, rows // algorithm.minibatch_agent_steps) for rows in batches
    )
    assert hunters["version"] == len(batches)
    assert (batch == 5_000) == (not batches)


# -- freshness ------------------------------------------------------------------------------------------------------


def test_in_lockstep_on_policy_rows_are_never_stale(tmp_path: Path, seen: Seen) -> None:
    two = policies(hunters=SMALL_PPO, prey=replace(SMALL_PPO, batch_agent_steps=90))
    train(small_run(policies=two), tmp_path)
    for name in ("hunters", "prey"):
        updates = seen.of(name)
        assert len(updates) >= 3
        assert {update.staleness_mean for update in updates} == {0.0}
        assert sum(update.stale_rows_dropped for update in updates) == 0
        assert [update.version for update in updates] == list(range(len(updates)))


def test_overlapping_rounds_are_a_version_old_at_most_and_what_is_older_is_dropped_and_counted(
    tmp_path: Path, seen: Seen, gathers: list[Concat]
) -> None:
    algorithm = replace(SMALL_PPO, batch_agent_steps=50, minibatch_agent_steps=25, max_staleness=1)
    experiment = small_run(policies=policies(hunters=algorithm, prey=SMALL_DQN))
    result = train(replace(experiment, rollouts=Rollouts(2, 40, pace="overlap")), tmp_path)
    updates = seen.of("hunters")
    assert all(update.staleness_mean <= 1.0 for update in updates)
    hunters, (gather,) = result.metrics["policies"]["hunters"], gathers
    dropped = sum(update.stale_rows_dropped for update in updates)
    assert hunters["stale_rows_dropped"] == dropped
    held = sum(fragment.rows for fragment in gather.held)
    assert hunters["agent_steps_sampled"] == hunters["agent_steps_trained"] / 2 + dropped + held
    prey = result.metrics["policies"]["prey"]
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10


def test_overlap_needs_a_learner_that_bears_it(tmp_path: Path) -> None:
    experiment = small_run(rollouts=Rollouts(2, 40, pace="overlap"))
    with pytest.raises(PlanInvalid, match=r"plan 'hunters' has max_staleness 0; give it 1 or more"):
        train(experiment, tmp_path)


# -- when to stop ---------------------------------------------------------------------------------------------------


def test_env_steps_stop_a_run_at_the_end_of_the_round_that_reaches_them(tmp_path: Path) -> None:
    result = train(small_run(env_steps=130), tmp_path)
    assert result.metrics["env_steps"] == 160
    assert result.stopped_by == "stop.env_steps=130"


def test_time_stops_a_run(tmp_path: Path) -> None:
    result = train(small_run(stop=Stop(time_s=1e-6)), tmp_path)
    assert result.stopped_by == "stop.time_s=1e-06"
    assert result.metrics["env_steps"] == 0


def test_returns_stop_a_run_when_all_have_reached_theirs(tmp_path: Path) -> None:
    near = train(small_run(stop=Stop(env_steps=20_000, policies={"hunters": 9.0, "prey": 9.0})), tmp_path / "near")
    assert near.stopped_by == "stop.policies.hunters.return_mean=9, stop.policies.prey.return_mean=9"
    assert 100 <= near.metrics["episodes"] < 140, "a mean of fewer than 100 episodes is not settled"
    far = train(small_run(stop=Stop(env_steps=4_000, policies={"hunters": 9.0, "prey": 51.0})), tmp_path / "far")
    assert far.stopped_by == "stop.env_steps=4000"


def test_a_run_ends_when_every_plan_has_ended(tmp_path: Path) -> None:
    ending = {
        "hunters": Policy(SMALL_PPO, SMALL, stop=PolicyStop(agent_steps=300)),
        "prey": Policy(SMALL_DQN, SMALL, stop=PolicyStop(agent_steps=600)),
    }
    result = train(small_run(env_steps=20_000, policies=ending), tmp_path)
    assert result.stopped_by == "every policy's own stop"
    assert result.metrics["env_steps"] < 2_000
    assert result.metrics["policies"]["prey"]["agent_steps_sampled"] >= 600


def test_a_policys_own_stop_ends_its_plan_and_it_goes_on_acting(tmp_path: Path, seen: Seen) -> None:
    ending = {
        "hunters": Policy(SMALL_PPO, SMALL, stop=PolicyStop(agent_steps=500)),
        "prey": Policy(SMALL_DQN, SMALL),
    }
    result = train(small_run(env_steps=2_000, policies=ending), tmp_path)
    hunters, prey = (result.metrics["policies"][name] for name in ("hunters", "prey"))
    assert hunters["agent_steps_trained"] / 2 <= 500
    assert hunters["agent_steps_sampled"] > 700
    assert hunters["updates"] > 0
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10
    assert result.metrics["env_steps"] == 2_000
    versions = [receipt.policies["hunters"].version for receipt in seen.receipts]
    assert versions[-1] == max(versions) == hunters["version"]
    assert versions == sorted(versions)
    assert {receipt.policies["hunters"].rows > 0 for receipt in seen.receipts[-6:]} == {True}


@pytest.mark.parametrize("ends", ["hunters", "prey"])
def test_a_return_ends_a_policys_plan_too(ends: str, tmp_path: Path) -> None:
    ending = policies(hunters=SMALL_PPO, prey=SMALL_DQN)
    ending[ends] = replace(ending[ends], stop=PolicyStop(return_mean=1.0))
    result = train(small_run(env_steps=5_000, policies=ending), tmp_path)
    lasts = reports(tmp_path)[-4:]
    (other,) = {"hunters", "prey"} - {ends}
    assert len({record["policies"][ends]["updates"] for record in lasts}) == 1
    assert lasts[0]["policies"][other]["updates"] < lasts[-1]["policies"][other]["updates"]
    assert result.metrics["policies"][ends]["episodes"] == result.metrics["episodes"] > 100


# -- returns --------------------------------------------------------------------------------------------------------


def test_return_means_are_those_of_the_last_100_episodes(tmp_path: Path, seen: Seen) -> None:
    result = train(small_run(env_steps=4_000), tmp_path)
    by_policy = {"hunters": ("cart_0", "cart_1"), "prey": ("cart_2", "cart_3")}
    assert len(seen.episodes) == result.metrics["episodes"] > 100
    for name, agents in by_policy.items():
        last = deque((fmean(episode.returns[agent] for agent in agents) for episode in seen.episodes), maxlen=100)
        assert result.metrics["policies"][name]["return_mean"] == pytest.approx(fmean(last))
        for agent in agents:
            own = [episode.returns[agent] for episode in seen.episodes][-100:]
            assert result.metrics["agents"][agent]["return_mean"] == pytest.approx(fmean(own))
    # Every env step pays one to every cart that stands: returns and rows are the same thing here.
    finished = sum(sum(episode.returns.values()) for episode in seen.episodes)
    assert finished <= result.metrics["agent_steps"] <= finished + 4 * 4 * 50


# -- who does not learn ---------------------------------------------------------------------------------------------


def push_right(obs: Array, action_mask: Array | None, generator: RowRandom) -> Array:
    return np.ones(len(obs), np.int64)


def test_policies_that_do_not_learn_leave_only_episode_results(tmp_path: Path, seen: Seen) -> None:
    algorithms = policies(pushed=Scripted(push_right), careless=Random(), hunters=SMALL_PPO)
    rules = (Rule("cart_0", "pushed"), Rule("cart_1", "careless"), Rule("*", "hunters"))
    result = train(small_run(policies=algorithms, mapping=rules, evaluation=Evaluation(600, 2)), tmp_path)
    for name in ("pushed", "careless"):
        policy: Any = result.metrics["policies"][name]
        assert policy["episodes"] == len(seen.episodes) > 10
        assert policy["return_mean"] is not None
        assert policy["eval_return_mean"] is not None
        zero = set(POLICY_KEYS) - {"return_mean", "eval_return_mean", "episodes", "staleness_mean", "loss"}
        assert {key: policy[key] for key in zero} == dict.fromkeys(zero, 0)
        assert policy["loss"] == {}
    assert {name for receipt in seen.receipts for name in receipt.policies} == {"hunters"}
    assert {stage.split("/")[0] for stage in result.metrics["stages"]} == {"rollouts", "hunters"}
    assert [path.name for path in (tmp_path / "checkpoints" / "1200").iterdir()] == ["hunters.safetensors"]
    # A cart that is only ever pushed to the right stands for eight to ten steps, a random one for about twenty.
    means: dict[str, Any] = {name: result.metrics["policies"][name]["return_mean"] for name in algorithms}
    assert 8 <= means["pushed"] <= 11
    assert means["careless"] > 13
    # Their steps are played and counted as steps, and are nobody's rows.
    sampled = result.metrics["policies"]["hunters"]["agent_steps_sampled"]
    others = sum(episode.returns["cart_0"] + episode.returns["cart_1"] for episode in seen.episodes)
    assert result.metrics["agent_steps"] >= sampled + others


# -- other environments ---------------------------------------------------------------------------------------------


def connect_four() -> Experiment:
    return small_run(
        env_steps=1_500,
        env=Env("pettingzoo.classic.connect_four_v3.env", copies=4),
        mapping=(Rule("player_0", "hunters"), Rule("player_1", "prey")),
    )


def test_turns_and_masks_train_with_every_count_exact(tmp_path: Path, seen: Seen, gathers: list[Concat]) -> None:
    result = train(connect_four(), tmp_path)
    hunters, prey = (result.metrics["policies"][name] for name in ("hunters", "prey"))
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10
    assert min(hunters["rows_carried"], prey["rows_carried"]) > 0
    held = sum(fragment.rows for fragment in gathers[0].held)
    assert hunters["agent_steps_sampled"] == hunters["agent_steps_trained"] / 2 + held
    assert sum(update.stale_rows_dropped for update in seen.of("hunters")) == 0
    # Carried rows keep their older version, and they alone make a batch older than its learner.
    for update in seen.of("hunters"):
        assert 0 <= update.staleness_mean <= update.rows_carried / (update.rows / 2)
    # Who wins gets 1 and who loses -1: the sum over an episode is 0 unless a move was illegal.
    assert {sum(episode.returns.values()) for episode in seen.episodes} == {0.0}
    assert all(set(episode.returns.values()) <= {-1.0, 0.0, 1.0} for episode in seen.episodes)
    # Rows of an episode: each turn is one row of one player.
    assert result.metrics["env_steps"] == result.metrics["agent_steps"] >= 1_500


def test_groups_of_agents_with_different_spaces_train_side_by_side(tmp_path: Path, gathers: list[Concat]) -> None:
    experiment = small_run(
        env_steps=800,
        env=Env("mpe2.simple_tag_v3.parallel_env", {"max_cycles": 25}, copies=4),
        policies=policies(adversary=SMALL_PPO, agent=SMALL_DQN),
        mapping=(),
    )
    result = train(experiment, tmp_path)
    adversary, agent = (result.metrics["policies"][name] for name in ("adversary", "agent"))
    assert (adversary["agent_steps_sampled"], agent["agent_steps_sampled"]) == (2_400, 800)
    assert agent["updates"] == (800 - 100) // 10
    held = sum(fragment.rows for fragment in gathers[0].held)
    assert adversary["agent_steps_trained"] == 2 * (2_400 - held)
    assert result.metrics["episodes"] == 32
    assert list(result.metrics["agents"]) == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    assert adversary["rows_carried"] == agent["rows_carried"] == 0


# -- what is refused ------------------------------------------------------------------------------------------------


def test_what_cannot_run_leaves_nothing_behind(tmp_path: Path) -> None:
    where = tmp_path / "run"
    with pytest.raises(ConfigInvalid):
        train(small_run(objective="policies.preys.return_mean"), where)
    assert not where.exists()


@pytest.fixture(autouse=True)
def signals_are_as_before() -> Iterator[None]:
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
