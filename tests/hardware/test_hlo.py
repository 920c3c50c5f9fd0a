"""Programs small enough to count by hand, as text in XLA's form. What a real compiler writes is in test_ahead.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_hydra.hardware import hlo

KERNEL = """custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 256}"
}}, metadata={op_name="jit(step)/jvp(blocks)/while/body/attention/splash"}"""

PROGRAM = f"""HloModule jit_step, is_scheduled=true, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[]{{:T(128)}} parameter(0)
  %b = f32[]{{:T(128)}} parameter(1)
  ROOT %add.1 = f32[]{{:T(128)}} add(%a, %b), backend_config={{"window_config":{{"estimated_cycles":"1486"}}}}
}}

%gathered (x.1: bf16[4,128]) -> bf16[16,128] {{
  %x.1 = bf16[4,128]{{1,0:T(8,128)(2,1)}} parameter(0)
  ROOT %all-gather.1 = bf16[16,128]{{1,0:T(8,128)(2,1)}} all-gather(%x.1), replica_groups=[2,4]<=[8], dimensions={{0}}
}}

%condition (state: (s32[], bf16[4,128])) -> pred[] {{
  %limit = s32[]{{:T(128)}} constant(5)
  %state = (s32[]{{:T(128)}}, bf16[4,128]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%state), index=0
  ROOT %lt = pred[]{{:T(512)}} compare(%i, %limit), direction=LT
}}

