"""The names that Stable-Baselines3, RLlib, CleanRL and BenchMARL have for settings, and settings that are parts now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from marlflow.base.sentences import nearest

_REPLAY = "replay_agent_steps"


@dataclass(frozen=True, slots=True)
class ForeignName:
    """The keys here of a setting elsewhere, the first that exists; `replay`: those of algorithms with a replay.

    A key is a setting of an algorithm, or with its section a path in the run. `note` says what differs.
    """

    keys: tuple[str, ...]
    replay: tuple[str, ...] = ()
    note: str = ""

    def candidates(self, known: Collection[str]) -> tuple[str, ...]:
        """Return the keys to try among the `known` settings of an algorithm."""
        return self.replay if self.replay and _REPLAY in known else self.keys


_SCHEDULE: Final = (
    ", a number or a schedule such as {_target_: marlflow.Linear, start: 1.0, end: 0.05, agent_steps: 10000}"
)
_AGENT_STEPS: Final = ", in agent steps of all environments together"
_HIDDEN: Final = ("hidden_sizes", "hidden_size", "policies.<id>.model.hidden_sizes")


def _same(names: str, *keys: str, replay: tuple[str, ...] = (), note: str = "") -> dict[str, ForeignName]:
    return dict.fromkeys(names.split(), ForeignName(keys, replay, note))


FOREIGN_NAMES: Final = {
    # Settings of algorithms.
    **_same("lr learn_rate learningrate step_size critic_lr q_lr qf_lr vf_lr value_lr lr_critic", "learning_rate"),
    **_same("actor_lr policy_lr pi_lr lr_actor", "actor_learning_rate", "learning_rate"),
    **_same("lr_schedule anneal_lr lr_scheduler", "learning_rate", note=_SCHEDULE),
    **_same("alpha_lr", "learning_rate"),
    **_same("gamma discount_factor", "discount"),
    **_same("gae_lambda lambda lambda_ lmbda gae_lmbda lam", "gae_lambda", "trace_lambda"),
    **_same(
        "ent_coef entropy_coeff entropy_coef entropy_coeffs ent_weight beta_entropy",
        *("entropy_coefficient", "temperature"),
    ),
    **_same("alpha", "temperature", "priority_alpha"),
    **_same("init_alpha initial_alpha alpha_init", "initial_temperature"),
    **_same("autotune auto_alpha fixed_alpha", "temperature", note=": null learns it, a number fixes it"),
    **_same("vf_coef vf_loss_coeff critic_coef value_coef value_loss_coef vf_coeff", "value_coefficient"),
    **_same("clip_coef clip_param clip_epsilon clip_eps clip_ratio eps_clip clip", "clip_range"),
    **_same("clip_range_vf vf_clip_param clip_vloss value_clip", "value_clip_range"),
    **_same("grad_clip clip_grad_norm clip_grad_val max_gradient_norm gradient_clip grad_norm_clip", "max_grad_norm"),
    **_same("norm_adv normalize_advantage normalise_advantage", "normalize_advantages"),
    **_same(
        "n_epochs update_epochs num_epochs num_sgd_iter ppo_epochs ppo_epoch on_policy_n_minibatch_iters",
        "epochs",
    ),
    **_same(
        "batch_size minibatch_size sgd_minibatch_size mini_batch_size on_policy_minibatch_size num_minibatches "
        "num_mini_batch",
        *("minibatch_agent_steps", "batch_agent_steps"),
        replay=("batch_agent_steps",),
        note=", in agent steps",
    ),
    **_same(
        "train_batch_size train_batch_size_per_learner frames_per_batch rollout_steps rollout_length horizon "
        "on_policy_collected_frames_per_batch off_policy_train_batch_size",
        *("batch_agent_steps", "rollouts.fragment_env_steps"),
        note=_AGENT_STEPS,
    ),
    **_same(
        "n_steps num_steps",
        *("batch_agent_steps", "rollouts.fragment_env_steps"),
        replay=("n_step",),
    ),
    **_same("nstep n_step_returns", "n_step"),
    **_same(
        "buffer_size replay_buffer_size replay_buffer_config replay_size memory_size off_policy_memory_size capacity",
        _REPLAY,
    ),
    **_same(
        "learning_starts num_steps_sampled_before_learning_starts start_steps warmup_steps random_steps "
        "off_policy_init_random_frames",
        "learning_starts_agent_steps",
    ),
    **_same("train_freq train_frequency update_every training_intensity", "train_every_agent_steps"),
    **_same(
        "gradient_steps off_policy_n_optimizer_steps num_gradient_steps utd_ratio",
        "train_every_agent_steps",
        note=", the agent steps for each update",
    ),
    **_same(
        "target_update_interval target_network_frequency target_network_update_freq target_update_freq "
        "hard_target_update_frequency target_update_period target_update",
        "target_every_updates",
        note=", in updates",
    ),
    **_same("polyak polyak_tau soft_target_update soft_update_tau", "tau"),
    **_same("policy_delay policy_frequency policy_freq delayed_policy_update", "actor_every_updates"),
    **_same("policy_noise target_policy_noise", "target_noise"),
    **_same("noise_clip target_policy_noise_clip", "target_noise_clip"),
    **_same("action_noise expl_noise exploration_sigma", "exploration_noise"),
    **_same(
        "exploration_fraction exploration_initial_eps exploration_final_eps start_e end_e eps_start eps_end eps_decay "
        "initial_epsilon final_epsilon epsilon_timesteps exploration_eps_init exploration_eps_end "
        "exploration_anneal_frames exploration_config",
        *("epsilon", "exploration_noise"),
        note=_SCHEDULE,
    ),
    **_same("double_q double_dqn", "double"),
    **_same("dueling_dqn use_dueling", "dueling"),
    **_same("prioritized_replay use_per per", "prioritized"),
    **_same("prioritized_replay_alpha per_alpha", "priority_alpha"),
    **_same("prioritized_replay_beta per_beta", "priority_beta"),
    **_same("num_atoms n_atoms", "atoms"),
    **_same("v_min vmin", "value_min"),
    **_same("v_max vmax", "value_max"),
    **_same("mixing_embed_dim mixer_embed_dim", "embed_size"),
    **_same("vtrace_clip_rho_threshold rho_bar", "rho_max"),
    **_same("optimizer_class optim", "optimizer"),
    **_same("adam_eps adam_epsilon rms_prop_eps", "optimizer.eps"),
    # Networks.
    **_same("net_arch fcnet_hiddens hidden_dim hidden_dims num_cells hiddens layer_sizes fc_sizes", *_HIDDEN),
    **_same("policy_kwargs model_config", "policies.<id>.model"),
    # The run.
    **_same(
        "total_timesteps total_steps timesteps_total max_timesteps max_steps n_timesteps num_timesteps total_frames "
        "max_n_frames num_env_steps_sampled_lifetime",
        "stop.env_steps",
        note=", in env steps: one of a Parallel environment is of all its agents",
    ),
    **_same("time_total_s max_time", "stop.time_s"),
    **_same("num_rollout_workers num_env_runners n_workers", "rollouts.num_workers"),
    **_same(
        "n_envs num_envs_per_worker num_envs_per_env_runner on_policy_n_envs_per_worker off_policy_n_envs_per_worker "
        "n_rollout_threads",
        "env.num_envs",
        note=", over all workers",
    ),
    **_same("rollout_fragment_length", "rollouts.fragment_env_steps"),
    **_same("eval_freq eval_interval evaluation_interval eval_every", "evaluation.every_env_steps"),
    **_same("n_eval_episodes eval_episodes evaluation_duration evaluation_episodes", "evaluation.episodes"),
    **_same("save_freq checkpoint_freq checkpoint_interval checkpoint_frequency", "checkpoint.every_env_steps"),
    **_same("keep_checkpoints_num num_to_keep", "checkpoint.keep"),
    **_same("log_interval log_frequency", "log.every_env_steps"),
    **_same("cuda train_device", "placement.learners.device"),
    **_same("num_gpus_per_learner num_gpus_per_learner_worker", "placement.learners.num_gpus"),
    **_same("num_learner_workers", "placement.learners.num_learners"),
    **_same("num_cpus_per_worker num_cpus_per_env_runner", "rollouts.placement.num_cpus"),
    **_same("num_gpus_per_worker num_gpus_per_env_runner", "rollouts.placement.num_gpus"),
    **_same("env_id env_name env_config task_name", "env", note=": env=<name>, and its arguments env.<argument>"),
    **_same("policy_mapping_fn", "mapping"),
    **_same("exp_name experiment_name run_name", "name"),
}

_VALUES: Final = "parts@{parts}.values=pop_art, or {parts}.values=null for false"
BECAME_PARTS: Final = {
    "cost_limit": "parts@{parts}.cost=cost_limit {parts}.cost.limit=<limit>",
    "initial_multiplier": "{parts}.cost.initial_multiplier",
    "kl_to_reference": "parts@{parts}.reference=kl_to_reference {parts}.reference.beta=<beta>",
    "multiplier_learning_rate": "{parts}.cost.multiplier_learning_rate",
    "normalise_returns": _VALUES,
    "normalize_rewards": "parts@{parts}.rewards=reward_unit, or {parts}.rewards=null for false",
    "normalize_values": _VALUES,
}
"""Settings that have become parts: what to write on the command line, where `parts` is the key of an algorithm."""


def own_key(path: str, key: str, known: Collection[str]) -> str | None:
    """Return marlflow's key, as a path, for the foreign name `key` at `path`, whose section has the `known` keys.

    None if the name is unknown, or the section has a similar one.

    >>> own_key("policies.prey.algorithm.lr", "lr", ["learning_rate", "discount"])
    'policies.prey.algorithm.learning_rate'
    >>> own_key("stop.total_timesteps", "total_timesteps", ["env_steps"])
    'stop.env_steps'
    """
    if (foreign := FOREIGN_NAMES.get(key)) is None:
        return None
    parent = path.removesuffix(key)
    candidates = foreign.candidates(known)
    for name in candidates:
        # The key may be a whole path, of which `parent` is the first part.
        if name.removeprefix(parent).partition(".")[0] in known:
            return parent + name.removeprefix(parent)
    is_algorithm = ".algorithm." in f".{parent}"
    if not is_algorithm and nearest(key, known) is not None:
        return None
    owner = _owner(parent)
    elsewhere = [name.replace("policies.<id>", owner) for name in candidates if _is_of_run(name)]
    if elsewhere:
        return elsewhere[0]
    return None if is_algorithm else f"{owner}.algorithm.{candidates[0]}"


def own_paths(key: str, paths: Sequence[str]) -> Iterator[str]:
    """Yield the `paths` of a run that the last part of `key` is the foreign name of."""
    foreign = FOREIGN_NAMES.get(key.rpartition(".")[2])
    if foreign is None:
        return
    for section in (path for path in paths if path.endswith(".algorithm")):
        known = [path.removeprefix(f"{section}.") for path in paths if path.startswith(f"{section}.")]
        if name := next((name for name in foreign.candidates(known) if name in known), None):
            yield f"{section}.{name}"
    for name in foreign.keys:
        yield from (path for path in paths if _is_of_run(name) and _matches(path, name))


def _matches(path: str, name: str) -> bool:
    if "<id>" not in name:
        return path == name
    return path.endswith(name.removeprefix("policies.<id>")) and path.startswith(("policies.", "default_policy."))


def _is_of_run(name: str) -> bool:
    return name.partition(".")[0] in _SECTIONS


_SECTIONS: Final = frozenset({"policies", "stop", "rollouts", "env", "evaluation", "checkpoint", "log"}) | frozenset(
    {"placement", "mapping", "name"}
)


def _owner(parent: str) -> str:
    """Return the policy or learner that a path is of, `policies.<id>` if none."""
    parts = parent.split(".")
    if parts[0] == "default_policy":
        return parts[0]
    return ".".join(parts[:2]) if parts[0] in ("policies", "learners") and len(parts) > 2 else "policies.<id>"
