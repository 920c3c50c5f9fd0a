"""Pages from run directories. Reads nothing else, and never imports JAX."""