%body (state.1: (s32[], bf16[4,128])) -> (s32[], bf16[4,128]) {{
  %state.1 = (s32[]{{:T(128)}}, bf16[4,128]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %i.1 = s32[]{{:T(128)}} get-tuple-element(%state.1), index=0
  %x = bf16[4,128]{{1,0:T(8,128)(2,1)}} get-tuple-element(%state.1), index=1
  %one = s32[]{{:T(128)}} constant(1)
  %i.2 = s32[]{{:T(128)}} add(%i.1, %one)
  %i.3 = s32[]{{:T(128)}} add(%i.2, %one)
  %start = ((bf16[4,128]{{1,0}}), bf16[16,128]{{1,0}}, u32[]) async-start(%x), async_execution_thread="sparsecore", \
calls=%gathered, metadata={{op_name="jit(step)/transpose(jvp(blocks))/while/body/mlp/dot_general"}}
  %splash.7 = bf16[4,128]{{1,0:T(8,128)(2,1)}} {KERNEL}
  %fusion.1 = bf16[4,128]{{1,0:T(8,128)(2,1)}} fusion(%splash.7), kind=kLoop, calls=%sum, \
metadata={{op_name="jit(step)/jvp(blocks)/while/body/mlp/mul"}}, \
backend_config={{"window_config":{{"estimated_cycles":"100"}}}}
  ROOT %next = (s32[]{{:T(128)}}, bf16[4,128]{{1,0:T(8,128)(2,1)}}) tuple(%i.3, %fusion.1)
}}

ENTRY %main (p: bf16[4,128]) -> f32[128] {{
  %p = bf16[4,128]{{1,0:T(8,128)(2,1)}} parameter(0)
  %zero = s32[]{{:T(128)}} constant(0)
  %begin = s32[]{{:T(128)}} copy(%zero)
  %init = (s32[]{{:T(128)}}, bf16[4,128]{{1,0:T(8,128)(2,1)}}) tuple(%begin, %p)
  %while.1 = (s32[]{{:T(128)}}, bf16[4,128]{{1,0}}) while(%init), condition=%condition, body=%body
  %sort.1 = bf16[4,128]{{1,0}} sort(%p), to_apply=%sum, backend_config={{"estimated_cycles":"9223372036854775807"}}
  %wide.2 = f32[128]{{0:T(128)}} fusion(%sort.1), kind=kLoop, calls=%sum, backend_config={{"estimated_cycles":"30"}}
  %permute = (f32[128]{{0}}, f32[128]{{0}}, u32[], u32[]) collective-permute-start(%wide.2), \
source_target_pairs={{{{0,1}},{{1,0}}}}
  ROOT %all-reduce.1 = f32[128]{{0:T(128)}} all-reduce(%wide.2), \
replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, to_apply=%sum
}}
"""


def test_everything_is_counted_as_often_as_it_runs() -> None:
    """The counter goes by two up to five: three trips. What fusions and reductions call is their own work."""
    found = hlo.estimate(hlo.parse(PROGRAM))
    assert [(loop.times, loop.trips) for loop in found.loops] == [(1, 3)]
    assert found.cycles == {"blocks, forward": 3 * 100, "update": 30}
    assert found.kernels == [hlo.Unestimated("splash", "blocks, forward", 3)]
    assert found.unestimated == [hlo.Unestimated("sort", "update", 1)]


def test_bytes_of_collectives() -> None:
    found = {each.kind: each for each in hlo.estimate(hlo.parse(PROGRAM)).collectives}
    gathered = 16 * 128 * 2
    assert found["all-gather"] == hlo.Collective("all-gather", "blocks, backward", 4, gathered, 3)
    assert found["all-gather"].sent == 3 * gathered * 3 / 4
    assert found["all-reduce"] == hlo.Collective("all-reduce", "update", 4, 512, 1)
    assert found["all-reduce"].sent == 2 * 512 * 3 / 4
    assert (found["collective-permute"].size, found["collective-permute"].sent) == (512, 512)


def test_what_goes_to_other_slices() -> None:
    """Four devices of each of three slices, as libtpu 0.0.52 writes it; another kind of transfer is only told."""
    send = """%send.1 = (f32[12,8,128]{2,1,0:T(8,128)}, u32[]{:S(2)}, token[]) send(%permute, %p), channel_id=12, \
is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",\
_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2,3}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  ROOT %all-reduce.1"""
    estimate = hlo.estimate(hlo.parse(PROGRAM.replace("ROOT %all-reduce.1", send)))
    (crossing,) = (each for each in estimate.collectives if each.over_slices)
    size = 12 * 8 * 128 * 4
    assert crossing == hlo.Collective("all-reduce", "update", 3, size, 1, over_slices=True)
    assert crossing.sent == 2 * size * 2 / 3
    other = hlo.estimate(hlo.parse(PROGRAM.replace("ROOT %all-reduce.1", send.replace("ALL_REDUCE", "ONE_TO_ONE"))))
    assert hlo.Unestimated("send", "update", 1) in other.unestimated
    assert not any(each.over_slices for each in other.collectives)


@pytest.mark.parametrize(
    ("written", "devices"),
    [
        ("replica_groups=mesh['data'=2,'fsdp'=4] {'fsdp'}, dimensions={0}", 4),
        ("replica_groups=mesh['data'=2,'fsdp'=4], device_ids=([8]T(0)) {'data','fsdp'}", 8),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)4}", 4),
        ("replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}", 4),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", 2),
        ("replica_groups={}, channel_id=1", 8),
    ],
)
def test_groups_as_they_are_written(written: str, devices: int) -> None:
    groups = "replica_groups={{0,1,2,3},{4,5,6,7}}"
    found = hlo.estimate(hlo.parse(PROGRAM.replace(groups, written))).collectives[-1]
    assert (found.kind, found.devices) == ("all-reduce", devices)


