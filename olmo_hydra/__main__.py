"""`python -m olmo_hydra` is `olmo-hydra`."""

import sys

from olmo_hydra.cli.main import main

sys.exit(main())
