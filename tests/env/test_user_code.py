"""An error inside a user's code or a package is told from a name or an argument that does not fit, with its line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.config.construct import build
from marlflow.config.environment import environment_maker, opened
from marlflow.env.user_code import does_not_fit

INSIDE = {
    "a type error": ("return None + 1", "TypeError: unsupported operand"),
    "a call of its own that does not fit": ("return len()", "TypeError: len() takes exactly one argument"),
    "a keyword of its own that does not fit": ("return dict.fromkeys(seed=3)", "TypeError: dict.fromkeys() takes no"),
    "an import that fails": ("from os import nothing_such", "ImportError: cannot import name 'nothing_such'"),
    "a package that is not there": ("import nothing_such", "ModuleNotFoundError: No module named 'nothing_such'"),
    "a key error": ("return {}['SUMO_HOME']", "KeyError: 'SUMO_HOME'"),
    "an exit": ("raise SystemExit('please declare SUMO_HOME')", "SystemExit: please declare SUMO_HOME"),
    "no text": ("raise RuntimeError", "RuntimeError"),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write a module `written`, or one of a package, and make it importable."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str, name: str = "written") -> Path:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in ("written", "site-packages", "package")]:
        del sys.modules[name]


def _problem_of_env(target: str, **arguments: Any) -> str:
    env = mf.Env(target, arguments)
    with pytest.raises(mf.ConfigInvalid) as refused, opened(environment_maker(env), env):
        pass
    (problem,) = refused.value.problems
    return problem


def _problem_of_part(target: str, **settings: Any) -> str:
    problems: list[str] = []
    build({"_target_": target, **settings}, "part", problems)
    (problem,) = problems
    return problem


@pytest.mark.parametrize(("body", "error"), INSIDE.values(), ids=INSIDE)
@pytest.mark.parametrize("say", [_problem_of_env, _problem_of_part], ids=["env", "part"])
def test_an_error_inside_a_factory_has_its_own_line(module: Any, say: Any, body: str, error: str) -> None:
    path = module(f"def make(size):\n    {body}\n")
    problem = say("written.make", size=5)
    assert error in problem
    assert "does not take" not in problem
    assert f'File "{path}", line 2, in make\n    {body}' in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def make(width): ...", "got an unexpected keyword argument 'size'"),
        ("def make(size, /): ...", "positional-only"),
        ("class make:\n    def __init__(self, width): ...", "got an unexpected keyword argument 'size'"),
        ("def make(**given): return _raw(**given)\ndef _raw(width): ...", "unexpected keyword argument 'size'"),
        ("class Make:\n    def __call__(self, width): ...\nmake = Make()", "unexpected keyword argument 'size'"),
        ("make = dict.fromkeys", "takes no keyword arguments"),
    ],
    ids=["function", "positional", "class", "passed on", "object", "builtin"],
)
def test_arguments_that_do_not_fit_a_factory(module: Any, text: str, expected: str) -> None:
    module(text)
    problem = _problem_of_env("written.make", size=5)
    assert problem.startswith("environment written.make does not take size=5: ")
    assert expected in problem


IMPORTS = {
    "a name that a package of it does not have": (
        "from os import agent_selector",
        "ImportError: cannot import name 'agent_selector' from 'os'",
    ),
    "a package that it needs": ("import nothing_such.games", "No module named 'nothing_such'"),
    "a variable that it needs": (
        "raise ImportError('please declare the environment variable SUMO_HOME')",
        "ImportError: please declare the environment variable SUMO_HOME",
    ),
    "an attribute that numpy has not any more": (
        "import os; os.bool8",
        "AttributeError: module 'os' has no attribute 'bool8'",
    ),
    "an exit": ("import sys; sys.exit('please declare SUMO_HOME')", "SystemExit: please declare SUMO_HOME"),
}


@pytest.mark.parametrize(("line", "error"), IMPORTS.values(), ids=IMPORTS)
@pytest.mark.parametrize("say", [_problem_of_env, _problem_of_part], ids=["env", "part"])
@pytest.mark.parametrize("name", ["written", "package.inner"])
def test_an_error_in_a_modules_import_has_its_own_line(module: Any, say: Any, line: str, error: str, name: str) -> None:
    path = module(f"\n{line}\ndef make(size): ...\n", name)
    problem = say(f"{name}.make", size=5)
    assert f"{name}.make cannot be imported: {error}" in problem
    assert f'File "{path}", line 2, in <module>' in problem
    assert problem.count("File ") == 1
    assert "installed" not in problem


def test_a_syntax_error_is_shown_where_it_is(module: Any) -> None:
    path = module("def make(size) ...\n")
    for problem in (_problem_of_env("written.make", size=5), _problem_of_part("written.make", size=5)):
        assert "written.make cannot be imported: SyntaxError: expected ':'" in problem
        assert f'\n  File "{path}", line 1\n    def make(size) ...\n' in problem
        assert "importlib" not in problem


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("writen.make", "writen.make cannot be imported: No module named 'writen'"),
        ("written.maek", "module written has no 'maek'; did you mean 'make'?"),
        ("written.inner.make", "No module named 'written.inner'; 'written' is not a package"),
    ],
)
def test_a_name_that_is_not_there_has_no_line(module: Any, name: str, expected: str) -> None:
    module("def make(size): ...")
    for problem in (_problem_of_env(name), _problem_of_part(name)):
        assert expected in problem
        assert "File" not in problem


@pytest.mark.parametrize("name", ["..a", "a..b", ".", "a.", "a.b c", "a.b\n"])
def test_what_is_no_import_path(name: str) -> None:
    assert "import path" in _problem_of_part(name)
    assert "is not an import path" in _problem_of_env(name)


def test_a_wrapper_that_raises_has_its_own_line(module: Any) -> None:
    path = module("def wrap(env, size):\n    return None + size\n")
    with pytest.raises(mf.ConfigInvalid) as refused:
        environment_maker(
            mf.Env(
                "marlflow.env.games.cartpole_team.parallel_env",
                wrappers=[lambda env: __import__("written").wrap(env, 1)],
            )
        )()
    assert "raised TypeError: unsupported operand" in str(refused.value)
    assert f'File "{path}", line 2, in wrap' in str(refused.value)


def test_an_optimizer_that_raises_inside_is_not_one_that_refuses_its_settings(module: Any) -> None:
    path = module("def steps(parameters, lr, momentum):\n    return None + lr\n")
    from written import steps  # type: ignore[import-not-found]

    with pytest.raises(mf.ConfigInvalid, match=r"optimizer steps raised TypeError: unsupported operand") as refused:
        mf.TorchOptimizer(steps, {"momentum": 0.5})
    assert f'File "{path}", line 2, in steps' in str(refused.value)
    with pytest.raises(mf.ConfigInvalid, match=r"optimizer steps does not take these values: .*'nesterov'"):
        mf.TorchOptimizer(steps, {"nesterov": True})


def test_only_type_errors_are_about_arguments() -> None:
    assert not does_not_fit(dict.fromkeys, ValueError("an unexpected keyword argument 'size'"), (), {"size": 5})
