"""Convert a composed configuration to an Experiment.

The dataclasses of experiment.py are the schema, except for `env`, which also contains the factory's arguments, and for
`stop.policies`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from marlflow.algorithms.algorithm import Algorithm, Capabilities
from marlflow.algorithms.scripted import Random
from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import misspelled_key
from marlflow.config.callbacks import with_callbacks
from marlflow.config.comments import names
from marlflow.config.construct import LEFT, arguments_for, build, construct, fit, imported
from marlflow.config.experiment import Env, Experiment, uncalled_method
from marlflow.config.policy_assignment import PlaceholderMatchmaker, without_algorithm
from marlflow.config.renamed import KEYS, unknown_key
from marlflow.config.target_nodes import ARGS, ENV_KEYS, KEYWORDS, PARTIAL, TARGET, target_node, without_positional
from marlflow.config.wrappers import wrappers_of
from marlflow.env.factories import import_factory
from marlflow.env.simulators import pettingzoo_registry
from marlflow.learner.extra_losses import ExtraLoss
from marlflow.sampling.mapping import Rule

if TYPE_CHECKING:
    from omegaconf import DictConfig


class _PlaceholderAlgorithm(Random):
    """Replace an algorithm that could not be built, without causing further errors."""

    # Any batch type fits, so that no plan is rejected for it.
    capabilities: ClassVar[Capabilities] = replace(Random.capabilities, trains_on=object)


def read(config: DictConfig, problems: list[str]) -> Experiment | None:
    """Build the experiment of a composed configuration, with defaults for what is wrong; return None without an env.

    Appends to `problems`.
    """
    values = plain_values(config)
    # A recorded experiment may have policies without an algorithm too: from Python, that is PPO.
    problems += without_algorithm(values)
    return read_values(values, problems)


def plain_values(config: DictConfig) -> Mapping[str, Any]:
    """Return a composed configuration, resolved, without Hydra's node; raises ConfigInvalid."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values: Any = OmegaConf.to_container(_without_hydra(config), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigInvalid([f"the configuration cannot be resolved: {str(error).splitlines()[0]}"]) from error
    assert isinstance(values, dict)
    return values


def read_values(values: Mapping[str, Any], problems: list[str]) -> Experiment | None:
    """Convert like `read`, from plain dicts and lists."""
    sections = with_callbacks(values, problems)
    for section, read_section in (("env", read_env), ("stop", _stop)):
        if isinstance(sections.get(section), Mapping):
            sections[section] = read_section(sections[section], problems)
            if sections[section] is LEFT:
                del sections[section]
    if sections.get("mapping") is not None:
        sections["mapping"] = _mapping(sections["mapping"], problems)
    if isinstance(league := sections.get("league"), Mapping) and isinstance(league.get("outcome"), Mapping):
        sections["league"] = {**league, "outcome": _outcome(league["outcome"], problems)}
    # Algorithms are built first: if one fails, a placeholder keeps the rest of its policy checked.
    for section in ("policies", "learners"):
        sections[section] = _with_algorithms(sections.get(section, {}), section, problems)
    sections["learners"] = _with_policies(sections["learners"], problems)
    if isinstance(sections.get("default_policy"), Mapping):
        sections["default_policy"] = _with_algorithm(sections["default_policy"], "default_policy", problems)
    if "env" not in sections:
        if "env" not in values:
            problems.append("there is no env; choose one, e.g. env=cartpole_team")
        return None
    experiment = construct(Experiment, sections, "", problems)
    return experiment if isinstance(experiment, Experiment) else None


def _without_hydra(config: DictConfig) -> DictConfig:
    from omegaconf import OmegaConf

    if "hydra" not in config:
        return config
    copied = config.copy()
    OmegaConf.set_struct(copied, False)
    OmegaConf.set_readonly(copied, False)
    del copied["hydra"]
    return copied


def read_env(values: Mapping[str, Any], problems: list[str]) -> Any:
    """Build the environment of a configuration's `env`; return LEFT if it cannot be built. Appends to `problems`."""
    factory = values.get(TARGET)
    if not isinstance(factory, str) or factory == "???":
        actual = "is not set" if factory in (None, "???") else f"is {factory!r}"
        problems.append(f"env.{TARGET} {actual}; give the import path of your environment, package.module.function")
        return LEFT
    if "." not in factory:
        instead = f"; that environment is env={factory}" if factory in names("env") else ""
        problems.append(f"env.{TARGET} must be an import path, package.module.name, not {factory!r}{instead}")
        return LEFT
    arguments = environment_arguments(factory, values, problems)
    if arguments is None:
        return LEFT
    wrappers = wrappers_of(values.get("wrappers"), problems)
    num_envs = fit(values.get("num_envs", Env.num_envs), int, "env.num_envs", problems)
    timeout_s = fit(values.get("step_timeout_s"), float | None, "env.step_timeout_s", problems)
    batched = fit(values.get("batched", Env.batched), bool | Literal["auto"], "env.batched", problems)
    return Env(
        factory,
        arguments,
        wrappers,
        Env.num_envs if num_envs is LEFT else num_envs,
        None if timeout_s is LEFT else timeout_s,
        Env.batched if batched is LEFT else batched,
    )


