"""Config-as-code language-model pretraining on Hydra and JAX."""

import time

__version__ = "0.1.0"
IMPORTED = time.perf_counter()  # about when the process started, where the system does not say
