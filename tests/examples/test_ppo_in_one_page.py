"""The example of PPO in one page does what the shipped PPO does."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import marlflow as mf

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHIPPED = mf.PPO(batch_agent_steps=1_000, optimizer=mf.Adam())


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("11_ppo_in_one_page")


def reports(algorithm: Any, folder: Path) -> list[Mapping[str, float]]:
    """Terms of the loss and returns, report by report."""
    experiment = mf.Experiment(
        mf.Env("marlflow.env.games.cartpole_team.parallel_env", {"max_cycles": 30}),
        {"cart": mf.Policy(algorithm)},
        stop=mf.Stop(2_400),
        runtime=mf.RuntimeConfig("inline"),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=400),
    )
    run = mf.train(experiment, run_dir=folder).run_dir
    lines = [json.loads(line)["learners"]["cart"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{"return": line["return_mean"], "updates": line["updates"], **line["loss"]} for line in lines]


def test_with_the_shipped_network_it_learns_what_the_shipped_ppo_learns(page: ModuleType, tmp_path: Path) -> None:
    class SameNetwork(page.OnePagePPO):  # type: ignore[name-defined, misc]
        def network(self, spaces: Any, model: Any, seed: int) -> Any:
            return SHIPPED.network(spaces, model, seed)

    own = reports(SameNetwork(), tmp_path / "own")
    shipped = reports(SHIPPED, tmp_path / "shipped")
    assert len(own) == len(shipped) >= 4
    assert own[-1]["updates"] >= 200
    for ours, theirs in zip(own, shipped, strict=True):
        assert ours == pytest.approx({name: theirs[name] for name in ours}, rel=1e-3, abs=1e-4)


def test_it_fits_a_page() -> None:
    assert len((EXAMPLES / "11_ppo_in_one_page.py").read_text(encoding="utf-8").splitlines()) <= 120
