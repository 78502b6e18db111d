"""Warm starts: find the parameters of other runs that policies begin with, and check that they fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from marlflow.algorithms.algorithm import Member, TorchAlgorithm, critic_sees
from marlflow.algorithms.from_run import FromRun, Imported, InitialParameters, SavedPolicy
from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, InvalidInput, Problems
from marlflow.base.sentences import meant
from marlflow.batches.critic_input import critic_input_problems
from marlflow.config.experiment import Policy
from marlflow.config.imported_policies import about, imported_policy, size_problem, source_policy, space_problem
from marlflow.env.spaces_only import observation_rows
from marlflow.learner.compute import ON_CPU
from marlflow.learner.parameters import ACTOR, is_part, named_parameters
from marlflow.policy.actor import NetworkActor, RecurrentActor
from marlflow.policy.tensors import as_tensor, parameters_of
from marlflow.policy.warmup import network_of
from marlflow.runs.checkpoint_format import tensors_file
from marlflow.runtime.spec import LearnerSpec, PolicySpec, RunSpec

INITIAL: Final = "init."
"""The beginning of the names of files with such parameters, in a checkpoint."""
_ROWS = 16
_MOST_NAMED = 4


def initial_file(policy: str) -> str:
    """Return the name of a checkpoint's file with the parameters that a policy began with."""
    return f"{INITIAL}{policy}"


def with_warm_starts(spec: RunSpec, policies: Mapping[str, Policy], problems: Problems) -> RunSpec:
    """Return the spec, whose learners begin with the parameters that `init` of their policies names.

    Problems are appended to `problems`.
    """
    for name, policy in policies.items():
        if policy.init is not None and spec.learner_of(name) is None:
            problems.append(
                f"policies.{name}.init: {policy.acts_by.name} does not learn; to act as another policy, "
                f"use policy@policies.{name}=frozen policies.{name}.algorithm.run=<run>"
            )
    learners = {
        name: replace(learner, begins_with=dict(_found(learner, policies, problems)))
        for name, learner in spec.learners.items()
    }
    return replace(spec, learners=learners)


def _found(
    learner: LearnerSpec, policies: Mapping[str, Policy], problems: Problems
) -> Iterator[tuple[str, InitialParameters]]:
    for policy in learner.policies:
        if (init := policies[policy.name].init) is None:
            continue
        try:
            yield policy.name, _copied(init, policy.name) if init.copies else _from_source(init, learner, policy)
        except InvalidInput as error:
            problems += [f"policies.{policy.name}.init: {problem}" for problem in error.problems]


def _copied(init: FromRun, policy: str) -> InitialParameters:
    path = Path(str(init.copies)) / tensors_file(initial_file(policy))
    try:
        return InitialParameters.from_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigInvalid([f"{path} cannot be read: {error.strerror}; the run began without it"]) from error


def _from_source(init: FromRun, learner: LearnerSpec, policy: PolicySpec) -> InitialParameters:
    saved = source_policy(init, policy.name)
    # This policy's own classes are imported in any case.
    own = [f"{type(part).__module__}.{type(part).__qualname__}" for part in (policy.algorithm, policy.model)]
    remedy = f"set policies.{policy.name}.init.trust={{names}}"
    source = imported_policy(saved, [*init.trust, *own], remedy)
    if problem := space_problem(saved, policy.spaces, policy.name) or size_problem(source, policy.spaces):
        raise ConfigInvalid([problem.replace("agent '", "policy '")])
    algorithm = source.acts_by
    assert isinstance(algorithm, Imported)
    with torch.random.fork_rng(devices=[]):
        theirs = _source_parameters(saved, algorithm, source, init, learner, policy)
        module = replace(learner, placement=replace(learner.placement, device="cpu"), begins_with={}).learner().module
    ours = {
        name: tensor.detach().numpy() for name, tensor in named_parameters(module, learner.members, policy.name).items()
    }
    taken = _Match(saved.source, theirs, ours, init.parts).taken()
    if all(name in taken for name in ours if is_part(ACTOR, name)):
        _check_outputs(policy, taken, algorithm, source)
    return InitialParameters(taken, saved.source, about(algorithm), saved.sha256)


