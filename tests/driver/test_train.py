"""Whole runs in one process: what they leave, that every count adds up, and that the same seed gives the same."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import marlflow as mf
from marlflow.driver.run_metrics import FAULTS
from marlflow.env.games import cartpole_team
from marlflow.observe.report import RolloutMetrics
from marlflow.observe.trace_events import TRACE, read_trace
from marlflow.runs.run_state import run_state
from tests.driver.watching import EVALUATION_KEYS, LEARNER_KEYS, POLICY_KEYS, Seen, reports, standing
from tests.league.runs import LEAGUES, league_run
from tests.observe.test_timeline import check_schema
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run, without_times

# -- what a run leaves ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory, drawn_curves: None) -> mf.Result:
    """A run with everything switched on."""
    log = mf.Log(every_env_steps=400, console="none", trace=True)
    experiment = small_run(log=log, evaluation=mf.Evaluation(600, 3), objective="policies.prey.return_mean")
    return mf.train(experiment, tmp_path_factory.mktemp("complete"))


def test_the_run_directory_has_all_that_was_promised(complete: mf.Result) -> None:
    names = {path.name for path in complete.run_dir.iterdir()}
    assert {"plan.mmd", "metrics.jsonl", "learning_curves.png", "trace.json.gz", "checkpoints"} <= names
    assert sum(name.startswith("events.out.tfevents.") for name in names) == 1
    assert (complete.run_dir / "plan.mmd").read_text().startswith("flowchart LR\n")
    with Image.open(complete.run_dir / "learning_curves.png") as curves:
        assert min(curves.size) > 500


def test_the_timeline_is_well_formed_and_adds_up_to_the_meters(complete: mf.Result) -> None:
    events = read_trace(complete.run_dir / TRACE)
    check_schema(events)
    seconds: Counter[tuple[str, str]] = Counter()
    calls: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event["ph"] == "X":
            seconds[event["cat"], event["name"]] += event["dur"] / 1e6
            calls[event["cat"], event["name"]] += event.get("args", {}).get("calls", 1)
    last = reports(complete.run_dir)[-1]
    for stage, metrics in last["stages"].items():
        plan, name = stage.split("/")
        of_stage = f"plan {plan}", name
        # The timeline has microseconds.
        assert seconds[of_stage] == pytest.approx(metrics["busy_s"], abs=1e-6 * (1 + calls[of_stage])), stage
    for part, key in (("environment", "env_s"), ("policy", "policy_s"), ("bookkeeping", "bookkeeping_s")):
        of_part = sum(value for (_, name), value in seconds.items() if name == part)
        assert of_part == pytest.approx(last["rollouts"][key], rel=0.01)
    assert calls["driver", "evaluation"] == 4
    assert calls["driver", "checkpoint"] == len(list((complete.run_dir / "checkpoints").iterdir()))
    arrows = [event["ph"] for event in events if event["ph"] in {"s", "f"}]
    assert arrows.count("s") == arrows.count("f") > 5


def test_the_checkpoint_is_read_with_safetensors_alone(complete: mf.Result) -> None:
    folder = complete.run_dir / "checkpoints" / "1200"
    kinds = {path.suffix for path in folder.iterdir()}
    assert kinds == {".safetensors", ".json"}
    for name in ("hunters", "prey"):
        tensors = load_file(folder / f"learner.{name}.safetensors")
        vector, moment = (next(t for key, t in tensors.items() if key.endswith(end)) for end in ("vector", "moment_1"))
        assert vector.dtype == np.float32
        assert np.isfinite(vector).all()
        assert np.abs(moment).max() > 0


def test_reports_have_the_keys_that_were_fixed(complete: mf.Result) -> None:
    found = reports(complete.run_dir)
    assert [record["env_steps"] for record in found] == [400, 800, 1_200, 1_200]
    for record in found:
        assert list(record) == [
            "time_s",
            "env_steps",
            "agent_steps",
            "episodes",
            "episode_env_steps_mean",
            "team_return_mean",
            "eval_team_return_mean",
            "env_steps_per_s",
            "policies",
            "learners",
            "agents",
            "stages",
            "rollouts",
            "object_store",
            "faults",
        ]
        assert list(record["policies"]) == ["hunters", "prey"]
        for policy in record["policies"].values():
            assert set(policy) == POLICY_KEYS
        assert list(record["learners"]) == ["hunters", "prey"]
        for learner in record["learners"].values():
            assert set(learner) == LEARNER_KEYS
        assert list(record["agents"]) == ["cart_0", "cart_1", "cart_2", "cart_3"]
        for agent in record["agents"].values():
            assert set(agent) == {"return_mean"}
        for name, stage in record["stages"].items():
            of_a_queue = {"waiting"} if name.endswith("/queue") else set()
            kept = {"items", "rows", "dropped", "rows_dropped", "busy_s", "starved_s", "blocked_s"}
            assert set(stage) == kept | of_a_queue
        assert set(record["rollouts"]) == RolloutMetrics.__required_keys__
        assert set(record["faults"]) == {*FAULTS, "updates_skipped"}
    assert {"rollouts/Collect", "hunters/Learn", "prey/Insert", "prey/Draw", "prey/queue"} <= found[-1]["stages"].keys()
    assert without_times(found[-1]) == without_times(json.loads(json.dumps(complete.metrics)))


def _documented() -> set[str]:
    """The keys in the first column of docs/metrics.md, each with the path of its section."""
    page = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
    found, section = set(), ""
    for line in page.read_text(encoding="utf-8").splitlines():
        cell = line.split("|")[1].strip() if line.startswith("| ") else ""
        names = re.findall(r"`([^`]+)`", cell)
        if cell.startswith("**"):
            section = names[0].partition(".")[0] + "."
            continue
        plain = [name.partition(".<")[0] for name in names]
        found |= {name if "." in name else section + name for name in plain}
    return found


def _reported(record: Mapping[str, Any]) -> set[str]:
    one_of_each = {name: [*record[name].values()] for name in ("policies", "learners", "agents", "stages")}
    sections = {**one_of_each, "rollouts": [record["rollouts"]], "faults": [record["faults"]]}
    found = {f"{name}.{key}" for name, parts in sections.items() for part in parts for key in part}
    return (
        found | {f"object_store.{key}" for key in record["object_store"]} | record.keys() - {*sections, "object_store"}
    )


def test_every_key_of_a_report_is_documented_and_no_other(complete: mf.Result) -> None:
    for record in reports(complete.run_dir):
        assert _reported(record) == {key for key in _documented() if not key.startswith("league.")}


def test_every_key_of_a_league_is_documented_and_no_other(tmp_path: Path) -> None:
    league = mf.train(league_run(LEAGUES["pfsp"], env_steps=200), tmp_path).metrics["league"]
    players = [key for player in league.pop("players").values() for key in player]
    found = {f"league.{key}" for key in (*league, *players)}
    assert found == {key for key in _documented() if key.startswith("league.")}


def test_a_report_has_the_current_value_of_each_schedule(tmp_path: Path) -> None:
    falling = replace(
        SMALL_PPO,
        learning_rate=mf.CosineDecay(1e-3, 1e-4, 1_500),
        entropy_coefficient=mf.PiecewiseConstant([0.02, 0.01], [900]),
    )
    mf.train(small_run(policies=policies(hunters=falling, prey=SMALL_DQN)), tmp_path)
    found = [{name: standing(record, name) for name in record["policies"]} for record in reports(tmp_path)]
    assert len({tuple(one["hunters"]["schedules"].items()) for one in found}) >= 3
    for one in found:
        hunted, preyed = one["hunters"]["agent_steps_sampled"], one["prey"]["agent_steps_sampled"]
        share = min(hunted / 1_500, 1.0)
        assert one["hunters"]["schedules"] == {
            "learning_rate": pytest.approx(1e-4 + 9e-4 * math.cos(math.pi * share / 2) ** 2),
            "entropy_coefficient": 0.02 if hunted < 900 else 0.01,
        }
        assert one["prey"]["schedules"] == {"epsilon": pytest.approx(1.0 - 0.95 * min(preyed, 2_000) / 2_000)}


def test_times_are_those_of_this_run(complete: mf.Result) -> None:
    """No stage was busy or waiting for longer than the run has lasted, and each added up to it."""
    for record in reports(complete.run_dir):
        assert record["env_steps_per_s"] > 0
        for name, stage in record["stages"].items():
            spent = stage["busy_s"] + stage["starved_s"] + stage["blocked_s"]
            assert min(stage.values()) >= 0
            assert spent <= record["time_s"] * 1.2 + 0.1, name
        in_workers = {key: record["rollouts"][key] for key in ("env_s", "policy_s", "bookkeeping_s")}
        assert min(in_workers.values()) > 0
        assert sum(in_workers.values()) <= record["stages"]["rollouts/Collect"]["busy_s"] * 1.2 + 0.1


def test_totals_never_fall_and_agree_with_each_other(complete: mf.Result) -> None:
    before: Mapping[str, Any] | None = None
    for record in reports(complete.run_dir):
        for name, policy in record["policies"].items():
            assert policy["episodes"] == record["episodes"]
            if before is not None:
                for key in ("episodes", "agent_steps_sampled", "agent_steps_trained", "updates", "version"):
                    assert standing(record, name)[key] >= standing(before, name)[key]
        assert record["agent_steps"] == sum(policy["agent_steps_sampled"] for policy in record["policies"].values())
        before = record


def test_the_objective_is_the_figure_it_names(complete: mf.Result) -> None:
    assert complete.objective == complete.metrics["policies"]["prey"]["return_mean"]
    assert complete.stopped_by == "stop.env_steps=1200"
    assert run_state(complete.run_dir).name == "finished"
    assert run_state(complete.run_dir).reason == complete.stopped_by


def test_nothing_is_written_that_was_not_asked_for(tmp_path: Path) -> None:
    mf.train(small_run(env_steps=80, log=mf.Log(console="none", jsonl=False, tensorboard=False)), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        "plan.mmd",
        "run.log",
        "checkpoints",
        "experiment.json",
        "run.json",
        "state.json",
    }


# -- the same again -------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path: Path) -> None:
    evaluation = mf.Evaluation(600, 2)
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        mf.train(small_run(seed=seed, evaluation=evaluation), tmp_path / name)
    one, again, other = ([without_times(record) for record in reports(tmp_path / n)] for n in ("one", "again", "other"))
    assert one == again
    assert one[-1]["learners"]["prey"]["loss"] != other[-1]["learners"]["prey"]["loss"]
    assert one[-1]["policies"]["hunters"]["return_mean"] != other[-1]["policies"]["hunters"]["return_mean"]
    for policy in ("hunters", "prey"):
        files = [
            tmp_path / name / "checkpoints" / "1200" / f"learner.{policy}.safetensors" for name in ("one", "again")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_where_a_replay_lives_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    """With actions that do not depend on weights; how far acting lags behind learning is free, off policy."""
    algorithm = replace(SMALL_DQN, epsilon=1.0)
    records: list[Any] = []
    for replay in ("with_learner", "own"):
        placement = mf.PlacementOverrides(replay=replay)
        placed = {"hunters": mf.Policy(SMALL_PPO, SMALL), "prey": mf.Policy(algorithm, SMALL, placement)}
        records.append(without_times(mf.train(small_run(policies=placed), tmp_path / replay).metrics))
        del records[-1]["learners"]["prey"]["staleness_mean"]
    assert records[0] == records[1]
    one, other = (
        tmp_path / name / "checkpoints" / "1200" / "learner.prey.safetensors" for name in ("with_learner", "own")
    )
    assert one.read_bytes() == other.read_bytes()


def test_evaluation_counts_nowhere_and_changes_nothing(tmp_path: Path, seen: Seen) -> None:
    with_it = mf.train(small_run(evaluation=mf.Evaluation(300, 3)), tmp_path / "with")
    evaluations = len(seen.evaluations)
    without = mf.train(small_run(), tmp_path / "without")
    assert evaluations == len(seen.evaluations) == 6  # the last is of the end of the run
    played = seen.evaluations[-1]
    assert [result.episode for result in played] == [0, 1, 2]
    for name, agents in (("hunters", ("cart_0", "cart_1")), ("prey", ("cart_2", "cart_3"))):
        expected = fmean(fmean(result.returns[agent] for agent in agents) for result in played)
        assert with_it.metrics["policies"][name]["eval_return_mean"] == pytest.approx(expected)
        assert without.metrics["policies"][name]["eval_return_mean"] is None
    one, other = (without_times(result.metrics) for result in (with_it, without))
    for record in (one, other):
        del record["eval_team_return_mean"]
        for policy in record["policies"].values():
            for key in EVALUATION_KEYS:
                del policy[key]
        for learner in record["learners"].values():
            del learner["eval_return_mean"], learner["eval_team_return_mean"]
    assert one == other
    files = [tmp_path / name / "checkpoints" / "1200" / "learner.prey.safetensors" for name in ("with", "without")]
    assert files[0].read_bytes() == files[1].read_bytes()


# -- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("per", "starts", "fragment"), [(10, 100, 40), (7, 0, 44), (64, 500, 8), (1, 1_000, 100)])
def test_updates_per_row_inserted_are_exact(per: int, starts: int, fragment: int, tmp_path: Path) -> None:
    algorithm = replace(SMALL_DQN, train_every_agent_steps=per, learning_starts_agent_steps=starts, batch_agent_steps=4)
    experiment = small_run(env_steps=700, policies=policies(hunters=algorithm, prey=SMALL_DQN))
    result = mf.train(replace(experiment, rollouts=mf.Rollouts(2, fragment)), tmp_path)
    hunters, stages = standing(result.metrics, "hunters"), result.metrics["stages"]
    assert stages["hunters/Insert"]["rows"] == hunters["agent_steps_sampled"] > starts
    assert hunters["updates"] == (hunters["agent_steps_sampled"] - starts) // per
    assert hunters["agent_steps_trained"] == 4 * hunters["updates"]
    prey = standing(result.metrics, "prey")
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10
    assert prey["version"] == prey["updates"] // 3


def test_before_learning_starts_nothing_is_learned(tmp_path: Path) -> None:
    algorithm = replace(SMALL_DQN, learning_starts_agent_steps=50_000)
    result = mf.train(small_run(policies=policies(hunters=algorithm, prey=mf.Random())), tmp_path)
    hunters = standing(result.metrics, "hunters")
    assert (hunters["updates"], hunters["version"], hunters["agent_steps_trained"]) == (0, 0, 0)
    assert hunters["agent_steps_sampled"] > 0


@pytest.mark.parametrize("batch", [1, 200, 333, 5_000])
def test_ppo_trains_on_each_row_once_per_epoch_or_still_holds_it(
    batch: int, tmp_path: Path, gathers: list[mf.Concat], seen: Seen
) -> None:
    algorithm = replace(SMALL_PPO, batch_agent_steps=batch, minibatch_agent_steps=64, epochs=3)
    if batch < 64:
        algorithm = replace(algorithm, minibatch_agent_steps=1, epochs=1)
    result = mf.train(small_run(env_steps=600, policies=policies(hunters=algorithm, prey=mf.Random())), tmp_path)
    hunters = standing(result.metrics, "hunters")
    held = sum(fragment.rows for gather in gathers for fragment in gather.held)
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
    mf.train(small_run(policies=two), tmp_path)
    for name in ("hunters", "prey"):
        updates = seen.of(name)
        assert len(updates) >= 3
        assert {update.staleness_mean for update in updates} == {0.0}
        assert sum(update.stale_rows_dropped for update in updates) == 0
        assert [update.version for update in updates] == list(range(len(updates)))


def test_overlapping_rounds_are_a_version_old_at_most_and_what_is_older_is_dropped_and_counted(
    tmp_path: Path, seen: Seen, gathers: list[mf.Concat]
) -> None:
    algorithm = replace(SMALL_PPO, batch_agent_steps=50, minibatch_agent_steps=25, max_staleness=1)
    experiment = small_run(policies=policies(hunters=algorithm, prey=SMALL_DQN))
    result = mf.train(replace(experiment, rollouts=mf.Rollouts(2, 40, pace="overlap")), tmp_path)
    updates = seen.of("hunters")
    assert all(update.staleness_mean <= 1.0 for update in updates)
    hunters, gather = standing(result.metrics, "hunters"), gathers[-1]
    dropped = sum(update.stale_rows_dropped for update in updates)
    assert hunters["stale_rows_dropped"] == dropped
    held = sum(fragment.rows for fragment in gather.held)
    assert hunters["agent_steps_sampled"] == hunters["agent_steps_trained"] / 2 + dropped + held
    prey = standing(result.metrics, "prey")
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10


def test_overlap_needs_a_learner_that_bears_it(tmp_path: Path) -> None:
    experiment = small_run(rollouts=mf.Rollouts(2, 40, pace="overlap"))
    with pytest.raises(mf.PlanInvalid, match=r"plan 'hunters' has max_staleness 0; give it 1 or more"):
        mf.train(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- what is refused ------------------------------------------------------------------------------------------------


def test_what_cannot_run_leaves_nothing_behind(tmp_path: Path) -> None:
    where = tmp_path / "run"
    with pytest.raises(mf.ConfigInvalid):
        mf.train(small_run(objective="policies.preys.return_mean"), where)
    assert not where.exists()


@pytest.fixture(autouse=True)
def signals_are_as_before() -> Iterator[None]:
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_of_less_than_a_round_is_told_how_long_it_will_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mf.train(small_run(stop=mf.Stop(env_steps=5), log=mf.Log(console="plain", tensorboard=False)), tmp_path)
    text = capsys.readouterr().out
    assert "and the least that a run takes; lower rollouts.fragment_env_steps for stop.env_steps=5" in text


@pytest.mark.parametrize("is_local", [False, True])
def test_a_run_that_cannot_be_made_from_its_record_says_so_at_its_start(
    is_local: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def local(**arguments: Any) -> Any:
        return cartpole_team.parallel_env(**arguments)

    experiment = small_run(env_steps=80, log=mf.Log(console="plain", tensorboard=False))
    env = replace(experiment.env, factory=local, arguments={}) if is_local else experiment.env
    mf.train(replace(experiment, env=env), tmp_path)
    said = "marlflow evaluate, play and export cannot make this run again: env is "
    assert (said in capsys.readouterr().out) == is_local
