"""The message about a policy that was never updated: what it lacked, and which settings require it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.driver.notices import why_never_updated
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO, policies, small_run


@dataclass(frozen=True)
class TwiceAsMany(type(SMALL_PPO)):  # type: ignore[misc]  # whatever the small one is of
    """Gathers the number of rows in its own settings."""

    halves_agent_steps: int = 300

    def __post_init__(self) -> None:
        if self.epochs > 2:
            raise ValueError("two are enough")

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay]) -> mf.Plan:
        return replace(self, batch_agent_steps=2 * self.halves_agent_steps)._plan(experience, learner, replays)

    def _plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay]) -> mf.Plan:
        return super().plan(experience, learner, replays)


SETTINGS = "policies.prey.algorithm."
NEEDS = {
    "ppo": (SMALL_PPO, "200 (", ["batch_agent_steps"]),
    "dqn": (SMALL_DQN, "110 (", ["train_every_agent_steps", "learning_starts_agent_steps"]),
    "apex": (
        mf.ApeX(learning_starts_agent_steps=400, replay_shards=2),
        "208 (",
        ["train_every_agent_steps", "learning_starts_agent_steps", "replay_shards"],
    ),
    "a user's own": (TwiceAsMany(epochs=2, minibatch_agent_steps=64), "600 (", ["halves_agent_steps"]),
}


def said(algorithm: Any, agent_steps_sampled: int = 0, **counts: int) -> str:
    made = ready(small_run(policies=policies(hunters=mf.Random(), prey=algorithm)))
    return why_never_updated(made, "prey", LearnerTotals(**counts), agent_steps_sampled)


@pytest.mark.parametrize("name", NEEDS)
def test_too_few_agent_steps_are_compared_with_the_need_and_its_settings(name: str) -> None:
    algorithm, needed, settings = NEEDS[name]
    expected = needed + ", ".join(f"{SETTINGS}{setting}" for setting in settings) + ")"
    assert said(algorithm, agent_steps_sampled=90) == (
        f"policy prey was never updated: it sampled 90 agent steps, and its first update needs at least {expected}"
    )


def test_where_there_were_enough_it_says_what_else_is_known() -> None:
    start = "policy prey was never updated: it sampled 5,000 agent steps"
    assert said(SMALL_PPO, agent_steps_sampled=5_000) == start
    assert said(SMALL_PPO, agent_steps_sampled=5_000, updates_skipped=80, stale_rows_dropped=1_200) == (
        f"{start}, and its reports have updates_skipped 80, stale_rows_dropped 1,200"
    )


def test_a_run_says_that_no_update_was_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dqn = mf.DQN(learning_starts_agent_steps=20, batch_agent_steps=8, publish_every_updates=1_000)
    experiment = small_run(policies={"cart": mf.Policy(dqn)}, mapping=None, env_steps=80, log=mf.Log(console="plain"))
    updates = mf.train(experiment, tmp_path).metrics["learners"]["cart"]["updates"]
    assert updates > 0
    sentence = (
        f"policy cart acts and is saved as it began: none of its {updates} updates was published "
        "(policies.cart.algorithm.publish_every_updates)"
    )
    assert sentence in capsys.readouterr().out.splitlines()


def test_a_run_ends_with_it_and_the_default_policy_has_its_own_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    default = mf.Policy(replace(SMALL_PPO, batch_agent_steps=5_000))
    experiment = small_run(policies={}, default_policy=default, mapping=None, env_steps=80, log=mf.Log(console="plain"))
    mf.train(experiment, tmp_path)
    sentence = (
        "policy cart was never updated: it sampled 265 agent steps, and its first update needs at least 5,000 "
        "(default_policy.algorithm.batch_agent_steps)"
    )
    assert sentence in capsys.readouterr().out.splitlines()
    assert sentence in (tmp_path / "run.log").read_text()
