"""Attention kernels behind one interface."""

from jax.sharding import Mesh

from olmo_hydra.config.hardware import AttentionKernel, HardwareConfig
from olmo_hydra.model.kernels import cudnn, xla
from olmo_hydra.model.kernels.attend import Attend
from olmo_hydra.model.kernels.divided import Divided

__all__ = ["Attend", "build"]


def build(hardware: HardwareConfig, mesh: Mesh) -> Attend:
    """The kernel that `hardware.attention` names, on the devices of a run.

    Args:
      hardware: Derived and checked.
      mesh: Along `MESH_AXES`.
    """
    return Divided(_of_one_device(hardware), mesh)


def _of_one_device(hardware: HardwareConfig) -> Attend:
    match hardware.attention:
        case AttentionKernel.xla:
            return xla.attention
        case AttentionKernel.splash:
            from olmo_hydra.model.kernels.splash import Splash  # importing Pallas takes a tenth of a second

            return Splash(hardware.attention_block)
        case AttentionKernel.cudnn:
            return cudnn.attention
