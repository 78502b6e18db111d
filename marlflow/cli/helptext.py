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
  -m                     one run for each of several values: -m seed=1,2,3
  --cfg job              print the whole configuration, and run nothing
  --config-dir <folder>  a folder with configuration groups of your own
""",
    "plan": """\
flags:
  --mermaid              the plan as a Mermaid flowchart
  --machines <list>      check and place for these machines instead of what is there:
                         '[{CPU: 16, GPU: 2, count: 4}, {CPU: 64}]'
  --all-output           all that the environment prints, not its first lines alone; on standard error
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

  <id> names a policy. Without a mapping, the policy of a group's name plays that group of agents (adversary_0 and
  adversary_1: adversary), and default_policy plays the groups that have none. Other names need rules:
  'mapping=[{{match: "adversary_*", policy: hunters}}, {{match: "agent_*", policy: prey}}]'
  A learner trains the policies that its learners.<id>.policies lists together; every other policy learns alone.
  Which algorithms can play an environment, says marlflow check-env <environment>.

some values (--cfg job of train prints all, with comments):
  seed=1                                   of everything random
  stop.env_steps=1e6                       env steps of the whole run
  stop.policies.<id>.return_mean=150       or until a policy is good enough
  rollouts.num_workers=4                   processes that play the environment
  env.num_envs=32                          environments at once, over all workers
  faults.env_errors=20                     episodes that the environment may break before the run ends
  policies.<id>.algorithm.learning_rate=1e-3
  'policies.<id>.algorithm.learning_rate={{_target_: marlflow.Linear, start: 1e-3, end: 0, agent_steps: 1e6}}'
  rollouts.pace=asynchronous               no worker waits for another: for impala, appo, a3c, apex, ...
  'evaluation.opponents=[random]'          evaluate each policy against random ones, in all its seats
  evaluation.mode=sampled                  evaluate with actions drawn as learned, not the most likely ones
  record=dataset                            write what is played to files, for env=offline env.folder=<run>/record
  log.console=plain                        plain lines instead of the live view

{flags}"""

_RESUME = """\
marlflow resume: continue a run from its last checkpoint, in its own directory

usage: marlflow resume <run directory> [key=value ...] [--trust]

  It goes on as if it had never stopped: parameters, optimizers, replays, paces, counters, and the episodes that were
  being played, from the newest checkpoint that is whole. Everything is as in the run, but for the values given here.
  It may be given in any folder: the run goes on in the one that it was started in, where your modules are, and where
  relative paths begin.

examples:
  marlflow resume runs/simple_tag/2026-01-31_12-00-00
  marlflow resume runs/simple_tag/2026-01-31_12-00-00 stop.env_steps=1e6     longer
  marlflow resume runs/simple_tag/2026-01-31_12-00-00 rollouts.num_workers=8 placement=one_gpu

what may change:
  stop, checkpoint, log, evaluation, faults, rollouts, placement, runtime, and settings of algorithms that have no part
  in the shape of what was kept (learning_rate, say)
what may not:
  seed, env and env.num_envs, the policies, their algorithms and models

flags:
  --trust                go on with a run that somebody else started, or whose configuration was changed by hand, though
                         it names code outside marlflow, which is imported
  --config-dir <folder>  a folder with configuration groups of your own
"""

_CHECK_ENV = """\
marlflow check-env: try an environment before anything is trained in it

usage: marlflow check-env <environment> [key=value ...]

  PettingZoo's own tests, random episodes as learners would get them, whether the same seed gives the same episode,
  who can learn in it, and how fast it is; then what is wrong, if anything is, and what to do about it.

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
  --episodes <n>         random episodes, 200; what a minute allows if that is less
  --json                 everything that was found as JSON
  --all-output           all that the environment prints, not its first lines alone; on standard error
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
