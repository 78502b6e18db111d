"""The metrics of updates and episodes."""

from __future__ import annotations

import math
from random import Random

import pytest

from marlflow.base.errors import FaultKind
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.items import Update
from marlflow.driver.episode_metrics import EvaluationContext
from marlflow.driver.run_metrics import RunMetrics
from marlflow.sampling.receipts import CompiledCalls, EpisodeResult, Evaluated, Fault, Receipt

PREY = {"fox": "prey"}

COMPILED = CompiledCalls(1, 2.0, "a note")


def update(steps: int, loss: float, staleness: float = 0.0, skipped: int = 0) -> Update:
    return Update("prey", 64 * steps, steps, 0, {"td": loss}, staleness, updates_skipped=skipped)


def receipt(worker: int, episodes: list[EpisodeResult]) -> Receipt:
    return Receipt(worker, 10, 10, tuple(episodes), {}, 0, 0.0, 0.0, 0.0)


def test_a_report_has_the_means_since_the_last_one() -> None:
    tally = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    for one in (update(1, 1.0, 4.0), update(3, 5.0, 8.0)):
        tally.learners["prey"].updated(one)
    record = tally.report(1.0, 1.0, {}, {})["learners"]["prey"]
    assert record["loss"] == {"td": pytest.approx((1.0 + 3 * 5.0) / 4)}
    assert record["staleness_mean"] == pytest.approx((4.0 + 3 * 8.0) / 4)
    assert tally.report(2.0, 2.0, {}, {})["learners"]["prey"] == record, "looking changes nothing"
    tally.reported(2.0)
    assert tally.report(2.0, 2.0, {}, {})["learners"]["prey"]["loss"] == record["loss"]
    # Staleness is a mean over rows, of which one update may have more than another.
    for rows, staleness in ((500, 0.0), (1500, 4.0)):
        tally.learners["prey"].updated(Update("prey", rows, 1, 0, {"td": 1.0}, staleness))
    assert tally.report(3.0, 3.0, {}, {})["learners"]["prey"]["staleness_mean"] == 3.0
    tally.reported(3.0)
    tally.learners["prey"].updated(update(1, 9.0))
    assert tally.report(3.0, 3.0, {}, {})["learners"]["prey"]["loss"] == {"td": 9.0}


def test_skipped_updates_are_a_fault() -> None:
    tally = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    tally.learners["prey"].updated(update(1, 1.0))
    for _ in range(3):
        tally.learners["prey"].updated(update(0, 0.0, skipped=2))
    record = tally.report(1.0, 1.0, {}, {})
    assert record["faults"]["updates_skipped"] == 6
    assert record["learners"]["prey"]["loss"] == {"td": 1.0}
    assert record["learners"]["prey"]["updates"] == 1


def test_the_last_episodes_are_the_last_in_time_whoever_played_them() -> None:
    tally = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    early = [EpisodeResult(0, n, 1, {"fox": float(n)}, 2 * n, PREY) for n in range(120)]
    late = [EpisodeResult(1, n, 1, {"fox": float(n)}, 2 * n + 1, PREY) for n in range(120)]
    tally.collected([receipt(0, early), receipt(1, late)])
    assert tally.policies["prey"].return_mean == pytest.approx(sum(range(70, 120)) / 50)


def test_a_round_of_many_episodes_counts_as_each_of_them_alone() -> None:
    random = Random(0)
    seats = [{"fox": "red", "hen": "blue"}, {"fox": "blue", "hen": "red"}, {"fox": "red", "hen": "red@3"}]
    episodes = []
    for tick in range(900):
        matchup = random.choices(seats, (10, 3, 1))[0]
        played = random.choices((["fox", "hen"], ["fox"], []), (20, 5, 1))[0]
        returns = {agent: random.uniform(-1, 1) for agent in played}
        # Few episodes have the second figure.
        infos = {"often": returns, "seldom": returns if tick % 50 == 0 else {}}
        episodes.append(EpisodeResult(tick % 7, tick, 1 + tick % 13, returns, tick, matchup, infos=infos))
    at_once, alone = [RunMetrics(["red", "blue"], {"red": ["red"], "blue": ["blue"]}, ["fox"]) for _ in range(2)]
    at_once.collected([receipt(worker, episodes[worker::3]) for worker in range(3)])
    for episode in episodes:
        alone.collected([receipt(0, [episode])])
    for tally in (at_once, alone):
        tally.env_steps = tally.agent_steps = 0
    assert at_once.state() == alone.state()
    assert at_once.policies["red"].episodes > 500


