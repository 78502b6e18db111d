"""From a configuration to a checked experiment."""
