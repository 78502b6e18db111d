"""Evaluations take a share of the run's time: the last episodes are left out, and the run says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.config.opponents import Pairing
from marlflow.driver.episode_metrics import game
from marlflow.driver.evaluation import Evaluator, TimeShare, in_turn
from marlflow.env.functional import calls
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runs.saved_runs import newest
from marlflow.sampling import evaluation
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.watching import Seen, reports
from tests.env.functional_games import Walkers
from tests.runtime.small_runs import small_run


@pytest.mark.parametrize(
    ("share", "time_s", "elapsed_s", "spent_s", "left_s", "at_the_end_s"),
    [
        (None, None, 0.0, 0.0, None, None),
        (None, 60.0, 50.0, 40.0, None, None),
        (0.1, None, 1.0, 0.0, 30.1, 30.1),
        (0.1, None, 1000.0, 60.0, 70.0, 70.0),
        (0.1, None, 1000.0, 500.0, 0.0, 30.0),
        (0.1, 110.0, 0.0, 0.0, 2.75, 11.0),
        (0.1, 110.0, 55.0, 2.75, 1.375, 8.25),
        (0.1, 110.0, 110.0, 66.0, 0.0, 5.5),
    ],
)
def test_evaluations_take_a_share_of_the_time(
    share: float | None,
    time_s: float | None,
    elapsed_s: float,
    spent_s: float,
    left_s: float | None,
    at_the_end_s: float | None,
) -> None:
    time_share = TimeShare(share, time_s)
    assert time_share.left_s(elapsed_s, spent_s) == pytest.approx(left_s)
    assert time_share.at_the_end_s(elapsed_s, spent_s) == pytest.approx(at_the_end_s)


def test_all_evaluations_together_take_no_more_than_the_share_of_a_limited_time() -> None:
    share, spent_s = TimeShare(0.1, 100.0), 0.0
    for elapsed_s in range(100):
        spent_s += share.left_s(elapsed_s, spent_s) or 0.0
    assert spent_s + (share.at_the_end_s(100.0, spent_s) or 0.0) == pytest.approx(10.0)


def test_pairings_come_in_turn() -> None:
    first, second = Pairing("a", "x", {"0": "a"}), Pairing("b", "x", {"0": "b"})
    assert in_turn([first, first, first, second, second]) == [0, 3, 1, 4, 2]
    assert in_turn([]) == []


class Slow(CartPoleTeam):
    """Every env step takes two seconds, by a clock of its own."""

    now_s = 0.0

    def step(self, actions):
        Slow.now_s += 2.0
        return super().step(actions)


def slow_run(**changes) -> mf.Experiment:
    """Episodes of two env steps: of twelve, seven fit into 30 s."""
    log = mf.Log(every_env_steps=40, console="none", tensorboard=False)
    return small_run(env=mf.Env(Slow, {"max_cycles": 2}, num_envs=4), env_steps=80, log=log, **changes)


def test_an_evaluation_that_takes_too_long_plays_its_first_episodes_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seen: Seen
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(evaluation, "perf_counter", lambda: Slow.now_s)
    mf.train(slow_run(evaluation=mf.Evaluation(10_000, 12)), tmp_path / "share")
    mf.train(slow_run(evaluation=mf.Evaluation(10_000, 12, time_share=None)), tmp_path / "all")
    of_share, of_all = seen.evaluations[:2], seen.evaluations[2:]
    for some, everything in zip(of_share, of_all, strict=True):
        assert [episode.episode for episode in some] == list(range(7))
        assert [game(episode) for episode in some] == [game(episode) for episode in everything[:7]]
        assert len(everything) == 12
    said = "evaluations get 10% of the run's time; evaluation.time_share=null plays all"
    assert caplog.text.count(said) == 1
    assert "an evaluation played 7 of 12 episodes in " in caplog.text
    final = reports(tmp_path / "share")[-1]
    for metrics in final["policies"].values():
        assert (metrics["eval_episodes"], metrics["eval_episodes_asked"]) == (7, 12)
    # Training is the same, however many episodes are played.
    assert final["learners"]["prey"]["updates"] > 0
    assert_equal(kept(tmp_path / "share")["learner.prey"], kept(tmp_path / "all")["learner.prey"])


def test_a_resumed_run_sets_aside_what_its_last_evaluation_takes(tmp_path: Path) -> None:
    mf.train(slow_run(evaluation=mf.Evaluation(10_000, 12)), tmp_path)
    state = from_bytes(newest(tmp_path).read("driver"))["evaluation"]
    assert state["expected_s"] > 0.0
    resumed = SimpleNamespace(_share=TimeShare(0.1, 600.0))
    Evaluator.load_state(resumed, state)  # type: ignore[arg-type]
    assert resumed.expected_s == pytest.approx(min(state["expected_s"], 60.0))


class SlowToCompile(Walkers):
    """Its step takes 40 s whenever JAX traces it, by a clock of its own, and its episodes no time."""

    now_s = 0.0

    def step(self, key, state, actions):
        SlowToCompile.now_s += 40.0
        return super().step(key, state, actions)


def test_compiling_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen) -> None:
    for clock in (evaluation, calls):
        monkeypatch.setattr(clock, "perf_counter", lambda: SlowToCompile.now_s)
    env = mf.Env("functional", {"make": SlowToCompile, "max_env_steps": 9}, num_envs=4)
    rules = [mf.Rule("walker_*", "hunters"), mf.Rule("*", "prey")]
    began_s = SlowToCompile.now_s
    mf.train(replace(slow_run(evaluation=mf.Evaluation(10_000, 12)), env=env, mapping=rules), tmp_path)
    assert SlowToCompile.now_s - began_s >= 80.0  # also for the spaces, before any environment is opened
    assert [len(episodes) for episodes in seen.evaluations] == [12, 12]
