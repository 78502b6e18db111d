"""What a person writes, with or without `+`, becomes what Hydra wants."""

from contextlib import suppress
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marlflow.base.errors import ConfigInvalid
from marlflow.config.compose import composing
from marlflow.config.folders import quoted
from marlflow.config.overrides import prepare
from tests.config.composition import experiment_of, prepared
from tests.sentences import refusals

DQN_CART = "policy@policies.cart=dqn"
TEAM = "experiment=cartpole_team_ppo_dqn"


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ([DQN_CART], [f"+{DQN_CART}"]),
        ([f"+{DQN_CART}"], [f"+{DQN_CART}"]),
        ([TEAM, "policy@policies.dqn_team=ppo"], [TEAM, "policy@policies.dqn_team=ppo"]),
        ([TEAM, "+policy@policies.dqn_team=ppo"], [TEAM, "policy@policies.dqn_team=ppo"]),
        (
            ["algorithm@policies.cart.algorithm=ppo", DQN_CART],
            ["algorithm@policies.cart.algorithm=ppo", f"+{DQN_CART}"],
        ),
        (
            [DQN_CART, "+model@policies.cart.model=cnn", "+policies.cart.algorithm.n_step=1"],
            [f"+{DQN_CART}", "model@policies.cart.model=cnn", "policies.cart.algorithm.n_step=1"],
        ),
        (["+seed=1", "++rollouts.num_workers=1"], ["seed=1", "++rollouts.num_workers=1"]),
        (["stop.policies.cart.return_mean=9"], ["+stop.policies.cart.return_mean=9"]),
        (["env.render_mode=rgb_array"], ["+env.render_mode=rgb_array"]),
        (
            ["log.sinks={a: null}", "log.sinks.b=null", "log.sinks.a=null"],
            ["++log.sinks={a: null}", "++log.sinks.b=null", "++log.sinks.a=null"],
        ),
        (
            ["env=simple_tag", "~env.num_good", "hydra.run.dir=x"],
            ["env=simple_tag", "~env.num_good", "hydra.run.dir=x"],
        ),
        (
            ['mapping=[{match: "cart_*", policy: all}]', "+policy@policies.all=ppo", "mapping.0.policy=everyone"],
            ['mapping=[{match: "cart_*", policy: all}]', "+policy@policies.all=ppo", "mapping.0.policy=everyone"],
        ),
    ],
)
def test_prefixes(written: list[str], wanted: list[str]) -> None:
    assert prepared(*written).overrides == wanted


def test_an_experiments_own_policy_is_changed_where_it_stands() -> None:
    overrides = ("experiment=simple_tag_ppo_dqn", "policy@policies.agent=ppo", "policies.agent.algorithm.epochs=2")
    policies = experiment_of(*overrides).policies
    assert list(policies) == ["adversary", "agent"]
    assert policies["agent"].algorithm.epochs == 2  # type: ignore[attr-defined]


def test_the_first_job_of_a_sweep_stands_for_all() -> None:
    job = prepared("seed=3,4", "policy@policies.cart=dqn,ppo", "stop.env_steps=range(5,9)", multirun=True)
    assert job.overrides == ["seed=3,4", "+policy@policies.cart=dqn,ppo", "stop.env_steps=range(5,9)"]
    assert job.config.seed == 3
    assert job.config.policies.cart.algorithm._target_.endswith("DQN")
    assert job.config.stop.env_steps == 5


def test_keys_that_do_not_exist_are_dropped_and_said_together() -> None:
    job = prepared("sead=1", "policies.prey.algorithm.n_step=3", "seed=5")
    assert job.overrides == ["seed=5"]
    assert job.problems == [
        "there is no sead; did you mean 'seed'?",
        "policies.prey.algorithm.n_step: there is no policy 'prey'; add it with policy@policies.prey=ppo",
    ]


def test_options_that_do_not_exist_are_said_together() -> None:
    assert refusals(ConfigInvalid, prepared, "env=simpel_tag", "policy@policies.prey=pqo", "runtime=rya") == [
        "there is no env 'simpel_tag'; did you mean 'simple_tag'?",
        "there is no policy 'pqo'; did you mean 'ppo'?",
        "there is no runtime 'rya'; did you mean 'ray'?",
    ]