def test_numbers_that_sum_to_more_than_any_float_have_an_infinite_mean() -> None:
    metrics = RunMetrics(["red"], {"red": ["red"]}, ["fox", "hen"])
    huge = {"fox": 1.7e308, "hen": 1.7e308}
    seats = dict.fromkeys(huge, "red")
    metrics.collected([receipt(0, [EpisodeResult(0, n, 9, huge, n, seats, infos={"cost": huge}) for n in range(2)])])
    assert metrics.policies["red"].return_mean == math.inf
    assert metrics.cost_totals == {"red": (math.inf, 2)}
    assert metrics.report(1.0, 1.0, {}, {})["policies"]["red"]["infos"] == {"cost": math.inf}


def test_agents_with_a_new_name_in_each_episode_are_forgotten_in_time() -> None:
    metrics = RunMetrics(["red"], {"red": ["red"]}, [])
    for number in range(1_500):
        agent = f"fox_{number}"
        metrics.collected([receipt(0, [EpisodeResult(0, number, 9, {agent: 1.0}, number, {agent: "red"})])])
    assert list(metrics.agents) == [f"fox_{number}" for number in range(500, 1_500)]


def test_costs_of_frozen_versions_are_not_those_of_their_policy() -> None:
    metrics = RunMetrics(["red"], {"red": ["red"]}, ["fox", "hen"])
    costs = {"fox": 1.0, "hen": 5.0}
    seats = {"fox": "red", "hen": "red@3"}
    metrics.collected([receipt(0, [EpisodeResult(0, 0, 9, {"fox": 0.0, "hen": 0.0}, 0, seats, infos={"cost": costs})])])
    assert metrics.cost_totals == {"red": (1.0, 1)}


def test_a_return_counts_for_whoever_played_the_agent_in_that_episode() -> None:
    tally = RunMetrics(["red", "blue"], {"red": ["red"], "blue": ["blue"]}, ["fox", "hen"])
    tally.collected(
        [
            receipt(
                0,
                [
                    EpisodeResult(0, 0, 1, {"fox": 1.0, "hen": 10.0}, 0, {"fox": "red", "hen": "blue"}),
                    EpisodeResult(0, 1, 1, {"fox": 2.0, "hen": 20.0}, 1, {"fox": "blue", "hen": "red"}),
                    EpisodeResult(0, 2, 1, {"fox": 3.0, "hen": 30.0}, 2, {"fox": "blue", "hen": "blue"}),
                ],
            )
        ]
    )
    assert list(tally.policies["red"].played.returns) == [1.0, 20.0]
    assert list(tally.policies["blue"].played.returns) == [10.0, 2.0, 16.5]
    assert {agent: list(returns) for agent, returns in tally.agents.items()} == {
        "fox": [1.0, 2.0, 3.0],
        "hen": [10.0, 20.0, 30.0],
    }
    one = EpisodeResult(0, 0, 1, {"fox": 5.0, "hen": 6.0}, 0, {"fox": "blue", "hen": "red"})
    tally.evaluated(Evaluated((one,)), EvaluationContext("sampled", 70, {"red": 4}))
    evaluated = tally.report(1.0, 1.0, {}, {})["policies"]
    assert (evaluated["red"]["eval_return_mean"], evaluated["blue"]["eval_return_mean"]) == (6.0, 5.0)
    other = EpisodeResult(0, 1, 1, {"fox": 7.0, "hen": 9.0}, 0, {"fox": "blue", "hen": "blue"})
    tally.evaluated(Evaluated((one, other)), EvaluationContext("greedy", 90, {"red": 5}))
    tally.evaluated(Evaluated((other,)), EvaluationContext("sampled", 110, {"red": 6}))
    record = tally.report(1.0, 1.0, {}, {})["policies"]
    keys = ("eval_return_mean", "eval_mode", "eval_episodes", "eval_env_steps", "eval_version")
    assert [record["red"][key] for key in keys] == [6.0, "greedy", 1, 90, 5], "it did not play in the last"
    assert [record["blue"][key] for key in keys] == [8.0, "sampled", 1, 110, 0]


