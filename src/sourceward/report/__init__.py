"""Pages and figures from plain results; knows nothing of how they were computed."""
