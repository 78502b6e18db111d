"""Evaluation as the policies act: greedily, or as the distributions that they have learned say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.random import key
from marlflow.checks.validation import ready
from marlflow.runs.checkpoints import CheckpointStore
from marlflow.runs.saved_runs import chosen, newest
from tests.driver.rock_paper_scissors import PAYOFF, ROUNDS, RockPaperScissors
from tests.driver.watching import EVALUATION_KEYS, Seen, reports
from tests.runtime.small_runs import SMALL, SMALL_DQN, small_run, without_times

EPISODES, SEED = 40, 3
EVALUATION_COPY = -1


def run_of(mode: Any, algorithm: Any, model: Any = SMALL) -> mf.Experiment:
    """Two policies that have learned nothing, and are all but uniform if they are stochastic."""
    return small_run(
        env=mf.Env(RockPaperScissors, num_envs=2),
        policies={name: mf.Policy(algorithm, model) for name in ("red", "blue")},
        mapping=(mf.Rule("player_0", "red"), mf.Rule("player_1", "blue")),
        evaluation=mf.Evaluation(10_000, 0, EPISODES, mode),
        env_steps=40,
        seed=SEED,
        log=mf.Log(every_env_steps=80, console="none", jsonl=False, tensorboard=False),
    )


UNTRAINED = mf.A2C(batch_agent_steps=20, learning_rate=0.0)


def evaluated(experiment: mf.Experiment, folder: Path, seen: Seen) -> list[float]:
    """The return of player_0 in each episode of the evaluation at the end."""
    mf.train(experiment, folder)
    return [episode.returns["player_0"] for episode in seen.evaluations[-1]]


def probabilities(experiment: mf.Experiment) -> list[Any]:
    """The probabilities with which each policy acts, by a softmax in float64."""
    found = []
    spec = ready(experiment).spec
    for name, policy in spec.policies.items():
        actor: Any = policy.actor()
        actor.load_flat(spec.learners[name].learner().published[name].flat)
        with torch.no_grad():
            found.append(torch.softmax(actor(torch.ones(1, 1)).double(), -1)[0].numpy())
    return found


def drawn(chances: Any, episode: int, agent: int, decision: int) -> int:
    """An action by a plain inverse CDF, with the random number of that decision."""
    stream = np.array([key(SEED, EVALUATION_COPY, episode, agent)], np.uint64)
    (uniform,) = mf.RowRandom(stream, np.array([decision])).uniform()
    return int(np.searchsorted(np.cumsum(chances), uniform, side="right"))


def test_near_uniform_policies_win_or_lose_all_greedily_and_nothing_on_average_as_they_act(
    tmp_path: Path, seen: Seen
) -> None:
    greedy = evaluated(run_of("greedy", UNTRAINED), tmp_path / "greedy", seen)
    sampled = evaluated(run_of("sampled", UNTRAINED), tmp_path / "sampled", seen)
    red, blue = probabilities(run_of("sampled", UNTRAINED))
    assert max(abs(red - 1 / 3).max(), abs(blue - 1 / 3).max()) < 0.02
    assert greedy == pytest.approx([ROUNDS * PAYOFF[red.argmax(), blue.argmax()]] * EPISODES)
    assert abs(greedy[0]) == pytest.approx(1.0)
    expected = ROUNDS * red @ PAYOFF @ blue
    deviation = math.sqrt(ROUNDS * (red @ PAYOFF**2 @ blue) / EPISODES)
    assert abs(expected) < 0.01
    assert abs(fmean(sampled) - expected) < 3 * deviation < 0.5
    by_hand = [
        sum(PAYOFF[drawn(red, episode, 0, n), drawn(blue, episode, 1, n)] for n in range(ROUNDS))
        for episode in range(EPISODES)
    ]
    assert sampled == pytest.approx(by_hand)


@pytest.mark.parametrize("kind", ["a2c", "recurrent_ppo"])
def test_a_sampled_evaluation_is_the_same_whenever_it_is_made(kind: str, tmp_path: Path, seen: Seen) -> None:
    recurrent = mf.RecurrentPPO(
        batch_agent_steps=20, sequence_agent_steps=4, minibatch_agent_steps=8, learning_rate=0.0
    )
    chosen = (recurrent, mf.GRU(8, (8,))) if kind == "recurrent_ppo" else (UNTRAINED, SMALL)
    once = evaluated(run_of("sampled", *chosen), tmp_path / "once", seen)
    later = replace(run_of("sampled", *chosen), stop=mf.Stop(env_steps=120))
    assert evaluated(later, tmp_path / "later", seen) == once
    assert len(set(once)) > 4, "episodes were to differ"


def test_a_policy_without_a_distribution_acts_greedily_and_no_epsilon_is_applied(tmp_path: Path, seen: Seen) -> None:
    """All actions in training are uniform: `epsilon` is 1."""
    algorithm = replace(SMALL_DQN, epsilon=1.0, learning_rate=0.0)
    greedy, sampled = (evaluated(run_of(m, algorithm), tmp_path / m, seen) for m in ("greedy", "sampled"))
    assert sampled == greedy
    assert len(set(greedy)) == 1


class GreedyA2C(mf.A2C):
    """A user's algorithm that learns a distribution, and says that its policies are evaluated greedily."""

    capabilities = replace(mf.A2C.capabilities, as_learned="greedy")


