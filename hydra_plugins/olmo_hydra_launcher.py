"""The shim by which Hydra finds our launcher (`hydra/launcher=local`). Light: Hydra imports it at every start."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn


@dataclass
class LocalConfig:
    _target_: str = "hydra_plugins.olmo_hydra_launcher.LocalLauncher"


class LocalLauncher(BasicLauncher):
    """Runs the cells of a sweep one after the other in this process, after checking all of them."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from olmo_hydra.config.compose import resolve
        from olmo_hydra.launch.cells import tagged

        assert self.hydra_context is not None and self.config is not None
        cells = tagged(job_overrides)
        for cell in cells:
            resolve(self.hydra_context.config_loader.load_sweep_config(self.config, cell))
        return super().launch(cells, initial_job_idx)


ConfigStore.instance().store(group="hydra/launcher", name="local", node=LocalConfig, provider="olmo_hydra")
