"""The texts of `--help`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from marlflow.cli.arguments import COMMANDS, DECLARED
from marlflow.config.comments import names

_MAIN = """\
marlflow: multi-agent reinforcement learning as dataflow

usage: marlflow <command> [key=value ...]

commands:
{commands}

  marlflow <command> --help    what can be set, with examples
  marlflow --version           the version

first steps:
  marlflow train env=simple_tag                            PPO for each group of agents
  marlflow train experiment=cartpole_team_ppo_dqn          PPO and DQN side by side
  marlflow plan experiment=cartpole_team_ppo_dqn           how its data will flow
  marlflow train experiment=simple_tag_three_algorithms    PPO, SAC and DQN in one environment
  marlflow train env=connect_four league=pfsp              self-play against past versions

tab completion, for this shell:
  eval "$(marlflow --shell-completion install=bash)"       bash; zsh with install=zsh
  marlflow --shell-completion install=fish | source        fish
"""

_FLAGS = {
    "train": """\
flags:
  -m                     one run for each of several values: -m seed=1,2,3; with hydra/launcher=joblib several at the
                         same time, and with hydra/sweeper=optuna the values are chosen by the results of earlier runs
  --trust                import what another user's records name, with env=offline, and list it in env.trust
  --cfg job              print the whole configuration, and run nothing
  --config-dir <folder>  a folder with configuration groups of your own
""",
    "plan": """\
flags:
  --mermaid              the plan as a Mermaid flowchart
  --machines <list>      check and place for these machines instead of the present ones:
                         '[{CPU: 16, GPU: 2, count: 4}, {CPU: 64}]'
  --all-output           print all output of the environment on standard error, not only its first lines
  --trust                import what another user's records name, with env=offline, and list it in env.trust
  --config-dir <folder>  a folder with configuration groups of your own
""",
}

_HELP = """\
marlflow {command}: {purpose}

usage: marlflow {command} [key=value ...]

examples:
  marlflow {command} env=simple_tag
  marlflow {command} env=simple_tag policy@policies.adversary=ppo policy@policies.agent=dqn \\
      policies.agent.algorithm.learning_rate=5e-4
  marlflow {command} env=simple_speaker_listener learner@learners.pair=vdn 'learners.pair.policies=[speaker,listener]'
  marlflow {command} experiment=cartpole_team_ppo_dqn runtime=inline {last}

choices:
{choices}

  <id> names a policy, and <x> a part of its algorithm. Without a mapping, the policy of a group's name plays that
  group of agents (adversary_0 and adversary_1: adversary), and default_policy plays the groups that have none. Other
  names need rules:
  'mapping=[{{match: "adversary_*", policy: hunters}}, {{match: "agent_*", policy: prey}}]'
  A learner trains the policies that its learners.<id>.policies lists together; every other policy learns alone.
  marlflow check-env <environment> shows which algorithms can learn in an environment.

some values (--cfg job of train prints all, with comments):
  seed=1                                   seed of everything that is random
  stop.env_steps=1e6                       env steps of the whole run
  stop.policies.<id>.return_mean=150       ends the run once a policy has this mean return, per
                                           agent and episode (RLlib sums over agents)
  rollouts.num_workers=4                   processes that play the environment
  env.num_envs=32                          environments at once, over all workers
  faults.env_errors=20                     episodes that the environment may break before the run ends
  policies.<id>.algorithm.learning_rate=1e-3
  'policies.<id>.algorithm.learning_rate={{_target_: marlflow.Linear, start: 1e-3, end: 0, agent_steps: 1e6}}'
  rollouts.pace=asynchronous               no worker waits for another: for impala, appo, a3c, apex, ...
  'evaluation.opponents=[random]'          evaluate each policy against random play, in all its seats
  evaluation.mode=greedy                   evaluate with the most likely actions, where policies are sampled
  record=dataset                           write experience to files, for env=offline env.folder=<run>/record
  log.console=plain                        plain lines instead of the live view

{flags}"""

_RESUME = """\
marlflow resume: continue a run from its last checkpoint, in its own directory

