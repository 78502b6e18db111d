"""Every bad input: one clear error that names the remedy, before anything starts, exit code 2 and no traceback."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Marlflow

BROKEN = "tests.cli.broken_environments"
TAG = "env=simple_tag"

CASES = {
    "command": (["trian"], "marlflow has no command 'trian'; did you mean 'train'?"),
    "no command": (
        ["env=simple_tag"],
        "marlflow needs a command before 'env=simple_tag': marlflow train env=simple_tag",
    ),
    "flag": (["plan", "--mermade"], "marlflow plan has no flag --mermade; did you mean '--mermaid'?"),
    "setting with dashes": (
        ["train", "--seed", "3"],
        "marlflow train has no flag --seed; settings are written without dashes: seed=3",
    ),
    "group with dashes": (
        ["train", "--env", "simple_tag"],
        "marlflow train has no flag --env; settings are written without dashes: env=simple_tag",
    ),
    "dashes without a value": (
        ["train", "--learning-rate", "seed=1"],
        "marlflow train has no flag --learning-rate; settings are written without dashes: learning_rate=<value>",
    ),
    "no name behind the dashes": (
        ["plan", "--"],
        "marlflow plan has no flag --; its flags are --mermaid, --all-output, --trust, --machines, ",
    ),
    "flag of another command": (
        ["train", "--machines", "[{CPU: 4}]"],
        "marlflow train has no flag --machines; it is a flag of marlflow plan",
    ),
    "sweep of a command that has none": (
        ["plan", "-m", "seed=1,2"],
        "marlflow plan has no flag -m; it is a flag of marlflow train",
    ),
    "flag without value": (["train", "--cfg"], "--cfg needs a value"),
    "no key": (["plan", "simple_tag"], "'simple_tag' is not of the form key=value, such as env=simple_tag"),
    "half a word": (
        ["plan", 'mapping=[{match: "a'],
        "cannot read 'mapping=[{match: \"a'; is it whole, and quoted for the shell?",
    ),
    "misspelt key": (
        ["plan", "rollouts.num_wrokers=3"],
        "there is no rollouts.num_wrokers; did you mean 'rollouts.num_workers'?",
    ),
    "misspelt section": (["plan", "rollots.num_workers=3"], "there is no rollots; did you mean 'rollouts'?"),
    "misspelt root key": (["plan", "sead=3"], "there is no sead; did you mean 'seed'?"),
    "misspelt group": (["plan", "expriment=x"], "there is no expriment; did you mean 'experiment'?"),
    "misspelt key, smuggled": (
        ["plan", "policy@policies.cart=ppo", "+policies.cart.algorithm.lerning_rate=1"],
        "there is no policies.cart.algorithm.lerning_rate; did you mean 'policies.cart.algorithm.learning_rate'?",
    ),
    "misspelt environment argument": (
        ["plan", "env.num_agentz=3"],
        "there is no env.num_agentz; did you mean 'env.num_agents'?",
    ),
    "misspelt wrapper argument": (
        ["plan", "env.wrappers=[{_target_: supersuit.frame_stack_v2, stack_sise: 4}]"],
        "there is no env.wrappers[0].stack_sise; did you mean 'env.wrappers[0].stack_size'?",
    ),
    "misspelt goal": (
        ["plan", "stop.policies.cart.return_maen=3"],
        "there is no stop.policies.cart.return_maen; did you mean 'stop.policies.cart.return_mean'?",
    ),
    "unknown option": (["plan", "env=simpel_tag"], "there is no env 'simpel_tag'; did you mean 'simple_tag'?"),
    "unknown policy option": (["plan", "policy@policies.x=pqo"], "there is no policy 'pqo'; did you mean 'ppo'?"),
    "unknown algorithm": (
        ["plan", "policy@policies.cart=ppo", "algorithm@policies.cart.algorithm=coma"],
        "there is no algorithm 'coma'; there are a2c, a3c, ",
    ),
    "unknown algorithm class": (
        ["plan", "default_policy.algorithm._target_=marlflow.algorithms.ppo.PP0"],
        "default_policy.algorithm._target_: module marlflow.algorithms.ppo has no 'PP0'; did you mean 'PPO'?",
    ),
    "unknown packaged group": (
        ["plan", "polic@policies.x=ppo"],
        "there is no configuration group 'polic' (in polic@policies.x=ppo); did you mean 'policy'?",
    ),
    "a policy written as a value": (
        ["plan", "policies.agent=dqn"],
        "policies.agent=dqn is not how a policy is chosen; write policy@policies.agent=dqn",
    ),
    "a policy written as a part of its group": (
        ["plan", "policy.agent=dqn"],
        "policy.agent=dqn is not how a policy is chosen; write policy@policies.agent=dqn",
    ),
    "a setting written as a part of the group of policies": (
        ["plan", "policy.agent.algorithm.epochs=3"],
        "there is no policy.agent.algorithm.epochs; did you mean 'policies.agent.algorithm.epochs'?",
    ),
    "an algorithm written as a value": (
        ["plan", "default_policy.algorithm=dqn"],
        "default_policy.algorithm=dqn is not how an algorithm is chosen; write algorithm@default_policy.algorithm=dqn",
    ),
    "whose learning rate": (
        ["plan", "policy@policies.cart=dqn", "algorithm.learning_rate=1e-3"],
        "there is no algorithm.learning_rate; did you mean 'policies.cart.algorithm.learning_rate' or "
        "'default_policy.algorithm.learning_rate'?",
    ),
    "whose unknown setting": (
        ["plan", "algorithm.lr=1e-3"],
        "there is no algorithm.lr; here it is default_policy.algorithm.learning_rate",
    ),
    "a key without its section": (
        ["plan", "num_workers=3"],
        "there is no num_workers; did you mean 'rollouts.num_workers'?",
    ),
    "a key of many sections": (
        ["plan", "every_env_steps=3"],
        "there is no every_env_steps; did you mean 'evaluation.every_env_steps' or 'checkpoint.every_env_steps' or ",
    ),
    "an option with the end of its file": (
        ["plan", "env=simple_tag.yaml"],
        "there is no env 'simple_tag.yaml'; a choice is written without .yaml: env=simple_tag",
    ),
    "an experiment of one's own": (["plan", "experiment=walks"], "there is no experiment 'walks'; there are "),
    "whose policy": (["plan", "policy=dqn"], "policy=dqn does not say whose: write policy@policies.<id>=dqn"),
    "sweep without -m": (
        ["train", "seed=1,2"],
        "seed=1,2 has several values: add -m to run one job for each, or write a list as [...]",
    ),
    "unknown option in a sweep": (
        ["train", "-m", "env=simple_tag,simple_tga"],
        "there is no env 'simple_tga'; did you mean 'simple_tag'?",
    ),
    "a value of a policy that is not there": (
        ["plan", "policies.cart.algorithm.learning_rate=3"],
        "policies.cart.algorithm.learning_rate: there is no policy 'cart'; add it with policy@policies.cart=ppo",
    ),
    "an algorithm of a policy that is not there": (
        ["plan", "policy@policies.cart=ppo", "algorithm@policies.crat.algorithm=dqn"],
        "algorithm@policies.crat.algorithm: there is no policy 'crat'; did you mean 'cart'?",
    ),
    "text for a number": (["plan", "env.num_envs=many"], "env.num_envs must be a whole number, not 'many'"),
    "half for a whole number": (["plan", "seed=1.5"], "seed must be a whole number, not 1.5"),
    "not one of": (
        ["plan", "rollouts.pace=lockstp"],
        "rollouts.pace must be one of lockstep, overlap, asynchronous, not 'lockstp'; did you mean 'lockstep'?",
    ),
    "unset": (["plan", "policy@policies.cart=scripted"], "policies.cart.algorithm.choose is not set; give it a value"),
    "unset of the environment": (["plan", "experiment=cartpole_team_bc"], "env.folder is not set; give it a value"),
    "number too small": (["plan", "env.num_envs=0"], "env.num_envs must be at least 1, not 0"),
    "time too short": (["plan", "stop.time_s=0"], "stop.time_s must be more than 0 seconds, not 0"),
    "negative reservation": (
        ["plan", "rollouts.placement.num_cpus=-1"],
        "rollouts.placement.num_cpus must be at least 0, not -1",
    ),
    "fewer environments than workers": (
        ["plan", "env.num_envs=1"],
        "env.num_envs (1) is less than rollouts.num_workers (2), and each worker needs one; "
        "raise env.num_envs or lower rollouts.num_workers",
    ),
    "fragment too short": (
        ["plan", "rollouts.fragment_env_steps=4"],
        "rollouts.fragment_env_steps (4) is less than the 8 environments that a worker steps at once; "
        "raise it to at least 8, or lower env.num_envs",
    ),
    "no learners": (
        ["plan", "default_policy.placement.num_learners=0"],
        "default_policy.placement.num_learners must be at least 1, not 0",
    ),
    "one GPU and a half": (
        ["plan", "placement.learners.num_gpus=1.5"],
        "placement.learners.num_gpus must be a fraction below 1, a whole number, or 0, not 1.5",
    ),
    "a GPU without a share of one": (
        ["plan", "placement.learners.device=cuda"],
        "policies.cart.placement.device is cuda and num_gpus 0: a process sees only the GPUs that it has a share of; "
        "raise num_gpus",
    ),
    "a stage somewhere else": (
        ["plan", "placement.learners.stages.Advantages=wrker"],
        "placement.learners.stages.Advantages must be one of learner, worker, driver, not 'wrker'; "
        "did you mean 'worker'?",
    ),
    "a word without a key": (["plan", "=5"], "'=5' is not of the form key=value, such as env=simple_tag"),
    "a run of thousands of letters": (["evaluate", "a" * 5_000], "File name too long: 'aaa"),
    "an option that a command has not, of hundreds of digits": (
        ["report", f"seed={'9' * 400}"],
        "File name too long: 'seed=999",
    ),
    "a number of thousands of digits": (["plan", f"seed={'9' * 5_000}"], "cannot read 'seed=999"),
    "a machine without an end": (
        ["plan", "--machines", f"[{{CPU: {'9' * 400}}}]"],
        "--machines[0].CPU must be a number, at least 0 and at most 1e+15, not 999",
    ),
    "billions of referees": (
        ["plan", "env=rps", "league=pfsp", "league.matches.workers=99999999999"],
        "league.matches.workers must be at most 10,000, not 99999999999",
    ),
    "endless": (
        ["plan", "stop.env_steps=null"],
        "nothing ends this run; set stop.env_steps, stop.time_s or stop.policies.<id>.return_mean",
    ),
    "nothing learns": (
        ["plan", "policy@default_policy=random"],
        "no policy of this run learns: 'cart' (random); give one an algorithm that does, e.g. ppo",
    ),
    "goal of nobody": (
        ["plan", "stop.policies.crat.return_mean=3"],
        "stop.policies.crat: there is no policy 'crat'; did you mean 'cart'?",
    ),
    "objective of nobody": (
        ["plan", "objective=policies.crat.return_mean"],
        "objective policies.crat.return_mean: there is no policy 'crat'; did you mean 'cart'?",
    ),
    "objective without a figure": (
        ["plan", "objective=policies.cart.retrun_mean"],
        "objective policies.cart.retrun_mean: a policy has no figure 'retrun_mean'; did you mean 'return_mean'?",
    ),
    "objective of nothing": (
        ["plan", "objective=return_mean"],
        "objective must be policies.<id>.return_mean, or another figure of a policy, a learner or a callback, not "
        "'return_mean'",
    ),
    "agent that no rule matches": (
        ["plan", TAG, 'mapping=[{match: "adversary_*", policy: hunters}]', "policy@policies.hunters=ppo"],
        "no mapping rule matches agent 'agent_0' (rules: 'adversary_*'); add one, or one for '*'",
    ),
    "rule that matches no agent": (
        ["plan", 'mapping=[{match: wolf, policy: all}, {match: "*", policy: all}]', "policy@policies.all=ppo"],
        "mapping rule 1 (match 'wolf', policy 'all') matches no agent; the agents are cart_0, cart_1, cart_2, cart_3",
    ),
    "policy that no rule names": (
        ["plan", 'mapping=[{match: "*", policy: team}]', "policy@policies.team=ppo", "policy@policies.spare=dqn"],
        "policy 'spare' plays no agent: no mapping rule names it; "
        "add {match: <agents>, policy: spare} to mapping, or remove it",
    ),
    "policy that no group is named after": (
        ["plan", TAG, "policy@policies.agnt=dqn"],
        "policy 'agnt' plays no agent: without a mapping a policy plays the group of its name, and the groups of this "
        "environment are adversary, agent; did you mean 'agent'?",
    ),
    "mapping to a policy that does not exist": (
        ["plan", 'mapping=[{match: "*", policy: taem}]', "policy@policies.team=ppo"],
        "mapping rule 1 names policy 'taem', which does not exist; did you mean 'team'?",
    ),
    "mapping without policies": (
        ["plan", 'mapping=[{match: "*", policy: team}]'],
        "mapping rule 1 names policy 'team', which does not exist; there are none; "
        "add it with policy@policies.team=ppo",
    ),
    "rule without a match": (
        ["plan", 'mapping=[{mtch: "*", policy: team}]'],
        "there is no mapping[0].mtch; did you mean 'mapping[0].match'?",
    ),
    "DQN on continuous actions": (
        ["plan", TAG, "env.continuous_actions=true", "policy@policies.adversary=dqn"],
        "policy 'adversary' (dqn) cannot act in Box(5,) of agent 'adversary_0'; use sac, td3, ddpg or ppo",
    ),
    "different spaces": (
        ["plan", TAG, 'mapping=[{match: "*", policy: all}]', "policy@policies.all=ppo"],
        "policy 'all' plays 'adversary_0' and 'agent_0', which see Box(16,) and Box(14,); "
        "agents of one policy need the same spaces, so give them policies of their own",
    ),
    "pixels expected": (
        ["plan", "model@default_policy.model=cnn"],
        "policy 'cart' (ppo): a CNN sees [height, width, channels], not observations of shape (4,); use MLP",
    ),
    "settings that do not go together": (
        ["plan", "default_policy.algorithm.minibatch_agent_steps=5000"],
        "policy 'cart' (ppo)",
    ),
    "environment that cannot be imported": (
        ["plan", "env._target_=no_such_package.parallel_env"],
        "environment no_such_package.parallel_env cannot be imported: No module named 'no_such_package'",
    ),
    "environment that is not there": (
        ["plan", f"env._target_={BROKEN}.NoMpa"],
        f"module {BROKEN} has no 'NoMpa'; did you mean 'NoMap'?",
    ),
    "no environment": (
        ["plan", f"env._target_={BROKEN}.three", "~env.num_agents", "~env.max_cycles", "~env.velocities"],
        f"{BROKEN}.three makes a int, not a PettingZoo AECEnv or ParallelEnv",
    ),
    "environment that refuses its arguments": (
        ["plan", "env.num_agents=0"],
        "environment marlflow.env.games.cartpole_team.parallel_env cannot be made with num_agents=0, max_cycles=200, "
        "velocities=True: ValueError: num_agents and max_cycles must be at least 1, not 0 and 200",
    ),
    "environment that cannot be reset": (
        ["plan", f"env._target_={BROKEN}.NoMap"],
        f"environment {BROKEN}.NoMap cannot start: reset() raised FileNotFoundError: no map 'arena'",
    ),
    "networks larger than memory": (["plan", "default_policy.model.hidden_sizes=[1e9]"], "the run needs at least "),
    "records of nobody": (
        ["plan", "record={policies: [nope]}"],
        "record.policies: there is no policy 'nope'; the policies are cart",
    ),
    "records nowhere": (
        ["plan", "record={folder: /proc/records}"],
        "record.folder: the folder '/proc/records' cannot be made or written to: ",
    ),
    "a run nowhere": (
        ["train", "hydra.run.dir=/dev/null/run"],
        "the folder of the run: the folder '/dev/null/run' cannot be made or written to: ",
    ),
    "a name that leads out of runs": (["train", "name=../x"], "name must be a name for a folder: "),
    "a sweep that has nothing to go by": (
        ["train", "-m", "hydra.sweeper._target_=some.OptimizingSweeper", "seed=1,2"],
        "the sweeper OptimizingSweeper goes by a figure of each job, and objective is null; "
        "set objective=policies.<id>.return_mean",
    ),
    "an environment's argument of the wrong type": (
        ["plan", TAG, "env.max_cycles=abc"],
        "env.max_cycles must be a number, such as 25, not 'abc'",
    ),
    "meta-learning without tasks": (
        ["plan", "policy@policies.cart=maml"],
        "policy 'cart' (maml) adapts to tasks, and the environment has none; take a family of them, such as ",
    ),
    "a wait that never ends": (
        ["train", "env.step_timeout_s=nan"],
        "env.step_timeout_s must be a number, at least 0.001 and at most 1e+06 seconds, not nan",
    ),
    "machines that are none": (
        ["plan", "--machines", "16"],
        "--machines[0] must be what a machine has, such as [{CPU: 16, GPU: 2, count: 4}, {CPU: 64}], not 16",
    ),
    "no machines": (["plan", "--machines", "[]"], "--machines has no machine; write what each has, such as "),
    "machines that cannot be read": (["plan", "--machines", "[{CPU"], "--machines cannot be read ("),
    "a misspelt resource": (
        ["plan", "--machines", "[{CPU: 16, GPUs: 2}]"],
        "--machines[0] has no 'GPUs'; did you mean 'GPU'?",
    ),
    "an amount that is none": (
        ["plan", "--machines", "{CPU: lots}"],
        "--machines[0].CPU must be a number, at least 0 and at most 1e+15, not 'lots'",
    ),
    "a count that is none": (
        ["plan", "--machines", "{CPU: 1, count: 0}"],
        "--machines[0].count must be a whole number from 1 to 10,000, not 0",
    ),
    "machines of one process": (
        ["plan", "--machines", "{CPU: 16}", "runtime=inline"],
        "--machines is for runtime=ray, and runtime=inline is one process here; leave one of the two out",
    ),
    "machines that are too small": (
        ["plan", "--machines", "[{CPU: 2, count: 3}]", "placement.learners.num_cpus=4"],
        "learner cart asks for 4 CPU on one machine, and the largest of the 3 can give 2 CPU; lower the reservation",
    ),
    "an environment by its import path": (
        ["train", "env=my_module.Env"],
        "there is no env 'my_module.Env': a name there is one of a configuration; for an import path write "
        "env=python env._target_=my_module.Env",
    ),
    "lost folder": (
        ["plan", "--config-dir", "/no/such/folder"],
        "the configuration folder /no/such/folder does not exist",
    ),
}


PROPOSALS: dict[str, tuple[list[str], str, list[str]]] = {
    "one agent": (
        ["env=connect_four", "policy@policies.player_0=dqn"],
        "policy 'player_0' has the name of an agent, and without a mapping a policy plays the group of its name, here "
        "player; for policies of single agents write ",
        ["policy player_0 (dqn) plays player_0", "policy player (ppo) plays player_1"],
    ),
    "every agent": (
        ["env=connect_four", "policy@policies.player_0=dqn", "policy@policies.player_1=ppo"],
        "policies 'player_0' and 'player_1' have the names of agents, ",
        ["policy player_0 (dqn) plays player_0", "policy player_1 (ppo) plays player_1"],
    ),
    "an agent beside a group": (
        [TAG, "policy@policies.adversary_1=dqn", "policy@policies.agent=dqn"],
        "policy 'adversary_1' has the name of an agent, ",
        [
            "policy adversary (ppo) plays adversary_0, adversary_2",
            "policy adversary_1 (dqn) plays adversary_1",
            "policy agent (dqn) plays agent_0",
        ],
    ),
}


@pytest.mark.parametrize("case", PROPOSALS)
def test_a_policy_for_a_single_agent_is_told_the_mapping_that_it_needs(marlflow: Marlflow, case: str) -> None:
    words, beginning, players = PROPOSALS[case]
    refused = marlflow("train", *words)
    assert refused.code == 2
    assert refused.err.startswith(f"error: {beginning}")
    proposed = shlex.split(refused.err.partition(" write ")[2])
    planned = marlflow("plan", *words, *proposed)
    assert (planned.code, planned.err) == (0, "")
    assert sorted(line for line in planned.out.splitlines() if line.startswith("policy ")) == sorted(players)


@pytest.mark.parametrize(("words", "message"), CASES.values(), ids=CASES)
def test_bad_input_is_one_clear_error(marlflow: Marlflow, tmp_path: Path, words: list[str], message: str) -> None:
    said = marlflow(*words)
    said.assert_refused(begins=message)
    assert len(said.err.rstrip()) <= 2_000
    assert not list(tmp_path.iterdir()), "nothing may be left of a run that never began"


def test_a_file_of_ones_own_is_answered_with_its_folder(marlflow: Marlflow, tmp_path: Path) -> None:
    assert marlflow("plan", "experiment=walks").err.endswith(
        "; an experiment of your own needs --config-dir <folder>\n"
    )
    (own := tmp_path / "conf" / "experiment").mkdir(parents=True)
    (own / "walks.yaml").write_text("# @package _global_\nname: walks\n", encoding="utf-8")
    assert marlflow("plan", "experiment=walks").err == (
        "error: there is no experiment 'walks' among those of marlflow; to use conf/experiment/walks.yaml add "
        "--config-dir conf\n"
    )
    assert marlflow("plan", "--config-dir", "conf", "experiment=walks").code == 0
    assert "--config-dir" not in marlflow("plan", "--config-dir", "conf", "experiment=runs").err


@pytest.mark.parametrize("head", ["", "# Long walks.\n# @package _global_\n", "name: walks\n# @package _global_\n"])
def test_an_experiment_whose_keys_would_not_be_the_runs_is_told_the_line_that_it_needs(
    marlflow: Marlflow, tmp_path: Path, head: str
) -> None:
    (own := tmp_path / "conf" / "experiment").mkdir(parents=True)
    text = f"{head}defaults:\n  - _self_\n  - override /env: simple_tag\n"
    (own / "walks.yaml").write_text(text, encoding="utf-8")
    said = marlflow("plan", "--config-dir", "conf", "experiment=walks")
    assert (said.code, said.err) == (
        2,
        f"error: {own / 'walks.yaml'} must have '# @package _global_' as its first line, which makes its keys those "
        "of the run\n",
    )
    (own / "walks.yaml").write_text(f"\n# @package _global_\n# Long walks.\n{text}", encoding="utf-8")
    assert marlflow("plan", "--config-dir", "conf", "experiment=walks").code == 0


def test_an_environment_that_cannot_be_reset_shows_the_users_own_line(marlflow: Marlflow) -> None:
    lines = marlflow("plan", f"env._target_={BROKEN}.NoMap").err.splitlines()
    assert lines[1].startswith('  File "')
    assert lines[1].endswith("in reset")
    assert lines[2] == "    raise FileNotFoundError(\"no map 'arena'\")"
    assert len(lines) == 3


def test_all_problems_are_said_at_once(marlflow: Marlflow) -> None:
    said = marlflow(
        "train",
        TAG,
        "env.continuous_actions=true",
        "env.num_envs=1",
        "policy@policies.adversary=dqn",
        "policy@policies.agnt=ppo",
        "model@policies.adversary.model=cnn",
        "rollouts.num_wrokers=2",
        "+policies.adversary.algorithm.lerning_rate=1",
        "sead=1",
    )
    assert said.code == 2
    first, *problems = said.err.splitlines()
    assert first == "error: 7 problems in this configuration:"
    beginnings = [
        "there is no sead; ",
        "there is no policies.adversary.algorithm.lerning_rate; ",
        "there is no rollouts.num_wrokers; ",
        "env.num_envs (1) is less than ",
        "policy 'agnt' plays no agent: ",
        "policy 'adversary' (dqn) cannot act in Box(5,) of agent 'adversary_0'",
        "policy 'adversary' (dqn): a CNN sees ",
    ]
    assert len(problems) == len(beginnings)
    for number, (problem, beginning) in enumerate(zip(problems, beginnings, strict=True), 1):
        assert problem.startswith(f"  {number}. {beginning}")


def test_the_module_as_a_command_ends_with_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "marlflow", "trian"]  # for which nothing has to be imported
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: marlflow has no command 'trian'; did you mean 'train'?")
