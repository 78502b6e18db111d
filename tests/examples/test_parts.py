"""The parts in examples/: what they compute, exact resumes with their state, and that curiosity leads further."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from tests.algorithms.parts import make_learner
from tests.driver.resumed_runs import resumes_exactly
from tests.learner.experience import ragged
from tests.runtime.small_runs import SMALL_PPO, policies, small_run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def importable() -> Any:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


def of_example(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("module", "most"), [("random_network_distillation", 80), ("reward_normalizer", 30)])
def test_they_are_short(module: str, most: int) -> None:
    assert len((EXAMPLES / f"{module}.py").read_text(encoding="utf-8").splitlines()) <= most


def test_the_bonus_falls_where_rows_have_been_and_only_the_predictor_learns() -> None:
    part = of_example("random_network_distillation", "RandomNetworkDistillation")(2.0)
    learner = make_learner(mf.PPO(parts={"curiosity": part}))
    network = learner.module.distillation
    target = [parameter.clone() for parameter in network.target.parameters()]
    seen, new = (np.full((64, 2), value, np.float32) for value in (0.5, -0.9))
    before = learner.estimator("distillation").values(np.concatenate([seen, new]))
    with torch.no_grad():
        expected = (network.predictor(torch.tensor(seen)) - network.target(torch.tensor(seen))).square().mean(-1)
    np.testing.assert_allclose(before[:64], expected, rtol=1e-5)
    group = learner.parameters.groups[-1]
    for _ in range(300):
        group.gradient.zero_()
        group.add_gradient(learner.module, None, {"obs": torch.from_numpy(seen)})
        group.optimizer.step()
    after = learner.estimator("distillation").values(np.concatenate([seen, new]))
    assert after[0] < before[0] / 100
    assert after[64] > before[64] / 10
    assert all(torch.equal(one, other) for one, other in zip(target, network.target.parameters(), strict=True))
    batch = ragged([3, 2])
    batch = batch.with_columns(obs=np.concatenate([seen[:3], new[:2]]))
    lifted = part.add_bonus(batch, learner)
    np.testing.assert_allclose(lifted["reward"], batch["reward"] + 2.0 * lifted["bonus"], rtol=1e-5)
    assert lifted["bonus"][3] > 10 * lifted["bonus"][0]


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far() -> None:
    part = of_example("reward_normalizer", "NormalizedRewards")()
    learner = make_learner(mf.PPO(parts={"unit": part}))
    returns = [1.0, -1.0]  # the same count, sum and sum of squares as those that it begins with
    for lengths, seed in (([4, 1, 3], 0), ([2, 5], 1)):
        batch = ragged(lengths, seed)
        start = 0
        for length in lengths:
            current = 0.0
            for row in range(start, start + length):
                current = float(batch["reward"][row]) + 0.99 * current
                returns.append(current)
            start += length
        count = len(returns) - 1  # one of them stands for both
        mean, square = sum(returns) / count, (sum(one * one for one in returns) - 1.0) / count
        found = part.normalize(batch, learner)
        np.testing.assert_allclose(found["reward"], batch["reward"] / np.sqrt(square - mean**2), rtol=1e-6)
    nothing = batch.only(np.zeros(2, bool))
    assert part.normalize(nothing, learner).rows == 0


def test_runs_with_them_continue_bit_for_bit(tmp_path: Path) -> None:
    curious = {
        "curiosity": of_example("random_network_distillation", "RandomNetworkDistillation")(mf.Linear(1, 0, 2_000))
    }
    unit = {"unit": of_example("reward_normalizer", "NormalizedRewards")()}
    algorithms = {
        "hunters": replace(SMALL_PPO, parts=curious | unit),
        "prey": replace(SMALL_PPO, parts=unit | {"near": mf.KLToReference(0.1)}),
    }
    resumed = resumes_exactly(small_run(policies=policies(**algorithms), env_steps=800), tmp_path, 400)
    assert resumed.trees["learner.hunters"]["part.return_moments"][0] > 400
    loss = resumed.metrics["learners"]["hunters"]["loss"]
    assert loss["bonus"] > 0.0
    assert loss["distillation"] > 0.0
    assert resumed.metrics["learners"]["prey"]["loss"]["kl_to_reference"] != 0.0


def test_curiosity_leads_further_into_the_maze(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    example = importlib.import_module("10_curiosity_in_a_maze")
    cells: set[Any] = set()

    class Watched(example.Maze):  # type: ignore[misc, name-defined]
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            cells.add(self.at)
            return result

    monkeypatch.setattr(example, "Maze", Watched)
    part = of_example("random_network_distillation", "RandomNetworkDistillation")(1.0)
    found = {}
    for name, parts in (("plain", {}), ("curious", {"curiosity": part})):
        cells.clear()
        example.found(parts, 3, 24_576)
        found[name] = len(cells)
    assert found["curious"] > found["plain"] + 5
