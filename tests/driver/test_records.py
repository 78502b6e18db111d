"""Runs that record, and runs that learn from records: offline, and beside others that play."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.env.games import cartpole_team
from marlflow.offline.dataset import find_dataset
from marlflow.offline.environment import recorded_environment
from tests.config.composition import algorithms, experiment_of, ready_of
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.resumed_runs import resumed_exactly, resumes_exactly
from tests.driver.watching import reports, standing
from tests.runtime import small_runs

ENV_STEPS = 320
EXPERT = mf.PPO(batch_agent_steps=80, minibatch_agent_steps=40, epochs=1)
SMALL_BC = mf.BC(batch_agent_steps=100, minibatch_agent_steps=50)
SMALL_MARWIL = mf.MARWIL(batch_agent_steps=100, minibatch_agent_steps=50)
SMALL_DQN = mf.DQN(learning_starts_agent_steps=100, train_every_agent_steps=40, batch_agent_steps=16)


def run_of(env: mf.Env, env_steps: int | None = ENV_STEPS, **policies: mf.Policy) -> mf.Experiment:
    """The first policy plays cart_0, the last all others."""
    names = list(policies)
    return mf.Experiment(
        env,
        policies,
        [mf.Rule("cart_0", names[0]), mf.Rule("*", names[-1])]
        if len(names) > 1
        else [mf.Rule("*", name) for name in names],
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps, time_s=600.0),
        evaluation=mf.Evaluation(every_env_steps=10_000, episodes=1),
        checkpoint=mf.CheckpointConfig(every_env_steps=None),
        log=mf.Log(every_env_steps=160, console="none", tensorboard=False),
    )


CARTS = mf.Env(cartpole_team.parallel_env, {"num_agents": 2, "max_cycles": 30}, num_envs=4)


def offline(records: Path, passes: int = 1) -> mf.Env:
    return mf.Env(recorded_environment, {"folder": str(records), "passes": passes}, num_envs=4)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Records of a policy `expert`, and of `chance`, which does not learn."""
    where = tmp_path_factory.mktemp("expert")
    experiment = run_of(CARTS, expert=mf.Policy(EXPERT), chance=mf.Policy(mf.Random()))
    mf.train(replace(experiment, record=mf.Record(("expert", "chance"))), where)
    return where / "record"


def rows_in(records: Path, policy: str) -> mf.Batch:
    found = find_dataset(records, policy)
    return mf.Batch.concat([found.read(fragment) for fragment in found.fragments])


def figures(result: mf.Result, policy: str) -> tuple[int, int]:
    """Agent steps sampled, and trained on."""
    found = standing(result.metrics, policy)
    return found["agent_steps_sampled"], found["agent_steps_trained"]


def test_a_run_records_every_row_that_its_policies_made_and_is_otherwise_the_same(
    records: Path, tmp_path: Path
) -> None:
    experiment = run_of(CARTS, expert=mf.Policy(EXPERT), chance=mf.Policy(mf.Random()))
    result = mf.train(experiment, tmp_path)
    assert without_times(reports(tmp_path)) == without_times(reports(records.parent))
    assert_equal({**kept(tmp_path), "workers": None}, {**kept(records.parent), "workers": None})
    expert, chance = rows_in(records, "expert"), rows_in(records, "chance")
    assert expert.rows == result.metrics["policies"]["expert"]["agent_steps_sampled"]
    assert sum(fragment.env_steps for fragment in find_dataset(records, "expert").fragments) == ENV_STEPS
    assert set(expert["agent"]) == {0}
    assert set(chance["agent"]) == {1}
    assert set(expert["version"]) == set(range(int(expert["version"].max()) + 1))
    assert set(pq.read_table(next((records / "expert").glob("*.rows.parquet"))).column_names) == set(expert.columns)


@pytest.mark.parametrize("algorithm", [SMALL_BC, SMALL_MARWIL, SMALL_DQN], ids=["bc", "marwil", "dqn"])
def test_an_offline_run_learns_from_each_recorded_row_once_a_pass_and_ends_with_its_files(
    records: Path, tmp_path: Path, algorithm: mf.BC
) -> None:
    experiment = run_of(offline(records, passes=2), None, expert=mf.Policy(algorithm))
    result = mf.train(experiment, tmp_path)
    recorded = rows_in(records, "expert").rows
    sampled, trained = figures(result, "expert")
    assert result.stopped_by == "the end of what was recorded"
    assert (sampled, result.metrics["agent_steps"]) == (2 * recorded, 2 * recorded)
    assert result.metrics["env_steps"] == 2 * ENV_STEPS
    assert (trained > 0) if algorithm is SMALL_DQN else (2 * recorded - 100 < trained <= 2 * recorded)
    assert result.metrics["policies"]["expert"]["eval_return_mean"] is not None


