"""Writes docs/configuration.md: every key of a configuration, from the files of conf/ and the classes behind them.

python docs/configuration.py              writes it
python docs/configuration.py --check      says whether it still says so
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import marlflow as mf  # noqa: E402  where it is, is only known above
from marlflow.config.comments import Commented, Entry, files, root  # noqa: E402
from marlflow.config.construct import TARGET, described, hints_of  # noqa: E402
from marlflow.config.experiment import ENV_KEYS  # noqa: E402
from marlflow.config.settings import range_of  # noqa: E402
from marlflow.env.make import import_factory  # noqa: E402

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Configuration

Every key of a run: its default, what it takes, and what it means. `marlflow train --cfg job`, with the words of your
run, prints the same for that run alone, and runs nothing; `marlflow plan` says what is wrong with it. This page is
written by [configuration.py](configuration.py) from `conf/`, where each group of choices is a folder and each
choice a file, and from the classes behind them.

| on the command line | |
|---|---|
| `stop.env_steps=1e6` | sets a key |
| `env=simple_tag` | chooses a file of a group: `conf/env/simple_tag.yaml` |
| `policy@policies.prey=dqn` | adds a policy, `prey`, from `conf/policy/dqn.yaml` |
| `algorithm@policies.prey.algorithm=apex` | another algorithm of a policy that there is |
| `model@policies.prey.model=cnn` | another network of one |
| `'policies.prey.algorithm.optimizer={_target_: torch.optim.RMSprop}'` | a class, and its settings beside `_target_` |
| `+env.render_mode=human` | adds a key that the file does not have: an argument that the environment takes |
| `-m seed=1,2,3` | one run for each |

From Python the same keys are arguments: `rollouts.num_workers` is `mf.Rollouts(num_workers=...)`, one of those of
`mf.Experiment`; `policies.<id>` is `mf.Policy`, with an algorithm such as `mf.PPO(...)` and a model such as
`mf.MLP(...)`; `env=simple_tag env.num_good=2` is `mf.Env("simple_tag", {"num_good": 2})`.

## Files of your own

A file in a folder of yours is a choice like any other, once the folder is named: `--config-dir conf`. A policy of your
own starts from one that there is and says what differs. Put this into `conf/policy/mine.yaml`:

```yaml
# PPO with larger networks and smaller batches.
defaults:
  - ppo                                 # all that is not said here is as in this policy
  - _self_

algorithm:
  batch_agent_steps: 1000
  learning_rate: {_target_: marlflow.Linear, start: 1e-3, end: 0, agent_steps: 200000}
model:
  hidden_sizes: [128, 128]
```

An experiment is a whole run by name. Put this into `conf/experiment/mine.yaml`:

```yaml
# @package _global_
# Hunters learn with the policy above, their prey with DQN.
defaults:
  - /policy@policies.hunters: mine
  - /policy@policies.prey: dqn
  - _self_
  - override /env: simple_tag           # groups that each run has are overridden, at the end of this list

name: mine
mapping:
  - {match: "adversary_*", policy: hunters}
  - {match: "agent_*", policy: prey}
policies:
  prey:
    algorithm:
      learning_rate: 1e-3
env:
  max_cycles: 50
stop:
  env_steps: 20000
```

- The first line, `# @package _global_`, is what makes its keys those of the run; without it they would all be under
  `experiment`. A policy, an environment or a model has no such line.
- What stands in the file comes after `defaults` and changes it; what is said on the command line changes both.

```
marlflow plan --config-dir conf experiment=mine
marlflow train --config-dir conf experiment=mine seed=1 policies.hunters.algorithm.epochs=5
marlflow train --config-dir conf env=simple_tag policy@policies.agent=mine
```

Another model or algorithm than that of the policy which one starts from is overridden too. This is
`conf/policy/remembering.yaml`:

```yaml
# Recurrent PPO with an LSTM in place of the GRU.
defaults:
  - recurrent_ppo
  - override /model@model: lstm
  - _self_
```
```
marlflow plan --config-dir conf env=simple_tag policy@policies.agent=remembering
```

An environment of your own, `conf/env/<name>.yaml`, is in
[your_own_environment.md](your_own_environment.md#give-it-a-name), an algorithm, `conf/algorithm/<name>.yaml`, in
[your_own_algorithm.md](your_own_algorithm.md). A network is a file with the class and its settings,
`conf/model/<name>.yaml`, chosen by `model@policies.<id>.model=<name>`.
"""
SPOKEN = {
    "Schedule": "a schedule",
    "Optimizer": "an optimizer",
    "Matchmaker": "a matchmaker",
    "Callable": "an import path",
    "sequence": "a list [...]",
}
"""What a reader calls what a class of marlflow's stands for."""
WRITTEN = {("env", "wrappers"): "wrappers by name, {<name>: {_target_: ...}}, or null"}
"""Keys that are written otherwise than their class has them."""
FAR = 1e5
"""Upper bounds from here on are there against slips of the pen."""


def takes(kind: Any, path: Sequence[str]) -> str:
    """What a key of a class may be: its type, and if that is a number, its bounds; empty where no class says it."""
    for name in path[:-1]:
        kind = next((one for one in members(hints_of(kind).get(name, Any)) if is_dataclass(one)), None)
        if kind is None:
            return ""
    hint = hints_of(kind).get(path[-1])
    if hint is None:
        return ""
    text = described(hint)
    for name, spoken in SPOKEN.items():
        text = re.sub(rf"\b{name}\b", spoken, text)
    (field,) = [one for one in fields(kind) if one.name == path[-1]]
    for number in {int, float} & set(members(hint)):
        text = text.replace(described(number), described(number) + bounds(kind, field), 1)
    return text


def members(hint: Any) -> Sequence[Any]:
    """The types that a union is of; any other alone."""
    return get_args(hint) or (hint,)


