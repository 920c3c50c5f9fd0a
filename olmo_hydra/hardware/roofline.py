"""How fast an update can be at best: what each part of it computes and moves, against what a device can do.

The roofline model (Williams et al. 2009, doi 10.1145/1498765.1498785): a part takes as long as the slower of its
arithmetic at the peak rate and its traffic at the bandwidth of memory or links. No run is faster; kernels, latency and
waiting make real ones slower.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from olmo_hydra.config.hardware import AttentionKernel, HardwareConfig, splash_block, splash_query_block
from olmo_hydra.config.mesh import halo, query_positions
from olmo_hydra.config.model import Attention, ModelConfig
from olmo_hydra.config.remat import Point, Remat
from olmo_hydra.config.root import Config
from olmo_hydra.hardware.flops import Matmul, causal_pairs, matmuls, recomputed
from olmo_hydra.hardware.memory import others_keys, params_per_device, width_shards

# FLOPs of the backward pass of attention as a multiple of the forward pass's: `xla` keeps the probabilities, the others
# compute them again, splash twice (its kernels of dq and of dk and dv are two).
BACKWARD = {AttentionKernel.xla: 2.0, AttentionKernel.cudnn: 2.5, AttentionKernel.splash: 3.5}


@dataclass(frozen=True)
class Part:
    """What one device does of an update for one part.

    Attributes:
      name: What it is.
      flops: Arithmetic that is executed: also what is recomputed, and what a kernel's blocks compute in vain.
      moved: Bytes from and to its memory, at the least.
      sent: Bytes to other devices of its slice; as many come.
      crossing: Bytes by the network: to other slices, or to other hosts where chips are switched.
      fill: Share of the matrix unit that the shapes fill; 1 where its width is unknown.
    """

    name: str
    flops: float = 0.0
    moved: float = 0.0
    sent: float = 0.0
    crossing: float = 0.0
    fill: float = 1.0


@dataclass(frozen=True)
class Rates:
    """What a device can do at most, in FLOP/s and bytes/s; None where the hardware file does not say."""

    flops: float | None
    memory: float | None
    links: float | None
    network: float | None = None

    def seconds(self, part: Part) -> tuple[float, str] | None:
        """Time of a part and what bounds it: `arithmetic`, `memory`, `links` or `network`. None: that is unknown."""
        wanted = {
            "arithmetic": (part.flops / part.fill, self.flops),
            "memory": (part.moved, self.memory),
            "links": (part.sent, self.links),
            "network": (part.crossing, self.network),
        }
        times = {name: amount / rate for name, (amount, rate) in wanted.items() if amount and rate}
        if not times or any(amount and not rate for amount, rate in wanted.values()):
            return None
        bound = max(times, key=lambda name: times[name])
        return times[bound], bound


def rates(cfg: HardwareConfig) -> Rates:
    """Of one device."""
    chip = cfg.chip
    peak, memory = chip.of_device("peak_tflops"), chip.of_device("hbm_gbps")
    both_ways, network = chip.of_device("link_gbps"), chip.of_device("network_gbps")
    link = None if both_ways is None else both_ways / 2
    in_units = lambda value, unit: None if value is None else value * unit  # noqa: E731
    return Rates(in_units(peak, 1e12), in_units(memory, 1e9), in_units(link, 1e9), in_units(network, 1e9))


def parts(config: Config) -> list[Part]:
    """An update of the run on one device, in parts."""
    model, hardware = config.model, config.hardware
    tokens = config.train.global_batch * config.data.seq_len // (hardware.batch_shards * hardware.mesh.context)
    return [
        *_products(config, tokens),
        _attention(config, tokens),
        _elementwise(model, hardware, tokens),
        Part("loss", moved=3 * 4 * tokens * model.padded_vocab / hardware.mesh.tensor),
        _optimizer(config),
        *_collectives(config, tokens),
    ]


def _products(config: Config, tokens: int) -> list[Part]:
    """Products with weights, forward, perhaps again, and two backward: of activations and weights in the compute dtype,
    the head's results in fp32."""
    model, hardware = config.model, config.hardware
    again = recomputed(model, hardware.remat)
    size, micro_batches = model.compute_dtype.size, hardware.accumulation(config.train.global_batch)
    flops: dict[str, float] = defaultdict(float)
    filled: dict[str, float] = defaultdict(float)
    moved: dict[str, float] = defaultdict(float)
    for one in matmuls(model):
        inputs, outputs = _divided(one, hardware.mesh.tensor)
        times = one.count * (4 if one.point in again else 3)
        work = times * 2.0 * tokens * inputs * outputs
        flops[one.part] += work
        filled[one.part] += work / (_fill(inputs, hardware) * _fill(outputs, hardware))
        out = 4 if one.part == "head" else size
        moved[one.part] += times * (tokens * (inputs * size + outputs * out) + micro_batches * inputs * outputs * size)
    return [Part(name, flops[name], moved[name], fill=flops[name] / filled[name]) for name in flops]


