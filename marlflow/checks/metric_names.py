"""Check the metrics that an experiment names: its objective, its best checkpoint, its goals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from marlflow.base.info_columns import COST, USUAL
from marlflow.base.sentences import meant, nearest
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
from marlflow.config.policy_assignment import learners_of
from marlflow.observe.callback import Callback
from marlflow.observe.early_stop import EarlyStop
from marlflow.observe.population import PopulationBasedTraining
from marlflow.observe.report import INFOS, LearnerMetrics, PolicyMetrics, Report, owner_in

# Fields of reports that are not single numbers.
_NOT_METRICS = ("eval_mode", "eval_against", "infos_unattributed", "schedules", "loss", *INFOS)
_METRICS = {
    "policies": tuple(name for name in PolicyMetrics.__annotations__ if name not in _NOT_METRICS),
    "learners": tuple(name for name in LearnerMetrics.__annotations__ if name not in _NOT_METRICS),
}
_SINGULAR = {"policies": "policy", "learners": "learner"}


def goal_problems(experiment: Experiment, policies: Mapping[str, Policy] | None) -> Iterator[str]:
    """Yield a problem for each metric that no report has; `policies` None: not known yet."""
    known = (
        {} if policies is None else {"policies": list(policies), "learners": list(learners_of(experiment, policies))}
    )
    metrics = {f"stop.policies.{name}": ("policies", name) for name in experiment.stop.policies}
    for key, objective in {"objective": experiment.objective, "checkpoint.best": experiment.checkpoint.best}.items():
        if objective is None:
            continue
        section, _, rest = objective.partition(".")
        name, _, figure = rest.rpartition(".")
        if section == "callbacks":
            yield from (f"{key} {objective}: {problem}" for problem in _callback_problems(experiment, name, figure))
            continue
        # A figure of infos, such as policies.team.infos.won, has a name that only the run knows.
        of_infos = section == "policies" and name.endswith(tuple(f".{one}" for one in INFOS))
        if of_infos:
            name = name.rpartition(".")[0]
        if section not in _METRICS or not name:
            yield (
                f"{key} must be policies.<id>.return_mean, or another figure of a policy, a learner or a callback, not "
                f"{objective!r}"
            )
            continue
        metrics[f"{key} {objective}"] = section, name
        problems = _infos_problems(experiment, figure) if of_infos else _problems(experiment, section, name, figure)
        yield from (f"{key} {objective}: {problem}" for problem in problems)
    for path, (section, name) in metrics.items():
        if section in known and name not in known[section]:
            suggestion = meant(name, known[section], f"the {section} are")
            yield f"{path}: there is no {_SINGULAR[section]} {name!r}{suggestion}"
    yield from _of_callbacks(experiment, known)


def _of_callbacks(experiment: Experiment, known: Mapping[str, Collection[str]]) -> Iterator[str]:
    for name, callback in experiment.callbacks.items():
        if isinstance(callback, EarlyStop | PopulationBasedTraining) and isinstance(callback.metric, str):
            key = f"callbacks.{name}.metric {callback.metric}"
            # A population has one path for each policy, and the first that is wrong says enough.
            paths = [callback.metric] if isinstance(callback, EarlyStop) else callback.metric_paths()
            found = (list(_path_problems(experiment, key, path, known)) for path in paths)
            yield from next((problems for problems in found if problems), [])
            if isinstance(callback, PopulationBasedTraining):
                yield from _rare_problems(experiment, f"callbacks.{name}", callback.metric, callback.every_env_steps)


def _rare_problems(experiment: Experiment, path: str, metric: str, every: int) -> Iterator[str]:
    """Yield why a population would be compared without a new value of its metric."""
    asked = {"log.every_env_steps": experiment.log.every_env_steps}
    if metric.startswith("eval_"):
        asked["evaluation.every_env_steps"] = experiment.evaluation.every_env_steps
    for key, comes in asked.items():
        if comes > every:
            yield (
                f"{path} compares {metric} every {every:,} env steps, and new values come every {comes:,}; set "
                f"{key}={every}, or a longer {path}.every_env_steps"
            )


def _path_problems(
    experiment: Experiment, key: str, metric: str, known: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """Yield why no report has the path `metric`, as far as that is known before the run."""
    section, *parts = metric.split(".")
    if section not in Report.__annotations__:
        yield f"{key}: a report has no {section!r}{meant(section, Report.__annotations__, 'it has')}"
        return
    if section == "callbacks":
        name, _, figure = ".".join(parts).rpartition(".")
        yield from (f"{key}: {problem}" for problem in _callback_problems(experiment, name, figure))
    if section not in _METRICS:
        return
    rest = ".".join(parts)
    name = owner_in(rest, known.get(section, ()))
    figure, *deeper = rest[len(name) + 1 :].split(".")
    if section in known and name not in known[section]:
        yield f"{key}: there is no {_SINGULAR[section]} {name!r}{meant(name, known[section], f'the {section} are')}"
    elif not figure:
        yield f"{key} names no figure; write {section}.{name}.return_mean, or another{meant('', _METRICS[section])}"
    elif figure in INFOS and any(deeper):
        yield from (f"{key}: {problem}" for problem in _infos_problems(experiment, deeper[0]))
    # A part of a mapping, such as a term of the loss, has a name that only the run knows.
    elif not (figure in _NOT_METRICS and any(deeper)) and figure not in _METRICS[section]:
        yield f"{key}: {_missing(experiment, section, name, figure)}"


def _problems(experiment: Experiment, section: str, name: str, figure: str) -> Iterator[str]:
    if figure not in _METRICS[section]:
        yield _missing(experiment, section, name, figure)


def _callback_problems(experiment: Experiment, name: str, figure: str) -> Iterator[str]:
    """Yield why no callback reports the figure: which it has, only the run knows."""
    known = {one: callback for one, callback in experiment.callbacks.items() if isinstance(callback, Callback)}
    if not name or not figure:
        yield "a figure of a callback is callbacks.<name>.<figure>"
    elif name not in known:
        yield f"there is no callback {name!r}{meant(name, known, 'the callbacks are')}"
    elif getattr(known[name].metrics, "__func__", None) is Callback.metrics:
        yield f"callback {name!r} has no figures; its class gives some with metrics()"
    else:
        figures: list[str] = []
        # Before `began` it may know some or none, and fail; what is no name is a fault of the run.
        with suppress(Exception):
            figures = [one for one in known[name].metrics() if "." not in one]
        if figure not in figures and (close := nearest(figure, figures)) is not None:
            yield f"callback {name!r} has no figure {figure!r}; did you mean {close!r}?"


def _infos_problems(experiment: Experiment, name: str) -> Iterator[str]:
    """Yield a problem if nothing of infos has this name."""
    policies = experiment.default_policy, *experiment.policies.values()
    columns = [column for policy in policies for column in policy.row_columns]
    known = [*experiment.metrics, *columns, *(usual.name for usual in USUAL), COST]
    if name not in known:
        suggestion = meant(name, known, "known are")
        yield f"nothing in infos has this name (metrics.{name}.info=<its key> gives one){suggestion}"


def _missing(experiment: Experiment, section: str, name: str, figure: str) -> str:
    if section == "policies" and figure in _METRICS["learners"]:
        learner = next((key for key, config in experiment.learners.items() if name in config.policies), name)
        return f"{figure} is a figure of a learner; write learners.{learner}.{figure}"
    return f"a {_SINGULAR[section]} has no figure {figure!r}{meant(figure, _METRICS[section], 'it has')}"


def goal_conflicts(
    experiment: Experiment, policies: Mapping[str, Policy], learners: Mapping[str, LearnerConfig]
) -> Iterator[str]:
    """Yield why a run learns nothing, or would never end; `policies` and `learners` are all that have agents."""
    if policies and not learners:
        names = ", ".join(f"{name!r} ({policy.acts_by.name})" for name, policy in policies.items())
        yield f"no policy of this run learns: {names}; give one an algorithm that does, e.g. ppo"
    stop = experiment.stop
    each_stops = all(
        learner.stop.agent_steps is not None or learner.stop.return_mean is not None for learner in learners.values()
    )
    if stop.env_steps is None and stop.time_s is None and not stop.policies and not (learners and each_stops):
        yield "nothing ends this run; set stop.env_steps, stop.time_s or stop.policies.<id>.return_mean"
