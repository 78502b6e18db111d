"""Write docs/algorithms.md from the algorithms themselves: their capabilities and plans.

python docs/algorithms.py              write the page
python docs/algorithms.py --check      compare the page with the code
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import marlflow as mf  # noqa: E402  where it is, is only known above
from marlflow.algorithms.algorithm import Algorithm, needs_state  # noqa: E402
from marlflow.algorithms.shipped import SHIPPED  # noqa: E402
from marlflow.env.games import cartpole_family, guess_number, pendulum_team  # noqa: E402
from marlflow.env.wrappers.shipped import joint_state  # noqa: E402
from marlflow.flow import source  # noqa: E402
from marlflow.runtime.stage_chain import InlinePlace  # noqa: E402

PAGE = Path(__file__).with_suffix(".md")
GALLERY = ROOT / "docs" / "gallery"
HEAD = """\
# Algorithms

Each algorithm has a file in `marlflow/algorithms` with its settings. `ppo`, `mappo`, `ddppo` and `recurrent_ppo` share
a plan (`ppo.py`), and so do all with a replay but `apex`, `clone` and `archer` (`off_policy.py`); losses that several
use, or that are long, have files of their own. Any algorithms can be combined in one run: a test trains every pair on
one environment, and each gives the same result as it does alone, bit for bit. This page is generated from the code by
[algorithms.py](algorithms.py).

```
marlflow train env=simple_tag policy@policies.adversary=appo policy@policies.agent=sac rollouts.pace=asynchronous
```

`impala`, `appo`, `a3c`, and `apex` are made for `rollouts.pace=asynchronous`, in which no worker waits for another; set
it with them. With the default, `lockstep`, they learn too, but workers wait for each other. Algorithms that need fresh
rows (`ppo`, `mappo`, `happo`, `a2c`, `recurrent_ppo`, `ddppo`, `maml`, `archer`) have a `max_staleness` of 0, and are
refused with `asynchronous`.

## What they can be used for

- *experience*: on-policy algorithms learn from rows of their newest version (or, with `max_staleness`, of slightly
  older versions), off-policy algorithms from rows of any version, and offline algorithms from [records](offline.md).
- *memory*: algorithms with "yes" need a recurrent model, `gru` or `lstm`; those with "if recurrent" have memory with
  such a model, and the others refuse it.
- *runs elsewhere*: stages that run on the rollout workers, unless `placement.stages` moves them.

"""
SETTINGS = """
## Settings that all share

- **Schedules.** Every number of an algorithm that may be scheduled (learning rates, coefficients, `epsilon`)
  is a number or a schedule over the agent steps that the policy has sampled: `Linear(start, end, agent_steps)`,
  `CosineDecay(start, end, agent_steps)`, `PiecewiseConstant(values, at_agent_steps)`, or a class of your own with
  `at(agent_steps)`.
- **Optimizer.** `optimizer` is `marlflow.learner.optimizer.Adam`, or a class of torch.optim with its settings.
  Gradients are scaled down to `max_grad_norm`.
- **Normalization.** `model.normalize_observations` of an `mlp` normalizes observations by their running mean and
  variance. The part `PopArt`, for algorithms with a critic of states, normalizes the value targets; `mappo` and `happo`
  have it. `a3c`, `ddppo`, `maml`, `archer`, and `a2c` with several `microbatches` can have neither, as their learners
  do not see all rows together. The statistics are part of the policy: they are published, saved in checkpoints, and
  resumed with its weights.
