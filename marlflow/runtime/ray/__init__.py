"""Ray: rollout workers, learners and replays are actors; the driver holds references and receipts."""

from marlflow.runtime.ray.runtime import RayRuntime, local_resources

__all__ = ["RayRuntime", "local_resources"]
