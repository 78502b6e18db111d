"""Warm starts and frozen policies: what is taken from a source, and what is refused before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.algorithms.from_run import Imported
from marlflow.base.serialization import from_bytes
from marlflow.checks.validation import ready
from marlflow.cli.plan import run_plan
from marlflow.config.checked import CheckedExperiment
from marlflow.config.imported_policies import load_policy, policy_of
from marlflow.learner.parameters import is_part, named_parameters
from marlflow.policy.warmup import network_of
from marlflow.runs.saved_league import SavedRun, saved_run
from marlflow.runs.saved_policies import saved_policy, to_export
from marlflow.runs.saved_runs import chosen, newest
from tests.league.runs import LEAGUES, MAIN, league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, SMALL_R2D2, small_run
from tests.runtime.team_runs import teams
from tests.sentences import refusals

NORMALIZED = mf.MLP((16,), normalize_observations=True)
PPO = replace(SMALL_PPO, parts={"values": mf.PopArt()})
POLICIES = {"hunters": mf.Policy(PPO, NORMALIZED), "prey": mf.Policy(SMALL_DQN, SMALL), "memory": SMALL_R2D2}
MAPPING = [mf.Rule("cart_0", "hunters"), mf.Rule("cart_1", "prey"), mf.Rule("*", "memory")]
BEST = mf.CheckpointConfig(every_env_steps=100, keep=1, best="policies.hunters.return_mean")


def solo(**policies: mf.Policy) -> mf.Experiment:
    return small_run(env_steps=400, policies={**POLICIES, **policies}, mapping=MAPPING, checkpoint=BEST)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of carts, a run of teams, and an exported policy."""
    folder = tmp_path_factory.mktemp("runs")
    mf.train(solo(), folder / "carts")
    mf.train(teams(240), folder / "teams")
    (folder / "prey.safetensors").write_bytes(to_export(policy_of(saved_run(folder / "carts"), "prey")))
    (folder / "empty").mkdir()
    return folder


def kept(run: Path, learner: str) -> Any:
    return from_bytes(newest(run).read(f"learner.{learner}"))


def learner(checked: CheckedExperiment, name: str) -> mf.TorchLearner:
    return checked.spec.learners[name].learner()


def initial(policy: mf.Policy, run: Path, /, *arguments: Any, **settings: Any) -> mf.Policy:
    return replace(policy, init=mf.FromRun(run, *arguments, **settings))


# -- what is taken --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_a_learner_of_the_same_kind_begins_with_everything_but_the_optimizer(name: str, runs: Path) -> None:
    saved = kept(runs / "carts", name)
    begun = learner(ready(solo(**{name: initial(POLICIES[name], runs / "carts")})), name)
    state = begun.state()
    np.testing.assert_array_equal(begun.published[name].flat, saved["published"])
    if name == "hunters":
        # Critic, running moments of observations and returns: published after each update, so all is of one version.
        np.testing.assert_array_equal(state["vector"], saved["vector"])
        moments = {
            key: parameter for key, parameter in begun.module.named_parameters() if key.endswith("moments.count")
        }
        assert len(moments) == 3
        assert all(float(count) > 0 for count in moments.values())
    else:
        np.testing.assert_array_equal(state["target"], state["vector"])
    fresh = learner(ready(solo()), name).state()
    optimizers = [key for key in state if key.startswith("optimizer/")]
    assert optimizers
    for key in [*optimizers, "generator", "version", "updates"]:
        np.testing.assert_array_equal(state[key], fresh[key])
    assert not np.array_equal(state["vector"], fresh["vector"])


def test_parts_are_taken_by_name_and_the_rest_is_its_own(runs: Path) -> None:
    saved, own = kept(runs / "carts", "hunters")["vector"], learner(ready(solo()), "hunters").state()["vector"]
    for parts in (["actor"], ["critic"], ["actor.torso"], ["critic_head", "actor.head"]):
        begun = learner(ready(solo(hunters=initial(POLICIES["hunters"], runs / "carts", parts=parts))), "hunters")
        values = {True: saved, False: own}
        for name, parameter in named_parameters(begun.module, ("hunters",), "hunters").items():
            at = next(i for i, one in enumerate(begun.parameters.flat.parameters) if one is parameter)
            start = sum(one.numel() for one in begun.parameters.flat.parameters[:at])
            expected = values[any(is_part(part, name) for part in parts)][start : start + parameter.numel()]
            np.testing.assert_array_equal(parameter.detach().numpy().ravel(), expected, err_msg=f"{parts} {name}")


