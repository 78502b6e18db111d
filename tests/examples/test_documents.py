"""What the README and the pages of docs/ tell a reader to type works."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.cli.main import main
from tests.env.optional import is_installed
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
OWN_ALGORITHM = REPOSITORY / "docs" / "your_own_algorithm.md"
OWN_LOSS = REPOSITORY / "docs" / "your_own_loss.md"
OWN_PART = REPOSITORY / "docs" / "your_own_part.md"


def blocks(document: Path, language: str = "") -> list[str]:
    """The code blocks of one language, in order; also those that are indented in a list."""
    text = document.read_text(encoding="utf-8")
    found = re.findall(r"^( *)```([^\n]*)\n(.*?)^\1```", text, re.M | re.S)
    return [textwrap.dedent(body) for _, name, body in found if name == language]


def commands(document: Path) -> list[str]:
    """Each marlflow command of the document's code blocks."""
    shell = "".join(blocks(document)).replace("\\\n", " ")
    return re.findall(r"^marlflow (?:train|plan) .*$", shell, re.M)


README = REPOSITORY / "README.md"
CONFIGURATION = REPOSITORY / "docs" / "configuration.md"
MAPPING = REPOSITORY / "docs" / "mapping.md"
OWN_ENVIRONMENT = REPOSITORY / "docs" / "your_own_environment.md"
OWN_POLICY = REPOSITORY / "docs" / "your_own_policy.md"
LEAGUES = REPOSITORY / "docs" / "leagues.md"
TRACKING = REPOSITORY / "docs" / "tracking.md"
FUNCTIONAL = REPOSITORY / "docs" / "functional_environments.md"
PACKAGES = REPOSITORY / "docs" / "packages.md"
TRIED_WITH = REPOSITORY / "docs" / "environments.md"
OWN_FILES = "--config-dir"
OWN_MODULE = "my_module"
# The pages that are left out have files of their own, and tests below.
PAGES = [
    README,
    *sorted({*REPOSITORY.glob("docs/*.md")} - {CONFIGURATION, OWN_ALGORITHM, OWN_LOSS, OWN_PART, PACKAGES}),
]
LINES = list(dict.fromkeys(line for document in PAGES for line in commands(document)))
RECORDS = "runs/expert/record"
OTHER_RUN = "league.members.veteran="
# Each in a command that makes the run, and in those that begin with it: two of the first, one of the other.
BEGUN_WITH = {"runs/first": 2, "runs/reference": 1}
SEVERAL = " -m "
COMMANDS = [
    line
    for line in LINES
    if not any(own in line for own in (OWN_FILES, OWN_MODULE, RECORDS, OTHER_RUN, *BEGUN_WITH, SEVERAL))
]
WITH_OTHER_RUN = [line for line in LINES if OTHER_RUN in line]
ON_RECORDS = [line for line in LINES if RECORDS in line]
OF_OWN_MODULE = [line for line in LINES if OWN_MODULE in line]
OWN_COMMANDS = [line for document in (OWN_ENVIRONMENT, OWN_POLICY) for line in commands(document) if OWN_FILES in line]


def test_the_documents_have_commands() -> None:
    assert len(COMMANDS) >= 12
    assert len(OF_OWN_MODULE) >= 2
    assert len(OWN_COMMANDS) == 3


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_a_plan_that_can_run(line: str) -> None:
    _, _, *words = shlex.split(line)
    chosen = [value for name, _, value in (word.partition("=") for word in words) if name in ("env", "experiment")]
    if missing := [name for name in chosen if not is_installed(name)]:
        pytest.skip(f"{missing[0]} needs an extra that is not installed")
    assert main(["plan", *words]) == 0


def test_every_command_with_a_member_of_another_run_is_a_plan_that_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    league = mf.League(mf.PFSP(), snapshots=mf.SnapshotRules(every_agent_steps=10))
    experiment = small_run(
        env=mf.Env("connect_four", num_envs=2),
        policies={"main": mf.Policy(SMALL_PPO, SMALL)},
        mapping=None,
        league=league,
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=20),
        env_steps=300,
    )
    mf.train(experiment, "runs/a")
    assert main(["league", "runs/a", "--export", "main@12", "main12.safetensors"]) == 0
    assert len(WITH_OTHER_RUN) >= 2
    for line in WITH_OTHER_RUN:
        # Pages name runs that they have shown, and this is a small one.
        line_here = re.sub(r"from: runs/[^,]+, member: \w+@", "from: runs/a, member: main@", line)
        _, _, *words = shlex.split(line_here)
        assert main(["plan", *words]) == 0


