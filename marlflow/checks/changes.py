"""Check what callbacks may change in a run: policies that copy each other, and settings of their learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from marlflow.algorithms.algorithm import may_be_scheduled
from marlflow.base.schedules import Linear, Schedule
from marlflow.base.sentences import meant
from marlflow.checks.leagues import why_no_successor
from marlflow.config.experiment import LearnerConfig
from marlflow.config.settings import changeable_settings
from marlflow.env.episode_location import raised
from marlflow.matchmaking.matchmakers import Matchmaker
from marlflow.observe.callback import Callback, MayChange
from marlflow.runtime.spec import LearnerSpec, RunSpec


def change_problems(
    callbacks: Mapping[str, Callback | None],
    spec: RunSpec,
    learners: Mapping[str, LearnerConfig],
    matchmaker: object,
) -> Iterator[str]:
    """Yield why callbacks cannot change the policies and settings that they declare."""
    problems: list[str] = []
    declared = {
        f"callbacks.{name}": may_change
        for name, callback in callbacks.items()
        if callback is not None and (may_change := _declared(f"callbacks.{name}", callback, problems)) is not None
    }
    yield from problems
    resets = matchmaker.reset_policies() if isinstance(matchmaker, Matchmaker) else ()
    changed_by: dict[str, str] = {}
    for path, may_change in declared.items():
        known = [policy for policy in may_change.policies if policy in spec.policies]
        for policy in may_change.policies:
            if policy not in known:
                what = f"{path} may change policy {policy!r}, which does not exist"
                yield what + meant(policy, spec.policies, "the policies are")
            elif (other := changed_by.setdefault(policy, path)) != path:
                yield f"policy {policy!r} is changed by both {other} and {path}; leave it in one of them"
            elif policy in resets:
                yield f"policy {policy!r} is changed by {path} and reset by the matchmaker; take one of them"
            elif problem := why_no_successor(policy, spec, learners):
                algorithm = spec.policies[policy].algorithm.name
                yield f"policy {policy!r} ({algorithm}) cannot be changed by {path}: {problem}"
        if len(known) == len(may_change.policies):
            yield from _differences(path, known, spec)
            yield from _setting_problems(path, may_change, spec)


def _declared(path: str, callback: Callback, problems: list[str]) -> MayChange | None:
    subject = f"{path}: {type(callback).__name__}.may_change()"
    try:
        may_change: object = callback.may_change()
    except Exception as error:  # noqa: BLE001  code of a user
        problems.append(f"{subject} raised {raised(error)}")
        return None
    if may_change is None or isinstance(may_change, MayChange):
        return may_change
    problems.append(f"{subject} returned {may_change!r:.60}, which is no MayChange")
    return None


def _differences(path: str, policies: Sequence[str], spec: RunSpec) -> Iterator[str]:
    for other in policies[1:]:
        if not spec.policies[other].has_network_of(spec.policies[policies[0]]):
            yield (
                f"{path}: policies {policies[0]!r} and {other!r} cannot copy each other, since their networks differ; "
                "give both the same algorithm, model and spaces"
            )


def copy_problems(callbacks: Mapping[str, Callback | None], spec: RunSpec) -> Iterator[str]:
    """Yield which policies of one population have learners that cannot continue with each other's states.

    Makes these learners. For callbacks and policies of which `change_problems` finds nothing.
    """
    for name, callback in callbacks.items():
        may_change = None if callback is None else callback.may_change()
        policies = () if may_change is None else may_change.policies
        learners = {policy: learner for policy in policies if (learner := spec.learner_of(policy))}
        try:
            forms = {policy: learner.form() for policy, learner in learners.items()} if len(learners) > 1 else {}
        except Exception:  # noqa: BLE001  the rehearsal says what is wrong with a learner
            continue
        first = next(iter(forms), "")
        for policy, form in forms.items():
            if differing := sorted(key for key in form.keys() | forms[first] if form.get(key) != forms[first].get(key)):
                yield (
                    f"callbacks.{name}: policies {first!r} and {policy!r} cannot copy each other, since their learners "
                    f"differ in {', '.join(differing)}; give both the same network, optimizer and parts"
                )


def _setting_problems(path: str, may_change: MayChange, spec: RunSpec) -> Iterator[str]:
    for policy in may_change.policies:
        if (learner := spec.learner_of(policy)) is None:
            continue
        for name, bounds in may_change.settings.items():
            if problem := _setting_problem(name, bounds, learner):
                yield f"{path} cannot change {name} of policy {policy!r} ({learner.algorithm.name}): {problem}"


def _setting_problem(name: str, bounds: Sequence[float] | None, learner: LearnerSpec) -> str | None:
    known = changeable_settings(learner.algorithm)
    if (setting := known.get(name)) is None:
        algorithm: Any = learner.algorithm
        own = {each.name: each for each in fields(algorithm)} if is_dataclass(algorithm) else {}
        value = getattr(learner.algorithm, name, None)
        if isinstance(value, Schedule):
            return "it follows a schedule of its own; give it a number"
        if name in own and may_be_scheduled(own[name]):
            return f"it is {value}; give it a number"
        if name in own:
            return f"it cannot change while it learns; {', '.join(known)} can"
        return "there is no such setting" + meant(name, known, "those that can change are")
    for bound in bounds or ():
        if not setting.low <= bound <= setting.high:
            return f"its bound {bound:g} is not within {setting.low:g} and {setting.high:g}"
    return _schedule_problem(name, setting.value, learner)


def _schedule_problem(name: str, value: float, learner: LearnerSpec) -> str | None:
    """Return why a setting of the algorithm itself may follow no schedule in these spaces and with its others."""
    algorithm: Any = learner.algorithm
    if not hasattr(algorithm, name):
        return None
    policy, scheduled = learner.policies[0], replace(algorithm, **{name: Linear(value, value, 1)})
    found, usual = ([*map(str, each.validate(policy.spaces, policy.model))] for each in (scheduled, algorithm))
    return next((problem for problem in found if problem not in usual), None)
