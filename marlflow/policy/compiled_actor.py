"""An actor as a pure function in JAX: its network traced from torch, and its choice of actions.

Actions are chosen as by the actor's `choose`, in float32, for rollouts that are one compiled call. A choice belongs to
exact functions: an actor of another class that overrides `choose`, or what that calls, has none here, and acts tick by
tick.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from marlflow.base.arrays import Array
from marlflow.base.errors import NotCompiled
from marlflow.base.observations import row_dtype
from marlflow.compiled.constants import changed_number, numbers_of
from marlflow.compiled.counter_random import Bits64, CounterRandom
from marlflow.compiled.rows import NO_PADDING
from marlflow.compiled.tracing import Traced, traced, value_of
from marlflow.policy.actor import Actor, NetworkActor, WeightedActor, memory_shape_of
from marlflow.policy.box import BoxCoordinates, DeterministicActor, GaussianActor, SquashedGaussianActor
from marlflow.policy.categorical import CategoricalActor, MultiCategoricalActor
from marlflow.policy.q import QActor
from marlflow.policy.recurrent import RecurrentNetworkActor
from marlflow.policy.scripted import RandomActor
from marlflow.policy.tensors import as_array, as_tensor, in_flat_order
from marlflow.policy.warmup import WarmupActor, network_of

_TINY = np.finfo(np.float32).tiny
_HALF_LOG_TWO_PI = 0.5 * np.log(2.0 * np.pi)
# Columns whose sums are written out one by one: XLA compiles 100 of them in seconds, and 500 in minutes.
_MOST_UNROLLED = 32


class Chosen(NamedTuple):
    """`action` [N, ...] as in the action column, `logp` [N], and whether the outputs of each row are numbers, [N]."""

    action: Any
    logp: Any
    is_sound: Any


Choose: TypeAlias = Callable[[Any, Any, CounterRandom, Mapping[str, Any]], Chosen]
"""(outputs [N, K], action mask bool [N, A] or None, random streams, settings by name: numbers, or one per row [N])."""


class CompiledChoice(NamedTuple):
    """`choose` in training, and the settings that it is given now, each a number that a schedule may change."""

    choose: Choose
    settings: Mapping[str, float]


def compiled_choice(actor: Actor) -> CompiledChoice:
    """Return how `actor` chooses; raises NotCompiled if it has no counterpart in JAX."""
    if isinstance(actor, RandomActor) and type(actor).act is RandomActor.act:
        return CompiledChoice(_uniformly(actor), {})
    if type(actor) is WarmupActor:
        return _with_warm_up(actor)
    kind = type(actor)
    if (
        isinstance(actor, NetworkActor)
        and kind.act is NetworkActor.act
        and (found := _CHOICES.get(getattr(kind, "choose", _sample)))
    ):
        return found(actor)
    raise NotCompiled(f"{kind.__module__}.{kind.__qualname__} chooses its actions in Python, tick by tick")


def _verify_shipped(owner: object, method: Callable[..., Any]) -> None:
    """Raise NotCompiled if a class of a user's overrides a method that `choose` calls."""
    kind = type(owner)
    if getattr(kind, method.__name__) is not method:
        raise NotCompiled(f"{kind.__module__}.{kind.__qualname__} has its own {method.__name__}, called tick by tick")


def _categorical(actor: Any) -> CompiledChoice:
    del actor
    return CompiledChoice(lambda logits, mask, random, _: _sample(logits, mask, random.uniform()), {})


def _sample(logits: Any, mask: Any, uniform: Any) -> Chosen:
    z = logits.astype(jnp.float32) if mask is None else jnp.where(mask, logits.astype(jnp.float32), -jnp.inf)
    highest = z.max(1)
    z = z - highest[:, None]
    cumulative = _running_sums(jnp.exp(z))
    total = cumulative[:, -1]
    # In float32 the product may be rounded up to the total, which no cumulative weight exceeds.
    target = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.float32(0.0)))
    action = jnp.sum(cumulative <= target[:, None], 1)
    logp = jnp.take_along_axis(z, action[:, None], 1)[:, 0] - jnp.log(total)
    return Chosen(action, logp, jnp.isfinite(highest))