def test_what_hydra_cannot_compose_is_one_sentence() -> None:
    with pytest.raises(ConfigInvalid, match=r"^the configuration cannot be composed: [^\n]*stop\.steps[^\n]*$"):
        prepared("~stop.steps")


def test_a_key_that_a_file_has_twice_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "twice.yaml").write_text("# @package _global_\nstop:\n  env_steps: 1\n  env_steps: 2\n")
    with composing(), pytest.raises(ConfigInvalid) as refused:
        prepare(["experiment=twice"], [str(tmp_path)])
    (problem,) = refused.value.problems
    assert "found duplicate key env_steps in " in problem
    assert "twice.yaml" in problem
    assert "line 4" in problem


def test_what_hydra_would_take_for_something_else_is_refused_together() -> None:
    job = prepared(
        DQN_CART,
        "~stop",
        "~name",
        "policies.cart.algorithm.epsilon={start: 1}",
        "env.max_cycles=abc",
        "+env.render_mode=human",
        "env.num_agents=2",
        "env.num_envs=many",  # not the environment's
        "seed=1e3",
    )
    assert job.problems == [
        "~stop takes away what every run has; give it the value that is meant, or leave it out for the default",
        "~name takes away what every run has; give it the value that is meant, or leave it out for the default",
        "policies.cart.algorithm.epsilon={start: 1} has no _target_: name the class that it is to be made from, or "
        "change what is there by policies.cart.algorithm.epsilon.start=1",
        "env.max_cycles must be a number, such as 200, not 'abc'",
    ]
    assert job.config.env.num_agents == 2


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("seed=int(3.7)", "seed=int(3.7) would cut 3.7 down to a whole number"),
        ("policies.cart.model.hidden_sizes=int([8,1.5])", "would cut 1.5 down to a whole number"),
        (f"env.num_agents={'[' * 99}1{']' * 99}", "nested 99 deep, and no setting is nested more than 32 deep"),
        (f"env.{'.'.join('a' * 99)}=1", "nested 99 deep"),
        (f"seed={'int(' * 99}3{')' * 99}", "nested 99 deep"),
        (f"seed={'9' * 5_000}", "cannot read 'seed=9999"),
    ],
)
def test_what_cannot_be_read_as_it_is_meant_is_refused(written: str, reason: str) -> None:
    (problem,) = refusals(ConfigInvalid, prepared, written)
    assert reason in problem


@pytest.mark.parametrize(
    "written", ["=5", "=", "=[1]", "+", "~", "~=", "~=1", "++=", "@=1", "@a=1", "+@a=1", "~@a", "x"]
)
def test_what_has_no_key_is_said_to_have_none(written: str) -> None:
    assert refusals(ConfigInvalid, prepared, written) == [
        f"{written!r} is not of the form key=value, such as env=simple_tag"
    ]


# Keys, brackets, quotes, numbers, functions and interpolations as nobody should write them.
STRANGE = """
a= a.=1 .a=1 a..b=1 env= env={a: env=[ env=] seed=} seed=(1 seed='1 seed=" seed=\n \n=1 é=1 seed=é a@=1 env@=toll
a:b=1 /a=1 a/=1 a/b=1 $=1 ${seed}=1 a[0]=1 mapping.0=1 policies.=1 policies..a=1 policies.a.=1 ~seed=3 ~env ~env=[a]
~env=5 ~wrappers ~wrappers=x ~wrappers=[a] ~league ~algorithm ~hydra ~hydra.run ~~seed +-seed=1 +++seed=1 seed=1e400
seed=1e5 seed=inf seed=nan seed=0x10 seed=1_000 seed=int(a) seed=tag(a,1) seed=${x} seed=${ seed=$ seed=??? seed=#
seed=!!a hydra=null hydra=1 hydra.run=1 hydra.mode=x hydra.searchpath=null hydra.searchpath=x hydra.searchpath=[1]
+hydra.searchpath=[null] hydra.searchpath={a:1} ~hydra.searchpath hydra/launcher=null hydra/launcher=5
hydra/launcher=[a] ~hydra/launcher=[a] +hydra/launcher={a:1} hydra.sweeper.params={a:1} hydra.sweeper.params=5
hydra.foo=1 hydra.callbacks=5 wrappers=[[a]] wrappers=[null] wrappers=[{a:1}] wrappers={a:1} callback={} sinks={}
policies={1:{}} runtime=[] league=[1] default_policy.algorithm={} default_policy.algorithm={a:{b:null}}
default_policy={1:2} _target_=1 defaults=[x]
"""


