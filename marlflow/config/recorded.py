"""The experiment in a run's folder: recorded when the run starts, and built again from that.

`experiment.json` describes it as plain data. `run.json` has the folder that the run was started in, what cannot be
built again, and the signature of the user who started it: a configuration names code, which is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import is_signed, signature_of
from marlflow.base.public_names import with_current_names
from marlflow.config.description import describe
from marlflow.config.experiment import Experiment
from marlflow.config.other_environment import OtherEnv, in_env, is_needed, values_for
from marlflow.config.records import with_absolute_records
from marlflow.config.renamed import with_parts
from marlflow.config.schema import read_values
from marlflow.config.target_nodes import TARGET
from marlflow.config.trust import UNSIGNED, listed, refusal, untrusted
from marlflow.env.factories import comes_with_an_extra
from marlflow.learner.extra_losses import EXTRA_LOSSES, without_extra_losses
from marlflow.runs.saved_runs import EXPERIMENT

RUN: Final = "run.json"
FORMAT: Final = "marlflow run 1"
# Sections that only training needs: what they name need not be installed where a policy is used.
_ONLY_TRAINING = ("callbacks", "log", "objective", "record")
# Sections that say where processes run: of others, this user's own apply.
_OF_A_PLACE = ("runtime",)
_QUOTE = "'"
_ASKED = "pass the experiment itself: mf.load(run, experiment=...)"


def record(experiment: Experiment) -> dict[str, str]:
    """Return the files that record an experiment, by name."""
    description = describe(_as_configured(experiment))
    text = json.dumps(description.values, indent=1) + "\n"
    about = {"format": FORMAT, "started_in": str(Path.cwd()), "lost": list(description.lost)}
    signature = signature_of(_signed_content(text, about))
    return {EXPERIMENT: text, RUN: json.dumps({**about, "signature": signature}, indent=1) + "\n"}


def unrecorded(experiment: Experiment) -> list[str]:
    """Return why the record of `experiment` will not be enough to act with its policies; empty if it will be."""
    return list(_needed(describe(_as_configured(experiment)).lost))


def _needed(lost: Iterable[str]) -> Iterator[str]:
    kept = (one for one in lost if f".algorithm.{EXTRA_LOSSES}." not in one)
    return (one for one in kept if not one.startswith(_ONLY_TRAINING))


def _as_configured(experiment: Experiment) -> Experiment:
    """Return an experiment whose learners' policies have no algorithm of their own, as it may be checked again."""
    listed = {name for learner in experiment.learners.values() for name in learner.policies}
    policies = {
        name: replace(policy, algorithm=None) if name in listed else policy
        for name, policy in experiment.policies.items()
    }
    return replace(experiment, policies=policies)


def _signed_content(text: str, about: Mapping[str, Any]) -> bytes:
    return json.dumps([text, *(about.get(key) for key in ("format", "started_in", "lost"))]).encode()


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The record that a run wrote when it started.

    `started_in` is the folder whose modules it may import, and where its relative paths begin; None if the files are
    not this user's own.
    """

    values: Mapping[str, Any]
    lost: tuple[str, ...]
    started_in: Path | None

    @property
    def is_own(self) -> bool:
        """Whether this user recorded it, and it has not been changed since."""
        return self.started_in is not None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work in the folder that the run was started in, and find its modules there."""
        with working_in(self.started_in):
            yield


def recorded_run(run_dir: Path) -> RecordedRun:
    """Read what a run recorded; raises ConfigInvalid if it is not there or damaged."""
    path = run_dir / EXPERIMENT
    if not path.is_file():
        raise ConfigInvalid([f"{run_dir} has no {EXPERIMENT}, the record of its experiment; {_ASKED}"])
    text, values = _read(path)
    about = _read(run_dir / RUN)[1] if (run_dir / RUN).is_file() else {}
    is_own = is_signed(_signed_content(text, about), about.get("signature"))
    lost = tuple(str(one) for one in about.get("lost") or ())
    return RecordedRun(with_current_names(values), lost, Path(about["started_in"]) if is_own else None)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigInvalid([f"{path} cannot be read: {error}; put it back as the run left it, or {_ASKED}"]) from error
    return text, values


