"""A speaker of tokens: cloned from a teacher, then improved by PPO without leaving the clone further than it pays.

A speaker sees one of 8 classes and says 4 tokens; a listener names the class, and both are paid if it is right. First a
teacher speaks, who takes every third time the words of another class; meanwhile a listener learns with DQN what words
mean. Then a clone, a small transformer, learns to speak from the teacher's recorded words. At last PPO improves the
clone: the listener, frozen, is its reward, and each token costs `beta` times how much likelier it is than the clone
would have said it. These are the steps of learning from human feedback (RLHF), in miniature: no language model is
trained here.

    python examples/08_tokens_near_a_reference.py          one process, some twenty seconds
"""

from pathlib import Path
from typing import Any

import numpy as np

import marlflow as mf
from marlflow.env.games import token_signal

CLASSES, LENGTH, VOCABULARY = 8, 4, 8
SEES = 1 + VOCABULARY + CLASSES


def teach(obs: Any, _: Any, random: Any) -> Any:
    """Return the next token: of the class that is seen, or of its neighbor if the message began so."""
    tokens = obs.reshape(len(obs), 1 + LENGTH, SEES).argmax(2)
    shown, said = tokens[:, 0] - 1 - VOCABULARY, np.count_nonzero(tokens[:, 1:], 1)
    errs = np.where(said == 0, random.uniform() < 1 / 3, tokens[:, 1] - 1 != shown)
    meant = np.where(errs, (shown + 1) % CLASSES, shown)
    return (meant + said) % VOCABULARY


def run(name: str, env_steps: int, policies: dict[str, mf.Policy], **parts: Any) -> mf.Result:
    """Train policies of these names in the game, in this process."""
    experiment = mf.Experiment(
        env=parts.pop("env", mf.Env(token_signal.env)),
        policies=policies,
        rollouts=mf.Rollouts(num_workers=1),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=1_000, tensorboard=False),
        name=name,
        **parts,
    )
    return mf.train(experiment)


def lesson() -> Path:
    """Record the teacher while a listener learns what its words mean; return the run's folder."""
    listener = mf.DQN(
        n_step=1,
        train_every_agent_steps=1,
        learning_starts_agent_steps=100,
        target_every_updates=50,
        learning_rate=1e-3,
        epsilon=mf.Linear(1.0, 0.0, 800),
    )
    policies = {"speaker": mf.Policy(mf.Scripted(teach)), "listener": mf.Policy(listener)}
    return run("lesson", 8_000, policies, record=mf.Record(policies=["speaker"])).run_dir


def clone(first: Path) -> Path:
    """Teach a transformer the teacher's words by the records alone; return the run's folder."""
    offline = mf.Env(
        "marlflow.offline.environment.recorded_environment", {"folder": str(first / "record"), "passes": 4}
    )
    speaker = mf.Policy(mf.BC(batch_agent_steps=800, learning_rate=3e-3), mf.Transformer())
    policies = {"speaker": speaker, "listener": mf.Policy(mf.Frozen(first, "listener"))}
    return run("clone", 10**6, policies, env=offline).run_dir


def improve(first: Path, second: Path, beta: float) -> dict[str, float]:
    """PPO continues from the clone, near to it; return its mean return and its divergence from the clone."""
    ppo = mf.PPO(
        batch_agent_steps=1_000,
        minibatch_agent_steps=250,
        epochs=4,
        learning_rate=mf.Linear(1e-3, 1e-5, 9_600),
        discount=1.0,
        entropy_coefficient=0.0,
        parts={"values": mf.PopArt(), "reference": mf.KLToReference(beta)},
    )
    speaker = mf.Policy(ppo, mf.Transformer(), init=mf.FromRun(second, "speaker"))
    listener = mf.Policy(mf.Frozen(first, "listener"))
    metrics = run(f"beta_{beta:g}", 12_000, {"speaker": speaker, "listener": listener}).metrics
    kl = metrics["learners"]["speaker"]["loss"]["kl_to_reference"]
    return {"right": metrics["policies"]["speaker"]["return_mean"], "kl": LENGTH * kl}


def main() -> None:
    """Teach, clone, and improve the clone with three prices of leaving it; print the result of each."""
    first = lesson()
    second = clone(first)
    for beta in (100.0, 1.0, 0.05):
        found = improve(first, second, beta)
        # The best probabilities are the clone's times exp(reward / beta), normalized.
        gained = 2 / 3 * np.exp(1 / beta)
        best = gained / (gained + 1 / 3)
        print(
            f"beta {beta:g}: understood {found['right']:.0%} of the time (best: {best:.0%}), "
            f"{found['kl']:.2f} nats from the clone"
        )


if __name__ == "__main__":
    main()
