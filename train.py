"""The training entrypoint: `python train.py [overrides]`. Composes the config and hands over; JAX comes later."""

import sys

import hydra
from omegaconf import DictConfig

import olmo_hydra.config.root  # noqa: F401  registers the schemas
from olmo_hydra.cli import train
from olmo_hydra.cli.guard import guarded, past_hydra


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    with past_hydra(is_cell=train.in_sweep()):
        train.run(cfg)


def command() -> None:
    train.check(sys.argv[1:])
    main()


if __name__ == "__main__":
    train.end(lambda: guarded(command))
