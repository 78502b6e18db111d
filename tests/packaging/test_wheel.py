"""A wheel, built from an sdist, installed away from the checkout, has all that a user needs to train.

Nothing is downloaded, so that this takes a minute and no network:
- `python -m build --no-isolation` builds with the setuptools of the running environment.
- The new environment is empty but for the wheel. What marlflow depends on it finds through a .pth file that names the
  running environment's site-packages. Python reads no .pth file of a folder that was itself named by one, and an
  editable marlflow is nothing but a .pth file: so it stays out of sight, which a test holds.
"""

import json
import re
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import marlflow
from tests.architecture.sources import REPOSITORY, repository_files, within
from tests.packaging.commands import run

pytestmark = pytest.mark.slow

CONF = REPOSITORY / "conf"


def _yaml_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml")}


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel and, through a .pth file, what it depends on."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    run([*pip, str(wheel)], cwd=environment)
    site_packages = Path(
        run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], environment).strip()
    )
    named = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(named)) + "\n", encoding="utf-8")
    return environment / "bin"


def test_sdist_and_wheel_hold_every_configuration_file(built: Path) -> None:
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    expected = _yaml_of(CONF)
    assert expected, "conf/ has no configuration files"
    assert {f"conf/{name}" for name in expected} <= in_sdist
    assert {f"marlflow/conf/{name}" for name in expected} <= in_wheel
    assert "marlflow/py.typed" in in_wheel
    templates = REPOSITORY / "marlflow" / "html_report" / "templates"
    assert {within(path) for path in templates.iterdir()} <= in_sdist & in_wheel
    top_level = {name.partition("/")[0] for name in in_wheel}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {"marlflow"}


def test_the_description_links_to_nothing_that_a_package_index_lacks(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert "marlflow train experiment=cartpole_team_ppo_dqn" in text
    assert not re.findall(r"\]\((?!https?:|#).*?\)", text)


_WHERE = """
import importlib.resources, json, marlflow
conf = importlib.resources.files("marlflow.conf")
print(json.dumps([marlflow.__file__, str(conf)]))
"""


def test_the_wheel_is_what_is_imported_and_has_its_configuration(installed: Path, tmp_path: Path) -> None:
    package, conf = json.loads(run([str(installed / "python"), "-c", _WHERE], cwd=tmp_path))
    environment = installed.parent
    assert Path(package).is_relative_to(environment), f"marlflow was imported from {package}, not from {environment}"
    assert Path(conf).is_relative_to(environment)
    assert _yaml_of(Path(conf)) == _yaml_of(CONF)


def test_this_environment_finds_the_configuration_too() -> None:
    """The tests run on an editable install; there `marlflow.conf` is the checkout's conf/."""
    output = run([sys.executable, "-c", _WHERE], cwd=Path(sys.prefix))
    assert [Path(path) for path in json.loads(output)] == [REPOSITORY / "marlflow" / "__init__.py", CONF]


_PLANS = """
import sys
from marlflow.cli.main import main
for line in sys.argv[1:]:
    print(f"-- {line}: {main(['plan', *line.split()])}", flush=True)
"""


def test_what_ships_can_be_planned(installed: Path, tmp_path: Path) -> None:
    """One of each kind of environment: that the wheel has every file, and each file is right, other tests hold."""
    experiments = [
        f"experiment={name}" for name in ("cartpole_team_ppo_dqn", "pendulum_team_sac", "cartpole_family_maml")
    ]
    environments = ["env=connect_four", "env=simple_tag wrappers=[padding,agent_indicator]", "env=openspiel"]
    overrides = experiments + environments
    said = run([str(installed / "python"), "-c", _PLANS, *overrides], cwd=tmp_path)
    for override in overrides:
        plan, ended, said = said.partition(f"-- {override}: 0\n")
        assert ended, f"{override} has no plan:\n{plan}"
        assert plan.strip(), f"{override} printed nothing"


def test_training_from_the_wheel_leaves_metrics(installed: Path, tmp_path: Path) -> None:
    overrides = ["runtime=inline", "stop.env_steps=2000", "log.every_env_steps=500", "env.num_envs=4"]
    folder = tmp_path / "run"
    run([str(installed / "marlflow"), "train", *overrides, f"hydra.run.dir={folder}"], cwd=tmp_path)
    reports = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert reports, "metrics.jsonl is empty"
    assert reports[-1]["env_steps"] >= 2000


def test_the_citation_and_the_changelog_name_this_version_and_its_day() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (marlflow.__version__, "MIT")
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d\S*)\] - (\S+)$", changelog, re.M)
    assert released[0] == (citation["version"], citation["date-released"])


def test_the_sdist_has_all_files_of_the_source_folder(built: Path) -> None:
    """Its tests run and its pages are built; of continuous integration and Git it has nothing."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    expected = {within(path) for path in repository_files() if not path.is_symlink()}
    assert {name for name in expected - in_sdist if not name.startswith(".")} == set()
    assert not [name for name in in_sdist if name.endswith(".pyc")]


def test_sdist_and_wheel_hold_the_templates_of_init(built: Path) -> None:
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    templates = {path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("marlflow/**/*.template")}
    assert len(templates) == 8
    assert templates <= in_sdist
    assert templates <= set(zipfile.ZipFile(wheel).namelist())
