"""What a person sees while a run trains, and what stays afterwards: metric sinks, consoles, curves and traces."""
