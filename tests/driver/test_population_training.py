"""Population-based training in whole runs: who copies whom, what is copied, and a resume that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import ray
import torch

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.description import plain
from marlflow.driver.policy_changes import PolicyChanges
from marlflow.driver.train import run_info
from marlflow.observe.population import POPULATION
from marlflow.runtime.ray import RayRuntime
from marlflow.sampling.receipts import Fault
from tests.driver.kept_runs import kept
from tests.driver.resetting import with_resets
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import reports
from tests.runtime.ray.test_resets_over_ray import kill
from tests.runtime.small_runs import SMALL, small_run

NAMES = ("a", "b", "c", "d")
RULES = [mf.Rule(f"cart_{number}", name) for number, name in enumerate(NAMES)]
PPO = mf.PPO(batch_agent_steps=50, epochs=2, minibatch_agent_steps=25)
DQN = mf.DQN(
    batch_agent_steps=16, train_every_agent_steps=5, learning_starts_agent_steps=20, replay_agent_steps=400, epsilon=0.1
)
SAC = mf.SAC(batch_agent_steps=16, train_every_agent_steps=5, learning_starts_agent_steps=20, replay_agent_steps=400)
SGD = mf.TorchOptimizer(torch.optim.SGD, {"momentum": 0.9})
RATES = dict(zip(NAMES, (1e-5, 1e-4, 1e-3, 1e-2), strict=True))


def population(**changes: Any) -> mf.PopulationBasedTraining:
    settings: dict[str, Any] = {"policies": NAMES, "settings": {"learning_rate": [1e-5, 1e-2]}, "every_env_steps": 160}
    return mf.PopulationBasedTraining(**{**settings, **changes})


def run(
    algorithm: Any = PPO,
    runtime: Literal["inline", "ray"] = "inline",
    callback: mf.Callback | None = None,
    env_steps: int = 1_040,
    **changes: Any,
) -> mf.Experiment:
    policies = {name: mf.Policy(replace(algorithm, learning_rate=rate), SMALL) for name, rate in RATES.items()}
    usual: dict[str, Any] = {
        "policies": policies,
        "mapping": RULES,
        "callbacks": {"population": callback or population()},
    }
    return small_run(runtime, env_steps, **{**usual, **changes})


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / POPULATION).read_text().splitlines()]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Policies and what they copied; a copy is compared with its source, entry by entry."""
    found: list[tuple[str, str]] = []
    make = PolicyChanges.make

    def compared(changes: PolicyChanges) -> Any:
        learners: Any = changes._runtime._learners  # type: ignore[attr-defined]
        sources = {change.policy: change.source for change in changes._pending if change.source is not None}
        of_source = {policy: learners[source].state() for policy, source in sources.items()}
        own = {policy: learners[policy].state() for policy in sources}
        answer = make(changes)
        for policy, source in sources.items():
            now = learners[policy].state()
            assert now["version"] == own[policy]["version"] + 1
            for name in ("updates", "generator", "stale_rows_dropped"):
                np.testing.assert_array_equal(now[name], own[policy][name])
            same = [name for name in now if name in ("vector", "target") or name.startswith(("optimizer/", "part."))]
            assert "vector" in same
            assert any(name.startswith("optimizer/") for name in same)
            for name in same:
                np.testing.assert_array_equal(now[name], of_source[policy][name])
            np.testing.assert_array_equal(now["published"], now["vector"][: len(now["published"])])
            found.append((policy, source))
        return answer

    monkeypatch.setattr(PolicyChanges, "make", compared)
    return found


@pytest.mark.parametrize("algorithm", [PPO, DQN, SAC], ids=lambda algorithm: algorithm.name)
def test_the_worst_copy_the_best_with_settings_near_theirs(
    algorithm: Any, tmp_path: Path, copied: list[tuple[str, str]]
) -> None:
    result = mf.train(run(algorithm), tmp_path)
    written = lines(tmp_path)
    changed = [line for line in written if line["source"] is not None]
    assert copied == [(line["policy"], line["source"]) for line in changed] != []
    by_steps: dict[int, dict[str, float]] = {}
    for line in written:
        by_steps.setdefault(line["env_steps"], {})[line["policy"]] = line["score"]
    present = dict(RATES)
    for line in written:
        assert line["settings"] == {"learning_rate": present[line["policy"]]}
        if line["source"] is not None:
            scores = by_steps[line["env_steps"]]
            assert scores[line["policy"]] == min(scores.values()) == line["score"]
            assert scores[line["source"]] == max(scores.values()) == line["source_score"]
            # A source never changes at the same interval.
            near = {min(max(factor * present[line["source"]], 1e-5), 1e-2) for factor in (0.8, 1.2)}
            assert line["new_settings"]["learning_rate"] in near
            present[line["policy"]] = line["new_settings"]["learning_rate"]
    numbers = result.metrics["callbacks"]["population"]
    assert numbers["copies"] == len(changed)
    for name, rate in present.items():
        assert numbers[f"learning_rate/{name}"] == rate
        assert result.metrics["learners"][name]["schedules"].get("learning_rate", RATES[name]) == rate


