"""Every shipped experiment, small and in one process, with compiled updates: each run twice, and resumed half-way."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow import conf
from marlflow.base.errors import ConfigInvalid
from marlflow.config.experiment import (
    Evaluation,
    Log,
    RuntimeConfig,
    Stop,
)
from marlflow.driver.train import train
from marlflow.learner import compiled_updates
from marlflow.stages import Learn
from tests.config.composition import experiment_of
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import Seen, reports
from tests.env.optional import is_installed

NAMES = [path.stem for path in sorted((Path(conf.__path__[0]) / "experiment").glob("*.yaml"))]
NOT_COMPILED = {
    "cartpole_family_maml": r"vmap\(\) or another function of torch\.func transforms the network: .* \(adapted\.py, ",
    "cartpole_team_a3c": "gradients are computed by one stage, and applied by another",
}
"""The reason that a run with compile=auto says."""
COVERING = (
    "cartpole_team_memory_recurrent_ppo",
    "kuhn_nfsp",  # DQN, clones, and a league
    "simple_tag_three_algorithms",  # PPO, SAC and DQN
    "toll_ppo_lagrangian",
)
ROUND, HALF, WHOLE = 64, 384, 768
MOST = {
    "batch_agent_steps": 96,
    "minibatch_agent_steps": 40,
    "epochs": 2,
    "learning_starts_agent_steps": 32,
    "replay_agent_steps": 3_000,
    "publish_every_updates": 2,
    "target_every_updates": 3,
}


def small(algorithm: Any, compile: Any) -> Any:
    """The algorithm with small batches, and a replay update for each 16 rows."""
    given = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    changes = {name: min(given[name], most) for name, most in MOST.items() if given.get(name) is not None}
    if "train_every_agent_steps" in given:
        changes["train_every_agent_steps"] = max(given["train_every_agent_steps"], 16)
    return replace(algorithm, **changes, **({"compile": compile} if "compile" in given else {}))


def small_league(league: mf.League | None) -> mf.League | None:
    """The league with iterations, phases and snapshots within the run."""
    if league is None:
        return None
    matchmaker, snapshots = league.matchmaker, league.snapshots
    if isinstance(matchmaker, mf.PSRO):
        matchmaker = replace(matchmaker, agent_steps=200, games=8)
    elif isinstance(matchmaker, mf.AlphaStar):
        matchmaker = replace(matchmaker, phase_agent_steps=200)
    if snapshots.every_agent_steps is not None:
        snapshots = replace(snapshots, every_agent_steps=150)
    return replace(league, matchmaker=matchmaker, snapshots=snapshots, matches=replace(league.matches, games=4))


def shipped(name: str, records: Path, compile: Any = True) -> mf.Experiment:
    words = []
    if name in {"cartpole_team_bc", "cartpole_team_marwil"}:
        expert = f"{{folder: {records}, policy: expert, passes: 5}}"
        words = [f"env.folder={records}", f"policies.team.experience={expert}"]
    experiment = experiment_of(f"experiment={name}", *words)
    # MAML's fragments are whole episodes, and clones learn from a tenth of the rows.
    factor = {"cartpole_family_maml": 12, "kuhn_nfsp": 4}.get(name, 1)
    return replace(
        experiment,
        env=replace(experiment.env, num_envs=4),
        policies={
            policy: replace(one, algorithm=small(one.acts_by, compile)) if one.algorithm is not None else one
            for policy, one in experiment.policies.items()
        },
        learners={
            learner: replace(one, algorithm=small(one.algorithm, compile))
            for learner, one in experiment.learners.items()
        },
        league=small_league(experiment.league),
        rollouts=replace(experiment.rollouts, fragment_env_steps=ROUND * factor),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=WHOLE * factor),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=HALF * factor, console="none", tensorboard=False),
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of a policy `expert` on the cart-poles."""
    where = tmp_path_factory.mktemp("expert")
    made = shipped("cartpole_team_ppo", where, False)
    expert = {"expert": mf.Policy(mf.PPO(batch_agent_steps=200))}
    mf.train(replace(made, policies=expert, mapping=[mf.Rule("*", "expert")], record=mf.Record()), where)
    return where / "record"


def assert_runs_are_equal(experiment: mf.Experiment, run_dir: Path) -> None:
    """Twice, and resumed half-way."""
    half = experiment.log.every_env_steps
    resumed, again = resumes_exactly(experiment, run_dir, half), run_dir / "again"
    mf.train(replace(experiment, checkpoint=mf.CheckpointConfig(half, keep=100)), again)
    assert_equal(without_times(reports(resumed.whole)), without_times(reports(again)), "reports")
    assert_equal(resumed.trees, kept(again))


