"""A user's algorithm, in a file of its own and named by a file of its own, has the settings that its class declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlflow.cli.main import main

CQL = """
from dataclasses import dataclass
from typing import ClassVar

import torch

import marlflow as mf
from marlflow.algorithms.dqn_loss import DQNLoss


class CQLLoss(DQNLoss):
    def __init__(self, alpha, huber_delta):
        super().__init__(huber_delta=huber_delta)
        self.alpha = alpha

    def __call__(self, module, target_module, minibatch):
        learned = super().__call__(module, target_module, minibatch)
        q_tm1 = module(minibatch["obs"])
        taken = q_tm1.gather(-1, minibatch["action"].unsqueeze(-1)).squeeze(-1)
        gap = (torch.logsumexp(q_tm1, -1) - taken).mean()
        return learned._replace(total=learned.total + self.alpha * gap, terms={**learned.terms, "gap": gap.detach()})


@dataclass(frozen=True)
class CQL(mf.DQN):
    name: ClassVar[str] = "cql"
    alpha: float = 5.0

    def losses(self, spaces):
        return CQLLoss(self.alpha, mf.initial_value(self.huber_delta))
"""
ARGUMENTS = [
    *("--config-dir", "conf", "env=cartpole_team", "policy@policies.cart=dqn"),
    *("algorithm@policies.cart.algorithm=own_cql", "policies.cart.algorithm.learning_starts_agent_steps=64"),
    *("runtime=inline", "env.num_envs=2", "rollouts.fragment_env_steps=32", "stop.env_steps=200"),
    *("evaluation.episodes=0", "evaluation.final_episodes=0", "log.console=none", "hydra.run.dir=run"),
]


@pytest.fixture
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_cql.py").write_text(CQL, encoding="utf-8")
    (tmp_path / "conf" / "algorithm").mkdir(parents=True)
    named = "defaults: [dqn, _self_]\n_target_: own_cql.CQL\nalpha: 5.0\n"
    (tmp_path / "conf" / "algorithm" / "own_cql.yaml").write_text(named, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_own_files")
def test_a_users_cql_has_an_alpha_that_no_shipped_optimizer_limits() -> None:
    assert main(["train", *ARGUMENTS, "policies.cart.algorithm.alpha=7.5"]) == 0
    last = json.loads(Path("run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["learners"]["cart"]["updates"] > 10
    assert last["learners"]["cart"]["loss"]["gap"] > 0


@pytest.mark.usefixtures("_own_files")
def test_the_settings_that_it_inherits_keep_their_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["policies.cart.algorithm.n_step=0", "policies.cart.algorithm.alpha=inf"]
    assert main(["plan", *ARGUMENTS, *wrong]) == 2
    said = capsys.readouterr()
    assert "policies.cart.algorithm.n_step must be at least 1, not 0" in said.err
    assert "policies.cart.algorithm.alpha must be a finite number, not inf" in said.err