def _source_parameters(
    saved: SavedPolicy, algorithm: Imported, source: Policy, init: FromRun, learner: LearnerSpec, policy: PolicySpec
) -> dict[str, Array]:
    """Return the parameters of a source by name: of its actor, and of its critic if that may be taken."""
    named: dict[str, nn.Parameter] = {}
    wants_more = init.parts is None or any(not is_part(ACTOR, part) for part in init.parts)
    if wants_more and saved.network is not None and len(learner.policies) == 1:
        named = _whole_network(algorithm, Member(policy.spaces, source.model), saved.network)
    network = network_of(algorithm.actor(policy.spaces, source.model, 0))
    if network is None:
        raise ConfigInvalid([f"{saved.source}: its actor is no torch module, so its parameters have no names"])
    named |= {f"{ACTOR}.{name}": parameter for name, parameter in network.named_parameters()}
    return {name: parameter.detach().numpy() for name, parameter in named.items()}


def _whole_network(algorithm: Imported, member: Member, network: Array) -> dict[str, nn.Parameter]:
    name, own, where = "source", algorithm.algorithm, algorithm.saved.source
    if sees := [
        f"{own.name} {problem}; {remedy}" for problem, remedy in critic_input_problems(member.spaces, critic_sees(own))
    ]:
        raise ConfigInvalid([f"the critic of {where} cannot be built here: {sees[0]}, or take parts=[actor]"])
    count = parameters_of(lambda: _module(own, name, member))
    learner = own.learner(name, {name: member}, 0, ON_CPU) if count in (None, len(network)) else None
    if learner is None or len(learner.parameters.flat.vector) != len(network):
        raise ConfigInvalid(
            [
                f"{where} has {len(network):,} parameters with its critic, which are not those of the network that it "
                "describes; take parts=[actor]"
            ]
        )
    learner.parameters.flat.load(as_tensor(network))
    return named_parameters(learner.module, (name,), name)


def _module(algorithm: Any, name: str, member: Member) -> Any:
    if isinstance(algorithm, TorchAlgorithm):
        return algorithm.whole_network({name: member}, 0)
    return algorithm.learner(name, {name: member}, 0, ON_CPU).module


@dataclass(frozen=True)
class _Match:
    """The parameters of a source and of the policy that begins with them, by name; `parts` None is all."""

    source: str
    theirs: Mapping[str, Array]
    ours: Mapping[str, Array]
    parts: Sequence[str] | None

    def taken(self) -> dict[str, Array]:
        """Return the source's parameters of all parts; raises ConfigInvalid with every difference."""
        parts = self._known_parts()
        names = [name for name in self.theirs if _in_parts(parts, name)]
        lacking = [name for name in self.ours if _in_parts(parts, name) and name not in self.theirs]
        differences = [difference for name in names if (difference := self._difference(name)) is not None]
        differences += [f"{name} is not in {self.source}" for name in lacking]
        if differences:
            more = f"; and {len(differences) - _MOST_NAMED} more" if len(differences) > _MOST_NAMED else ""
            raise ConfigInvalid(
                [
                    f"its network is not that of {self.source}: {'; '.join(differences[:_MOST_NAMED])}{more}; give it "
                    f"the same algorithm, model and settings, or take {self._remedy(parts)}"
                ]
            )
        return {name: self.theirs[name].copy() for name in names}

    def _known_parts(self) -> Sequence[str]:
        if self.parts is None:
            return [part for part in (ACTOR, "critic") if any(is_part(part, name) for name in self.theirs)]
        known = {part: None for name in self.theirs for part in _prefixes(name)}
        if any(is_part("critic", name) for name in self.theirs):
            known["critic"] = None
        if not self.parts:
            raise ConfigInvalid(["parts is empty; name some, such as [actor], or set it to null"])
        if unknown := [part for part in self.parts if part not in known]:
            short = [part for part in known if part.count(".") < 2]
            raise ConfigInvalid(
                [f"parts: {self.source} has no part {part!r}{meant(part, short, 'there are')}" for part in unknown]
            )
        return self.parts

    def _difference(self, name: str) -> str | None:
        if name not in self.ours:
            return f"{name} is not here"
        here, there = (list(tensors[name].shape) for tensors in (self.ours, self.theirs))
        return None if here == there else f"{name} is {here} here and {there} there"

    def _remedy(self, parts: Sequence[str]) -> str:
        fitting = [part for part in _largest_parts(self.theirs, self.ours) if _in_parts(parts, part) or part == ACTOR]
        return f"parts=[{', '.join(fitting[:_MOST_NAMED])}]" if fitting else "another policy"


