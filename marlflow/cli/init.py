"""`marlflow init`: a folder with an environment, its configuration, a test and a notebook, as a start."""

from __future__ import annotations

import json
import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.options import Arguments, Command, Option

_SUFFIX = ".template"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def run_init(arguments: Arguments) -> int:
    """Write the folder and say what to do in it; return 0. Raises ConfigInvalid before anything is written."""
    name = arguments.operands[0]
    folder = Path(arguments["folder"] or name)
    if problems := [*_name_problems(name), *_folder_problems(folder)]:
        raise ConfigInvalid(problems)
    texts = _texts(name, arguments["kind"])
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid([f"{folder} cannot be written: {error}; choose another with folder=<folder>"]) from error
    width = max(map(len, texts))
    print("\n".join([f"wrote {folder}:", *(f"  {path:<{width}}  {_ABOUT[_template(path, name)]}" for path in texts)]))
    print(
        f"\nnext:\n  cd {folder}\n{_INSTALL_PYTEST}  pytest\n  marlflow train --config-dir conf experiment={name}\n"
        f"and put your own game into {name}.py"
    )
    return 0


def _name_problems(name: str) -> list[str]:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        return [f"{name!r} cannot be the name of a module; take small letters, digits and _, such as my_game"]
    from marlflow.config.comments import names

    if name in names("env") or name in names("experiment"):
        return [f"marlflow has {name!r} already, so env={name} would mean two things; choose another name"]
    # A folder without code is a namespace package, which hides nothing.
    if (spec := find_spec(name)) is not None and spec.origin is not None:
        return [f"there is a module {name!r} already, which the environment would hide; choose another name"]
    return []


def _folder_problems(folder: Path) -> list[str]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return [f"there is something in {folder} already; choose another with folder=<folder>, or another name"]
    return []


_INSTALL_PYTEST = "" if find_spec("pytest") else "  pip install pytest\n"
_ABOUT = {
    "README.md": "what is what, and the commands",
    "project.py": "the environment",
    "conf/env/project.yaml": "its arguments",
    "conf/experiment/project.yaml": "a whole run",
    "test_project.py": "its tests, for pytest",
    "project.ipynb": "training and its curve in a notebook",
}


# How the notebook plays an episode of `env` by `team`, and collects `frames`.
_EPISODE = {
    "parallel": """\
observations, infos = env.reset(seed=0)
frames = [env.render()]
while env.agents:
    actions = {agent: team.act(agent, observations[agent], infos[agent]) for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(actions)
    frames.append(env.render())
""",
    "aec": """\
env.reset(seed=0)
frames = [env.render()]
for agent in env.agent_iter():
    observation, reward, terminated, truncated, info = env.last()
    env.step(None if terminated or truncated else team.act(agent, observation, info))
    frames.append(env.render())
""",
}


def _template(path: str, name: str) -> str:
    return re.sub(rf"\b(test_)?{name}\.", r"\1project.", path)


def _texts(name: str, kind: str) -> dict[str, str]:
    """Return the texts of the folder by path."""
    words = name.split("_")
    marks = {"name": name, "class": "".join(map(str.capitalize, words)), "title": " ".join(words).capitalize()}
    # Within a string of the notebook's JSON.
    marks["episode"] = json.dumps(_EPISODE[kind]).strip('"').replace("\\n", '\\n",\n    "')
    texts = {}
    templates: Any = files("marlflow.cli").joinpath("templates")
    for template in _ABOUT:
        of_kind = templates.joinpath(kind, template + _SUFFIX)
        text = (of_kind if of_kind.is_file() else templates.joinpath(template + _SUFFIX)).read_text(encoding="utf-8")
        for mark, value in marks.items():
            text = text.replace(f"{{{{{mark}}}}}", value)
        texts[template.replace("project", name)] = text
    return texts


COMMAND = Command(
    "init",
    run_init,
    (
        Option("folder", "the folder to write; by default one named NAME, here", value="FOLDER"),
        Option(
            "kind",
            "parallel: two agents act at once (a ParallelEnv); aec: three players act in turn, with action masks and "
            "observations of several parts (an AECEnv)",
            default="parallel",
            choices=("parallel", "aec"),
        ),
    ),
    """
Writes a folder with a small environment, its configuration, a run, tests by check-env, and a notebook. All of it
works as it is; replace the game by your own.
""",
    ("my_game", "my_game kind=aec folder=projects/my_game"),
    operands="NAME",
)