AS_LEARNED: list[tuple[Any, str]] = [(UNTRAINED, "sampled"), (SMALL_DQN, "greedy"), (GreedyA2C(20), "greedy")]


@pytest.mark.parametrize(("algorithm", "mode"), AS_LEARNED)
def test_by_default_a_policy_acts_as_its_algorithm_learns_to(
    algorithm: Any, mode: Any, tmp_path: Path, seen: Seen
) -> None:
    """Together with a sampled policy, in one evaluation."""
    experiment = run_of(mf.Evaluation().mode, replace(algorithm, learning_rate=0.0))
    policies = {**experiment.policies, "blue": mf.Policy(UNTRAINED, SMALL)}
    learned = replace(experiment, policies=policies)
    assert ready(learned).spec.modes("as_learned") == {"red": mode, "blue": "sampled"}
    report = mf.train(learned, tmp_path / "learned").metrics["policies"]
    assert [report[name]["eval_mode"] for name in ("red", "blue")] == [mode, "sampled"]
    returns = [episode.returns["player_0"] for episode in seen.evaluations[-1]]
    greedily = replace(learned, evaluation=replace(learned.evaluation, mode="greedy"))
    assert len(set(evaluated(greedily, tmp_path / "greedy", seen))) == 1
    assert len(set(returns)) > 4, "blue was to draw its actions"


def test_a_report_says_of_which_evaluation_its_figures_are(tmp_path: Path) -> None:
    """An evaluation at each of 80 and 160 env steps, and one of more episodes at the end, of weights that are newer.

    What was evaluated before the report before is not said again.
    """
    experiment = run_of("sampled", replace(UNTRAINED, batch_agent_steps=40))
    experiment = replace(experiment, evaluation=mf.Evaluation(160, 3, 7, "sampled"), stop=mf.Stop(env_steps=320))
    mf.train(replace(experiment, log=replace(experiment.log, jsonl=True)), tmp_path)
    found = [report["policies"]["red"] for report in reports(tmp_path)]
    keys = ("eval_mode", "eval_episodes", "eval_env_steps")
    assert [report["env_steps"] for report in reports(tmp_path)] == [80, 160, 240, 320, 320]
    first, second, none, last = ("sampled", 3, 80), ("sampled", 3, 160), (None,) * 3, ("sampled", 7, 320)
    assert [tuple(one[key] for key in keys) for one in found] == [first, second, none, ("sampled", 3, 320), last]
    assert {key: value for key, value in found[2].items() if key in EVALUATION_KEYS and value} == {}
    versions = [one["eval_version"] for one in found if one["eval_version"] is not None]
    assert versions[0] <= versions[1] < versions[2] < versions[3] == found[-1]["version"]