def assert_all_are_compiled(seen: Seen, run_dir: Path) -> None:
    """Every learner's updates, without a note."""
    compiles = dict.fromkeys(reports(run_dir)[-1]["learners"], 0)
    for update in seen.updates:
        assert not update.note
        compiles[update.learner] += update.compiles
    assert compiles
    assert all(compiles.values()), compiles


class Growing(ParallelEnv):  # type: ignore[type-arg]
    """One agent, whose episodes become longer: from 1 env step to 40."""

    metadata: ClassVar[dict[str, Any]] = {"name": "growing_v0"}
    possible_agents: ClassVar[list[str]] = ["plant"]

    def __init__(self) -> None:
        self.steps = 0

    def observation_space(self, agent: str) -> Box:
        return Box(-1.0, 1.0, (2,))

    def action_space(self, agent: str) -> Discrete[Any]:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = ["plant"]
        self.left = round(40 ** min(1.0, self.steps / 2_000))
        return {"plant": np.zeros(2, np.float32)}, {"plant": {}}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.steps, self.left = self.steps + 1, self.left - 1
        over = self.left == 0
        self.agents = [] if over else ["plant"]
        seen = np.full(2, 1.0 / (1 + self.left), np.float32)
        return {"plant": seen}, {"plant": 1.0}, {"plant": over}, {"plant": False}, {"plant": {}}


@pytest.mark.slow
def test_a_run_with_memory_compiles_a_handful_of_programs(tmp_path: Path) -> None:
    algorithm = mf.RecurrentPPO(batch_agent_steps=256, minibatch_agent_steps=256, epochs=1, compile=True)
    train(
        mf.Experiment(
            mf.Env(Growing, num_envs=4),
            {"plant": mf.Policy(algorithm, mf.GRU(8, (8,)))},
            rollouts=mf.Rollouts(fragment_env_steps=256),
            runtime=RuntimeConfig("inline"),
            stop=Stop(env_steps=8_292),
            evaluation=Evaluation(episodes=0),
            log=Log(console="none", tensorboard=False),
        ),
        tmp_path,
    )
    assert reports(tmp_path)[-1]["learners"]["plant"]["compiles"] <= 5


@pytest.mark.parametrize("name", COVERING)
def test_a_run_that_is_compiled_and_resumed_is_equal(
    name: str, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, experiment = Seen(monkeypatch), shipped(name, records)
    resumed = resumes_exactly(experiment, tmp_path, experiment.log.every_env_steps)
    assert_all_are_compiled(seen, resumed.whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_COMPILED and is_installed(name)])
def test_all_updates_of_a_shipped_experiment_are_compiled_and_its_runs_are_equal(
    name: str, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    assert_runs_are_equal(shipped(name, records), tmp_path)
    assert_all_are_compiled(seen, tmp_path / "whole")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in NOT_COMPILED])
def test_what_is_not_compiled_is_said_once_and_computed_by_autograd(
    name: str, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigInvalid, match="cannot have compile=true: "):
        train(shipped(name, records), tmp_path / "refused")
    monkeypatch.setattr(compiled_updates, "AUTO_AFTER", 3)
    seen = Seen(monkeypatch)
    mf.train(shipped(name, records, "auto"), tmp_path / "said")
    (note,) = (update.note for update in seen.updates if update.note)
    assert re.match(f"updates are not compiled: {NOT_COMPILED[name]}", note)
    assert not any(update.compiles for update in seen.updates)
    assert_runs_are_equal(shipped(name, records, "auto"), tmp_path)


def test_a_run_that_is_resumed_before_its_updates_are_compiled_is_equal(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = shipped("cartpole_team_ppo_dqn", records, "auto")
    # Both take more optimizer steps, and fewer until half-way.
    monkeypatch.setattr(compiled_updates, "AUTO_AFTER", 35)
    seen = Seen(monkeypatch)
    resumed = resumes_exactly(experiment, tmp_path, HALF)
    for learner in ("ppo_team", "dqn_team"):
        assert 0 < resumed.half[f"learner.{learner}"]["updates"] < 35
        # The results of the whole run, and of the resumed one.
        assert sum(update.compiles for update in seen.of(learner)) >= 2


def test_updates_of_a_replay_in_one_call_make_the_same_run_as_one_by_one(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, sizes = Learn.ahead, list[int]()

    def run(name: str, most: int) -> list[Any]:
        def at_most(learn: Learn, learner: Any, after: Any) -> int:
            sizes.append(found := min(most, ahead(learn, learner, after)))
            return found

        monkeypatch.setattr(Learn, "ahead", at_most)
        train(shipped("pendulum_team_sac", records), tmp_path / name)
        return without_times(reports(tmp_path / name))

    together, alone = run("together", 100), run("alone", 1)
    assert max(sizes) > 1
    assert_equal(together, alone, "reports")
    assert_equal(kept(tmp_path / "together"), kept(tmp_path / "alone"))