def team_episode(number: int, returns: dict[str, float], **matchup: str) -> EpisodeResult:
    return EpisodeResult(0, number, 1, returns, number, matchup)


def test_a_learner_has_the_returns_of_the_agents_of_all_its_policies_together() -> None:
    tally = RunMetrics(["a", "b", "c"], {"team": ["a", "b"], "c": ["c"]}, ["w", "x", "y", "z"])
    everyone = {"w": "a", "x": "a", "y": "b", "z": "c"}
    episodes = [
        team_episode(0, {"w": 1.0, "x": 2.0, "y": 6.0, "z": 100.0}, **everyone),
        team_episode(1, {"w": 4.0, "z": 200.0}, **everyone),
        team_episode(2, {"z": 300.0}, **everyone),
        team_episode(3, {"w": 50.0, "z": 400.0}, w="a@1", z="c"),
    ]
    tally.collected([receipt(0, episodes)])
    learners = tally.report(1.0, 1.0, {}, {})["learners"]
    # Per agent, not per policy: (1 + 2 + 6) / 3 and 4. An episode without them, or of frozen versions, is not theirs.
    assert (learners["team"]["return_mean"], learners["team"]["team_return_mean"]) == ((3.0 + 4.0) / 2, (9.0 + 4.0) / 2)
    assert learners["c"]["return_mean"] == learners["c"]["team_return_mean"] == 250.0
    assert learners["team"]["eval_return_mean"] is None
    tally.evaluated(Evaluated(tuple(episodes[:1])), EvaluationContext("greedy", 5, {}))
    restored = RunMetrics(["a", "b", "c"], {"team": ["a", "b"], "c": ["c"]}, ["w", "x", "y", "z"])
    restored.load_state(from_bytes(to_bytes(tally.state())))
    for one in (tally, restored):
        record = one.report(1.0, 1.0, {}, {})
        new = one.without_old_evaluations(record)["learners"]["team"]
        assert (new["eval_return_mean"], new["eval_team_return_mean"]) == (3.0, 9.0)
        assert record["learners"]["team"]["return_mean"] == 3.5
        one.reported(1.0)
        old = one.without_old_evaluations(one.report(2.0, 2.0, {}, {}))["learners"]["team"]
        assert (old["eval_return_mean"], old["eval_team_return_mean"]) == (None, None), (
            "each evaluation is reported once"
        )


def test_faults_and_times_are_summed_over_all_workers() -> None:
    tally = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    for worker, kind in enumerate(["env_errors", "env_hangs", "env_errors"]):
        fault = Fault(FaultKind(kind), "there", "it broke", "", rows_lost=worker + 1)
        tally.collected(
            [
                Receipt(
                    worker, 10, 10, (), {}, 1, 1.0, 0.5, 0.25, faults=(fault,), actions_corrected=2, compiled=COMPILED
                )
            ]
        )
    record = tally.report(1.0, 1.0, {}, {})
    assert record["faults"] == {
        "agents_vanished": 3,
        "env_errors": 2,
        "env_hangs": 1,
        "workers_lost": 0,
        "learners_lost": 0,
        "replays_lost": 0,
        "checkpoints_failed": 0,
        "reports_failed": 0,
        "records_failed": 0,
        "closes_failed": 0,
        "callbacks_failed": 0,
        "episodes_abandoned": 0,
        "episodes_restarted": 0,
        "rows_lost": 6,
        "updates_skipped": 0,
    }
    assert record["rollouts"] == {
        "env_s": 3.0,
        "policy_s": 1.5,
        "bookkeeping_s": 0.75,
        "actions_corrected": 6,
        "compiles": 3,
        "compile_s": 6.0,
    }


