"""The configuration groups that Hydra composes; installed as `marlflow.conf`."""