def test_a_policy_with_memory_begins_from_zeros_whatever_network_recorded(records: Path, tmp_path: Path) -> None:
    recurrent = replace(small_runs.SMALL_R2D2.algorithm, train_every_agent_steps=40)
    mf.train(replace(run_of(CARTS, expert=small_runs.SMALL_R2D2), record=mf.Record()), tmp_path / "recurrent")
    of_r2d2 = tmp_path / "recurrent" / "record"
    assert np.abs(rows_in(of_r2d2, "expert")["memory"]).max() > 0.01
    for number, (folder, model) in enumerate([(records, mf.GRU(4, (4,))), (of_r2d2, mf.LSTM(4, (4,)))]):
        experiment = run_of(offline(folder), None, expert=mf.Policy(recurrent, model))
        result = mf.train(experiment, tmp_path / str(number))
        assert figures(result, "expert")[1] > 0
    # Without memory, nothing of it is learned from.
    experiment = run_of(offline(of_r2d2), None, expert=mf.Policy(SMALL_DQN))
    assert figures(mf.train(experiment, tmp_path / "dqn"), "expert")[1] > 0


def test_what_learned_from_records_plays_in_the_environment_that_was_recorded(records: Path, tmp_path: Path) -> None:
    mf.train(run_of(offline(records), None, expert=mf.Policy(SMALL_BC)), tmp_path / "run")
    team = mf.load(tmp_path / "run")
    assert team.make_env().possible_agents == ["cart_0", "cart_1"]
    evaluated = mf.evaluate(tmp_path / "run", episodes=3)
    assert len(evaluated.games) == 3
    for game in evaluated.games:
        assert set(game.returns) == {"cart_0", "cart_1"}
        assert max(game.returns.values()) == game.env_steps <= 30  # a reward of 1 for each step, and max_cycles