def test_a_replay_stays_and_rows_of_before_that_wait_for_a_batch_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mf.StoredReplay, "clear", lambda _: pytest.fail("no replay was to be emptied"))
    stages = mf.train(run(DQN), tmp_path / "dqn").metrics["stages"]
    assert {meter["rows_dropped"] for meter in stages.values()} == {0}
    assert any(line["source"] is not None for line in lines(tmp_path / "dqn"))
    stages = mf.train(run(mf.IMPALA(batch_agent_steps=70)), tmp_path / "impala").metrics["stages"]
    who = {line["policy"] for line in lines(tmp_path / "impala") if line["source"] is not None}
    assert {stage.partition("/")[0] for stage, meter in stages.items() if meter["rows_dropped"]} & who


@pytest.mark.parametrize("algorithm", [PPO, DQN, SAC], ids=lambda algorithm: algorithm.name)
def test_a_resumed_run_does_what_it_would_have_done(algorithm: Any, tmp_path: Path) -> None:
    callback = population(resample=0.5, settings={"learning_rate": [1e-5, 1e-2], "max_grad_norm": [0.1, 10.0]})
    resumed = resumes_exactly(run(algorithm, callback=callback), tmp_path, 480)
    assert lines(resumed.parts) == lines(resumed.whole)
    copies = [line["env_steps"] for line in lines(resumed.whole) if line["source"] is not None]
    assert min(copies) <= 480 < max(copies)


def test_compiled_updates_take_changed_settings(tmp_path: Path) -> None:
    changes = [mf.ChangePolicy("a", "d", {"learning_rate": 0.0})]
    compiled = replace(DQN, compile=True, learning_rate=1e-3)
    callback = Asks(changes, mf.MayChange(NAMES, {"learning_rate": [0.0, 1.0]}))
    for env_steps in (480, 960):
        mf.train(run(compiled, callback=callback, env_steps=env_steps), tmp_path / str(env_steps))
    assert reports(tmp_path / "960")[-1]["learners"]["a"]["compiles"] > 0
    sooner, later = kept(tmp_path / "480"), kept(tmp_path / "960")
    np.testing.assert_array_equal(sooner["learner.a"]["vector"], later["learner.a"]["vector"])
    assert (sooner["learner.d"]["vector"] != later["learner.d"]["vector"]).any()


def test_a_resume_drops_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    mf.train(run(env_steps=480), tmp_path / "parts")
    with (tmp_path / "parts" / POPULATION).open("a") as file:
        file.write('\0\0\n{"env_steps": 480, "pol')
    result = mf.resume(run(env_steps=640), tmp_path / "parts")
    assert not result.metrics["faults"]["callbacks_failed"]
    mf.train(run(env_steps=640), tmp_path / "whole")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_a_change_that_waits_is_made_after_a_resume(tmp_path: Path) -> None:
    # The first run ends in the round in which its population is compared.
    mf.train(run(env_steps=160), tmp_path / "parts")
    mf.resume(run(env_steps=480), tmp_path / "parts")
    mf.train(run(env_steps=480), tmp_path / "whole")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    parts, whole = kept(tmp_path / "parts"), kept(tmp_path / "whole")
    for name in NAMES:
        np.testing.assert_array_equal(parts[f"learner.{name}"]["vector"], whole[f"learner.{name}"]["vector"])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_over_ray_it_is_as_inline(tmp_path: Path) -> None:
    mf.train(run(), tmp_path / "inline")
    mf.train(run(runtime="ray", env_steps=480), tmp_path / "ray")
    result = mf.resume(run(runtime="ray"), tmp_path / "ray")
    assert lines(tmp_path / "ray") == lines(tmp_path / "inline")
    assert result.metrics["callbacks"] == reports(tmp_path / "inline")[-1]["callbacks"]
    for name in NAMES:
        one, other = (kept(tmp_path / where)[f"learner.{name}"] for where in ("inline", "ray"))
        np.testing.assert_array_equal(one["vector"], other["vector"])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("pace", ["lockstep", "overlap", "asynchronous"])
