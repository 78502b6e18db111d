"""From a configuration to a running experiment."""
