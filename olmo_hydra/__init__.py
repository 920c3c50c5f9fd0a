"""Config-as-code language-model pretraining on Hydra and JAX."""

__version__ = "0.1.0"