def _running_sums(x: Any) -> Any:
    """Return the cumulative sums over the columns of `x` [N, A], added up in their order, as numpy does."""
    if x.shape[1] > _MOST_UNROLLED:
        return jax.lax.scan(lambda total, column: (total + column,) * 2, jnp.zeros_like(x[:, 0]), x.T)[1].T
    columns = [x[:, 0]]
    for number in range(1, x.shape[1]):
        columns.append(columns[-1] + x[:, number])
    return jnp.stack(columns, 1)


def _multi_categorical(actor: MultiCategoricalActor) -> CompiledChoice:
    choices, shape = actor._choices, actor._shape
    stops = np.cumsum(choices)[:-1].tolist()

    def choose(logits: Any, mask: Any, random: CounterRandom, settings: Mapping[str, Any]) -> Chosen:
        del settings
        masks = [None] * len(choices) if mask is None else jnp.split(mask, stops, 1)
        parts = zip(jnp.split(logits, stops, 1), masks, strict=True)
        chosen = [_sample(one, legal, random.uniform()) for one, legal in parts]
        return _joined(chosen, shape)

    return CompiledChoice(choose, {})


def _joined(chosen: Sequence[Chosen], shape: Sequence[int]) -> Chosen:
    action = jnp.stack([one.action for one in chosen], 1)
    logp = jnp.stack([one.logp for one in chosen]).sum(0)
    return Chosen(action.reshape(-1, *shape), logp, jnp.stack([one.is_sound for one in chosen]).all(0))


def _epsilon_greedy(actor: QActor) -> CompiledChoice:
    _verify_shipped(actor, QActor._epsilon)
    ladder = actor.ladder

    def choose(q: Any, mask: Any, random: CounterRandom, settings: Mapping[str, Any]) -> Chosen:
        q = q.astype(jnp.float32)
        epsilon = settings["epsilon"]
        if ladder:
            exponent = 1.0 + random.env_indices * (ladder / jnp.maximum(1.0, settings["num_envs"] - 1.0))
            epsilon = epsilon**exponent
        epsilon = jnp.maximum(epsilon, _TINY)
        uniform = random.uniform()
        within = jnp.minimum(uniform, jnp.nextafter(epsilon, jnp.float32(0.0))) / epsilon
        is_legal = jnp.ones(q.shape, bool) if mask is None else mask
        other, legal = _uniform_legal(is_legal, within)
        greedy = jnp.where(is_legal, q, -jnp.inf).argmax(1)
        action = jnp.where(uniform < epsilon, other, greedy)
        logp = jnp.log(epsilon / legal + (1.0 - epsilon) * (action == greedy))
        return Chosen(action, logp, ~jnp.isnan(q).any(1) & (legal > 0))

    return CompiledChoice(choose, {"epsilon": _number(actor.epsilon), "num_envs": _number(actor.num_envs)})


def _number(value: Any) -> float:
    if isinstance(value, np.ndarray):
        raise NotCompiled("its scheduled values differ from row to row")
    return float(value)


def _uniform_legal(mask: Any, uniform: Any) -> tuple[Any, Any]:
    ranks = _running_sums(mask.astype(jnp.int32))
    legal = ranks[:, -1]
    target = jnp.minimum((uniform * legal).astype(jnp.int32), legal - 1)
    return jnp.sum(ranks <= target[:, None], 1), legal