def test_learners_that_do_not_wait_for_rounds_copy_over_ray(
    pace: Literal["lockstep", "overlap", "asynchronous"], tmp_path: Path
) -> None:
    rollouts = mf.Rollouts(num_workers=2, fragment_env_steps=40, pace=pace)
    result = mf.train(run(DQN, "ray", rollouts=rollouts), tmp_path)
    assert result.metrics["callbacks"]["population"]["copies"] > 2
    assert not any(result.metrics["faults"].values())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_learners_of_several_processes_copy_each_other(tmp_path: Path) -> None:
    experiment = run(runtime="ray", callback=population(policies=["a", "d"]))
    in_two = mf.PlacementOverrides(num_learners=2)
    policies = {**experiment.policies, "a": replace(experiment.policies["a"], placement=in_two)}
    result = mf.train(replace(experiment, policies=policies), tmp_path)
    assert result.metrics["callbacks"]["population"]["copies"] > 2
    assert not any(result.metrics["faults"].values())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("lost", ["a", "d"])
def test_a_learner_that_is_lost_copies_or_is_copied_once_it_is_back(lost: str) -> None:
    spec, faults, runtime = ready(run(DQN, "ray")).spec, list[Fault](), RayRuntime()
    try:
        parts = runtime.start(spec, faults.append)
        learners: Any = parts.learners
        before = ray.get(learners["d"].published["d"].flat)
        kill(learners[lost].actor)
        runtime.copy_learners({"a": "d"})
        assert {fault.kind for fault in faults} == {"learners_lost", "replays_lost"}
        np.testing.assert_array_equal(ray.get(learners["a"].published["a"].flat), before)
        # Lost after it, before a checkpoint.
        kill(learners["a"].actor)
        learners["a"].place.host.restart_blocking(RuntimeError("it was killed"))
        np.testing.assert_array_equal(ray.get(learners["a"].published["a"].flat), before)
    finally:
        runtime.close()


def asked(of: mf.PopulationBasedTraining, scores: Mapping[str, list[float]], tmp_path: Path) -> list[mf.ChangePolicy]:
    """Return the changes that a population asks for after one round with these returns, in which all have learned."""
    return asked_by_round(of, [mf.RoundEvent(160, scores, dict.fromkeys(NAMES, 1))], tmp_path)[0]


def asked_by_round(
    of: mf.PopulationBasedTraining, rounds: list[mf.RoundEvent], tmp_path: Path
) -> list[list[mf.ChangePolicy]]:
    """Return the changes that a population asks for after each round."""
    checked = ready(run(callback=of))
    of.began(replace(run_info(checked, tmp_path), configuration=plain(checked.experiment)))
    try:
        return [of.played(played) for played in rounds]
    finally:
        of.ended(None)


SCORES = {name: [float(number)] for number, name in enumerate(NAMES)}


def test_policies_that_have_not_learned_since_are_not_judged(tmp_path: Path) -> None:
    updates = [{}, dict.fromkeys(NAMES, 0), {**dict.fromkeys(NAMES, 3), "a": 0}, dict.fromkeys(NAMES, 3)]
    # One alone is compared with the next that has learned.
    updates.append({**dict.fromkeys(NAMES, 3), "b": 4})
    rounds = [mf.RoundEvent(160 * (number + 1), SCORES, of) for number, of in enumerate(updates)]
    changes = asked_by_round(population(), rounds, tmp_path)
    assert [[(one.policy, one.source) for one in of] for of in changes] == [
        [],
        [],
        [("b", "d")],
        [],
        [("a", "b")],
    ]
    assert [(line["env_steps"], line["policy"]) for line in lines(tmp_path)] == [
        *((480, name) for name in "bcd"),
        (800, "a"),
        (800, "b"),
    ]


def test_a_policy_without_episodes_takes_no_part(tmp_path: Path) -> None:
    changes = asked(population(), {"a": [], "b": [1.0], "c": [2.0], "d": [3.0, 4.0]}, tmp_path)
    assert [(change.policy, change.source) for change in changes] == [("b", "d")]
    assert [line["policy"] for line in lines(tmp_path)] == ["b", "c", "d"]
    assert asked(population(), {"a": [], "b": [], "c": [], "d": [3.0]}, tmp_path / "one") == []