@pytest.mark.parametrize("run", BEGUN_WITH)
def test_every_command_that_begins_with_another_run_is_a_plan_that_can_run(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *others = [line for line in LINES if run in line]
    quick = "stop.env_steps=400 rollouts.fragment_env_steps=200 evaluation.episodes=0 evaluation.final_episodes=0"
    assert main([*shlex.split(first)[1:], *quick.split(), "log.console=none"]) == 0
    assert len(others) >= BEGUN_WITH[run]
    for line in others:
        assert main(["plan", *shlex.split(line)[2:]]) == 0


def test_every_command_on_records_is_a_plan_that_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = "stop.env_steps=400 rollouts.fragment_env_steps=200 evaluation.episodes=0 runtime=inline log.console=none"
    (recording,) = [line for line in LINES if "record=dataset" in line]
    assert main([*shlex.split(recording)[1:], *quick.split()]) == 0
    assert len(ON_RECORDS) == 2
    for line in ON_RECORDS:
        assert main(["plan", *shlex.split(line)[2:]]) == 0


SHOWN = [block for page in PAGES for block in blocks(page) if re.match(r"\$ marlflow (plan|train) .*=", block)]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.partition("\n")[0])
def test_what_a_page_shows_is_what_is_printed(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    line, _, shown = block.partition("\n")
    main(shlex.split(line)[2:])
    said = capsys.readouterr()
    on_any_machine, _, _ = shown.partition("\nplacement on this machine")
    assert on_any_machine.strip() in said.out + said.err


def test_the_drawn_plan_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (drawn,) = blocks(REPOSITORY / "docs" / "first_runs.md", "mermaid")
    assert main(["plan", "experiment=cartpole_team_ppo_dqn", "--mermaid"]) == 0
    assert drawn.strip() == capsys.readouterr().out.strip()


def test_the_readmes_experiment_is_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [block for block in blocks(README, "python") if "mf.Experiment(" in block]
    until_training, trains, _ = program.partition("result = mf.train(")
    assert trains
    exec(until_training, {})
    assert "agent: dqn" in capsys.readouterr().out


def test_the_experiment_of_the_page_on_teams_is_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks(REPOSITORY / "docs" / "teams.md", "python")
    exec(program, {})
    assert "pair: vdn for speaker and listener" in capsys.readouterr().out


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's folder with modules of their own, in which this process is, as that of `marlflow` would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("line", sorted(set(OF_OWN_MODULE)))
def test_every_command_on_a_module_of_ones_own_is_a_plan_that_can_run(
    line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matchmaker = next(block for block in blocks(MAPPING, "python") if block.startswith("def swapped"))
    team = (
        "from marlflow.env.games.cartpole_team import CartPoleTeam\n\n"
        "def make_env(size=4):\n    return CartPoleTeam(size)\n\n"
    )
    # Two pages have one: a batched one, for which cart-poles stand here, and a functional one.
    functional, _wrapper = blocks(FUNCTIONAL, "python")
    meeting = functional if "env=functional" in line else f"{team}Meeting = make_env\n"
    bot = "def bot(obs, action_mask, random):\n    return action_mask.argmax(axis=1)\n"
    (mode,) = blocks(LEAGUES, "python")
    (callback,) = (block for block in blocks(TRACKING, "python") if "class EnoughForMe" in block)
    sink = (
        "class MySink(mf.Callback):\n"
        "    def __init__(self, address):\n"
        "        self.address = address\n"
        "    def reported(self, record):\n"
        "        print(self.address)\n"
    )
    (here / "my_module.py").write_text(f"{meeting}\n{matchmaker}\n{bot}\n{mode}\n{callback}\n{sink}")
    _, _, *words = shlex.split(line)
    assert main(["plan", *words]) == 0
    assert "ppo" in capsys.readouterr().out


@pytest.mark.parametrize("line", OWN_COMMANDS)
def test_every_command_on_files_of_ones_own_is_a_plan_that_can_run(
    line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yaml = next(block for block in blocks(OWN_ENVIRONMENT, "yaml") if "deliveries.Deliveries" in block)
    heuristics = next(block for block in blocks(OWN_POLICY, "python") if block.startswith("# heuristics.py"))
    (model,) = blocks(OWN_POLICY, "yaml")
    files = {
        "conf/env/deliveries.yaml": yaml,
        "conf/model/layer_norm.yaml": model,
        "heuristics.py": heuristics,
        "layer_norm.py": own_network(),
        "deliveries.py": (REPOSITORY / "examples" / "01_ppo_and_dqn.py").read_text(),
    }
    for name, text in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text, encoding="utf-8")
    _, _, *words = shlex.split(line)
    assert main(["plan", *words]) == 0
    output = capsys.readouterr().out
    assert "customer" in output or "agent: ppo" in output


EXAMPLES = sorted((REPOSITORY / "docs" / "examples").glob("*.md"))
TRIED = [
    *re.split(r"^## ", PACKAGES.read_text(encoding="utf-8"), flags=re.M)[1:],
    *(f"{page.stem}\n{page.read_text(encoding='utf-8')}" for page in EXAMPLES),
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("section", [text for text in TRIED if "```" in text], ids=lambda text: text.partition("\n")[0])
def test_the_command_of_every_package_that_is_installed_is_a_plan_that_can_run(section: str, here: Path) -> None:
    found = re.search(r"^```python\n# (\w+)\.py\n(.*?)^```", section, re.M | re.S)
    own, code = found.groups() if found else ("", "")
    (line,) = re.findall(r"^marlflow train (.*)$", section, re.M)
    imported = re.findall(r"^(?:from|import) (\w+)", code, re.M)
    named = re.findall(r"(?:_target_[=:] ?|env\.id=)(\w+)", line)
    for module in {*imported, *named} - {own}:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    (here / f"{own or 'none'}.py").write_text(code, encoding="utf-8")
    assert main(["plan", *shlex.split(line)]) == 0


def test_the_code_for_each_package_is_as_long_as_the_table_says() -> None:
    table = TRIED_WITH.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[[\w-]+\]\((?:packages\.md#|examples/)([\w-]+)(?:\.md)?\) [\d.]+ \| (\d+) \|", table, re.M)
    lengths = {}
    for section in TRIED:
        found = re.search(r"^```python\n# \w+\.py\n(.*?)^```", section, re.M | re.S)
        code = found[1] if found else ""
        compile(code, section.partition("\n")[0], "exec")
        lengths[section.partition("\n")[0].lower()] = sum(
            bool(re.match(r" *[^# ]", line)) for line in code.splitlines()
        )
    assert len(rows) == 11
    assert {name: int(lines) for name, lines in rows} == {name: lengths[name] for name, _ in rows}


PLAYS = {
    "magent2": ["red_0", "red_1", "blue_0"],
    "overcooked": ["cook_0", "cook_1"],
    "pogema": ["player_0", "player_1"],
    "sumo": ["1", "2", "5", "6"],
}


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_the_settings_of_an_example_are_a_plan_that_can_run(page: Path, here: Path) -> None:
    # Its package is not installed here: cart-poles with the names of its agents stand for it.
    (here / "stand_in.py").write_text(
        "from marlflow.env.games.cartpole_team import CartPoleTeam\n\n"
        "class Team(CartPoleTeam):\n"
        "    def __init__(self, **settings):\n"
        f"        agents = {PLAYS[page.stem]}\n"
        "        super().__init__(len(agents))\n"
        "        self._envs = dict(zip(agents, self.carts))\n"
        "        self.possible_agents = agents\n\n"
        "    def step(self, actions):\n"
        "        *result, infos = super().step(actions)\n"
        "        return *result, {agent: {'shaped_reward': 0.0} for agent in infos}\n"
    )
    train, evaluate, play = re.findall(r"^marlflow .*$", page.read_text(encoding="utf-8"), re.M)
    _, _, *words = shlex.split(re.sub(r"env\._target_=\S+", "env._target_=stand_in.Team", train))
    assert main(["plan", *words]) == 0
    (run_dir,) = [word.partition("=")[2] for word in words if word.startswith("hydra.run.dir=")]
    for line, name in ((evaluate, "evaluate"), (play, "play")):
        _, command, folder, *options = shlex.split(line)
        assert (command, folder) == (name, run_dir)
        assert options
    assert (page.with_suffix(".webp")).stat().st_size < 300_000


def own_network() -> str:
    """The network on the page on policies of one's own."""
    return next(block for block in blocks(OWN_POLICY, "python") if "def build(" in block)


def test_a_network_of_ones_own_has_15_lines_and_is_planned(here: Path) -> None:
    experiment = next(block for block in blocks(OWN_POLICY, "python") if "mf.Experiment(" in block)
    (here / "layer_norm.py").write_text(own_network(), encoding="utf-8")
    assert len(own_network().splitlines()) <= 15
    assert "agent: ppo" in said_in(here, "-c", experiment)


@pytest.mark.parametrize("line", commands(CONFIGURATION))
def test_the_files_of_ones_own_on_the_page_on_configuration_can_run(
    line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("conf/policy/mine.yaml", "conf/experiment/mine.yaml", "conf/policy/remembering.yaml")
    for name, text in zip(named, blocks(CONFIGURATION, "yaml"), strict=True):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text, encoding="utf-8")
    _, _, *words = shlex.split(line)
    assert main(["plan", *words]) == 0
    said = capsys.readouterr().out
    assert "Concat(agent_steps=1000)" in said or "recurrent_ppo" in said
    assert "hunters (ppo) plays adversary_0" in said or "experiment=mine" not in line


@pytest.fixture(name="folder")
def readers_folder(here: Path) -> Path:
    """What a reader of the tutorial has after its last step."""
    tug, experiment, scaled = blocks(TUTORIAL, "python")
    tug_yaml, scaled_yaml = blocks(TUTORIAL, "yaml")
    files = {
        "tug.py": tug,
        "experiment.py": experiment,
        "scaled.py": scaled,
        "conf/env/tug.yaml": tug_yaml,
        "conf/algorithm/scaled_ppo.yaml": scaled_yaml,
    }
    for name, text in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text, encoding="utf-8")
    return here


def said_in(folder: Path, *words: str) -> str:
    """What a Python program prints, run in the reader's folder."""
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_tutorials_experiment_learns(folder: Path) -> None:
    *_, return_mean, _ = said_in(folder, "experiment.py").split()
    assert float(return_mean) > 10


def test_the_tutorials_environment_keeps_pettingzoos_rules(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert main(["check-env", "tug.Tug"]) == 0, capsys.readouterr().out


def test_the_tutorials_plan_is_a_word_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = "".join(blocks(TUTORIAL))
    (line,) = re.findall(r"^marlflow (plan .*scaled_ppo)$", shell, re.M)
    assert main(shlex.split(line)) == 0
    said = capsys.readouterr().out
    assert "red: scaled_ppo" in said
    assert "Scale(factor=0.1) → Advantages" in said


def test_the_page_on_algorithms_of_ones_own_has_three_that_run(tmp_path: Path) -> None:
    signed, cql, soft_q, experiment = blocks(OWN_ALGORITHM, "python")
    cql_yaml, soft_q_yaml = blocks(OWN_ALGORITHM, "yaml")
    files = {
        "signed.py": signed,
        "cql.py": cql,
        "soft_q.py": soft_q,
        "experiment.py": experiment,
        "conf/algorithm/cql.yaml": cql_yaml,
        "conf/algorithm/soft_q.yaml": soft_q_yaml,
        "conf/algorithm/signed_ppo.yaml": "defaults: [ppo]\n_target_: signed.SignedPPO\n",
    }
    (tmp_path / "conf" / "algorithm").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    lines = re.findall(r"^marlflow (plan|train) (.*)$", "".join(blocks(OWN_ALGORITHM)), re.M)
    assert [command for command, _ in lines] == ["plan", "train"] * 2
    planned = [["plan", *shlex.split(words)] for _, words in lines]
    planned.append([word.replace("soft_q", "signed_ppo").replace("=dqn", "=ppo") for word in planned[2]])
    planned.append([*planned[0], "policies.cart.algorithm.alpha=200"])
    program = f"""
import experiment, sys
from marlflow.cli.main import main
sys.stderr = sys.stdout
print([main(words) for words in {planned}])
"""
    said = said_in(tmp_path, "-c", program)
    assert "[0, 0, 0, 0, 0, 2]" in said
    assert "policies.cart.algorithm.alpha must be at most 100, not 200" in said
    assert "signs → Advantages" in said
    # What the experiment printed last: the plan's ratio is exact.
    (stored, updates, return_mean) = re.findall(r"^(\d+) (\d+) ([\d.]+)$", said, re.M)[-1]
    assert int(updates) == (int(stored) - 500) // 4
    assert float(return_mean) > 25


def test_the_page_on_parts_of_ones_own_has_a_part_that_runs(tmp_path: Path) -> None:
    (part,) = blocks(OWN_PART, "python")
    (tmp_path / "my_parts.py").write_text(part, encoding="utf-8")
    planned = [["plan", *shlex.split(line)[2:]] for line in commands(OWN_PART)]
    assert len(planned) == 2
    trained = ["train", *planned[1][1:], "runtime=inline", "stop.env_steps=600", "evaluation.episodes=0"]
    program = f"""
from marlflow.cli.main import main

assert [main(words) for words in {[*planned, trained]}] == [0, 0, 0]
"""
    assert "clip" in said_in(tmp_path, "-c", program)


def test_the_page_on_losses_of_ones_own_has_terms_and_losses_that_learn(tmp_path: Path) -> None:
    terms, experiment, predicting, smooth, penalized = blocks(OWN_LOSS, "python")
    (explorer,) = blocks(OWN_LOSS, "yaml")
    files = {
        "my_losses.py": terms,
        "experiment.py": experiment,
        "predicting.py": predicting,
        "smooth.py": smooth,
        "penalized.py": penalized,
        "conf/policy/explorer.yaml": explorer,
    }
    (tmp_path / "conf" / "policy").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    planned = [["plan", *shlex.split(line)[2:]] for line in commands(OWN_LOSS)]
    assert len(planned) == 2
    planned.append(["plan", "--config-dir", "conf", "env=cartpole_team", "policy@policies.cart=explorer"])
    program = f"""
import dataclasses, experiment, penalized, predicting, smooth
import marlflow as mf
from marlflow.cli.main import main

assert [main(words) for words in {planned}] == [0, 0, 0]
smooth_ppo = smooth.SmoothPPO(huber_delta=mf.Linear(2.0, 1.0, 500))
for algorithm in (predicting.algorithm, smooth_ppo, penalized.PenalizedDQN()):
    small = dataclasses.replace(algorithm, batch_agent_steps=200)
    run = dataclasses.replace(
        experiment.experiment, policies={{"cart": mf.Policy(small)}}, stop=mf.Stop(env_steps=1_200),
        evaluation=mf.Evaluation(episodes=0, final_episodes=0),
    )
    print("terms", *mf.train(run).metrics["learners"]["cart"]["loss"])
"""
    said = said_in(tmp_path, "-c", program)
    reported = [{*line.split()[1:]} for line in said.splitlines() if line.startswith("terms")]
    assert [own <= terms for own, terms in zip([{"reward"}, {"outliers"}, {"penalty"}], reported, strict=True)] == [
        True
    ] * 3
    # What the experiment printed: a distance from the floor.
    assert 0.0 <= float(re.findall(r"^([\d.e-]+)$", said, re.M)[0]) <= 0.5


def test_the_callback_with_metrics_of_the_page_on_tracking_adds_them_and_evaluates(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(TRACKING, "python") if "class Records" in block)
    names: dict[str, Any] = {"mf": mf}
    exec(block, names)
    log = mf.Log(every_env_steps=200, console="none", tensorboard=False)
    experiment = small_run(env_steps=2_000, log=log, evaluation=mf.Evaluation(10_000, 2))
    callbacks = {"records": names["Records"]("prey"), "evaluations": Evaluations()}
    result = mf.train(replace(experiment, callbacks=callbacks), tmp_path)
    records = result.metrics["callbacks"]["records"]
    assert records["count"] >= 1
    assert records["best"] >= result.metrics["policies"]["prey"]["return_mean"]
    # The first and the last are made in any case.
    assert result.metrics["callbacks"]["evaluations"]["count"] > 2


class Evaluations(mf.Callback):
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def evaluated(self, evaluation: mf.EvaluationEvent) -> None:
        self.count += 1

    def metrics(self) -> dict[str, float | None]:
        return {"count": self.count}
