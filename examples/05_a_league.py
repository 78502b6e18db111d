"""A league in tic-tac-toe with a matchmaker of one's own.

`main` learns with PPO. A game is against one of its snapshots, which are taken every 4,000 of its decisions: in half of
the games the one that it loses to most often, else any of them. `random` never learns; it only plays matches, and its
rating is the zero of all others. The standings are printed in the end.

    python examples/05_a_league.py
"""

from dataclasses import dataclass

import numpy as np

import marlflow as mf
from marlflow.league.standings import standings, standings_text
from marlflow.runs.saved_league import saved_league


@dataclass(frozen=True)
class WorstEnemy(mf.LeagueMode):
    """Chooses the snapshot that beats the learning policy most often, or with probability `any` one of all."""

    any: float = 0.5

    def rival(self, view: mf.LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        """Return the member that plays against `policy` in this game; None is the policy itself."""
        snapshots = view.members.past_in(role)
        if not snapshots:
            return None
        if generator.random() < self.any:
            return str(generator.choice(snapshots))
        return snapshots[int(view.chances(policy, snapshots).argmin())]


def tic_tac_toe(env_steps: int = 40_000) -> mf.Experiment:
    """Return the league; an env step is one turn of one player."""
    ppo = mf.PPO(batch_agent_steps=1_000, minibatch_agent_steps=125, epochs=4, learning_rate=1e-3)
    return mf.Experiment(
        env=mf.Env("tictactoe", num_envs=32),
        policies={"main": mf.Policy(ppo), "random": mf.Policy(mf.Random())},
        league=mf.League(
            WorstEnemy(),
            players={"random": mf.LeaguePlayer()},
            snapshots=mf.SnapshotRules(every_agent_steps=4_000),
            matches=mf.MatchRules(every_env_steps=10_000, games=200, pairs="all"),
        ),
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=2_000),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(opponents=["random"], episodes=100),
        name="tic_tac_toe",
    )


def main() -> None:
    """Train, and print the standings and the final evaluation."""
    result = mf.train(tic_tac_toe())
    league = saved_league(result.run_dir)
    shown = standings(league.members, league.payoffs, league.ratings, league.versions())
    print(standings_text(shown, league.algorithms))
    print(f"main: a return of {result.metrics['policies']['main']['eval_return_mean']:.2f} against random")


if __name__ == "__main__":
    main()