def _uniformly(actor: RandomActor) -> Choose:
    def choose(outputs: Any, mask: Any, random: CounterRandom, settings: Mapping[str, Any]) -> Chosen:
        del outputs, settings
        rows = random.env_indices.shape[0]
        if actor._choices is None:
            draws = jnp.stack([random.uniform() for _ in actor._width], 1) * actor._width.astype(np.float32)
            draws = jnp.floor(draws) if actor._is_whole else draws
            action = (actor._low.astype(np.float32) + draws).reshape(rows, *actor._shape)
            logp = jnp.full(rows, -np.log(actor._width).sum(), jnp.float32)
            return Chosen(action, logp, jnp.ones(rows, bool))
        stops = np.cumsum(actor._choices)[:-1].tolist()
        masks = jnp.ones((rows, int(actor._choices.sum())), bool) if mask is None else mask
        chosen = []
        for part in jnp.split(masks, stops, 1):
            action, legal = _uniform_legal(part, random.uniform())
            chosen.append(Chosen(action, -jnp.log(legal.astype(jnp.float32)), legal > 0))
        return _joined(chosen, actor._shape)

    return choose


def _with_warm_up(actor: WarmupActor) -> CompiledChoice:
    inner, uniformly = compiled_choice(actor.inner), _uniformly(actor._uniform)

    def choose(outputs: Any, mask: Any, random: CounterRandom, settings: Mapping[str, Any]) -> Chosen:
        # Both begin with the first draw of a decision, as one of them does in Python.
        again = random.anew()
        learned, drawn = inner.choose(outputs, mask, random, settings), uniformly(outputs, mask, again, settings)
        at_random = jnp.reshape(settings["acts_uniformly"] > 0.0, -1)
        action = jnp.where(_per_row(at_random, drawn.action), drawn.action.astype(learned.action.dtype), learned.action)
        logp = jnp.where(at_random, drawn.logp, learned.logp)
        return Chosen(action, logp, jnp.where(at_random, drawn.is_sound, learned.is_sound))

    return CompiledChoice(choose, {**inner.settings, "acts_uniformly": _number(actor.acts_uniformly)})


def _per_row(value: Any, like: Any) -> Any:
    """Return one number, or one for each row, in a shape that goes with `like` [N, ...]."""
    return jnp.reshape(value, (-1, *[1] * (like.ndim - 1)))


def _gaussian(actor: GaussianActor) -> CompiledChoice:
    _verify_shipped(actor, GaussianActor._log_prob)
    center, scale, low, high = (x.cpu().numpy() for x in (actor.center, actor.scale, actor.low, actor.high))

    def choose(outputs: Any, mask: Any, random: CounterRandom, settings: Mapping[str, Any]) -> Chosen:
        del mask, settings
        mean, log_std = jnp.split(outputs.astype(jnp.float32), 2, 1)
        sampled = mean + _normals(random, mean.shape[1]) * jnp.exp(log_std)
        action = jnp.clip(center + scale * sampled, low, high)
        noise = ((action - center) / scale - mean) * jnp.exp(-log_std)
        inside = -0.5 * jnp.square(noise) - log_std - _HALF_LOG_TWO_PI
        at_low, at_high = action <= low, action >= high
        beyond = jax.scipy.special.log_ndtr(jnp.where(at_low, noise, -noise))
        logp = jnp.where(at_low | at_high, beyond, inside).sum(1)
        return Chosen(action.reshape(-1, *actor._shape), logp, jnp.isfinite(logp))

    return CompiledChoice(choose, {})


def _normals(random: CounterRandom, size: int) -> Any:
    return jnp.stack([random.normal() for _ in range(size)], 1)


