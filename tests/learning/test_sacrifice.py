"""A team learns that one of it should die for the others, if and only if deaths are bootstrapped."""

from __future__ import annotations

from pathlib import Path

import pytest

import marlflow as mf
from marlflow.env.games import sacrifice
from tests.driver.watching import reports
from tests.runtime.small_runs import small_run

ENV_STEPS = 2_000
SMALL = {"batch_agent_steps": 200, "minibatch_agent_steps": 100, "learning_rate": 5e-3}
BEST, WITHOUT_CREDIT = 10.0, 2.0


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [mf.MAPPO, mf.PPO])
@pytest.mark.parametrize("bootstrap_at_death", [True, False])
def test_only_credit_beyond_death_makes_the_sacrifice_worth_it(
    bootstrap_at_death: bool, kind: type[mf.PPO], seed: int, tmp_path: Path
) -> None:
    algorithm = kind(**SMALL, bootstrap_at_death=bootstrap_at_death)  # type: ignore[arg-type]
    experiment = small_run(
        env=mf.Env(sacrifice.parallel_env, num_envs=8),
        policies={"team": mf.Policy(algorithm, mf.MLP((16,)))},
        mapping=[mf.Rule("*", "team")],
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=128),
        evaluation=mf.Evaluation(episodes=4),
        env_steps=ENV_STEPS,
        seed=seed,
    )
    mf.train(experiment, tmp_path)
    last = reports(tmp_path)[-1]
    assert last["policies"]["team"]["eval_team_return_mean"] == (BEST if bootstrap_at_death else WITHOUT_CREDIT)
    assert (last["learners"]["team"]["rows_bootstrapped_at_death"] > 0) == bootstrap_at_death
