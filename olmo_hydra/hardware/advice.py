"""What the config of a run leaves unused of its hardware, and what to type instead. From the config alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from olmo_hydra.config.dtypes import DType
from olmo_hydra.config.hardware import LANES, AttentionKernel, Platform
from olmo_hydra.config.model import Attention
from olmo_hydra.config.root import Config
from olmo_hydra.hardware import fit
from olmo_hydra.hardware.activations import needed_by_part
from olmo_hydra.hardware.flops import causal_pairs
from olmo_hydra.hardware.memory import params_per_device, state_bytes_per_device
from olmo_hydra.hardware.roofline import computed_pairs, splash_blocks, window_of

UNSHARDED = 0.02  # of the parameters, the largest share that every device may hold whole without a word (MaxText's)
IN_VAIN = 0.05  # of the pairs of attention, the largest share that blocks may compute in vain without a word


@dataclass(frozen=True)
class Advice:
    """What was found, what to type, and whether that makes another experiment of it."""

    finding: str
    instead: str
    changes_the_run: bool


def advice(config: Config) -> list[Advice]:
    """All that there is, the most expensive kinds first."""
    return [*_memory(config), *_kernel(config), *_matrix_unit(config), *_blocks(config), *_division(config)]


def _memory(config: Config) -> Iterator[Advice]:
    hbm, state = config.hardware.chip.of_device("hbm_gib"), state_bytes_per_device(config)
    fsdp = config.hardware.mesh.fsdp
    parts = needed_by_part(config)
    needed = sum(parts.values())
    if hbm is not None and needed > hbm * 2**30:
        largest = max(parts, key=lambda name: parts[name])
        if state > hbm * 2**30:
            finding = f"parameters and moments take {state / 2**30:.1f} GiB of the {hbm:g} GiB of a device"
        else:
            finding = (
                f"about {needed / 2**30:.1f} GiB are needed of the {hbm:g} GiB of a device; the largest part, "
                f"{parts[largest] / 2**30:.1f} GiB, is {largest}"
            )
        changes = fit.in_hbm(config) or ["more devices, and a train.global_batch that divides over them"]
        yield Advice(finding, changes[0], False)
    if getattr(config.optim, "mu_dtype", None) is DType.float32 and hbm is not None and state > 0.1 * hbm * 2**30:
        saved = 2 * params_per_device(config) / 2**30
        yield Advice(
            f"the first moment in float32 takes {2 * saved:.1f} GiB of a device's {hbm:g}",
            f"optim.mu_dtype=bfloat16 takes {saved:.1f} GiB less; sweep=mu_dtype measures what it costs",
            True,
        )
    whole = params_per_device(config) - (config.model.num_params - config.model.num_norm_params) // (
        fsdp * config.hardware.mesh.tensor
    )
    if fsdp > 1 and whole > UNSHARDED * config.model.num_params:
        yield Advice(
            f"{whole / config.model.num_params:.1%} of the parameters lie whole on every device: "
            f"model.d_model={config.model.d_model} does not divide by hardware.mesh.fsdp={fsdp}",
            "a mesh.fsdp that divides it, with the other devices along hardware.mesh.data",
            False,
        )


def _matrix_unit(config: Config) -> Iterator[Advice]:
    unit, model = config.hardware.chip.matrix_unit, config.model
    if unit is None:
        return
    assert model.n_heads is not None and model.n_kv_heads is not None
    width, kv_width = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
    wider: fit.Change = {"model.head_dim": unit}
    heads = {"model.n_heads": width // unit, "model.n_kv_heads": kv_width // unit}
    if (width, kv_width) != (model.d_model, model.d_model):  # else they follow from the width
        wider |= heads
    if model.head_dim < unit and width % unit == kv_width % unit == 0 and fit.changed(config, wider | heads):
        yield Advice(
            f"heads of {model.head_dim} fill {model.head_dim / unit:.0%} of the {unit} wide matrix unit in attention",
            f"{fit.typed(wider)}: as many parameters and FLOPs in fewer heads; sweep=head_dim measures the loss",
            True,
        )
    tensor = config.hardware.mesh.tensor
    for name, size in (("d_model", model.d_model), ("d_ff", model.d_ff // tensor)):
        if size % unit:
            yield Advice(
                f"model.{name}{f' / tensor={tensor}' if tensor > 1 and name == 'd_ff' else ''} = {size} is no multiple "
                f"of the matrix unit's {unit}: its last columns are {size % unit / unit:.0%} full",
                f"model.{name}={-(-size // unit) * unit * (tensor if name == 'd_ff' else 1)}",
                True,
            )
    if model.padded_vocab // tensor % unit:
        yield Advice(
            f"{model.padded_vocab // tensor:,} columns of the head on a device are no multiple of {unit}",
            f"model.vocab_multiple={unit * tensor}",
            True,
        )


def _kernel(config: Config) -> Iterator[Advice]:
    model, hardware = config.model, config.hardware
    on_gpu = hardware.platform is Platform.gpu and hardware.attention is AttentionKernel.xla
    if on_gpu and model.compute_dtype is DType.bfloat16 and model.head_dim <= 128:
        yield Advice(
            "attention by XLA has all logits of a layer in memory, and moves them several times",
            "hardware.attention=cudnn keeps them on the chip",
            False,
        )


def _blocks(config: Config) -> Iterator[Advice]:
    model, hardware = config.model, config.hardware
    if hardware.attention is not AttentionKernel.splash:
        return
    for kind in dict.fromkeys(model.window_pattern):
        (rows, block_q), (columns, block_kv) = splash_blocks(hardware, config.data.seq_len, window_of(model, kind))
        below = range(min(block_q, block_kv) - LANES, 0, -LANES)
        smaller = [size for size in below if rows % size == columns % size == 0]
        vain = _in_vain(config, kind, hardware.attention_block)
        if vain > IN_VAIN and smaller:
            enough = (size for size in smaller if _in_vain(config, kind, size) <= IN_VAIN)
            yield Advice(
                f"{vain:.0%} of the logits of a {kind.value} layer are masked, within blocks of {block_q} queries and "
                f"{block_kv} keys",
                f"hardware.attention_block={next(enough, smaller[-1])} computes fewer, with more overhead a block",
                False,
            )


def _in_vain(config: Config, kind: Attention, block: int | None) -> float:
    """Share of the logits of a layer that are computed and masked, in blocks of at most so many tokens."""
    hardware, seq_len = replace(config.hardware, attention_block=block), config.data.seq_len
    window = window_of(config.model, kind)
    return 1 - causal_pairs(seq_len, window) / computed_pairs(hardware, seq_len, window)


def _division(config: Config) -> Iterator[Advice]:
    hardware, train = config.hardware, config.train
    micro_batches = hardware.accumulation(train.global_batch)
    if hardware.chip.torus and hardware.topology is None:
        yield Advice(
            f"{hardware.chips} chips are in no slice that is offered",
            "hardware.topology=..., or a number of chips that is a power of two",
            False,
        )
    wanted = hardware.micro_batch
    each = hardware.instances_at_once(train.global_batch)
    if wanted is not None and each < wanted and micro_batches > 1:
        yield Advice(
            f"{each} instances of a device's {each * micro_batches} at once, as {wanted} do not divide them",
            f"a hardware.micro_batch or train.global_batch that divides: {hardware.batch_shards * wanted} instances "
            "are a whole micro-batch",
            False,
        )
