"""Runs whose environments say more than rewards: figures in reports, columns in losses, bit for bit over a resume."""

from __future__ import annotations

import asyncio
import csv
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pettingzoo.utils import BaseParallelWrapper

import marlflow as mf
from marlflow.driver.evaluation_files import as_csv, as_json
from marlflow.driver.notices import Notices
from marlflow.env.functional.own import batched_env
from marlflow.env.games import cartpole_team
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.driver.watching import reports
from tests.env.functional_games import Walkers
from tests.league.runs import LEAGUES, league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run


class Telling(BaseParallelWrapper[str, Any, Any]):
    """Infos have the number of the env step, its half, and at an agent's end, whether it stood for 15 of them."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        self.at += 1
        *result, _ = super().step(actions)
        told = {"step": self.at, "half": self.at / 2}
        over = {agent for ends in result[2:] for agent, ended in ends.items() if ended}
        return *result, {a: {**told, **({"won": self.at >= 15} if a in over else {})} for a in actions}


def telling(max_cycles: int = 50) -> Telling:
    return Telling(cartpole_team.parallel_env(max_cycles=max_cycles))


def mean_step(module: Any, minibatch: Any) -> torch.Tensor:
    """The mean of a column: a term of the loss without a gradient."""
    nothing: torch.Tensor = 0.0 * next(module.parameters()).sum()
    return minibatch["step"].mean() + nothing


def experiment(env: mf.Env, **changes: Any) -> mf.Experiment:
    """Two agents of PPO, whose loss sees a column, and the others of DQN without any."""
    ppo = replace(SMALL_PPO, extra_losses={"mean_step": mf.ExtraLoss(mean_step)})
    policies = {
        "ppo": mf.Policy(
            ppo, SMALL, columns={"step": "info"}, reward_from={"half": mf.Linear(1.0, 0.0, agent_steps=1_200)}
        ),
        "dqn": mf.Policy(SMALL_DQN, SMALL),
    }
    return small_run(
        env=env,
        policies=policies,
        mapping=[mf.Rule("cart_[01]", "ppo"), mf.Rule("*", "dqn")],
        metrics={"steps": mf.InfoMetric("half", at="sum"), "last": mf.InfoMetric("half")},
        **changes,
    )


def test_a_resumed_run_goes_on_with_figures_and_columns(tmp_path: Path) -> None:
    carts = mf.Env(telling, {}, num_envs=4)
    resumed = resumes_exactly(experiment(carts, stop=mf.Stop(env_steps=800)), tmp_path, 400)
    assert resumed.half["workers"]["tables"]["infos"]["steps"].any(), "running episodes were to have figures"
    for report in reports(tmp_path / "whole")[1:]:
        for name, found in report["policies"].items():
            infos, length = found["infos"], found["episode_env_steps_mean"]
            assert 0.0 <= infos["won"] <= 1.0
            assert infos["last"] <= length / 2, "agents end before the episode does"
            # The sum of the first n halves, for the mean agent.
            assert infos["steps"] > infos["last"]
            assert infos.keys() == {"won", "last", "steps", *(("step", "half") if name == "ppo" else ())}
        ppo = report["learners"]["ppo"]
        coefficient = 1.0 - report["policies"]["ppo"]["agent_steps_sampled"] / 1_200
        assert ppo["schedules"] == {"reward_from.ppo.half": pytest.approx(max(coefficient, 0.0))}
    assert 1.0 <= resumed.metrics["learners"]["ppo"]["loss"]["mean_step"] <= 50.0


def test_evaluations_have_figures_and_a_run_may_aim_at_one(tmp_path: Path) -> None:
    aims = {
        "evaluation": mf.Evaluation(episodes=2, every_env_steps=200),
        "objective": "policies.ppo.eval_infos.last",
        "checkpoint": mf.CheckpointConfig(every_env_steps=200, best="policies.ppo.infos.last"),
        "callbacks": {"stop": mf.EarlyStop("policies.ppo.infos.steps", reports=1, min_change=1e9)},
    }
    result = mf.train(experiment(mf.Env(telling, {}, num_envs=4), stop=mf.Stop(env_steps=5_000), **aims), tmp_path)
    assert result.objective == result.metrics["policies"]["ppo"]["eval_infos"]["last"] > 0.0
    assert result.stopped_by is not None
    assert result.stopped_by.startswith("callbacks.stop: policies.ppo.infos.steps has not improved in 1 reports")
    assert result.metrics["env_steps"] < 5_000
    (ppo, _) = mf.evaluate(tmp_path, episodes=4, trust=None).returns
    assert ppo.infos["last"].value > 0.0


def test_a_figure_that_no_episode_has_is_named(tmp_path: Path) -> None:
    asked = {"final": mf.InfoMetric("half"), "typo": mf.InfoMetric("haalf"), "sums": mf.InfoMetric("stepp", at="sum")}
    walked = replace(experiment(mf.Env(telling, {}, num_envs=4), stop=mf.Stop(env_steps=400)), metrics=asked)
    mf.train(walked, tmp_path)
    log = (tmp_path / "run.log").read_text(encoding="utf-8")
    named = re.findall(r"metrics\.(\w+) has no value: in (\d+) episodes, no info had a number '(\w+)' (at .*)", log)
    assert [(name, key, when) for name, _, key, when in named] == [
        ("typo", "haalf", "at an agent's end"),
        ("sums", "stepp", "at any env step"),
    ]
    assert all(int(episodes) > 0 for _, episodes, _, _ in named)


def test_a_figure_that_is_asked_for_from_a_resume_on_is_not_missed_in_the_episodes_before_it() -> None:
    said: list[str] = []
    totals: Any = SimpleNamespace(episodes=500, env_steps=9_000, policies={}, learners={})
    checked: Any = SimpleNamespace(experiment=SimpleNamespace(metrics={"late": mf.InfoMetric("step")}))
    notices = Notices(checked, totals, SimpleNamespace(notice=said.append), dict)  # type: ignore[arg-type]
    report: Any = SimpleNamespace(episodes_abandoned=0, episodes_restarted=0)
    notices.resumed(SimpleNamespace(path="9000"), report)  # type: ignore[arg-type]
    del said[:]
    empty: Any = SimpleNamespace(receipts=())
    asyncio.run(notices.after_round(empty))
    assert not said
    totals.episodes = 600
    for _ in range(2):
        asyncio.run(notices.after_round(empty))
    assert said == ["metrics.late has no value: in 100 episodes, no info had a number 'step' at an agent's end"]


class FirstTells(RockPaperScissors):
    """player_0 wins each game by its infos, whatever rewards say; infos of player_1 have no `told`."""

    def step(self, actions: dict[str, int]) -> Any:
        *result, infos = super().step(actions)
        for agent, first in (("player_0", True), ("player_1", False)):
            infos[agent] = {"won": first, **({"told": 3.0} if first else {})}
        return *result, infos


def test_games_between_policies_have_figures_of_the_side_that_was_played(tmp_path: Path) -> None:
    told = {"won": mf.InfoMetric("won"), "told": mf.InfoMetric("told")}
    run = league_run(LEAGUES["pfsp"], 100, env=mf.Env(FirstTells, num_envs=4), metrics=told)
    mf.train(run, tmp_path)
    found = mf.evaluate(tmp_path, run, ["main"], ["random"], episodes=12)
    (one,) = as_json(found)["results"]
    assert {name: figure["value"] for name, figure in one["infos"].items()} == {"won": 0.5, "told": 3.0}
    by_side = {
        side: {name: of["value"] for name, of in of_side["infos"].items()} for side, of_side in one["as"].items()
    }
    assert by_side == {"player_0": {"won": 1.0, "told": 3.0}, "player_1": {"won": 0.0}}
    titles, row, *_ = (re.split("  +", line) for line in str(found).splitlines())
    assert dict(zip(titles, row, strict=True))["told"] == "3.00 [3.00, 3.00]"
    whole, first, second = csv.DictReader(as_csv(found).splitlines())
    assert (whole["infos.won"], first["infos.won"], second["infos.won"]) == ("0.5", "1.0", "0.0")
    assert (first["infos.told_high"], second["infos.told"], second["infos.told_high"]) == ("3.0", "", "")


@pytest.mark.parametrize("compiled", [True, False])
def test_functional_environments_tell_the_same_in_compiled_calls(compiled: bool, tmp_path: Path) -> None:
    policies = {
        "walker": mf.Policy(SMALL_PPO, SMALL, columns={"cost": "credited"}),
        "caller": mf.Policy(SMALL_DQN, SMALL),
    }
    run = small_run(
        env=mf.Env(partial(batched_env, make=Walkers, max_env_steps=20), {}, num_envs=4),
        policies=policies,
        mapping=[mf.Rule("walker_*", "walker"), mf.Rule("*", "caller")],
        metrics={"last_cost": mf.InfoMetric("cost"), "spent": mf.InfoMetric("cost", at="sum")},
        stop=mf.Stop(env_steps=800),
    )
    run = replace(run, rollouts=replace(run.rollouts, compiled=compiled))
    found = mf.train(run, tmp_path).metrics["policies"]
    assert found["walker"]["infos"]["cost"] == found["walker"]["infos"]["spent"] > 0.0
    assert set(found["caller"]["infos"]) == {"last_cost", "spent"}