@pytest.mark.parametrize("written", [word.replace("\\n", "\n") for word in STRANGE.split()])
def test_strange_words_are_read_or_refused(written: str) -> None:
    # Whatever else is raised, fails.
    with suppress(ConfigInvalid):
        assert prepared(written).config.hydra


@pytest.mark.parametrize(
    ("written", "quoted"),
    [("name=é", "\"name='é'\""), ("name=a#b", "\"name='a#b'\""), ("+name=☃ b", "\"+name='☃ b'\"")],
)
def test_characters_that_need_quotes_are_answered_with_them(written: str, quoted: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        prepared(written)
    assert str(caught.value).endswith(f"the shell takes the outer ones: {quoted}")
    assert prepared(quoted.strip('"')).problems == []


MAPPINGS = {
    "stop.policies={cart: {return_mean: 5}}": "++",
    "stop={policies: {cart: {return_mean: 5}}}": "++",
    "rollouts.placement={resources: {fpga: 1}}": "++",
    "callbacks={early: {_target_: marlflow.EarlyStop, metric: policies.cart.return_mean}}": "++",
    "log.sinks={print: {_target_: builtins.print}}": "++",
    "policies={cart: {queue_fragments: 3}}": "++",
    "+policies={cart: {queue_fragments: 3}}": "++",
    "rollouts={num_workers: 3}": "",  # no new keys, so Hydra's own way
}


@pytest.mark.parametrize(("written", "prefix"), MAPPINGS.items())
def test_a_mapping_adds_the_keys_that_are_not_there(written: str, prefix: str) -> None:
    job = prepared(written)
    assert (job.overrides, job.problems) == ([prefix + written.lstrip("+")], [])
    key, _, value = written.lstrip("+").partition("=")
    expected = OmegaConf.create(value)
    assert OmegaConf.merge(OmegaConf.select(job.config, key), expected) == OmegaConf.select(job.config, key)


def test_a_mapping_adds_keys_in_a_sweep_and_in_a_league() -> None:
    goals = "stop.policies={cart: {return_mean: 5}},{cart: {return_mean: 6}}"
    job = prepared(goals, multirun=True)
    assert job.overrides == [f"++{goals}"]
    assert job.config.stop.policies.cart.return_mean == 5
    league = prepared("env=rps", "league=pfsp", "league.players={player: {plays: [player_0]}}")
    assert league.config.league.players == {"player": {"plays": ["player_0"]}}


def test_a_mistyped_key_in_a_mapping_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigInvalid, match=r"no rollouts\.num_wrokers; did you mean 'rollouts\.num_workers'"):
        experiment_of("rollouts={num_wrokers: 3}")


def test_casts_that_lose_nothing_are_hydras_own() -> None:
    assert prepared("seed=int(3.0)", "name='int(3.7)'").problems == []
    assert prepared("seed=int(7)").config.seed == 7


SEATED = "{_target_: marlflow.matchmaking.matchmakers.RandomSeats, policies: [ppo_player, dqn_player]}"
RULES = [{"match": "player_0", "policy": "ppo_player"}, {"match": "*", "policy": "dqn_player"}]


def test_rules_can_be_replaced_by_a_matchmaker_and_a_matchmaker_by_rules_or_by_another() -> None:
    seats = prepared("experiment=connect_four_ppo_dqn", f"mapping={SEATED}")
    assert not seats.problems
    assert set(seats.config.mapping) == {"_target_", "policies"}
    rules = prepared(
        "experiment=connect_four_random_seats",
        "mapping=[{match: player_0, policy: ppo_player}, {match: '*', policy: dqn_player}]",
    )
    assert not rules.problems
    assert list(rules.config.mapping) == RULES
    other = prepared("experiment=connect_four_random_seats", "mapping={_target_: my.own.Pairing, elo: 1200}")
    assert dict(other.config.mapping) == {"_target_": "my.own.Pairing", "elo": 1200}


