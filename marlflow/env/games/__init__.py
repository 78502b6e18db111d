"""Games that come with marlflow."""