def test_returns_that_are_no_numbers_are_the_worst(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    changes = asked(population(), {"a": [1.0], "b": [nan], "c": [2.0], "d": [inf]}, tmp_path)
    # b and d are equally bad; b comes first.
    assert [(change.policy, change.source) for change in changes] == [("b", "c")]
    assert asked(population(), {name: [nan] for name in NAMES}, tmp_path / "all") == []


def test_equal_policies_copy_nothing(tmp_path: Path) -> None:
    assert asked(population(quantile=0.5), {name: [1.0] for name in NAMES}, tmp_path) == []


def test_half_of_a_population_copies_the_other_half(tmp_path: Path) -> None:
    scores = {name: [float(number)] for number, name in enumerate(NAMES)}
    changes = asked(population(quantile=0.5, settings={}), scores, tmp_path)
    assert [change.policy for change in changes] == ["a", "b"]
    assert {change.source for change in changes} <= {"c", "d"}
    assert all(change.settings == {} for change in changes)


def test_values_stay_in_the_range_of_their_field(tmp_path: Path) -> None:
    wide = population(settings={"gae_lambda": None, "entropy_coefficient": [0.0, 0.011]}, factors=[1.2])
    (change,) = asked(wide, {"a": [0.0], "d": [1.0]}, tmp_path)
    assert change.settings == {"gae_lambda": 1.0, "entropy_coefficient": 0.011}


def test_an_evaluation_can_be_the_score(tmp_path: Path) -> None:
    callback = population(metric="eval_return_mean")
    evaluation = mf.Evaluation(every_env_steps=160, episodes=2, time_share=None)
    log = mf.Log(every_env_steps=160, console="none", tensorboard=False)
    resumed = resumes_exactly(run(callback=callback, evaluation=evaluation, log=log), tmp_path, 480)
    told = {record["env_steps"]: record for record in reports(resumed.whole)}
    compared = [line for line in lines(resumed.whole) if line["env_steps"] in told]
    assert compared
    for line in compared:
        value = told[line["env_steps"]]["policies"][line["policy"]]["eval_return_mean"]
        assert value is None or line["score"] == value


def test_two_populations_are_apart(tmp_path: Path) -> None:
    pairs = {"one": population(policies=["a", "b"]), "two": population(policies=["c", "d"], settings={})}
    resumed = resumes_exactly(run(callbacks=pairs), tmp_path, 480)
    assert lines(resumed.parts) == lines(resumed.whole)
    changed = [line for line in lines(resumed.whole) if line["source"] is not None]
    assert {frozenset((line["policy"], line["source"])) for line in changed} == {frozenset("ab"), frozenset("cd")}


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"policies": ["a"]}, {}, "callbacks.population needs two policies or more, which copy each other, and has a"),
    ({"policies": ["a", "b", "a"]}, {}, "callbacks.population names policy 'a' twice"),
    ({"policies": ["a", "e"]}, {}, "callbacks.population may change policy 'e', which does not exist"),
    ({"settings": {"epochs": None}}, {}, "cannot change epochs of policy 'a' (ppo): it cannot change while it learns"),
    ({"settings": {"lerning_rate": None}}, {}, "there is no such setting; did you mean 'learning_rate'"),
    ({"settings": {"clip_range": [2.0, 1.0]}}, {}, "bounds of clip_range that are not [low, high], but [2.0, 1.0]"),
    ({"settings": {"gae_lambda": [0.5, 1.5]}}, {}, "its bound 1.5 is not within 0 and 1"),
    ({"settings": {"clip_range": None}, "resample": 0.1}, {}, "cannot draw clip_range, which has no bounds"),
    ({"quantile": 0.6}, {}, "callbacks.population.quantile must be at most 0.5, not 0.6"),
    ({"factors": []}, {}, "callbacks.population has no factors"),
    ({"metric": "eval_return"}, {}, "callbacks.population.metric eval_return: a policy has no figure 'eval_return'"),
    ({"metric": "infos.wins"}, {}, "callbacks.population.metric infos.wins: nothing in infos has this name"),
    ({}, {"a": mf.Policy(mf.PPO(learning_rate=mf.Linear(1e-3, 1e-4, 100)), SMALL)}, "follows a schedule of its own"),
    ({}, {"b": mf.Policy(DQN, SMALL)}, "policies 'a' and 'b' cannot copy each other, since their networks differ"),
    ({}, {"c": mf.Policy(PPO, mf.MLP((8,)))}, "policies 'a' and 'c' cannot copy each other"),
    ({}, {"b": mf.Policy(replace(PPO, optimizer=SGD), SMALL)}, "'a' and 'b' cannot copy each other, since their"),
    ({}, {"b": mf.Policy(replace(PPO, shared_torso=True), SMALL)}, "'a' and 'b' cannot copy each other, since their"),
    (
        {},
        {"b": mf.Policy(replace(PPO, parts={"values": mf.PopArt()}), SMALL)},
        "their learners differ in vector; give both",
    ),
    (
        {},
        {"d": mf.Policy(mf.Random(), SMALL)},
        "policy 'd' (random) cannot be changed by callbacks.population: it does",
    ),
    (
        {},
        {"a": mf.Policy(mf.DDPPO(), SMALL)},
        "policy 'a' (ddppo) cannot be changed by callbacks.population: it learns",
    ),
    ({}, {"a": mf.Policy(PPO, SMALL, stop=mf.PolicyStop(agent_steps=50))}, "its own stop ends its learning for good"),
]


