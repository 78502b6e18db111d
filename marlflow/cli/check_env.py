"""The command `marlflow check-env`: its options, and printing its report."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys

from rich.console import Console

from marlflow.base.errors import ConfigInvalid, Problems
from marlflow.check_env import BUDGET_S, Trial, check_environment
from marlflow.check_env.report import show
from marlflow.cli.arguments import CONFIG_DIR, EPISODES, JSON, SECONDS, Words, split
from marlflow.cli.job import ALL_OUTPUT, output_shown, prepared
from marlflow.cli.progress import shown_progress
from marlflow.config.schema import read
from marlflow.config.settings import setting_problems
from marlflow.env.episode_location import their_frames

_EXAMPLES = "marlflow check-env connect_four, or marlflow check-env my_module.make_env"


def run_check_env(words: list[str]) -> int:
    """Print the report; return 0 if the environment is ready, else 1. Raises InvalidInput."""
    parsed = split(words, "check-env", own=[JSON, ALL_OUTPUT], own_with_value=[EPISODES, SECONDS], hydra=False)
    parsed.overrides = _env_override(parsed.overrides)
    trial = _run_trial(parsed, _whole_number(parsed, EPISODES, 200), _whole_number(parsed, SECONDS, BUDGET_S))
    if JSON in parsed.own_flags:
        print(json.dumps({"ready": trial.ready, **dataclasses.asdict(trial)}, indent=2))
    else:
        show(trial, Console(highlight=False))
        if trial.ready:
            folders = [word for folder in parsed.config_dirs for word in (CONFIG_DIR, folder)]
            print(f"next: marlflow train {shlex.join([*folders, *parsed.overrides, *_model(trial)])}")
    return 0 if trial.ready else 1


def _model(trial: Trial) -> list[str]:
    # The default model is for numbers.
    return ["model@default_policy.model=cnn"] if trial.speed is not None and "CNN" in trial.speed.networks else []


def _env_override(words: list[str]) -> list[str]:
    """Turn a bare argument into an override: an environment's name, with dots an import path, with a slash an id."""
    named = [word for word in words if "=" not in word and not word.startswith("~")]
    if len(named) > 1:
        raise ConfigInvalid([f"check-env tries one environment at a time, not {' and '.join(named)}"])
    if not named:
        if not any(word.startswith(("env=", "+env=")) for word in words):
            raise ConfigInvalid([f"check-env needs an environment: {_EXAMPLES}"])
        return words
    name = named[0]
    if "/" in name:
        env = ["env=pettingzoo", f"env.id={name}"]
    else:
        env = ["env=python", f"env._target_={name}"] if "." in name else [f"env={name}"]
    return [*env, *(word for word in words if word != name)]


def _whole_number(words: Words, flag: str, default: int) -> int:
    text = words.own_values.get(flag, str(default))
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        expected = "of at most 9 digits" if len(text) > 9 else "of at least 1"
        raise ConfigInvalid([f"{flag} must be a whole number {expected}, not {text!r:.60}"])
    return int(text)


def _run_trial(words: Words, episodes: int, seconds: int) -> Trial:
    job = prepared(words)
    sentences = list(job.problems)
    experiment = read(job.config, sentences)
    problems: Problems = list(sentences)
    if experiment is not None:
        problems += setting_problems(experiment.env, "env")
    if problems or experiment is None:
        raise ConfigInvalid(problems)
    try:
        with shown_progress(), output_shown(words):
            return check_environment(experiment.env, episodes, experiment.seed, seconds)
    except KeyboardInterrupt as interrupted:
        # An environment that hangs is the usual reason for Ctrl-C here, so say where it was.
        frames = their_frames(interrupted)
        if frames:
            print(f"in {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}", file=sys.stderr)
        raise