@given(st.integers(-5, 20), st.integers(-5, 200), st.integers(1, 7))
def test_trips_are_those_of_a_range(begin: int, end: int, step: int) -> None:
    text = PROGRAM.replace("%limit = s32[]{:T(128)} constant(5)", f"%limit = s32[]{{:T(128)}} constant({end})")
    text = text.replace("%zero = s32[]{:T(128)} constant(0)", f"%zero = s32[]{{:T(128)}} constant({begin})")
    text = text.replace("%i.3 = s32[]{:T(128)} add(%i.2, %one)", "%i.3 = s32[]{:T(128)} copy(%i.2)")
    text = text.replace("%one = s32[]{:T(128)} constant(1)", f"%one = s32[]{{:T(128)}} constant({step})")
    assert hlo.estimate(hlo.parse(text)).loops[0].trips == len(range(begin, end, step))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("%limit = s32[]{:T(128)} constant(5)", "%limit = s32[]{:T(128)} get-tuple-element(%state), index=0"),
        ("direction=LT", "direction=NE"),
        ("%i.2 = s32[]{:T(128)} add(%i.1, %one)", "%i.2 = s32[]{:T(128)} multiply(%i.1, %one)"),
        ("tuple(%i.3, %fusion.1)", "tuple(%one, %fusion.1)"),
    ],
)
def test_a_loop_of_unknown_length_is_told_and_counted_once(was: str, becomes: str) -> None:
    assert was in PROGRAM
    found = hlo.estimate(hlo.parse(PROGRAM.replace(was, becomes)))
    assert found.loops[0].trips is None and found.cycles["blocks, forward"] == 100


def test_sizes_of_types() -> None:
    assert hlo.sizes("(f32[2,3]{1,0:T(8,128)}, bf16[4]{0}, pred[5], s4[3], f8e4m3fn[7], u32[]{:S(2)})") == [
        *(24, 8, 5, 2, 7, 4),
    ]


def test_other_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no entry computation"):
        hlo.parse("HloModule nothing\n")


def test_elements_of_tuples_as_jax_0_12_writes_them() -> None:
    text = """HloModule m, num_partitions=2

ENTRY %main (t: (s32[], (f32[4], f32[2]), bf16[8,16])) -> bf16[8,16] {
  %t = (s32[]{:T(128)}, (f32[4]{0:T(8,128)}, f32[2]{0}), bf16[8,16]{1,0:T(8,128)(2,1)}) parameter(0)
  ROOT %copy = bf16[8,16]{1,0} copy(%t#2), metadata={op_name="jit(f)/copy"}
}
"""
    main = hlo.parse(text).computations["main"]
    assert list(main) == ["t", "t#2", "copy"] and main["copy"].operands == ["t#2"]
    element = main["t#2"]
    assert (element.opcode, element.operands, element.rest) == ("get-tuple-element", ["t"], ", index=2")
    assert hlo.sizes(element.type) == [8 * 16 * 2]