def test_a_part_of_a_matchmaker_can_be_changed() -> None:
    changed = prepared("experiment=connect_four_random_seats", "mapping.policies=[dqn_player, ppo_player]")
    assert changed.config.mapping.policies == ["dqn_player", "ppo_player"]
    assert changed.config.mapping._target_ == "marlflow.matchmaking.matchmakers.RandomSeats"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["callbacks=early_stop", "callbacks.early_stop.reports=-4"],
            "callbacks=early_stop is not how a callback is chosen; write callback=early_stop",
        ),
        (["log.sinks=wandb"], "log.sinks=wandb is not how a sink is chosen; write sinks=wandb"),
        (
            ["league=self_play", "stop=3", "stop.env_steps=4"],
            "stop.env_steps=4 is for a key of stop, and stop=3 leaves it none; leave one of them out",
        ),
    ],
)
def test_a_key_below_a_value_that_has_none_is_told_in_words_of_marlflow(overrides: list[str], problem: str) -> None:
    assert problem in refusals(ConfigInvalid, experiment_of, *overrides)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("log.page=true", "there is no log.page; write sinks=page"),
        ("+log.page=true", "there is no log.page; write sinks=page"),
        ("page=true", "there is no page; write sinks=page"),
        ("wandb.project=tag", "there is no wandb.project; write sinks=wandb log.sinks.wandb.project=tag"),
        *(
            (f"{key}=true", f"there is no {key}; write sinks=page log.sinks.page.control=true")
            for key in ("watch.control", "log.page.control", "control")
        ),
    ],
)
@pytest.mark.parametrize("chosen", [[], ["sinks=page"]])
def test_a_sink_as_a_setting_of_the_run_is_answered_with_its_choice(
    chosen: list[str], override: str, problem: str
) -> None:
    # A sink is chosen beside the others of the run.
    problem = problem.replace("sinks=wandb", "sinks=[page,wandb]") if chosen else problem
    assert refusals(ConfigInvalid, experiment_of, *chosen, override) == [problem]


def test_a_sink_is_chosen_beside_the_others_of_the_run() -> None:
    found = refusals(ConfigInvalid, experiment_of, "sinks=films", "log.page=true")
    assert found == ["there is no log.page; write sinks=[films,page]"]
    found = refusals(ConfigInvalid, experiment_of, "log.page=false")
    assert found == ["there is no log.page; leave it out: a run has no page without sinks=page"]


def test_a_later_override_may_change_a_key_that_an_earlier_one_adds() -> None:
    config = prepared("stop={env_steps: 3}", "stop.time_s=4", "callbacks.a={x: 1}", "callbacks.a.x=2").config
    assert (config.stop.env_steps, config.stop.time_s, config.callbacks.a.x) == (3, 4, 2)
    rate = "default_policy.algorithm.learning_rate"
    linear = f"{rate}={{_target_: marlflow.Linear, start: 1e-3, end: 0, agent_steps: 9}}"
    # What a sweep and a benchmark write: a value is cleared first where Hydra would merge it with the next.
    config = prepared(f"++{rate}=null", linear, f"{rate}.agent_steps=3").config
    assert config.default_policy.algorithm.learning_rate.agent_steps == 3


@pytest.mark.parametrize("folder", ["my (conf)", "it's", "a=b, c", "{x}", "${y}"])
@pytest.mark.parametrize("by", ["--config-dir", "hydra.searchpath"])
def test_folders_of_groups_may_have_any_name(folder: str, by: str, tmp_path: Path) -> None:
    (tmp_path / folder / "experiment").mkdir(parents=True)
    (tmp_path / folder / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 77\n")
    path = f"file://{tmp_path / folder}"
    with composing():
        if by == "--config-dir":
            ready = prepare(["experiment=mine"], searchpath=[path])
        else:
            ready = prepare([f"hydra.searchpath=[{quoted(path)}]", "experiment=mine"])
    assert ready.config.seed == 77


@pytest.mark.parametrize("word", ["stop.policies=null", "stop.policies={cart: null}"])
def test_a_goal_can_be_taken_away(word: str) -> None:
    goal = "stop.policies.cart.return_mean=5"
    assert experiment_of("experiment=cartpole_team_ppo", goal).stop.policies == {"cart": 5.0}
    assert experiment_of("experiment=cartpole_team_ppo", word).stop.policies == {}
    assert experiment_of("experiment=cartpole_team_ppo", goal, "stop.policies.cart=null").stop.policies == {}