def recorded_experiment(
    run_dir: Path, recorded: RecordedRun, trust: Collection[str] | None, env: OtherEnv = None
) -> Experiment:
    """Build the experiment of a run again, without what only training needs; call it while `recorded.working()`.

    `env` is another environment, or settings that replace recorded ones, by name, such as `arguments.penalty`.

    If the record is not this user's own, what is none of marlflow's parts is imported only if it is in `trust` (None:
    any). Raises ConfigInvalid with every problem.
    """
    needed = values_for(_without_training(recorded.values), env)
    if not recorded.is_own:
        needed = {key: value for key, value in needed.items() if key not in _OF_A_PLACE}
        if found := untrusted(needed, trust):
            remedy = f"give trust={listed(found, _QUOTE)}, on the command line --trust"
            raise ConfigInvalid([refusal(f"{run_dir} {UNSIGNED}", found, remedy)])
    if lost := [one for one in _needed(recorded.lost) if is_needed(one, env)]:
        reason = f"{'; '.join(lost)}; write it in a module, or {_ASKED}"
        raise ConfigInvalid([f"the experiment of {run_dir} cannot be built from its {EXPERIMENT}: {reason}"])
    check_modules(needed, recorded.started_in)
    problems: list[str] = []
    experiment = read_values(needed, problems)
    if problems or experiment is None:
        changed = (
            f", with {', '.join(f'env.{name}' for name in env)} changed" if env and isinstance(env, Mapping) else ""
        )
        raise ConfigInvalid([f"{run_dir / EXPERIMENT}{changed}: {problem}" for problem in problems])
    # Relative to the folder that the run was started in, which others do not work in.
    return in_env(replace(experiment, env=with_absolute_records(experiment.env, trust)), env)


def _without_training(values: Any) -> Any:
    """Return a recorded experiment without the sections, and the extra losses, that only training needs."""
    needed = {key: value for key, value in values.items() if key not in _ONLY_TRAINING}
    for section in ("policies", "learners"):
        if isinstance(entries := needed.get(section), Mapping):
            needed[section] = {name: with_parts(without_extra_losses(entry)) for name, entry in entries.items()}
    if "default_policy" in needed:
        needed["default_policy"] = with_parts(without_extra_losses(needed["default_policy"]))
    return needed


@contextmanager
def working_in(folder: Path | None) -> Iterator[None]:
    """Work in a folder, if it is there, and find its modules from now on."""
    if folder is None or not folder.is_dir():
        yield
        return
    with chdir(folder):
        # Each process of Ray gets this path too.
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        yield


def check_modules(values: Any, started_in: Path | None) -> None:
    """Raise ConfigInvalid, naming the folder to start from, if a module that a run names is not found."""
    lost = sorted({module for module in _modules(values) if not _is_there(module)})
    if lost:
        gone = "" if started_in is not None and started_in.is_dir() else ", which is not there any more"
        where = "" if started_in is None else f"; it was started in {started_in}{gone}"
        raise ConfigInvalid(
            [
                f"this run needs {'module' if len(lost) == 1 else 'modules'} {', '.join(lost)}, which cannot be found"
                f"{where}: work in the folder that has it, or set PYTHONPATH as then"
            ]
        )


def _modules(values: Any) -> Iterator[str]:
    """Yield the top-level module of every `_target_` in a configuration."""
    if isinstance(values, Mapping):
        if isinstance(target := values.get(TARGET), str) and "." in target:
            yield target.partition(".")[0]
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from _modules(value)


def _is_there(module: str) -> bool:
    try:
        return not module.isidentifier() or comes_with_an_extra(module) or find_spec(module) is not None
    except ValueError:  # it is in sys.modules without a spec, as __main__ is
        return True