@pytest.mark.parametrize(("changes", "policies", "sentence"), REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(
    changes: dict[str, Any], policies: dict[str, mf.Policy], sentence: str
) -> None:
    experiment = run(callback=population(**changes))
    with pytest.raises(mf.ConfigInvalid) as refused:
        ready(replace(experiment, policies={**experiment.policies, **policies}))
    assert sum(sentence in str(problem) for problem in refused.value.problems) >= 1, refused.value.problems


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"value_max": 100.0}, r"differ in \S*support; give both"),
        ({"optimizer": mf.TorchOptimizer(torch.optim.RMSprop)}, "differ in optimizer; give both"),
    ],
)
def test_learners_that_keep_something_else_cannot_copy_each_other(changes: dict[str, Any], named: str) -> None:
    experiment = run(replace(DQN, atoms=11, value_max=10.0, optimizer=SGD))
    other = replace(experiment.policies["a"].algorithm, **changes)  # type: ignore[type-var]
    policies = {**experiment.policies, "d": mf.Policy(other, SMALL)}
    with pytest.raises(mf.ConfigInvalid, match=f"policies 'a' and 'd' cannot copy .* {named}"):
        ready(replace(experiment, policies=policies))


def test_a_setting_that_may_follow_no_schedule_cannot_be_perturbed() -> None:
    experiment = run(replace(DQN, atoms=11), callback=population(settings={"huber_delta": [0.5, 2.0]}))
    with pytest.raises(mf.ConfigInvalid, match=r"cannot change huber_delta of policy 'a' .* has no Huber loss"):
        ready(experiment)


@pytest.mark.parametrize(
    ("metric", "changes", "key"),
    [
        ("return_mean", {"log": mf.Log(every_env_steps=161)}, "log.every_env_steps"),
        (
            "eval_return_mean",
            {"evaluation": mf.Evaluation(every_env_steps=161, episodes=2)},
            "evaluation.every_env_steps",
        ),
    ],
)
def test_a_metric_that_is_rarer_than_comparisons_is_refused(metric: str, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(mf.ConfigInvalid, match=f"new values come every 161; set {key}=160, or a longer"):
        ready(run(callback=population(metric=metric), **changes))


def test_a_policy_in_two_populations_is_refused() -> None:
    both = {"one": population(policies=["a", "b"]), "two": population(policies=["b", "c"])}
    with pytest.raises(mf.ConfigInvalid, match=r"policy 'b' is changed by both callbacks.one and callbacks.two"):
        ready(run(callbacks=both))


def test_a_joint_learner_is_refused() -> None:
    joint = {"team": mf.LearnerConfig(["a", "b"], mf.QMIX())}
    experiment = run(mf.DQN(), learners=joint, env=mf.Env("simple_spread", num_envs=4))
    experiment = replace(experiment, policies={name: mf.Policy(model=SMALL) for name in "ab"}, mapping=None)
    rules = [mf.Rule("agent_0", "a"), mf.Rule("*", "b")]
    with pytest.raises(mf.ConfigInvalid, match="learner 'team' trains it together with b"):
        ready(replace(experiment, mapping=rules, callbacks={"population": population(policies=["a", "b"])}))


def test_a_policy_that_a_matchmaker_resets_is_refused() -> None:
    callbacks = {"population": population(policies=["main", "rival"])}
    with pytest.raises(
        mf.ConfigInvalid, match=r"'main' is changed by callbacks\.population and reset by the matchmaker"
    ):
        ready(with_resets(mf.Policy(PPO, SMALL), mf.Policy(PPO, SMALL), 100, callbacks=callbacks))


def test_another_population_is_refused_at_a_resume(tmp_path: Path) -> None:
    mf.train(run(env_steps=160), tmp_path)
    for other in (population(policies=["a", "b"]), population(settings={})):
        with pytest.raises(mf.CheckpointUnusable, match=r"changes\.population"):
            mf.resume(run(callback=other), tmp_path)
    with pytest.raises(mf.CheckpointUnusable, match="it has changes, which this run has not"):
        mf.resume(run(callbacks={}), tmp_path)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [(ValueError("no"), "Crooked.may_change() raised ValueError: no"), (3, "returned 3, which is no MayChange")],
)
def test_a_declaration_that_is_none_is_refused(returned: object, problem: str) -> None:
    class Crooked(mf.Callback):
        def may_change(self) -> Any:
            if isinstance(returned, Exception):
                raise returned
            return returned

    with pytest.raises(mf.ConfigInvalid) as refused:
        ready(run(callback=Crooked()))
    assert problem in str(refused.value.problems)