def _prefixes(name: str) -> Iterator[str]:
    segments = name.split(".")
    for count in range(1, len(segments) + 1):
        yield ".".join(segments[:count])


def _in_parts(parts: Collection[str], name: str) -> bool:
    return any(is_part(part, name) for part in parts)


def _largest_parts(theirs: Mapping[str, Array], ours: Mapping[str, Array]) -> list[str]:
    """Return the largest submodules all of whose parameters are in both, with the same shapes."""
    same = {name for name in theirs if name in ours and theirs[name].shape == ours[name].shape}
    found: list[str] = []
    for name in [*theirs, *ours]:
        for part in _prefixes(name):
            below = [one for one in {**theirs, **ours} if is_part(part, one)]
            # One vector alone, such as a bias, is no use.
            if len(below) > 1 and set(below) <= same and not _in_parts(found, part):
                found.append(part)
                break
    return found


def _check_outputs(policy: PolicySpec, taken: Mapping[str, Array], algorithm: Imported, source: Policy) -> None:
    """Raise ConfigInvalid unless the policy acts as its source, given all parameters of its actor."""
    theirs = network_of(algorithm.actor(policy.spaces, source.model, 0))
    ours = network_of(policy.actor())
    if not isinstance(ours, NetworkActor) or not isinstance(theirs, NetworkActor):
        return
    where = algorithm.saved.source
    if type(ours) is not type(theirs):
        raise ConfigInvalid(
            [
                f"its outputs ({type(ours).__name__}) mean something else than those of {where} "
                f"({type(theirs).__name__}), though all shapes are the same; take parts=[actor.torso]"
            ]
        )
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(as_tensor(taken[f"{ACTOR}.{name}"]))
    here, there = _outputs(ours, policy), _outputs(theirs, policy)
    if not np.array_equal(there, _outputs(theirs, policy)):
        # A network of a user's own that draws random numbers.
        return
    if here.shape != there.shape or not np.allclose(here, there, atol=1e-5):
        differing = _differing_settings(policy.algorithm, algorithm.algorithm, policy.model, source.model)
        raise ConfigInvalid(
            [
                f"with the parameters of {where} it would not act as that, since other settings differ"
                f"{differing}; set them to the same"
            ]
        )


def _outputs(network: NetworkActor, policy: PolicySpec) -> Array:
    obs = as_tensor(observation_rows(policy.spaces, _ROWS))
    memory = torch.zeros(_ROWS, *network.memory_shape) if isinstance(network, RecurrentActor) else None
    with torch.inference_mode():
        outputs: Array = network.outputs(obs, memory)[0].numpy()
    return outputs


def _differing_settings(*parts: Any) -> str:
    own, other, model, other_model = parts
    found = []
    for label, (here, there) in {"model": (model, other_model), "algorithm": (own, other)}.items():
        if not (is_dataclass(here) and type(here) is type(there)):
            continue
        ours, theirs = _plain(here), _plain(there)
        found += [f"{label}.{key}={ours[key]} and {theirs[key]}" for key in ours if ours[key] != theirs[key]]
    return f" ({', '.join(found)})" if found else ""


def _plain(value: Any) -> dict[str, Any]:
    return {key: list(one) if isinstance(one, tuple) else one for key, one in asdict(value).items()}
