"""Memory of an update by part: counted by hand."""

from olmo_hydra.config.compose import compose
from olmo_hydra.hardware.activations import activation_bytes_per_device, host_bytes_per_device

SEVEN_B = ("model=olmo3_7b", "hardware=ironwood", "data.seq_len=8192", "train.global_batch=8")
TOKENS, D, F, V = 8192, 4096, 11008, 100352


def test_seven_billion_on_eight_devices() -> None:
    config = compose(SEVEN_B)
    found = activation_bytes_per_device(config)
    norms = D + 32 * 4 * D
    layer = 4 * D * D + 3 * D * F
    assert found == {
        "kept by layers": 32 * TOKENS * D * 2,
        # Its input, four projections, attention's result, six of width D between them; gate, up and their product.
        "a layer at work": 2 * TOKENS * 2 * (D + 4 * D + D + D + 4 * D + D + 3 * F),
        "layer weights": 2 * layer * 2,
        "head": D * V * (2 + 4),
        "logits": 1024 * V * (4 + 4 + 2),
        "gradients": 4 * ((config.model.num_params - norms) // 8 + norms),
    }


def test_what_policies_keep() -> None:
    def kept(policy: str) -> int:
        return activation_bytes_per_device(compose([*SEVEN_B, f"hardware.remat={policy}"]))["kept by layers"]

    of_width = 32 * TOKENS * 2
    assert kept("save_qkv_proj") == of_width * 4 * D
    assert kept("minimal_with_context_except_up") == of_width * (D + 5 * D + F + D)
    assert kept("none") == 32 * activation_bytes_per_device(compose(SEVEN_B))["a layer at work"] // 2


def test_what_lies_on_the_host_is_not_on_the_device() -> None:
    policy = (*SEVEN_B, "hardware.remat=minimal_with_context_except_up")
    here, there = (compose([*policy, f"hardware.offload={points}"]) for points in ("[]", "[q,gate,up]"))
    moved = 32 * TOKENS * 2 * (D + F)  # this policy keeps no `up`
    kept = [activation_bytes_per_device(config)["kept by layers"] for config in (here, there)]
    assert kept[0] - kept[1] == moved == host_bytes_per_device(there) and host_bytes_per_device(here) == 0


def test_the_mesh_divides_them() -> None:
    by_context = ("hardware.mesh.fsdp=2", "hardware.mesh.context=2", "hardware.mesh.tensor=2", "hardware.micro_batch=2")
    whole, part = (activation_bytes_per_device(compose([*SEVEN_B, *mesh])) for mesh in ((), by_context))
    # Two of a device's four instances at once, half of the positions of each: as many tokens.
    assert part["kept by layers"] == whole["kept by layers"]
    assert part["head"] == whole["head"] // 2 and part["logits"] == whole["logits"] // 2
    assert part["keys of others"] == 2 * 4096 * 2 * 16 * 128 * 2
    assert part["gradients"] > 2 * whole["gradients"] - 8 * 10**6, (
        "a sum, and one micro-batch's, over half of the devices"
    )


def test_softmax_weights_of_xla_are_counted() -> None:
    splash, xla = (
        activation_bytes_per_device(compose([*SEVEN_B, f"hardware.attention={kernel}"]))["a layer at work"]
        for kernel in ("splash", "xla")
    )
    assert xla - splash == 2 * 4 * 32 * TOKENS * (TOKENS + 1) // 2


def test_a_sliding_layer_keeps_the_softmax_weights_of_its_window_alone() -> None:
    """Without recomputation, on 8 GPUs: 24 layers see 4096 keys, after as many positions that see fewer; 8 see all."""
    on = ("hardware=h200", "hardware.remat=none")
    kept = [
        activation_bytes_per_device(compose([*SEVEN_B, *on, f"hardware.attention={kernel}"]))["kept by layers"]
        for kernel in ("cudnn", "xla")
    ]
    sliding, full = 4096 * 4097 // 2 + 4096 * 4096, 8192 * 8193 // 2
    assert kept[1] - kept[0] == 4 * 32 * (24 * sliding + 8 * full)