def test_the_speed_leaves_out_what_evaluations_took() -> None:
    tally = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    tally.collected([receipt(0, [])])
    assert tally.report(100.0, 2.0, {}, {})["env_steps_per_s"] == pytest.approx(5.0)


def test_a_state_brings_everything_back() -> None:
    tally = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    tally.collected([receipt(0, [EpisodeResult(0, n, 1, {"fox": float(n)}, 2 * n, PREY) for n in range(3)])])
    tally.learners["prey"].updated(update(2, 1.0, 4.0))
    tally.evaluated(Evaluated((EpisodeResult(0, 0, 1, {"fox": 2.0}, 0, PREY),)), EvaluationContext("sampled", 5, {}))
    tally.reported(7.0)
    tally.learners["prey"].updated(update(1, 3.0, 2.0, skipped=1))
    other = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    other.load_state(from_bytes(to_bytes(tally.state())))
    for one in (tally, other):
        one.collected([receipt(0, [EpisodeResult(0, 9, 1, {"fox": 9.0}, 0, PREY)])])
    assert other.report(9.0, 9.0, {}, {}) == tally.report(9.0, 9.0, {}, {})
    assert other.state() == tally.state()


def test_spread_team_return_and_length_of_episodes() -> None:
    """Two agents of one policy and one of another, in two episodes of 4 and 8 env steps; worked out by hand."""
    tally = RunMetrics(["pack", "prey"], {"pack": ["pack"], "prey": ["prey"]}, ["fox_0", "fox_1", "hen"])
    matchup = {"fox_0": "pack", "fox_1": "pack", "hen": "prey"}
    played = [
        EpisodeResult(0, 0, 4, {"fox_0": 1.0, "fox_1": 3.0, "hen": 10.0}, 0, matchup, fingerprint=1),
        EpisodeResult(0, 1, 8, {"fox_0": 5.0, "fox_1": 7.0, "hen": 10.0}, 1, matchup, fingerprint=1),
    ]
    tally.collected([receipt(0, played)])
    tally.evaluated(Evaluated(tuple(played)), EvaluationContext("greedy", 12, {}))
    record = tally.report(1.0, 1.0, {}, {})
    assert (record["episode_env_steps_mean"], record["team_return_mean"]) == (6.0, 18.0)
    assert record["eval_team_return_mean"] == 18.0
    tally.evaluated(Evaluated(()), EvaluationContext("greedy", 20, {}))  # a deadline cut it
    assert tally.report(9.0, 8.0, {}, {})["eval_team_return_mean"] == 18.0
    pack, prey = record["policies"]["pack"], record["policies"]["prey"]
    assert (pack["return_mean"], pack["return_std"]) == (4.0, 2.0)
    assert (pack["team_return_mean"], pack["episode_env_steps_mean"]) == (8.0, 6.0)
    assert (pack["eval_return_mean"], pack["eval_return_std"], pack["eval_team_return_mean"]) == (4.0, 2.0, 8.0)
    assert (pack["eval_episode_env_steps_mean"], pack["eval_episodes"], pack["eval_episodes_distinct"]) == (6.0, 2, 2)
    assert (prey["return_mean"], prey["return_std"], prey["eval_return_std"]) == (10.0, 0.0, 0.0)


def test_a_report_has_an_evaluation_once_also_over_a_resume() -> None:
    tally = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    one = EpisodeResult(0, 0, 1, {"fox": 2.0}, 0, PREY)
    tally.evaluated(Evaluated((one,)), EvaluationContext("greedy", 5, {}))
    resumed = RunMetrics(["prey"], {"prey": ["prey"]}, ["fox"])
    resumed.load_state(from_bytes(to_bytes(tally.state())))
    for each in (tally, resumed):
        record = each.report(1.0, 1.0, {}, {})
        assert each.without_old_evaluations(record) == record
        each.reported(1.0)
        later = each.without_old_evaluations(each.report(2.0, 2.0, {}, {}))
        assert later["policies"]["prey"]["eval_return_mean"] is None
        assert later["policies"]["prey"]["eval_episodes"] is None
        assert later["eval_team_return_mean"] is None
        assert each.report(2.0, 2.0, {}, {})["policies"]["prey"]["eval_return_mean"] == 2.0