def _squashed(actor: SquashedGaussianActor) -> CompiledChoice:
    def choose(outputs: Any, mask: Any, random: CounterRandom, settings: Mapping[str, Any]) -> Chosen:
        del mask, settings
        mean, log_std = jnp.split(outputs.astype(jnp.float32), 2, 1)
        log_std = jnp.clip(log_std, -20.0, 2.0)
        noise = _normals(random, mean.shape[1])
        raw = mean + jnp.exp(log_std) * noise
        log_slope = 2.0 * (np.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        logp = (-0.5 * jnp.square(noise) - log_std - _HALF_LOG_TWO_PI - log_slope).sum(1) - actor.box.log_volume
        return Chosen(_in_box(actor.box, jnp.tanh(raw)), logp, jnp.isfinite(logp))

    return CompiledChoice(choose, {})


def _in_box(box: BoxCoordinates, action: Any) -> Any:
    _verify_shipped(box, BoxCoordinates.in_box)
    return jnp.clip(box._center + box._scale * action, box._low, box._high).reshape(-1, *box._shape)


def _deterministic(actor: DeterministicActor) -> CompiledChoice:
    def choose(outputs: Any, mask: Any, random: CounterRandom, settings: Mapping[str, Any]) -> Chosen:
        del mask
        noise = _normals(random, actor.box.size)
        action = outputs.astype(jnp.float32) + _per_row(settings["exploration_noise"], noise) * noise
        unknown = jnp.full(len(action), jnp.nan, jnp.float32)
        return Chosen(_in_box(actor.box, action), unknown, jnp.isfinite(action).all(1))

    return CompiledChoice(choose, {"exploration_noise": _number(actor.exploration_noise)})


_CHOICES: Mapping[Callable[..., Any], Callable[[Any], CompiledChoice]] = {
    CategoricalActor.choose: _categorical,
    MultiCategoricalActor.choose: _multi_categorical,
    QActor.choose: _epsilon_greedy,
    GaussianActor.choose: _gaussian,
    SquashedGaussianActor.choose: _squashed,
    DeterministicActor.choose: _deterministic,
    RecurrentNetworkActor.choose: lambda actor: compiled_choice(actor.head),
}


class Given(NamedTuple):
    """The inputs of an actor except observations: its parameters, matrices transposed, and its settings by name."""

    parameters: tuple[Any, ...]
    settings: Mapping[str, Any]


def encoded(space: spaces.Space[Any], observations: Any) -> Any:
    """Return observations [N, ...] as rows of the `obs` column (see `base.observations`)."""
    if isinstance(space, spaces.Box):
        return observations.astype(jax.dtypes.canonicalize_dtype(row_dtype(space)))
    flat = observations.reshape(len(observations), -1)
    if isinstance(space, spaces.MultiBinary):
        return flat.astype(jnp.float32)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete), "spaces were checked"
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    first = np.ravel(space.start)
    parts = [jax.nn.one_hot(flat[:, at] - first[at], int(size)) for at, size in enumerate(sizes)]
    return jnp.concatenate(parts, 1)


_ROWS_OF_MEMBER = 4
"""Rows of each member that are computed at once, at least."""


_ROWS_COMPARED = 4
_MOST_DIFFERENT = 1e-3
"""As a share of the largest output: rounding is a thousandth of it."""


def _given_of(actor: Actor, parameters: Sequence[nn.Parameter]) -> Given:
    arrays = [parameter.detach().cpu().numpy() for parameter in parameters]
    # XLA multiplies faster by the transpose of torch's matrices. Copies, because the actor's parameters may change.
    copies = tuple(array.T.copy() if array.ndim == 2 else array.copy() for array in arrays)
    return Given(copies, {name: np.float32(value) for name, value in compiled_choice(actor).settings.items()})


class StackedMember(NamedTuple):
    """A member of a stack: all its parameters, perhaps with others after them, and its scheduled values."""

    flat: Array
    scheduled: Mapping[str, float]


