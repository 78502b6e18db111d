"""Reject parts of an experiment of a wrong type, and say what to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from marlflow.config.comments import files
from marlflow.config.experiment import Env, Policy
from marlflow.league.league import League
from marlflow.league.modes import LeagueMode
from marlflow.matchmaking.matchmakers import Matchmaker, matchmaker_name
from marlflow.sampling.mapping import Rule


def other_kinds(env: Any, policies: Any, default_policy: Any, mapping: Any, league: Any) -> Iterator[str]:
    """Yield a problem for each part that has another type."""
    if isinstance(env, str) or callable(env):
        argument = repr(env) if isinstance(env, str) else getattr(env, "__name__", "factory")
        yield f"env is {env!r}, not an Env; write Env({argument})"
    elif not isinstance(env, Env):
        yield f"env is {env!r}, not an Env; write Env(factory, arguments)"
    everybody = {f"policies[{name!r}]": policy for name, policy in policies.items()}
    for where, policy in {**everybody, "default_policy": default_policy}.items():
        if not isinstance(policy, Policy):
            yield f"{where} is {_shown(policy)}, not a Policy; write Policy({_constructor_call('algorithm', policy)})"
            continue
        parts: tuple[tuple[str, Any], ...] = (("algorithm", policy.algorithm), ("model", policy.model))
        for part, value in parts:
            if isinstance(value, str | type):
                expression = _constructor_call(part, value)
                yield f"{where}.{part} is {_shown(value)}, where an object is wanted; write Policy({part}={expression})"
    rules = isinstance(mapping, Sequence) and all(isinstance(rule, Rule) for rule in mapping)
    if isinstance(mapping, type) or not (mapping is None or rules or callable(mapping)):
        yield (
            f"mapping is {mapping!r}, neither a list of rules, such as [Rule('adversary_*', 'hunters'), ...], nor a "
            "matchmaker, such as RandomSeats(['hunters', 'prey'])"
        )
    yield from uncalled_method(mapping)
    if not (league is None or isinstance(league, League)):
        yield f"league is {_shown(league)}, not a League; write League(PFSP())"
    elif not isinstance(mode := getattr(league, "matchmaker", LeagueMode()), LeagueMode):
        name = type(mode).__name__
        yield f"league.matchmaker: {name} is no LeagueMode; derive it from marlflow.LeagueMode"


def uncalled_method(mapping: Any) -> Iterator[str]:
    """Yield a method of a matchmaker that would never be called."""
    if isinstance(mapping, Matchmaker):
        return
    for method in vars(Matchmaker):
        if callable(mapping) and not method.startswith("_") and callable(getattr(mapping, method, None)):
            name = matchmaker_name(mapping)
            yield f"mapping: {name} has a method {method} and is no matchmaker; derive it from marlflow.Matchmaker"
            return


def _shown(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)


def _constructor_call(group: str, value: object) -> str:
    if isinstance(value, type):
        return f"{value.__name__}()"
    if not isinstance(value, str):
        return f"{type(value).__name__}(...)"
    # A shipped name, such as "PPO", gives the class that it configures.
    file = files(group).get(value.lower())
    return f"{(file.target or '').rpartition('.')[2]}()" if file else {"algorithm": "PPO()", "model": "MLP()"}[group]