def bounds(kind: type, field: Any) -> str:
    """From where to where a number may be, in brackets; nothing where it may be any."""
    allowed = range_of(kind, field.name, field.default)
    text = str(allowed)
    if not text.startswith("a number, "):
        return ""
    text = text.removeprefix("a number, ")
    return f" ({text.partition(' and ')[0] if allowed.high >= FAR else text})"


def cell(text: str) -> str:
    """Text as Markdown shows it in a table."""
    return text.replace(TARGET, f"`{TARGET}`").replace("|", "\\|").replace("<", "\\<")


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def written(entry: Entry, prefix: str) -> list[str]:
    """A key as it is written on the command line, and its default."""
    value = entry.value.replace("|", "\\|")
    return [f"`{prefix}{'.'.join(entry.path)}`", f"`{value}`" if value else ""]


def table(entries: Iterable[Entry], prefix: str = "", kind: Any = None) -> str:
    """The keys under `prefix`, which are those of the class `kind`, or of the class that a `_target_` above names."""
    rows, made = [], {}
    for one in entries:
        if one.path[-1] == TARGET:
            made[one.path[:-1]] = import_factory(one.value)
            continue
        of, path = (made[one.path[:-1]], one.path[-1:]) if one.path[:-1] in made else (kind, one.path)
        expected = WRITTEN.get((prefix.rstrip("."), *path)) or takes(of, path)
        what = [cell(expected)] if kind is not None else []
        rows.append(row(*written(one, prefix), *what, cell(" ".join(one.comment))))
    head = ["key", "default", *(["takes"] if kind is not None else []), ""]
    return "\n".join([row(*head), "|---" * len(head) + "|", *rows]) + "\n" if rows else "It has nothing to set.\n"


def own(file: Commented) -> list[Entry]:
    """The keys that stand in a file itself; the class that it is of is none of them."""
    return [one for one in file.entries if one.path[0] not in ("defaults", TARGET)]


def choices(group: str) -> str:
    """The files of a group by name, and what each is for."""
    rows = [row(f"`{name}`", cell(" ".join(file.heading))) for name, file in files(group).items()]
    return "\n".join([row("name", ""), "|---|---|", *rows]) + "\n"


def run() -> Iterator[str]:
    """The keys of the run; first those that are in no section."""
    entries = [one for one in own(root()) if one.path[0] != "hydra"]
    sections = list(dict.fromkeys(one.path[0] for one in entries if len(one.path) > 1))
    yield "## The run\n"
    yield table([one for one in entries if one.path[0] not in sections], kind=mf.Experiment)
    for name in sections:
        first, *others = [one for one in entries if one.path[0] == name]
        yield f"### {name}\n"
        if first.comment:
            said = " ".join(first.comment)
            yield f"{said[0].upper()}{cell(said[1:])}.\n"
        yield table(others, kind=mf.Experiment)


def settings(group: str) -> Iterator[str]:
    """For each file of a group, the settings of its class."""
    for name, file in files(group).items():
        yield f"### {group}: {name}\n"
        yield cell(" ".join(file.heading)) + "\n"
        yield table(own(file), kind=import_factory(str(file.target)))


def environments() -> Iterator[str]:
    """The arguments of each environment; what all have in common stands once before."""
    yield "## The environment: `env=`\n"
    yield "Each has these keys, and its own arguments beside them.\n"
    yield table([one for one in files("env")["python"].entries if one.path[0] in ENV_KEYS], "env.", mf.Env)
    for name, file in files("env").items():
        yield f"### env: {name}\n"
        yield cell(" ".join(file.heading)) + "\n"
        usual = {"num_envs": str(mf.Env.num_envs), "step_timeout_s": "null", "wrappers": "null"}
        entries = [one for one in own(file) if usual.get(one.path[0]) != one.value and one.path[-1] != TARGET]
        yield table(entries, "env.")


def wrappers() -> Iterator[str]:
    """The arguments of all wrappers."""
    yield f"## Around the environment: `wrappers=`\n\n{choices('wrappers')}"
    keys = [one for file in files("wrappers").values() for one in own(file) if one.value and one.path[-1] != TARGET]
    yield table(keys, "env.wrappers.")


def text() -> str:
    """The page."""
    policy, placement = files("policy")["ppo"], files("placement")
    parts = [
        HEAD,
        *run(),
        f"## A policy: `policy@policies.<id>=`\n\n{choices('policy')}",
        "`default_policy` has the same keys: it plays the groups of agents that no policy was given for.\n",
        table(own(policy), "policies.<id>.", mf.Policy),
        "## Its algorithm: under `policies.<id>.algorithm`\n",
        *settings("algorithm"),
        "## Its network: under `policies.<id>.model`\n",
        *settings("model"),
        f"## Who gets which CPU and GPU: `placement=`\n\n{choices('placement')}",
        "Each changes some keys of [the run's placement](#placement), which can be set one by one as well. "
        "`placement=inference_gpu` adds these:\n",
        table(own(placement["inference_gpu"]), "placement.", mf.RunPlacement),
        f"## One process or Ray: `runtime=`\n\n{choices('runtime')}",
        table(own(files("runtime")["ray"]), "runtime.", mf.RuntimeConfig),
        *environments(),
        *wrappers(),
        f"## Whole runs: `experiment=`\n\n{choices('experiment')}",
    ]
    return "\n".join(parts)


def main() -> int:
    """Writes the page, or with --check compares; 1 if it differs."""
    if "--check" not in sys.argv:
        PAGE.write_text(text(), encoding="utf-8")
        return 0
    same = PAGE.read_text(encoding="utf-8") == text()
    sys.stdout.write("as it was\n" if same else "it is not as it was: run python docs/configuration.py\n")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