- **Parts.** `algorithm.parts` adds to an algorithm what its file does not have. `CostLimit` of PPO, MAPPO and SAC keeps
  the mean `info["cost"]` of an agent per episode below a limit, by a Lagrange multiplier
  ([limits on costs](composition.md#limits-on-costs)); `KLToReference` keeps a policy near the one that it began as
  ([tokens near a reference](composition.md#tokens-near-a-reference)). [Parts of your own](your_own_part.md) have the
  same means.

```
marlflow train env=simple_tag policy@policies.agent=ppo policies.agent.model.normalize_observations=true \\
    'policies.agent.algorithm.learning_rate={_target_: marlflow.CosineDecay, start: 1e-3, end: 0, agent_steps: 5e5}' \\
    'policies.agent.algorithm.optimizer={_target_: torch.optim.RMSprop, alpha: 0.99}'
```

## Central critics

A critic is needed only in training, so it may see what its agent does not: `algorithm.critic_sees` of PPO, A2C, A3C,
IMPALA, APPO, DD-PPO and recurrent PPO lists `state` (the environment's global state, `env.state()`), `obs` (the agent's
own observation, the default), and `agent` (its id, one-hot). `mappo` is PPO with `[state, obs, agent]`, value
normalization, two minibatches, and a learning rate of 5e-4. Actors see only their own
observations, so a trained policy needs no state.

```
marlflow train env=simple_spread policy@policies.agent=mappo
marlflow train env=simple_tag policy@policies.agent=dqn policy@policies.adversary=appo \\
    'policies.adversary.algorithm.critic_sees=[state,agent]'
```

- Without `env.state()`, add `wrappers=joint_state` ([wrappers](environments.md#wrappers)).
- AEC and Parallel environments, deaths, and agents that join late need nothing: dead agents have no rows.
- `bootstrap_at_death` (Parallel environments, common rewards) gives an agent credit for what its team gains after its
  death: the value after its last row is not 0, but the mean of the values of the survivors of its policy (in `happo`,
  of its learner). `rows_bootstrapped_at_death` counts these rows. It may decide what is learned: in SMAX, where the
  dead are paid, too, marines without it learn to stay away from the enemy; on one map, they rush in with it
  ([results](results.md#smax)).
- The critic of `recurrent_ppo` has memory only if it sees `obs` alone; otherwise it has dense layers of the same sizes.

## Critics of all agents

A learner of several agents may have critics that see what all of them see and do (Lowe et al., 2017): `maddpg` (DDPG),
`matd3` (TD3) and `masac` (SAC). Each policy has critics of its own, which value each agent's own return. So the
policies of one learner may have different spaces, mix Box and Discrete actions, and be opponents.

```
marlflow train env=simple_spread policy@policies.agent=masac
marlflow train env=simple_speaker_listener learner@learners.pair=maddpg 'learners.pair.policies=[speaker,listener]'
```

- `critic_sees` lists `observations` (of all agents of the learner, the default) and `state` (of the environment).
  Agents that are absent are zeros, and critics see who is present.
- `others: replay` takes the other agents' actions in an actor's loss from the replay, as in the paper; `policies` asks
  their policies now.
- Discrete actions of `maddpg` and `matd3` are explored by sampling, and have the gradient of a straight-through
  Gumbel-softmax. `logit_penalty` keeps them random. Critics of `masac` value all Discrete actions of an agent at once.
- Parallel environments only, with declared agents. Models are of vectors (`mlp`).
- An agent that is truncated while others go on has no target for its last row, which trains its actor alone.

## Policies in turn

`happo` trains several policies, which may see and do different things, with one central critic. After each batch the
policies are updated in random order. Each policy's advantages are multiplied by the ratio of the probabilities, after
and before, of what the agents of the policies before it did at the same env step; `loss.factor_distance` is the mean
distance of this factor from 1. Rewards should be common. With one policy and the same `critic_sees` it is MAPPO, bit
for bit.

- `critic_sees` is `[state, agent]`; `obs` can be added if all policies see the same space. The critic has layers like
  the model of the learner's first policy.
- An agent that is absent at an env step changes no factor.
- With several policies, each actor and the critic have optimizers and a clipped gradient norm (`max_grad_norm`) of
  their own. The critic is trained in every policy's turn, on its rows.

## Utterances

`archer` (Zhou et al., 2024) is for agents whose action is an *utterance* of several tokens. Each decision is a token,
and the actor a softmax policy; what is valued is the utterance. Critics of utterances learn off-policy from a
replay: Q(o, u) of the observation before an utterance and all its tokens, and V(o), whose target is Q of an utterance
that the actor would say. The actor learns on-policy: each token has the advantage min Q - min V of its utterance, less
what the tokens before it let expect (`token_baseline`). Both are loss groups of one learner, trained by stages of their
own (`Learn(groups=...)`): for each batch, `critic_updates` updates of the critics, then the actor's; before
`warm_up_updates` of the critics the actor waits.

```
marlflow train env=guess_number policy@policies.guesser=archer
```

- Observations are a Dict with `utterance`, a MultiDiscrete with a place for each token: 0 if it is not said yet, else
  1 + the action. An utterance ends when it is full, or with the action `end_token`. Until then nothing else in the
  observation may change, and no reward may come; this is checked on every batch. Discrete actions without masks.
- The reward of an utterance is that of its last token, and `discount` is per utterance. If the agent terminates, its
  utterance ends there. An utterance that a truncation cuts off is left out of training.
- In `guess_number`, guesses of three letters are answered by "too high" or "too low", and a wrong one costs 1. The best
  return is -1.625 (bisection), guessing at random has -2.897 (`python -m benchmarks.composition_bars 'guess_*'`).
- An update of the critics counts its utterances in `agent_steps_trained`, one of the actor its tokens.
- In the paper, the actor's utterances are sampled for observations from the replay; here they are those just played.

## Plans

The plans as `marlflow plan` prints them. *Lines* is the length of the body of the method `plan`, followed by the length
of the execution plan of the same algorithm in RLlib Flow (Ray 1.2), if it had one. RLlib Flow's plan for PPO and DQN in
one run, of 45 lines, has no counterpart: here the configuration combines plans. *What it learned* leads to the
[gallery](gallery/index.md), with learning curves and results.

"""
OF_RLLIB_FLOW = {
    "a2c": 21,
    "a3c": 4,
    "ppo": 33,
    "dqn": 45,
    "impala": 24,
    "appo": 24,
    "apex": 72,
    "ddppo": 75,
    "maml": 42,
    "marwil": 15,
}
"""Lines, measured in Ray 1.2."""


def plan_lines(algorithm: Algorithm) -> int:
    """Count the lines in the body of the algorithm's method `plan`, without its docstring."""
    lines = [line for line in inspect.getsource(type(algorithm).plan).splitlines() if line.strip()]
    after_signature = next(number for number, line in enumerate(lines) if line.rstrip().endswith(":")) + 1
    body = lines[after_signature:]
    if body[0].strip().startswith('"""'):
        end = next(n for n, line in enumerate(body) if line.strip().endswith('"""') and (n or line.count('"""') == 2))
        body = body[end + 1 :]
    return len(body)


def experiment(algorithm: Algorithm) -> mf.Experiment:
    """Return an experiment with one policy of this algorithm, to draw its plan."""
    discrete = "Discrete" in algorithm.capabilities.actions
    model = mf.GRU() if algorithm.capabilities.memory == "needed" else mf.MLP()
    # It needs a policy to imitate; one policy is enough to draw its plan.
    learns_from = ["team"] if algorithm.capabilities.imitates else None
    wrappers = (joint_state,) if needs_state(algorithm) else ()
    make = cartpole_family.parallel_env if discrete else pendulum_team.parallel_env
    return mf.Experiment(
        mf.Env(guess_number.parallel_env if algorithm.name == "archer" else make, wrappers=wrappers),
        {"team": mf.Policy(algorithm, model, learns_from=learns_from)},
        mapping=[mf.Rule("*", "team")],
        rollouts=mf.Rollouts(pace="asynchronous" if asynchronous(algorithm) else "lockstep"),
    )


def drawn(algorithm: Algorithm) -> str:
    """Return the drawn plan, without rollouts if the algorithm is offline."""
    if algorithm.capabilities.experience != "offline":
        return str(mf.plan(experiment(algorithm)))
    learner: Any = SimpleNamespace(
        name="team", place=InlinePlace("learner team"), trains_on=algorithm.capabilities.trains_on
    )
    return str(algorithm.plan(source(recorded_fragments), learner, ()))


def recorded_fragments() -> None:
    """Stand in for the source of experience in the plan of an offline algorithm."""


def asynchronous(algorithm: Algorithm) -> bool:
    """Return whether the algorithm is made for `rollouts.pace=asynchronous`."""
    return algorithm.name in ("a3c", "impala", "appo", "apex")


def row(algorithm: Algorithm) -> str:
    """Return the algorithm's row of the table."""
    can = algorithm.capabilities
    elsewhere = ", ".join(algorithm.stages) or ("all of learning" if can.learns_on == "workers" else "")
    title = (inspect.getdoc(sys.modules[type(algorithm).__module__]) or "").splitlines()[0].rstrip(".")
    cells = [
        f"[`{algorithm.name}`](../marlflow/algorithms/{type(algorithm).__module__.rpartition('.')[2]}.py)",
        title,
        ", ".join(can.actions),
        can.experience,
        {"refused": "", "optional": "if recurrent", "needed": "yes"}[can.memory],
        "yes" if can.replay else "",
        "yes" if needs_state(algorithm) else "",
        elsewhere,
    ]
    return f"| {' | '.join(cells)} |"


def experiments() -> dict[str, list[str]]:
    """Return the experiments of the gallery by the name of each algorithm that learns in them."""
    found: dict[str, list[str]] = {}
    for path in sorted(GALLERY.glob("*.json")):
        for name in dict.fromkeys(json.loads(path.read_text(encoding="utf-8"))["policies"].values()):
            found.setdefault(name, []).append(path.stem)
    return found


def sections() -> Iterator[str]:
    """Yield one section for each algorithm: its plan, the number of lines, and its pages of the gallery."""
    gallery = experiments()
    for algorithm in SHIPPED:
        then = OF_RLLIB_FLOW.get(algorithm.name)
        beside = f", RLlib Flow's {then}" if then else ""
        yield f"### {algorithm.name}\n\nLines: {plan_lines(algorithm)}{beside}.\n"
        if learned := gallery.get(algorithm.name):
            yield f"What it learned: {', '.join(f'[{name}](gallery/{name}.md)' for name in learned)}.\n"
        yield f"```\n{drawn(algorithm)}\n```\n"


def text() -> str:
    """Return the text of the page."""
    head = "| name | algorithm | actions | experience | memory | replay | needs `state` | runs elsewhere |"
    table = "\n".join([head, "|---" * 8 + "|", *map(row, SHIPPED)])
    return HEAD + table + "\n" + SETTINGS + "\n".join(sections())


def main() -> int:
    """Write the page, or with --check compare it, and return 1 if it differs."""
    if "--check" not in sys.argv:
        PAGE.write_text(text(), encoding="utf-8")
        return 0
    same = PAGE.read_text(encoding="utf-8") == text()
    sys.stdout.write("as it was\n" if same else "it is not as it was: run python docs/algorithms.py\n")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