class Asks(mf.Callback):
    """Asks for one change after the first round."""

    def __init__(self, change: Any, declared: mf.MayChange | None) -> None:
        self._change, self._declared = change, declared

    def may_change(self) -> mf.MayChange | None:
        return self._declared

    def played(self, round: mf.RoundEvent) -> Any:
        return self._change if round.env_steps == 160 else None


AB = mf.MayChange(["a", "b"], {"learning_rate": None, "clip_range": [0.1, 0.3]})


@pytest.mark.parametrize(
    ("change", "declared", "problem"),
    [
        (mf.ChangePolicy("a", "b"), None, "'a' is not among what its may_change() declares"),
        (mf.ChangePolicy("a", "c"), AB, "'c' is not among"),
        (mf.ChangePolicy("a", settings={"discount": 0.9}), AB, "'discount' is not among"),
        (mf.ChangePolicy("a", settings={"clip_range": 0.5}), AB, "clip_range=0.5, which is not within 0.1 and 0.3"),
        (mf.ChangePolicy("a", settings={"learning_rate": float("nan")}), AB, "learning_rate=nan, which is not within"),
        ([mf.ChangePolicy("a", "b"), 3], AB, "it returned a list with 3, which is no marlflow.ChangePolicy"),
    ],
)
def test_a_change_that_was_not_declared_is_a_fault(
    change: Any, declared: mf.MayChange | None, problem: str, tmp_path: Path
) -> None:
    result = mf.train(run(callback=Asks(change, declared), env_steps=480), tmp_path)
    assert result.metrics["faults"]["callbacks_failed"] == 1
    assert problem in (tmp_path / "run.log").read_text()


def test_a_sink_that_asks_for_a_change_is_a_fault(tmp_path: Path) -> None:
    experiment = run(callbacks={}, env_steps=480)
    log = replace(experiment.log, sinks={"asks": Asks(mf.ChangePolicy("a", "b"), AB)})
    result = mf.train(replace(experiment, log=log), tmp_path)
    assert result.metrics["faults"]["callbacks_failed"] == 1
    told = (tmp_path / "run.log").read_text()
    assert "a sink changes nothing; name it under callbacks instead" in told
    assert "continues as a copy" not in told


def test_a_callback_of_the_users_changes_settings_alone(tmp_path: Path) -> None:
    change = mf.ChangePolicy("a", settings={"learning_rate": 3e-4, "clip_range": 0.3})
    resumed = resumes_exactly(run(callback=Asks(change, AB)), tmp_path, 480)
    assert resumed.metrics["learners"]["a"]["schedules"] == {"learning_rate": 3e-4, "clip_range": 0.3}
    assert resumed.metrics["learners"]["b"]["schedules"] == {}


def test_a_shorter_interval_holds_from_a_resume_on(tmp_path: Path) -> None:
    mf.train(run(callback=population(every_env_steps=800), env_steps=160), tmp_path)
    mf.resume(run(callback=population(every_env_steps=240), env_steps=640), tmp_path)
    assert {line["env_steps"] for line in lines(tmp_path)} == {240, 480}
