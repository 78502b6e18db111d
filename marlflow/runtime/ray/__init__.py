"""Ray: rollout workers, learners and replays are actors; the driver holds references and receipts."""

from marlflow.runtime.ray.runtime import RayRuntime

__all__ = ["RayRuntime"]