class CompiledActor:
    """`actor`, which sees `observation`, as a function of arrays; raises NotCompiled if it has no counterpart."""

    def __init__(self, actor: Actor, observation: spaces.Space[Any]) -> None:
        self._actor, self._observation = actor, observation
        self._choose = compiled_choice(actor).choose
        network = network_of(actor)
        if network is not None and not isinstance(network, NetworkActor):
            raise NotCompiled(f"{type(network).__name__} is no NetworkActor")
        self._network = network
        if network is not None and network.device is not None:
            raise NotCompiled("its network is on another device")
        self._parameters: list[nn.Parameter] = [] if network is None else in_flat_order(network)
        if network is not None:
            # As when it acts: dropout, for example, does nothing then.
            network.eval()
        # The numbers of each module of the network at the first call, which its program has as constants.
        self._constants: list[dict[str, Any]] | None = None
        self._try(memory_shape_of(actor))
        self._constants = None

    def _try(self, memory_shape: tuple[int, ...] | None) -> None:
        """Trace the actor with shapes alone; raises NotCompiled."""
        like = self._observation
        obs = jax.ShapeDtypeStruct((2, *(like.shape or ())), jax.dtypes.canonicalize_dtype(like.dtype))
        memory = None if memory_shape is None else jax.ShapeDtypeStruct((2, *memory_shape), np.float32)

        def act(obs: Any, memory: Any, zeros: Any) -> Any:
            return self.act(self.given(), obs, None, memory, CounterRandom(Bits64(zeros, zeros), zeros, zeros))

        try:
            jax.eval_shape(act, obs, memory, jax.ShapeDtypeStruct((2,), np.uint32))
        except (NotCompiled, KeyboardInterrupt):
            raise
        except Exception as error:
            raise NotCompiled(f"{type(error).__name__} while its network was traced: {error}") from error
        if self._network is not None:
            self._compare(self._network, memory_shape)

    def _compare(self, network: NetworkActor, memory_shape: tuple[int, ...] | None) -> None:
        """Raise NotCompiled if torch computes other outputs for a few observations."""
        space, samples = copy.deepcopy(self._observation), []
        for row in range(_ROWS_COMPARED):
            space.seed(row)
            samples.append(space.sample())
        obs = np.asarray(encoded(self._observation, np.stack(samples)))
        if obs.dtype.kind == "f":
            # Bounds may be the largest numbers that there are.
            obs = np.clip(obs, -10.0, 10.0)
        memory = None
        if memory_shape is not None:
            memory = np.random.default_rng(0).uniform(-0.5, 0.5, (len(obs), *memory_shape)).astype(np.float32)
        found = jax.jit(self._outputs)(self.given().parameters, obs, memory)
        with torch.no_grad():
            expected = network.outputs(as_tensor(obs), None if memory is None else as_tensor(memory))
        for mine, theirs in zip(found, expected, strict=True):
            if theirs is None:
                continue
            difference = np.abs(np.asarray(mine, np.float32) - as_array(theirs.float()))
            if not difference.max() <= _MOST_DIFFERENT * max(1e-3, float(theirs.abs().max())):
                raise NotCompiled(f"XLA computes other outputs of its network than torch, by {difference.max():.2g}")

    def given(self) -> Given:
        """Return the current parameters and settings; raises NotCompiled if another number of the network changed."""
        if self._network is not None:
            self._verify_constants(self._network)
        return _given_of(self._actor, self._parameters)

    def _verify_constants(self, network: NetworkActor) -> None:
        if self._constants is None:
            assert self._network is not None
            # Settings are inputs of the choice.
            settings = compiled_choice(self._actor).settings.keys()
            self._constants = [
                {name: value for name, value in numbers_of(module).items() if name not in settings}
                for module in self._network.modules()
            ]
        for module, constants in zip(network.modules(), self._constants, strict=True):
            if (name := changed_number(module, constants)) is not None:
                kind = type(module)
                raise NotCompiled(
                    f"{kind.__module__}.{kind.__qualname__} changes its own {name}, which a program has as a constant"
                )

    def stacked(self, members: Sequence[StackedMember | None]) -> Given:
        """Return the parameters and settings of several members with this network, [E, ...] each; None is any.

        Raises NotCompiled if another number of the network differs between them.
        """
        # A copy, which is made each member in turn, as an actor of its own would be.
        actor = copy.deepcopy(self._actor)
        network = network_of(actor)
        parameters = [] if network is None else in_flat_order(network)
        size = sum(parameter.numel() for parameter in parameters)
        of_members = []
        for member in members:
            if member is not None:
                actor.set_schedule(member.scheduled)
                if isinstance(network, NetworkActor):
                    self._verify_constants(network)
                if parameters:
                    cast("WeightedActor", actor).load_flat(member.flat[:size])
            of_members.append(_given_of(actor, parameters))
        stacks = zip(*(given.parameters for given in of_members), strict=True)
        settings = {name: np.array([given.settings[name] for given in of_members]) for name in of_members[0].settings}
        return Given(tuple(map(np.stack, stacks)), settings)

    def act_as(
        self, given: Given, members: Any, active: Any, obs: Any, action_mask: Any, memory: Any, random: CounterRandom
    ) -> tuple[Chosen, Any]:
        """Act by the `members` [N] of `given`, which is `stacked`; rows that are not `active` get any action."""
        outputs, after = None, memory
        if self._network is not None:
            rows = encoded(self._observation, obs), memory
            outputs, after = self._outputs_of_members(given.parameters, members, active, *rows)
        settings = {name: values[members] for name, values in given.settings.items()}
        return self._choose(outputs, action_mask, random, settings), after

    def _outputs_of_members(self, parameters: Any, members: Any, active: Any, obs: Any, memory: Any) -> Any:
        """Compute rows in turns of a few for each member, so that a turn is one product of matrices for all."""
        rows, count = len(obs), parameters[0].shape[0]
        turn = max(_ROWS_OF_MEMBER, 1 << (rows // count).bit_length())
        of = jnp.where(active, members, count)
        order = jnp.argsort(of)
        first = jnp.searchsorted(of[order], jnp.arange(count + 1))
        # Each row's position among the rows of its member.
        place = jnp.zeros(rows, jnp.int32).at[order].set(jnp.arange(rows, dtype=jnp.int32) - first[of[order]])
        compute = jax.vmap(self._outputs, (0, 0, None if memory is None else 0))

        def some(now: Any) -> Any:
            start, results = now
            here = active & (place >= start) & (place < start + turn)
            at = jnp.where(here, of * turn + place - start, count * turn)
            chosen = jnp.full(count * turn, rows).at[at].set(jnp.arange(rows), mode="drop")
            given = [
                None if one is None else one.at[chosen].get(mode="clip").reshape(count, turn, *one.shape[1:])
                for one in (obs, memory)
            ]
            found = compute(parameters, *given)
            results = jax.tree_util.tree_map(
                lambda old, new: old.at[chosen].set(new.reshape(count * turn, *old.shape[1:]), mode="drop"),
                results,
                found,
            )
            return start + turn, results

        like = jax.eval_shape(lambda: self._outputs([one[0] for one in parameters], obs, memory))
        empty = jax.tree_util.tree_map(lambda one: jnp.zeros(one.shape, one.dtype), like)
        last = jnp.max(jnp.where(active, place, -1))
        return jax.lax.while_loop(lambda now: now[0] <= last, some, (jnp.int32(0), empty))[1]

    def act(self, given: Given, obs: Any, action_mask: Any, memory: Any, random: CounterRandom) -> tuple[Chosen, Any]:
        """Return the choices for N observations, and their next memory, as `Actor.act` does in training."""
        outputs, after = None, memory
        obs = encoded(self._observation, obs)
        if self._network is not None:
            outputs, after = self._outputs(given.parameters, obs, memory)
        return self._choose(outputs, action_mask, random, given.settings), after

    def _outputs(self, parameters: Any, obs: Any, memory: Any) -> tuple[Any, Any]:
        network = self._network
        assert network is not None
        pairs = zip(self._parameters, parameters, strict=True)
        known = {id(of): value.T if value.ndim == 2 else value for of, value in pairs}
        before = None if memory is None else Traced(memory)
        # Networks have shorter ways without gradients, through numpy.
        with torch.enable_grad():
            outputs, after = traced(known, NO_PADDING, lambda: network.outputs(Traced(obs), before))
        return value_of(outputs), memory if after is None else value_of(after)
