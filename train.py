"""The training entrypoint: `python train.py [overrides]`. Composes the config, then hands over; JAX is imported later."""

import sys

import hydra
from omegaconf import DictConfig

import olmo_hydra.config.root  # noqa: F401  registers the schemas
from olmo_hydra.cli import train
from olmo_hydra.cli.guard import guarded, past_hydra


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    with past_hydra():
        train.run(cfg)


if __name__ == "__main__":
    sys.exit(guarded(lambda: (train.check(sys.argv[1:]), main())))