def _divided(one: Matmul, tensor: int) -> tuple[int, int]:
    return (one.inputs // tensor, one.outputs) if one.is_second else (one.inputs, one.outputs // tensor)


def _fill(width: int, hardware: HardwareConfig) -> float:
    """Share of the matrix unit's columns that a dimension of this size fills."""
    unit = hardware.chip.matrix_unit
    return 1.0 if unit is None else width / (-(-width // unit) * unit)


def _attention(config: Config, tokens: int) -> Part:
    model, hardware, seq_len = config.model, config.hardware, config.data.seq_len
    assert model.n_heads is not None and model.n_kv_heads is not None
    heads, kv_heads = model.n_heads / hardware.mesh.tensor, model.n_kv_heads / hardware.mesh.tensor
    pairs = sum(computed_pairs(hardware, seq_len, window_of(model, kind)) for kind in model.window_pattern)
    layers_of_a_kind = model.n_layers / len(model.window_pattern)
    forward = 4 * heads * model.head_dim * pairs * layers_of_a_kind * tokens / seq_len
    again = _attention_again(hardware)
    flops = forward * (1 + again + BACKWARD[hardware.attention])
    # Forward reads q, k, v and writes the result; backward reads these and its gradient, and writes three gradients.
    instances = tokens * hardware.mesh.context // seq_len
    others = sum(others_keys(config, kind) for kind in model.window_pattern) * layers_of_a_kind * instances
    q = model.n_layers * tokens * heads * model.head_dim
    kv = (model.n_layers * tokens + others) * kv_heads * model.head_dim
    moved = ((2 * q + 2 * kv) * (1 + again) + (4 * q + 4 * kv)) * model.compute_dtype.size
    return Part("attention", flops, moved, fill=_fill(model.head_dim, hardware))


def _attention_again(hardware: HardwareConfig) -> float:
    """Forward passes of attention that the backward pass computes besides its own work. `splash` keeps all it needs
    with the context; `xla` still needs the probabilities, half of the work; nothing inside `cudnn` can be kept."""
    if hardware.remat is Remat.none:
        return 0.0
    if Point.context not in hardware.remat.kept:
        return 1.0
    return {AttentionKernel.splash: 0.0, AttentionKernel.xla: 0.5, AttentionKernel.cudnn: 1.0}[hardware.attention]


def window_of(model: ModelConfig, kind: Attention) -> int | None:
    """Of the layers of a kind; None: they see all keys before them."""
    return model.window if kind is Attention.sliding else None


def computed_pairs(hardware: HardwareConfig, seq_len: int, window: int | None) -> int:
    """Pairs of a query and a key for which attention computes a logit, in one sequence, by all its devices together.

    Splash computes whole blocks, of which some pairs are masked; others are counted as if they computed none of these.
    Where devices along `context` have unequal work, all count as the one with most.
    """
    if hardware.attention is not AttentionKernel.splash:
        return causal_pairs(seq_len, window)
    context = hardware.mesh.context
    queries, keys, shards = _shard(hardware, seq_len, window)
    (rows, block_q), (columns, block_kv) = splash_blocks(hardware, seq_len, window)

    def touched(shard: int) -> int:
        """Blocks with a pair that is seen; where a block lies in two parts, those between them count as well."""
        positions = query_positions(shard, shards, queries, keys)
        filled = positions + positions[-1:] * (rows - queries)
        ends = [(min(block), max(block)) for block in (filled[i : i + block_q] for i in range(0, rows, block_q))]
        last_keys = range(block_kv - 1, columns, block_kv)
        return sum(last - block_kv < high and low - last < (window or keys) for low, high in ends for last in last_keys)

    return context * max(touched(shard) for shard in range(shards)) * block_q * block_kv


def splash_blocks(
    hardware: HardwareConfig, seq_len: int, window: int | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the queries of a device and of the keys that it has: the length to which splash pads them, and its block."""
    queries, keys, shards = _shard(hardware, seq_len, window)
    most = hardware.attention_block
    return splash_query_block(queries, shards, most), splash_block(keys, most)


def _shard(hardware: HardwareConfig, seq_len: int, window: int | None) -> tuple[int, int, int]:
    """Queries of a device along `context`, keys that it has for them, and the shards whose parts the queries are."""
    context, before = hardware.mesh.context, halo(seq_len, window)
    queries = seq_len // context
    if before is None or context == 1:
        return queries, seq_len, context
    return queries, queries + before, 1


def _elementwise(model: ModelConfig, hardware: HardwareConfig, tokens: int) -> Part:
    """Norms, rotations, residuals and the gate, each fused as far as it can be: read once, written once. Forward, twice
    as much backward, and forward once more with any recomputation."""
    assert model.n_heads is not None and model.n_kv_heads is not None
    heads = (model.n_heads + model.n_kv_heads) * model.head_dim
    forward = 2 * 3 * model.d_model + (2 * heads + 3 * model.d_ff) / hardware.mesh.tensor
    passes = 3 if hardware.remat is Remat.none else 4
    return Part("norms, gate", moved=passes * model.n_layers * tokens * forward * model.compute_dtype.size)


def _optimizer(config: Config) -> Part:
    """Reads the gradient, and reads and writes parameters and moments; adds up gradients of micro-batches before."""
    model = config.model
    held = params_per_device(config)
    micro_batches = config.hardware.accumulation(config.train.global_batch)
    added = 3 * 4 * micro_batches if micro_batches > 1 else 0
    return Part(
        "optimizer", moved=held * (4 + 2 * (model.param_dtype.size + config.optim.state_bytes_per_param) + added)
    )


def _collectives(config: Config, tokens: int) -> list[Part]:
    """What a device sends by ring algorithms: n - 1 parts of n to gather or to scatter, twice that to sum.

    Gradients of layers are sent in the compute dtype, of every micro-batch before they are added up in fp32; those of
    the head and the table in fp32, and at best as a sum. The compiler does so (tests/end_to_end/test_compile.py).
    """
    model, mesh, size = config.model, config.hardware.mesh, config.model.compute_dtype.size
    shards, slices = width_shards(config), config.hardware.slices
    micro_batches = config.hardware.accumulation(config.train.global_batch)
    head = table = model.d_model * model.padded_vocab / mesh.tensor
    layers = (model.num_params - model.num_norm_params) / mesh.tensor - head - table
    found = []
    if shards > 1:  # the table stays where it is: what was looked up is exchanged, and its gradients (`Layout.lookup`)
        share = (shards - 1) / shards
        found += [  # of layers in both passes
            _along(config, "gather weights", micro_batches * (2 * layers + head) * size * share, "fsdp"),
            _along(config, "scatter gradients", (micro_batches * layers * size + head * 4) * share, "fsdp"),
            _along(config, "exchange lookup", 2 * tokens * model.d_model * size * share, "fsdp"),
        ]
    summed = (micro_batches * layers * size + (head + table) * 4) / shards
    copies = mesh.data * mesh.fsdp // shards * mesh.context // slices  # within a slice
    if copies > 1:
        axes = ("data", "context") if shards > 1 else ("data", "fsdp", "context")
        found.append(_along(config, "sum gradients", 2 * summed * (copies - 1) / copies, *axes))
    if slices > 1:  # of which every copy within a slice sends its part
        found.append(Part("sum over slices", crossing=2 * summed / copies * (slices - 1) / slices))
    if mesh.context > 1:
        found.append(_context(config, tokens))
    if mesh.tensor > 1:
        again = recomputed(model, config.hardware.remat) & {Point.out, Point.down}
        sums = (4 + len(again)) * model.n_layers
        sent = 2 * sums * tokens * model.d_model * size * (mesh.tensor - 1) / mesh.tensor
        found.append(_along(config, "sum activations", sent, "tensor"))
    return found


def _along(config: Config, name: str, sent: float, *axes: str) -> Part:
    """What a device sends along axes of the mesh. Where chips are switched and these leave a host, as much also leaves
    each host once, by as many networks as devices of it take part."""
    hardware, sizes = config.hardware, config.hardware.mesh.sizes
    if hardware.chip.torus or not hardware.chip.per_host:
        return Part(name, sent=sent)
    of_host, stride, in_host = hardware.chip.per_host * hardware.chip.devices, 1, 1
    for axis, size in reversed(sizes.items()):
        if axis in axes:
            in_host *= max(1, min(size, of_host // stride))
        stride *= size
    leaves = in_host < math.prod(sizes[axis] for axis in axes)
    return Part(name, sent=sent, crossing=sent / in_host if leaves else 0.0)


def _context(config: Config, tokens: int) -> Part:
    """Keys and values go to the devices that need them, forward and recomputed, and their gradients back; so do halves
    of the queries and results of layers that take all keys, to and fro, where half of the positions are exchanged."""
    model, hardware = config.model, config.hardware
    assert model.n_heads is not None and model.n_kv_heads is not None
    instances = tokens * hardware.mesh.context // config.data.seq_len
    layers = model.n_layers / len(model.window_pattern)
    taken = sum(others_keys(config, kind) for kind in model.window_pattern) * layers * instances
    balanced = sum(halo(config.data.seq_len, window_of(model, kind)) is None for kind in model.window_pattern) * layers
    numbers = 2 * taken * model.n_kv_heads + balanced * tokens * model.n_heads
    passes = 2 if hardware.remat is Remat.none else 3  # no policy keeps what was exchanged
    sent = passes * numbers * model.head_dim / hardware.mesh.tensor * model.compute_dtype.size
    return _along(config, "exchange context", sent, "context")


@dataclass(frozen=True)
class Bound:
    """Seconds of an update on one device, at best.

    Attributes:
      computing: Of all parts that compute, one after the other.
      sending: Of all collectives.
    """

    computing: float
    sending: float

    @property
    def overlapped(self) -> float:
        """With collectives wholly behind the computation."""
        return max(self.computing, self.sending)

    @property
    def in_turns(self) -> float:
        """With none of them behind it."""
        return self.computing + self.sending


def bound(found: list[Part], rates: Rates) -> Bound | None:
    """Of an update of these parts; None where the hardware file lacks a rate."""
    taken = {part.name: rates.seconds(part) for part in found}
    if any(one is None for one in taken.values()):
        return None
    sending = math.fsum(one[0] for one in taken.values() if one and one[1] in ("links", "network"))
    computing = math.fsum(one[0] for one in taken.values() if one and one[1] not in ("links", "network"))
    return Bound(computing, sending)