def test_the_torso_of_another_algorithm_fits_where_its_shapes_do(runs: Path) -> None:
    dqn = mf.Policy(SMALL_DQN, NORMALIZED)
    begun = learner(ready(solo(prey=initial(dqn, runs / "carts", "hunters", parts=["actor.torso"]))), "prey")
    source = network_of(policy_actor(runs / "carts", "hunters", ready(solo())))
    assert source is not None
    theirs, ours = dict(source.named_parameters()), dict(begun.module.actor.named_parameters())
    taken = [name for name in theirs if name.startswith("torso.")]
    assert taken
    for name in taken:
        assert ours[name].equal(theirs[name])
    assert not ours["head.weight"].equal(theirs["head.weight"])


def policy_actor(run: Path, member: str, checked: CheckedExperiment) -> Any:
    spec = checked.spec.policies[member]
    return Imported(load_policy(run, member), spec.algorithm).actor(spec.spaces, spec.model, 0)


@pytest.mark.parametrize("name", ["left", "right"])
def test_a_policy_of_a_joint_learner_is_a_source_and_begins_so(name: str, runs: Path) -> None:
    experiment = teams(240)
    sizes = {one: len(policy_flat(experiment, one)) for one in ("left", "right")}
    assert len(set(sizes.values())) == 2
    start = 0 if name == "left" else sizes["left"]
    published = kept(runs / "teams", "happo")["published"][start : start + sizes[name]]
    np.testing.assert_array_equal(load_policy(runs / "teams", name).flat, published)
    policies = {**experiment.policies, name: initial(experiment.policies[name], runs / "teams")}
    begun = learner(ready(replace(experiment, policies=policies)), "happo")
    np.testing.assert_array_equal(begun.published[name].flat, published)
    other = ({"left", "right"} - {name}).pop()
    assert not np.array_equal(begun.published[other].flat, load_policy(runs / "teams", other).flat)


def policy_flat(experiment: mf.Experiment, name: str) -> Any:
    actor: Any = ready(experiment).spec.policies[name].actor()
    return actor.flat()


def test_published_critics_and_critics_of_the_state_are_carried(runs: Path) -> None:
    experiment = teams(240)
    mappo = replace(experiment.policies["mappo"], init=mf.FromRun(runs / "teams"))
    begun = learner(ready(replace(experiment, policies={**experiment.policies, "mappo": mappo})), "mappo")
    np.testing.assert_array_equal(begun.state()["vector"], kept(runs / "teams", "mappo")["vector"])


def test_a_critic_that_sees_what_is_not_there_can_be_left(runs: Path) -> None:
    ppo = mf.Policy(SMALL_PPO, mf.MLP((8,)))
    (problem,) = problems(solo(prey=initial(ppo, runs / "teams", "mappo")))
    assert problem.startswith(
        f"policies.prey.init: the critic of mappo of {runs / 'teams'} cannot be built here: mappo "
    )
    assert problem.endswith(", or take parts=[actor]")
    begun = learner(ready(solo(prey=initial(ppo, runs / "teams", "mappo", parts=["actor"]))), "prey")
    theirs = load_policy(runs / "teams", "mappo").flat
    np.testing.assert_array_equal(begun.published["prey"].flat, theirs[: len(begun.published["prey"].flat)])


def at(run: Path, which: Any) -> SavedRun:
    return saved_run(run, chosen(run, which))


def test_a_file_and_other_checkpoints_are_sources_too(runs: Path) -> None:
    from_file = learner(ready(solo(prey=initial(POLICIES["prey"], runs / "prey.safetensors"))), "prey")
    np.testing.assert_array_equal(from_file.published["prey"].flat, kept(runs / "carts", "prey")["published"])
    checkpoints = {int(path.name): path for path in (runs / "carts" / "checkpoints").iterdir()}
    best = at(runs / "carts", "best").checkpoint
    assert best.metric == max(at(runs / "carts", steps).checkpoint.metric or 0.0 for steps in checkpoints)
    for choice in ("best", *checkpoints):
        frozen = ready(solo(prey=mf.Policy(mf.Frozen(runs / "carts", checkpoint=choice)))).spec.policies["prey"]  # type: ignore[arg-type]
        assert isinstance(frozen.algorithm, Imported)
        steps = best.env_steps if choice == "best" else choice
        expected = saved_policy(at(runs / "carts", steps), "prey")
        assert frozen.algorithm.saved.sha256 == expected.sha256