def _mapping(value: Any, problems: list[str]) -> Any:
    if isinstance(value, Mapping) and TARGET in value:
        needs = "is no matchmaker: it cannot be called with an episode's id, the agents and a generator"
        matchmaker = _user_callable(value, "mapping", 3, needs, problems)
        uncalled = list(uncalled_method(matchmaker))
        problems.extend(uncalled)
        return PlaceholderMatchmaker() if uncalled or matchmaker is LEFT else matchmaker
    if not isinstance(value, list | tuple):
        problems.append(
            "mapping must be a list of rules [{match: <agents>, policy: <id>}, ...], or a matchmaker "
            f"{{{TARGET}: package.module.Class, ...}}, not {value!r}"
        )
        return PlaceholderMatchmaker()
    rule_problems: list[str] = []
    rules = fit(value, Sequence[Rule], "mapping", rule_problems)
    problems.extend(rule_problems)
    return PlaceholderMatchmaker() if rule_problems else rules


def _outcome(values: Mapping[str, Any], problems: list[str]) -> Any:
    if TARGET not in values:
        problems.append(f"league.outcome must be null or {{{TARGET}: package.module.function, ...}}, not {values!r}")
        return None
    needs = "is no outcome: it cannot be called with an episode's result and the sides"
    outcome = _user_callable(values, "league.outcome", 2, needs, problems)
    return None if outcome is LEFT else outcome


def _user_callable(values: Mapping[str, Any], path: str, given: int, needs: str, problems: list[str]) -> Any:
    """Return a function with its last arguments, or an object that can be called with `given` arguments, or LEFT."""
    target = imported(values[TARGET], f"{path}.{TARGET}", problems)
    if target is LEFT:
        return LEFT
    if not isinstance(target, type):
        # A function is called later in any case, so `_partial_` says nothing new.
        first = "marlflow passes the first arguments of a function"
        rest = without_positional(target_node(values, path, problems), path, first, problems)
        arguments = arguments_for(target, rest, path, problems, given=given)
        return LEFT if arguments is None else functools.partial(target, **arguments)
    made = build(values, path, problems)
    if made is not LEFT and not callable(made):
        problems.append(f"{path}: {target.__name__} {needs}")
        return LEFT
    return made


def _extra_losses(entries: Mapping[str, Any], path: str, problems: list[str]) -> dict[str, Any]:
    """Read extra losses by name; those that cannot be made are left out."""
    losses = {str(name): _extra_loss(entry, f"{path}.{name}", problems) for name, entry in entries.items()}
    return {name: loss for name, loss in losses.items() if loss is not LEFT}


