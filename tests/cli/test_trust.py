"""A run's folder names code: `resume` imports that of a folder which is not this user's own only with --trust."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlflow.config.trust import SIGNATURE, is_own, signed
from tests.cli.conftest import Marlflow
from tests.cli.test_train import SHORT

MODULE = "named_by_a_run"
OWN_ENVIRONMENT = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
from marlflow.env.games.cartpole_team import parallel_env
"""
SETTINGS = [word for word in SHORT if not word.startswith("env=")]


@pytest.fixture
def run(marlflow: Marlflow, tmp_path: Path) -> Iterator[Path]:
    """A run with an environment of the user's own, whose module has not been imported since."""
    (tmp_path / f"{MODULE}.py").write_text(OWN_ENVIRONMENT, encoding="utf-8")
    words = ("env=python", f"env._target_={MODULE}.parallel_env", *SETTINGS, "hydra.run.dir=run")
    assert marlflow("train", *words).code == 0
    forget(tmp_path)
    yield tmp_path / "run"
    forget(tmp_path)


def forget(folder: Path) -> None:
    sys.modules.pop(MODULE, None)
    (folder / "imported").unlink(missing_ok=True)


def was_imported(run: Path) -> bool:
    return (run.parent / "imported").exists() or MODULE in sys.modules


def change(run: Path, old: str, new: str) -> None:
    overrides = run / ".hydra" / "overrides.yaml"
    text = overrides.read_text(encoding="utf-8")
    assert old in text
    overrides.write_text(text.replace(old, new), encoding="utf-8")


def test_a_run_of_ones_own_goes_on_and_says_what_it_imports(marlflow: Marlflow, run: Path) -> None:
    assert is_own(run)
    said = marlflow("resume", "run", "stop.env_steps=600")
    assert (said.code, said.err) == (0, "")
    assert f"importing {MODULE}.parallel_env" in said.out.splitlines()
    assert was_imported(run)
    assert is_own(run), "with the configuration that it goes on with"


def test_a_configuration_that_was_changed_names_what_it_would_import_and_imports_nothing(
    marlflow: Marlflow, run: Path
) -> None:
    change(run, f"{MODULE}.parallel_env", "os.system")
    said = marlflow("resume", "run")
    assert said.code == 2
    assert "elsewhere: env._target_='os.system'; look at it" in said.err
    assert "if you trust it add --trust" in said.err


@pytest.mark.parametrize("left", ["", "0" * 64])
def test_a_folder_that_is_not_signed_by_this_user_goes_on_with_trust_only(
    marlflow: Marlflow, run: Path, left: str
) -> None:
    (run / SIGNATURE).write_text(left, encoding="utf-8")
    said = marlflow("resume", "run", "stop.env_steps=600")
    assert said.code == 2
    assert f"elsewhere: env._target_='{MODULE}.parallel_env'" in said.err
    assert not was_imported(run)
    assert marlflow("resume", "--trust", "run", "stop.env_steps=600").code == 0
    assert was_imported(run)
    assert is_own(run), "from now on"


def test_settings_of_hydra_in_such_a_folder_are_not_even_composed(marlflow: Marlflow, run: Path) -> None:
    change(run, "- env=python", "- env=python\n- +hydra.callbacks.mine._target_=os.abort")
    said = marlflow("resume", "run")
    assert said.code == 2
    assert "elsewhere: +hydra.callbacks.mine._target_=os.abort" in said.err


def test_functions_that_a_setting_names_are_found_too(marlflow: Marlflow, run: Path) -> None:
    change(
        run, "- env=python", "- env=python\n- policy@policies.cart=scripted\n- policies.cart.algorithm.choose=os.abort"
    )
    change(run, f"{MODULE}.parallel_env", "marlflow.env.games.cartpole_team.parallel_env")
    said = marlflow("resume", "run")
    assert said.code == 2
    assert "elsewhere: policies.cart.algorithm.choose='os.abort';" in said.err


def test_a_folder_that_names_marlflow_alone_needs_no_trust(marlflow: Marlflow, tmp_path: Path) -> None:
    assert marlflow("train", *SHORT, "hydra.run.dir=run").code == 0
    (tmp_path / "run" / SIGNATURE).unlink()
    said = marlflow("resume", "run", "stop.env_steps=600")
    assert (said.code, said.err) == (0, "")
    assert "importing" not in said.out


def test_the_key_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {f".hydra/{name}.yaml": name for name in ("config", "hydra", "overrides")}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = signed(contents)
    (key,) = (tmp_path / "marlflow").iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert signed(contents) == first
    assert signed({**contents, ".hydra/hydra.yaml": "other"})[SIGNATURE] != first[SIGNATURE]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert signed(contents)[SIGNATURE] != first[SIGNATURE]


def test_where_there_is_no_place_for_a_key_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    contents = {f".hydra/{name}.yaml": name for name in ("config", "hydra", "overrides")}
    assert signed(contents) == contents


def test_files_of_a_run_have_the_users_umask(marlflow: Marlflow, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert marlflow("train", *SHORT, "hydra.run.dir=run", "record={}").code == 0
    finally:
        os.umask(before)
    made = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert len(made) > 10
    assert [str(path) for path in made if path.stat().st_mode & 0o077] == []