def test_a_frozen_policy_acts_with_the_network_of_its_source_and_learns_nothing(runs: Path) -> None:
    checked = ready(solo(memory=mf.Policy(mf.Frozen(runs / "carts", "hunters"))))
    spec = checked.spec.policies["memory"]
    assert checked.spec.learning == ("hunters", "prey")
    assert spec.model == NORMALIZED
    actor: Any = spec.actor()
    np.testing.assert_array_equal(actor.flat(), kept(runs / "carts", "hunters")["published"])
    # A run's folder says where it is from, not what it is.
    assert checked.experiment.policies["memory"].algorithm == mf.Frozen(str(runs / "carts"), "hunters")


def test_frozen_policies_of_central_critics_joint_learners_and_as_opponents(runs: Path) -> None:
    experiment = teams(240)
    frozen = {name: mf.Policy(mf.Frozen(runs / "teams", name)) for name in ("mappo", "left", "right")}
    policies = {**experiment.policies, **frozen}
    checked = ready(replace(experiment, policies=policies, learners={}))
    assert checked.spec.learning == ("recurrent",)
    opponents = {**POLICIES, "past": mf.Policy(mf.Frozen(runs / "carts", "prey"))}
    evaluation = mf.Evaluation(episodes=4, opponents=["past"])
    checked = ready(replace(solo(), policies=opponents, evaluation=evaluation))
    made = [spec for name, spec in checked.spec.opponents.items() if name.startswith("past/")]
    assert [type(spec.algorithm) for spec in made] == [Imported]


def test_default_policy_takes_the_policy_of_each_group(runs: Path) -> None:
    default = mf.Policy(mf.PPO(), init=mf.FromRun(runs / "carts", "hunters", parts=["actor.head"]))
    experiment = small_run(policies={}, mapping=None, default_policy=default)
    # The torso has other sizes, the head too: refused under the name of the policy.
    (problem,) = problems(experiment)
    assert problem.startswith("policies.cart.init: its network is not that of hunters of")


# -- what is refused ------------------------------------------------------------------------------------------------


def problems(experiment: mf.Experiment) -> Sequence[str]:
    return refusals(mf.InvalidInput, ready, experiment)