usage: marlflow resume <run directory> [key=value ...] [--trust]

  The run continues from its newest whole checkpoint as if it had never stopped: parameters, optimizers, replays,
  paces, counters, and the running episodes. All settings stay as they were, except the values given here.
  The command works in any folder: the run continues in the folder that it was started in, where your modules are,
  and where relative paths begin.

examples:
  marlflow resume runs/simple_tag/2026-01-31_12-00-00
  marlflow resume runs/simple_tag/2026-01-31_12-00-00 stop.env_steps=1e6     longer
  marlflow resume runs/simple_tag/2026-01-31_12-00-00 rollouts.num_workers=8 placement=one_gpu

what may change:
  stop, checkpoint, log, evaluation, faults, rollouts, placement, runtime, and settings of algorithms on which the
  shapes of the saved state do not depend (such as learning_rate)
what may not:
  seed, env and env.num_envs, the policies, their algorithms and models

flags:
  --trust                continue a run that another user started, or whose configuration was changed by hand, even if
                         it names other code than marlflow's parts, which is then imported
  --config-dir <folder>  a folder with configuration groups of your own
"""

_CHECK_ENV = """\
marlflow check-env: try an environment before anything is trained in it

usage: marlflow check-env <environment> [key=value ...]

  PettingZoo's own tests, random episodes as learners would get them, whether the same seed gives the same episode,
  which algorithms can learn in it, and how fast it is; then any problems, and how to mend them.

examples:
  marlflow check-env connect_four
  marlflow check-env cartpole_team env.num_agents=2
  marlflow check-env my_module.make_env env.size=5          a function of yours that makes an environment
  marlflow check-env pistonball wrappers=pixels --episodes 20

choices:
{envs}

some values:
  seed=1                                   of the episodes and of the actions in them
  env.num_envs=32                          environments at once when its speed is measured
  env.step_timeout_s=10                    seconds that a step may take; null: any time

flags:
  --episodes <n>         random episodes, 200; what --seconds allows if that is less
  --seconds <n>          time for the random episodes, 60; more for an environment with long or slow episodes
  --json                 everything that was found as JSON
  --all-output           print all output of the environment on standard error, not only its first lines
  --config-dir <folder>  a folder with configuration groups of your own

exit codes: 0, ready; 1, something is wrong; 2, it cannot be made
"""

# How each group is written on the command line, in the order in which a newcomer meets them.
_CHOICES = {
    "experiment": "experiment",
    "env": "env",
    "wrappers": "wrappers",
    "policy": "policy@policies.<id>",
    "algorithm": "algorithm@policies.<id>.algorithm",
    "parts": "parts@policies.<id>.algorithm.parts.<x>",
    "model": "model@policies.<id>.model",
    "learner": "learner@learners.<id>",
    "league": "league",
    "placement": "placement",
    "runtime": "runtime",
    "sinks": "sinks",
    "callback": "callback",
}


def main_help() -> str:
    """Return the help text of the program."""
    return _MAIN.format(commands="\n".join(f"  {name:<12} {purpose}" for name, purpose in COMMANDS.items()))


def command_help(command: str) -> str:
    """Return the help text of a command."""
    if command == "check-env":
        return _CHECK_ENV.format(envs=_choices(("env", "wrappers")))
    if command == "resume":
        return _RESUME
    if command in DECLARED:
        from marlflow.cli.options import declared, help_text

        return help_text(declared(command))
    return _HELP.format(
        command=command,
        purpose=COMMANDS[command],
        last="-m seed=1,2,3" if command == "train" else "--mermaid",
        choices=_choices(_CHOICES),
        flags=_FLAGS[command],
    )


def _choices(groups: Iterable[str]) -> str:
    lines = []
    for group in groups:
        head = f"  {_CHOICES[group] + '=':<40} "
        lines.append(
            textwrap.fill(", ".join(names(group)), 118, initial_indent=head, subsequent_indent=" " * len(head))
        )
    return "\n".join(lines)