def _extra_loss(entry: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(entry, Mapping) or TARGET not in entry:
        return entry
    if isinstance(imported(entry[TARGET], f"{path}.{TARGET}", []), type):
        return build(entry, path, problems)
    # `coefficient` and `group` are attributes of an object, and are given next to the arguments of a function.
    about = {key: value for key, value in entry.items() if key in ("coefficient", "group")}
    rest = {key: value for key, value in entry.items() if key not in about}
    function = _user_callable(rest, path, 2, "cannot be called with a module and a minibatch", problems)
    if function is LEFT or not about:
        return function
    return construct(ExtraLoss, {"function": function, **about}, path, problems)


def _stop(values: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any]:
    """Flatten `policies: {prey: {return_mean: 150}}` to `policies: {prey: 150.0}`."""
    policies = values.get("policies", {})
    if policies is None:
        return {**values, "policies": {}}
    if not isinstance(policies, Mapping):
        return values
    goals = {}
    for name, goal in policies.items():
        path = f"stop.policies.{name}"
        if goal is None:
            continue
        if not isinstance(goal, Mapping):
            problems.append(f"{path} must be {{return_mean: <number>}}, not {goal!r}")
            continue
        for key in goal:
            if key != "return_mean":
                problems.append(misspelled_key(f"{path}.{key}", str(key), ["return_mean"], "a goal"))
        value = fit(goal.get("return_mean"), float | None, f"{path}.return_mean", problems)
        if isinstance(value, float):
            goals[name] = value
    return {**values, "policies": goals}


def _with_algorithms(values: Any, section: str, problems: list[str]) -> Any:
    if not isinstance(values, Mapping):
        return values
    return {
        name: _with_algorithm(entry, f"{section}.{name}", problems) if isinstance(entry, Mapping) else entry
        for name, entry in values.items()
    }


def _with_policies(learners: Any, problems: list[str]) -> Any:
    """Return the learners whose `policies` are set."""
    if not isinstance(learners, Mapping):
        return learners
    unset = [name for name, one in learners.items() if isinstance(one, Mapping) and one.get("policies", "???") == "???"]
    for name in unset:
        path = f"learners.{name}.policies"
        problems.append(f"{path} is not set; list the policies that it trains: '{path}=[<id>, <id>]'")
    return {name: one for name, one in learners.items() if name not in unset}


def _with_algorithm(policy: Mapping[str, Any], path: str, problems: list[str]) -> Mapping[str, Any]:
    values, where = policy.get("algorithm"), f"{path}.algorithm"
    if values is None:
        return policy
    if isinstance(values, Mapping) and isinstance(extra := values.get("extra_losses"), Mapping):
        values = {**values, "extra_losses": _extra_losses(extra, f"{where}.extra_losses", problems)}
    algorithm = fit(values, Algorithm, where, problems)
    return {**policy, "algorithm": _PlaceholderAlgorithm() if algorithm is LEFT else algorithm}


def environment_arguments(factory: str, values: Mapping[str, Any], problems: list[str]) -> dict[str, Any] | None:
    """Return the arguments of the factory by name, from all keys of `env`; None if one has no value yet."""
    node = target_node(values, "env", problems)
    if node.is_partial:
        problems.append(f"env.{PARTIAL} must be false: marlflow calls the factory once for each environment")
    # Keys are names, though YAML reads 1 as a number.
    arguments = {str(key): value for key, value in node.settings.items() if key not in (KEYWORDS, *ENV_KEYS)}
    known = _parameters_of(factory, arguments)
    for key in list(arguments):
        # A factory with **kwargs takes any key, but a renamed key of marlflow is never meant for it.
        if (known is not None and key not in known) or (known is None and key in KEYS):
            problems.append(unknown_key(f"env.{key}", key, [*(known or ()), *ENV_KEYS], factory))
            del arguments[key]
    arguments = _with_positional(node.positional, arguments, known, factory, problems)
    arguments = _with_keywords(node.settings.get(KEYWORDS), arguments, known, factory, problems)
    unset = [key for key, value in arguments.items() if value == "???"]
    problems.extend(f"env.{key} is not set; give it a value" for key in unset[:1])
    return None if unset else arguments


def _with_positional(
    values: Any, arguments: dict[str, Any], known: list[str] | None, factory: str, problems: list[str]
) -> dict[str, Any]:
    # By name from here on, because arguments are compared between runs.
    if values and known is None:
        problems.append(f"env.{ARGS}: the order of the arguments of {factory} is not known, so name them")
    elif len(values) > len(known or ()):
        problems.append(f"env.{ARGS} has {len(values)} entries, but {factory} takes at most {len(known or ())}")
    named = dict(zip(known or (), values, strict=False))
    problems.extend(f"env.{key} is given twice: env.{ARGS} has it already" for key in named.keys() & arguments.keys())
    return {**named, **arguments}


def _with_keywords(
    values: Any, arguments: dict[str, Any], known: list[str] | None, factory: str, problems: list[str]
) -> dict[str, Any]:
    if values is not None and not isinstance(values, Mapping):
        problems.append(f"env.{KEYWORDS} must be arguments by name, {{<name>: <value>}}, not {values!r}")
        return arguments
    given = {str(key): value for key, value in (values or {}).items()}
    for key in list(given):
        if key in arguments:
            problems.append(f"env.{KEYWORDS}.{key} is given twice: env.{key} has it already")
        elif known is not None and key not in known:
            problems.append(unknown_key(f"env.{KEYWORDS}.{key}", key, known, factory))
            del given[key]
    return {**given, **arguments}


def _parameters_of(factory: str, arguments: Mapping[str, Any]) -> list[str] | None:
    """Return a factory's parameter names; None if it takes any or cannot be imported."""
    try:
        if factory == pettingzoo_registry.TARGET:
            taken = pettingzoo_registry.parameters(arguments)
            return None if taken is None else list(taken)
        parameters = inspect.signature(import_factory(factory)).parameters.values()
    except Exception:  # noqa: BLE001  (importing runs code of the user's; `ready` imports it again and says what is wrong)
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]