REFUSED: dict[str, tuple[str, mf.Policy, dict[str, Any], str]] = {
    "other sizes": (
        "hunters",
        mf.Policy(PPO, mf.MLP((8,), normalize_observations=True)),
        {},
        "its network is not that of hunters of {run}: actor.torso.torso.layers.0.weight is [8, 4] here and [16, 4] "
        "there; ",
    ),
    "another activation": (
        "hunters",
        mf.Policy(PPO, replace(NORMALIZED, activation="relu")),
        {},
        "with the parameters of hunters of {run} it would not act as that, since other settings differ "
        "(model.activation=relu and tanh); set them to the same",
    ),
    "another head": (
        "prey",
        mf.Policy(replace(SMALL_DQN, dueling=True), SMALL),
        {},
        "actor.head.weight is not here; actor.head.bias is not here; actor.head.state.weight is not in prey of {run}; ",
    ),
    "another head's remedy": (
        "prey",
        mf.Policy(replace(SMALL_DQN, dueling=True), SMALL),
        {},
        "or take parts=[actor.torso]",
    ),
    "no critic here": ("prey", mf.Policy(mf.SAC(), NORMALIZED), {"policy": "hunters"}, "or take parts=[actor]"),
    "values for logits": (
        "prey",
        mf.Policy(SMALL_DQN, NORMALIZED),
        {"policy": "hunters", "parts": ["actor"]},
        "its outputs (QActor) mean something else than those of hunters of {run} (CategoricalActor), though all shapes "
        "are the same; take parts=[actor.torso]",
    ),
    "misspelt part": (
        "hunters",
        POLICIES["hunters"],
        {"parts": ["actr"]},
        "parts: hunters of {run} has no part 'actr'; did you mean 'actor'?",
    ),
    "no part": ("hunters", POLICIES["hunters"], {"parts": []}, "parts is empty; name some, such as [actor]"),
    "misspelt policy": (
        "hunters",
        POLICIES["hunters"],
        {"policy": "hunter"},
        "{run} has no member 'hunter'; did you mean 'hunters'?",
    ),
    "no checkpoint": ("hunters", POLICIES["hunters"], {"checkpoint": 7}, "checkpoint 7 in {run}/checkpoints cannot"),
    "never learns": (
        "hunters",
        mf.Policy(mf.Random()),
        {},
        "random does not learn; to act as another policy, use policy@policies.hunters=frozen",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parameters_that_do_not_fit_are_one_clear_problem(case: str, runs: Path) -> None:
    name, policy, settings, message = REFUSED[case]
    (problem,) = problems(solo(**{name: initial(policy, runs / "carts", **settings)}))
    assert problem.startswith(f"policies.{name}.init: ")
    assert message.format(run=runs / "carts") in problem


def test_sources_that_are_none(runs: Path) -> None:
    ppo = POLICIES["hunters"]
    for source, message in {
        "nowhere": "there is no {source}; give the folder of a run, or a file of marlflow league --export",
        "empty": "{source} is the folder of no run: it has no checkpoints",
    }.items():
        expected = message.format(source=runs / source)
        assert problems(solo(hunters=initial(ppo, runs / source))) == [f"policies.hunters.init: {expected}"]
        found = problems(solo(hunters=mf.Policy(mf.Frozen(runs / source))))
        assert found == [f"policies.hunters.algorithm: {expected}"]
    (problem,) = problems(solo(prey=initial(POLICIES["prey"], runs / "prey.safetensors", checkpoint="best")))
    assert problem.endswith("prey.safetensors has no checkpoint best: it is not the folder of a run")
    policies = {"main": MAIN, "past": mf.Policy(mf.Frozen(runs / "carts", "prey"))}
    (problem,) = problems(league_run(LEAGUES["pfsp"], 24, policies=policies))
    assert problem.startswith(f"policy 'past': prey of {runs / 'carts'} observes Box(")
    assert problem.endswith("name a policy of a run of this environment")
    (problem,) = problems(solo(other=initial(ppo, runs / "carts"), hunters=ppo))
    assert "plays no agent" in problem
    (problem,) = problems(solo(prey=mf.Policy(mf.Frozen(runs / "teams"))))
    assert "has several members; name one: left, right, mappo, recurrent" in problem


def test_classes_of_others_are_imported_only_if_trusted(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    recorded = runs / "carts" / "experiment.json"
    text = recorded.read_text(encoding="utf-8")
    data = json.loads(text)
    data["policies"]["prey"]["model"] = {"_target_": "their.Model"}
    recorded.write_text(json.dumps(data), encoding="utf-8")
    try:
        for policy, key in (
            (initial(POLICIES["prey"], runs / "carts"), "init"),
            (mf.Policy(mf.Frozen(runs / "carts")), "algorithm"),
        ):
            (problem,) = problems(solo(prey=policy))
            assert "elsewhere: model._target_='their.Model'; look at it" in problem
            assert problem.endswith(f"if you trust it set policies.prey.{key}.trust=[their.Model]")
    finally:
        recorded.write_text(text, encoding="utf-8")


# -- the command line -----------------------------------------------------------------------------------------------


def test_the_plan_names_source_version_and_hash(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mapping = "[{match: cart_0, policy: hunters}, {match: '*', policy: past}]"
    words = ["policy@policies.hunters=ppo", "policies.hunters.model.hidden_sizes=[16]", f"mapping={mapping}"]
    words += ["policies.hunters.model.normalize_observations=true", "runtime=inline", "env=cartpole_team"]
    words += ["parts@policies.hunters.algorithm.parts.values=pop_art"]
    source = runs / "carts"
    words += [f"policies.hunters.init={{run: {source}}}"]
    words += [
        "policy@policies.past=frozen",
        f"policies.past.algorithm.run={source}",
        "policies.past.algorithm.policy=prey",
    ]
    assert run_plan(words) == 0
    printed = capsys.readouterr().out
    hunters, prey = (load_policy(source, name) for name in ("hunters", "prey"))
    version = hunters.description["version"]
    assert (
        f"policy hunters begins with actor and critic of hunters of {source} (ppo, version {version}, "
        f"{len(hunters.flat):,} parameters, SHA-256 {hunters.sha256})"
    ) in printed
    assert f"policy past is prey of {source} (dqn, version " in printed
    assert prey.sha256 in printed


def test_keys_of_init_may_be_given_one_by_one(runs: Path) -> None:
    from tests.config.composition import ready_of

    words = ["env=cartpole_team", "policy@policies.cart=ppo", "policies.cart.model.hidden_sizes=[16]", "runtime=inline"]
    words += ["policies.cart.model.normalize_observations=true", "parts@policies.cart.algorithm.parts.values=pop_art"]
    keys = [f"policies.cart.init.run={runs / 'carts'}", "policies.cart.init.policy=hunters"]
    checked = ready_of(*words, *keys, "policies.cart.init.parts=[actor]")
    begun = checked.spec.learners["cart"].begins_with["cart"]
    assert all(name.startswith("actor.") for name in begun.tensors)