PIECES = """HloModule m, is_scheduled=true, num_partitions=4

%condition (s: (s32[], bf16[4,128])) -> pred[] {
  %limit = s32[] constant(3)
  %s = (s32[], bf16[4,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%fused_computation (x: bf16[4,128]) -> (bf16[4,128], bf16[16,128], u32[]) {
  %x = bf16[4,128]{1,0} parameter(0)
  %all-gather.1 = bf16[16,128]{1,0} all-gather(%x), ATTRIBUTES
  ROOT %custom-call.1 = (bf16[4,128]{1,0}, bf16[16,128]{1,0}, u32[]{:S(2)}) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.7 (x.2: bf16[4,128], y.2: bf16[16,128], f: u32[]) -> (f32[8], bf16[16,128], u32[]) {
  %x.2 = bf16[4,128]{1,0} parameter(0)
  %y.2 = bf16[16,128]{1,0} parameter(1)
  %f = u32[]{:S(2)} parameter(2)
  %all-gather.2 = bf16[16,128]{1,0} all-gather(%x.2), ATTRIBUTES
  %computed = f32[8]{0} constant({...})
  ROOT %tuple.2 = (f32[8]{0}, bf16[16,128]{1,0}, u32[]{:S(2)}) tuple(%computed, %all-gather.2, %f)
}

%fused_computation.1 (x.3: bf16[4,128], y.3: bf16[16,128], f.3: u32[]) -> bf16[16,128] {
  %x.3 = bf16[4,128]{1,0} parameter(0)
  %y.3 = bf16[16,128]{1,0} parameter(1)
  %f.3 = u32[]{:S(2)} parameter(2)
  %all-gather.3 = bf16[16,128]{1,0} all-gather(%x.3), ATTRIBUTES
  ROOT %custom-call.3 = bf16[16,128]{1,0} custom-call(%x.3, %y.3, %all-gather.3, %f.3), \
custom_call_target="AsyncCollectiveDone"
}

%body (s.1: (s32[], bf16[4,128])) -> (s32[], bf16[4,128]) {
  %s.1 = (s32[], bf16[4,128]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %w = bf16[4,128]{1,0} get-tuple-element(%s.1), index=1
  %one = s32[] constant(1)
  %i.2 = s32[] add(%i.1, %one)
  %async-collective-start = (bf16[4,128]{1,0}, bf16[16,128]{1,0}, u32[]{:S(2)}) fusion(%w), kind=kCustom, \
calls=%fused_computation
  %y = bf16[16,128]{1,0} get-tuple-element(%async-collective-start), index=1
  %flag = u32[]{:S(2)} get-tuple-element(%async-collective-start), index=2
  %fusion.7 = (f32[8]{0}, bf16[16,128]{1,0}, u32[]{:S(2)}) fusion(%w, %y, %flag), kind=kOutput, \
calls=%async_collective_fusion.7, metadata={op_name="jit(step)/jvp(blocks)/while/body/mlp/dot_general"}, \
backend_config={"window_config":{"estimated_cycles":"50"}}
  %y.4 = bf16[16,128]{1,0} get-tuple-element(%fusion.7), index=1
  %flag.4 = u32[]{:S(2)} get-tuple-element(%fusion.7), index=2
  %async-collective-done = bf16[16,128]{1,0} fusion(%w, %y.4, %flag.4), kind=kCustom, calls=%fused_computation.1, \
metadata={op_name="jit(step)/jvp(blocks)/while/body/mlp/dot_general"}
  ROOT %next = (s32[], bf16[4,128]{1,0}) tuple(%i.2, %w)
}

ENTRY %main (p: bf16[4,128]) -> (s32[], bf16[4,128]) {
  %p = bf16[4,128]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %init = (s32[], bf16[4,128]{1,0}) tuple(%zero, %p)
  %all-gather.9 = bf16[16,128]{1,0} all-gather(%p), channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %while.1 = (s32[], bf16[4,128]{1,0}) while(%init), condition=%condition, body=%body
}
""".replace(
    "ATTRIBUTES",
    "channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}, "
    'metadata={op_name="jit(step)/jvp(blocks)/while/body/mlp/dot_general"}, '
    'backend_config={"async_collective_fusion_config":{"flag_end":"2","flag_start":"2"}}',
)


def test_a_collective_in_pieces_is_one_where_it_starts() -> None:
    """Three trips of one in three fusions, as libtpu writes it for v5e; whole ones may have the same channel."""
    found = hlo.estimate(hlo.parse(PIECES))
    gathered = 16 * 128 * 2
    assert found.collectives == [
        hlo.Collective("all-gather", "update", 4, gathered, 1),
        hlo.Collective("all-gather", "blocks, forward", 4, gathered, 3),
    ]
    assert found.collectives[1].sent == 3 * gathered * 3 / 4
    assert found.cycles == {"blocks, forward": 3 * 50}
    assert not found.unestimated


def test_a_start_outside_of_the_loop_that_goes_on_with_it() -> None:
    """The fusion that starts carries the times, not those that go on in each of three trips."""
    start = PIECES[PIECES.index("  %async-collective-start") : PIECES.index("  %y = ")]
    moved = PIECES.replace(start, "").replace("  %all-gather.9", start.replace("%w", "%p") + "  %all-gather.9")
    found = hlo.estimate(hlo.parse(moved))
    assert [(each.part, each.times) for each in found.collectives] == [("blocks, forward", 1), ("update", 1)]
    assert not found.unestimated


def test_pieces_of_what_never_starts_are_told() -> None:
    found = hlo.estimate(hlo.parse(PIECES.replace("AsyncCollectiveStart", "AsyncCollectiveOther")))
    assert [each.part for each in found.collectives] == ["update"]
    assert hlo.Unestimated("all-gather", "blocks, forward", 3) in found.unestimated