def test_where_the_recorded_environment_cannot_be_made_nobody_plays(records: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "records"
    shutil.copytree(records, unknown)
    manifest = json.loads((unknown / "manifest.json").read_text("utf-8"))
    manifest["environment"] = {"factory": "", "arguments": {}, "wrappers": [], "unknown": "its factory has no path"}
    (unknown / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    experiment = run_of(offline(unknown), None, expert=mf.Policy(SMALL_BC))
    mf.train(replace(experiment, evaluation=mf.Evaluation(episodes=0)), tmp_path / "run")
    with pytest.raises(mf.ConfigInvalid, match="cannot be made again: its factory has no path"):
        mf.evaluate(tmp_path / "run", episodes=3)
    with pytest.raises(mf.ConfigInvalid, match="cannot be made again: its factory has no path"):
        mf.load(tmp_path / "run").make_env()


def test_an_offline_run_that_goes_on_is_the_same_as_one_that_never_stopped(records: Path, tmp_path: Path) -> None:
    experiment = run_of(offline(records, passes=2), None, expert=mf.Policy(SMALL_MARWIL))
    resumes_exactly(replace(experiment, evaluation=mf.Evaluation(episodes=0)), tmp_path, ENV_STEPS)


def test_the_number_of_workers_changes_the_order_of_rows_alone(records: Path, tmp_path: Path) -> None:
    for workers in (1, 3):
        experiment = run_of(offline(records), None, expert=mf.Policy(SMALL_BC))
        experiment = replace(experiment, rollouts=mf.Rollouts(num_workers=workers, fragment_env_steps=40))
        result = mf.train(experiment, tmp_path / str(workers))
        # The last rows are fewer than a batch, and are learned from at the end.
        rows = rows_in(records, "expert").rows
        assert figures(result, "expert") == (rows, rows)
        assert rows % SMALL_BC.batch_agent_steps


def test_a_policy_learns_from_files_beside_one_that_plays_and_ends_with_them(records: Path, tmp_path: Path) -> None:
    pupil = mf.Policy(SMALL_BC, experience=mf.OfflineData(str(records), "expert"))
    experiment = run_of(CARTS, 3 * ENV_STEPS, pupil=pupil, player=mf.Policy(EXPERT))
    result = mf.train(experiment, tmp_path)
    recorded = rows_in(records, "expert").rows
    sampled, trained = figures(result, "pupil")
    assert result.stopped_by == f"stop.env_steps={3 * ENV_STEPS}"
    assert sampled == recorded
    assert recorded - 100 < trained <= recorded
    found = result.metrics["policies"]
    assert found["player"]["agent_steps_sampled"] > 2 * ENV_STEPS  # it continued after the end of the pupil's records
    assert found["pupil"]["return_mean"] is not None  # it acted all the time


def test_beside_others_too_a_run_that_goes_on_is_the_same(records: Path, tmp_path: Path) -> None:
    pupil = mf.Policy(SMALL_DQN, experience=mf.OfflineData(str(records), "expert"))
    experiment = run_of(CARTS, 2 * ENV_STEPS, pupil=pupil, player=mf.Policy(EXPERT))
    experiment = replace(experiment, evaluation=mf.Evaluation(episodes=0))
    # At the end of the records, and after it.
    assert len(list(resumed_exactly(experiment, tmp_path, [ENV_STEPS, ENV_STEPS + 160]))) == 2


def test_a_run_that_goes_on_records_no_row_twice_and_none_in_vain(tmp_path: Path) -> None:
    experiment = replace(run_of(CARTS, expert=mf.Policy(EXPERT)), record=mf.Record())
    mf.train(experiment, tmp_path / "whole")
    mf.train(replace(experiment, stop=mf.Stop(env_steps=ENV_STEPS // 2)), tmp_path / "half")
    for path in list((tmp_path / "half" / "record" / "expert").glob("*-0000-*")):  # as if it had been killed after that
        shutil.copy(path, path.with_name(path.name.replace("-0000-", "-0000-9")))
    ahead = replace(
        experiment, stop=mf.Stop(env_steps=ENV_STEPS), record=mf.Record(folder=str(tmp_path / "half" / "record"))
    )
    mf.resume(ahead, tmp_path / "half")
    one, other = (rows_in(tmp_path / name / "record", "expert") for name in ("whole", "half"))
    for name in one.columns:
        np.testing.assert_array_equal(np.sort(one[name], 0), np.sort(other[name], 0))


@pytest.mark.parametrize("algorithm", ["bc", "marwil"])
def test_the_shipped_experiments_learn_from_a_folder_that_is_given(records: Path, algorithm: str) -> None:
    made = ready_of(
        f"experiment=cartpole_team_{algorithm}",
        f"env.folder={records}",
        "policies.team.experience={folder: " + str(records) + ", policy: expert, passes: 5}",
    )
    assert (made.spec.offline, algorithms(made)) == (True, {"team": algorithm})
    assert (made.spec.records["team"].policy, made.spec.records["team"].passes) == ("expert", 5)


def test_records_are_composed_as_all_else_is(records: Path) -> None:
    recording = experiment_of("env=cartpole_team", "record={policies: [cart]}")
    assert recording.record == mf.Record(("cart",))
    beside = ready_of(
        "env=cartpole_team",
        "policy@policies.cart=bc",
        f"policies.cart.experience={{folder: {records}, policy: expert}}",
    )
    assert not beside.spec.offline
    assert beside.spec.records["cart"].policy == "expert"


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (mf.Policy(EXPERT), r"policy 'expert' \(ppo\) learns from what it has just done itself, .*use bc, marwil, dqn"),
        (
            mf.Policy(SMALL_BC, experience=mf.OfflineData("{records}", "nobody")),
            "has no records of a policy 'nobody'; it has those of",
        ),
        (mf.Policy(SMALL_BC, experience=mf.OfflineData("/nowhere")), "there is no folder of records /nowhere"),
    ],
)
def test_what_cannot_learn_from_these_records_is_an_error_at_start(
    records: Path, policy: mf.Policy, problem: str
) -> None:
    if policy.experience is not None:
        folder = policy.experience.folder.replace("{records}", str(records))
        policy = replace(policy, experience=replace(policy.experience, folder=folder))
    with pytest.raises(mf.ConfigInvalid, match=problem):
        ready(run_of(offline(records), expert=policy))


def test_an_offline_algorithm_without_records_is_an_error_at_start() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"policy 'pupil' \(bc\) learns from records; set policies.pupil.exper"):
        ready(run_of(CARTS, pupil=mf.Policy(SMALL_BC)))


def test_records_of_other_spaces_are_an_error_that_says_both(records: Path) -> None:
    blind = mf.Env(cartpole_team.parallel_env, {"num_agents": 2, "velocities": False}, num_envs=4)
    pupil = mf.Policy(SMALL_BC, experience=mf.OfflineData(str(records), "expert"))
    with pytest.raises(mf.ConfigInvalid, match=r"policy 'pupil' sees and does .*\(2,\).*was recorded with .*\(4,\)"):
        ready(run_of(blind, pupil=pupil))


def test_an_environment_that_cannot_be_made_again_is_only_missed_by_evaluations(tmp_path: Path) -> None:
    nameless = replace(CARTS, factory=lambda: cartpole_team.parallel_env(2), arguments={})
    experiment = run_of(nameless, 160, expert=mf.Policy(EXPERT))
    mf.train(replace(experiment, record=mf.Record()), tmp_path / "expert")
    again = run_of(offline(tmp_path / "expert" / "record"), None, expert=mf.Policy(SMALL_BC))
    with pytest.raises(mf.ConfigInvalid, match=r"has no import path; set evaluation.episodes=0 to do without it"):
        ready(again)
    result = mf.train(replace(again, evaluation=mf.Evaluation(episodes=0)), tmp_path / "bc")
    assert result.stopped_by == "the end of what was recorded"


def test_what_cannot_be_recorded_is_an_error_at_start(records: Path, tmp_path: Path) -> None:
    experiment = replace(run_of(CARTS, expert=mf.Policy(EXPERT)), record=mf.Record(("exprt",)))
    with pytest.raises(mf.ConfigInvalid, match=r"record.policies: there is no policy 'exprt'; did you mean 'expert'\?"):
        mf.train(experiment, tmp_path / "a")
    experiment = replace(run_of(offline(records), expert=mf.Policy(SMALL_BC)), record=mf.Record())
    with pytest.raises(mf.ConfigInvalid, match="nobody plays in this run"):
        mf.train(experiment, tmp_path / "b")


def test_an_offline_run_has_the_mapping_of_its_records(records: Path, tmp_path: Path) -> None:
    assert json.loads((records / "manifest.json").read_text())["mapping"] == {"cart_0": "expert", "cart_1": "chance"}
    made = replace(
        run_of(offline(records), expert=mf.Policy(SMALL_BC)), mapping=None, default_policy=mf.Policy(SMALL_BC)
    )
    assert ready(made).players == {"expert": ["cart_0"], "chance": ["cart_1"]}
    assert ready(replace(made, policies={})).players == {"expert": ["cart_0"], "chance": ["cart_1"]}
    # Other names, and records of earlier versions: groups, as in any run.
    learner = mf.Policy(SMALL_BC, experience=mf.OfflineData(str(records), "expert"))
    assert ready(replace(made, policies={"cart": learner})).players == {"cart": ["cart_0", "cart_1"]}
    before = shutil.copytree(records, tmp_path / "before")
    manifest = json.loads((before / "manifest.json").read_text())
    del manifest["mapping"]
    (before / "manifest.json").write_text(json.dumps(manifest))
    earlier = mf.Policy(SMALL_BC, experience=mf.OfflineData(str(before), "expert"))
    assert ready(replace(made, env=offline(before), policies={"cart": earlier})).players == {
        "cart": ["cart_0", "cart_1"]
    }


def test_a_team_does_not_learn_from_records(records: Path) -> None:
    team = {name: mf.Policy(mf.VDN()) for name in ("expert", "chance")}
    with pytest.raises(
        mf.ConfigInvalid, match=r"\(vdn\) learns from joint rows, which are not recorded; use bc, marwil"
    ):
        ready(run_of(offline(records), **team))


def test_a_mapping_with_policies_that_were_not_recorded_needs_them_here(tmp_path: Path) -> None:
    experiment = run_of(CARTS, env_steps=80, expert=mf.Policy(EXPERT), chance=mf.Policy(mf.Random()))
    mf.train(replace(experiment, record=mf.Record(("expert",))), tmp_path)
    made = replace(run_of(offline(tmp_path / "record")), mapping=None, default_policy=mf.Policy(SMALL_BC))
    # Nothing was recorded of `chance`, so all carts learn from the only rows, as before.
    assert ready(made).players == {"cart": ["cart_0", "cart_1"]}
    with_chance = replace(made, policies={"expert": mf.Policy(SMALL_BC), "chance": mf.Policy(mf.Random())})
    assert ready(with_chance).players == {"expert": ["cart_0"], "chance": ["cart_1"]}