def test_the_mode_may_change_on_resume(tmp_path: Path) -> None:
    """The run continues with the same state; only its later evaluations differ."""
    greedy, sampled = (run_of(mode, UNTRAINED) for mode in ("greedy", "sampled"))
    last: list[Any] = []
    for folder, second in (("one", greedy), ("other", sampled)):
        mf.train(greedy, tmp_path / folder)
        result = mf.resume(replace(second, stop=mf.Stop(env_steps=160)), tmp_path / folder)
        last.append(without_times(result.metrics))
    one, other = last
    assert one["policies"]["red"].pop("eval_mode") == "greedy"
    assert other["policies"]["red"].pop("eval_mode") == "sampled"
    for report in (one, other):
        for part in (*report["policies"].values(), *report["learners"].values()):
            for key_ in (*EVALUATION_KEYS, "eval_team_return_mean"):
                part.pop(key_, None)
    assert one == other


def test_a_mode_that_does_not_exist_is_refused() -> None:
    experiment = small_run(evaluation=mf.Evaluation(mode="stochastic"))  # type: ignore[arg-type]
    with pytest.raises(
        mf.ConfigInvalid, match=r"evaluation\.mode must be one of as_learned, greedy, sampled, not 'stochastic'"
    ):
        ready(experiment)


def test_a_run_without_a_final_evaluation(tmp_path: Path, seen: Seen) -> None:
    mf.train(replace(run_of("greedy", UNTRAINED), evaluation=mf.Evaluation(10_000, 2, 0)), tmp_path)
    assert [len(episodes) for episodes in seen.evaluations] == [2]


def test_who_asks_for_the_last_evaluation_gets_it_whichever_report_it_stands_in(tmp_path: Path) -> None:
    """It is made after the first round alone, and the last report has none."""
    experiment = run_of("sampled", UNTRAINED)
    experiment = replace(
        experiment,
        evaluation=mf.Evaluation(10_000, 3, 0, "sampled"),
        stop=mf.Stop(env_steps=160),
        log=replace(experiment.log, jsonl=True),
        objective="policies.red.eval_return_mean",
        checkpoint=mf.CheckpointConfig(best="policies.red.eval_return_mean"),
    )
    result = mf.train(experiment, tmp_path)
    found = [report["policies"]["red"]["eval_return_mean"] for report in reports(tmp_path)]
    assert found[0] is not None
    assert set(found[1:]) == {None}
    assert result.metrics["policies"]["red"]["eval_return_mean"] == result.objective == found[0]
    # The checkpoint that follows it has it, and a later one has not.
    assert (newest(tmp_path).env_steps, newest(tmp_path).metric) == (160, None)
    assert chosen(tmp_path, "best").metric == found[0]
    assert chosen(tmp_path, "best").env_steps < 160


def test_the_best_checkpoint_is_one_that_was_evaluated(tmp_path: Path) -> None:
    """Evaluations come twice as often as checkpoints, and the last one after the last checkpoint."""
    experiment = run_of("sampled", UNTRAINED)
    experiment = replace(
        experiment,
        log=replace(experiment.log, jsonl=True),
        evaluation=mf.Evaluation(160, 3, 3, "sampled"),
        stop=mf.Stop(env_steps=720),
        checkpoint=mf.CheckpointConfig(every_env_steps=320, keep=99, best="policies.red.eval_return_mean"),
    )
    mf.train(experiment, tmp_path)
    evaluated = {
        red["eval_env_steps"]: red["eval_return_mean"]
        for report in reports(tmp_path)
        if (red := report["policies"]["red"])["eval_return_mean"] is not None
    }
    saved = CheckpointStore(tmp_path / "checkpoints", 99).whole()
    assert len(evaluated) > 3
    assert {one.env_steps: one.metric for one in saved} == evaluated


def test_an_evaluation_that_the_next_would_replace_is_reported_before(tmp_path: Path) -> None:
    """Evaluations come four times as often as reports."""
    experiment = run_of("sampled", UNTRAINED)
    log = replace(experiment.log, jsonl=True, every_env_steps=320)
    experiment = replace(experiment, evaluation=mf.Evaluation(80, 2, 0), stop=mf.Stop(env_steps=320), log=log)
    mf.train(experiment, tmp_path)
    found = [report["policies"]["red"]["eval_env_steps"] for report in reports(tmp_path)]
    assert [steps for steps in found if steps is not None] == [80, 160, 240, 320]