SCATTERED = """HloModule m, num_partitions=8

%all-reduce-scatter (a: bf16[14,32], b: bf16[16,8]) -> (bf16[4,32], bf16[4,8]) {
  %a = bf16[14,32]{1,0} parameter(0)
  %b = bf16[16,8]{1,0} parameter(1)
  %nothing = bf16[] constant(0)
  %pad = bf16[16,32]{1,0} pad(%a, %nothing), padding=0_2x0_0
  %all-reduce.1 = (bf16[16,32]{1,0}, bf16[16,8]{1,0}) all-reduce(%pad, %b), channel_id=1, \
replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum
  %first = bf16[16,32]{1,0} get-tuple-element(%all-reduce.1), index=0
  %second = bf16[16,8]{1,0} get-tuple-element(%all-reduce.1), index=1
  %partition-id = u32[] partition-id()
  %four = u32[] constant(4)
  %zero = u32[] constant(0)
  %at = u32[] multiply(%partition-id, %four)
  %slice.1 = bf16[4,32]{1,0} dynamic-slice(%first, %at, %zero), dynamic_slice_sizes={4,32}
  %slice.2 = bf16[4,8]{1,0} dynamic-slice(%second, %at, %zero), dynamic_slice_sizes={4,8}
  ROOT %tuple = (bf16[4,32]{1,0}, bf16[4,8]{1,0}) tuple(%slice.1, %slice.2)
}

%sum (c: bf16[], d: bf16[]) -> bf16[] {
  %c = bf16[] parameter(0)
  %d = bf16[] parameter(1)
  ROOT %add = bf16[] add(%c, %d)
}

ENTRY %main (p: bf16[14,32], q: bf16[16,8]) -> (bf16[4,32], bf16[4,8]) {
  %p = bf16[14,32]{1,0} parameter(0)
  %q = bf16[16,8]{1,0} parameter(1)
  ROOT %fusion.1 = (bf16[4,32]{1,0}, bf16[4,8]{1,0}) fusion(%p, %q), kind=kCustom, calls=%all-reduce-scatter, \
metadata={op_name="jit(step)/transpose(jvp(blocks))/while/body/mlp/dot_general"}
}
"""


def test_a_sum_of_which_each_keeps_its_part_is_a_reduce_scatter() -> None:
    """As libtpu writes it: of two weights at once, the first with two rows more so that four devices divide it."""
    found = hlo.estimate(hlo.parse(SCATTERED))
    size = 16 * 32 * 2 + 16 * 8 * 2
    assert found.collectives == [hlo.Collective("reduce-scatter", "blocks, backward", 4, size, 1)]
    assert found.collectives[0].sent == size * 3 / 4
    assert not found.unestimated


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("bf16[4,8]{1,0} dynamic-slice(%second", "bf16[8,8]{1,0} dynamic-slice(%second"),
        ("tuple(%slice.1, %slice.2)", "tuple(%slice.1, %second)"),
    ],
)
def test_a_sum_of_which_more_is_read_is_an_all_reduce(was: str, becomes: str) -> None:
    assert was in SCATTERED
    found = hlo.estimate(hlo.parse(SCATTERED.replace(was, becomes)))
    assert [each.kind for each in found.collectives] == ["all-reduce"]
    assert found.unestimated == [hlo.Unestimated("fusion", "blocks, backward", 1)]


def test_a_whole_sum_in_the_program_itself_is_an_all_reduce() -> None:
    """What slices it later is another operation."""
    body, entry = SCATTERED[: SCATTERED.index("%sum (")], SCATTERED[SCATTERED.index("%sum (") :]
    main = body.replace("%all-reduce-scatter (", "ENTRY %main (")
    found = hlo.estimate(hlo.parse(main + entry[: entry.index("ENTRY")]))
    assert [each.kind for each in found.collectives] == ["all-reduce"]
