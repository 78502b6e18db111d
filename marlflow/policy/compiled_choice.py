"""How shipped actors choose actions in JAX, for rollouts that are one compiled call.

Each choice is that of the actor's `choose`, in float32. A choice belongs to the exact function: an actor of another
class whose `choose` is its own has none here, and acts tick by tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from marlflow.base.errors import NotCompiled
from marlflow.compiled.counter_random import CounterRandom
from marlflow.policy.actor import Actor
from marlflow.policy.box import BoxCoordinates
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.deterministic import DeterministicActor
from marlflow.policy.gaussian import GaussianActor
from marlflow.policy.multi_categorical import MultiCategoricalActor
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.q import QActor
from marlflow.policy.recurrent_actors import RecurrentNetworkActor
from marlflow.policy.scripted import RandomActor
from marlflow.policy.squashed import SquashedGaussianActor
from marlflow.policy.warmup import WarmupActor

_TINY = np.finfo(np.float32).tiny
_HALF_LOG_TWO_PI = 0.5 * np.log(2.0 * np.pi)


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
