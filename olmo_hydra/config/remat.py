"""What a layer keeps of its forward pass for its backward pass; the rest it computes again."""

from enum import Enum


class Point(Enum):
    """A tensor of a layer that can be kept: the results of its products with weights, and of attention itself."""

    q = "q"
    k = "k"
    v = "v"
    context = "context"
    out = "out"
    gate = "gate"
    up = "up"
    down = "down"


class Remat(Enum):
    """From the least recomputation to the most. All but `none` keep each layer's input, and the points of `KEPT`.

    Names are AI-Hypercomputer/maxtext's, whose Olmo launcher keeps what `minimal_with_context_except_up` does.
    """

    none = "none"
    minimal_with_context = "minimal_with_context"
    minimal_with_context_except_up = "minimal_with_context_except_up"
    minimal = "minimal"
    save_dot_with_context_except_mlp = "save_dot_with_context_except_mlp"
    save_dot_except_mlpwi = "save_dot_except_mlpwi"
    save_dot_except_mlp = "save_dot_except_mlp"
    save_qkv_proj = "save_qkv_proj"
    save_out_proj = "save_out_proj"
    full = "full"

    @property
    def kept(self) -> frozenset[Point]:
        """Points that are not computed again."""
        return frozenset(Point) if self is Remat.none else frozenset(KEPT[self])


_PROJECTIONS = (Point.q, Point.k, Point.v, Point.out)
_MLP = (Point.gate, Point.up, Point.down)

KEPT: dict[Remat, tuple[Point, ...]] = {
    Remat.minimal_with_context: (*_PROJECTIONS, Point.context, *_MLP),
    Remat.minimal_with_context_except_up: (*_PROJECTIONS, Point.context, Point.gate, Point.down),
    Remat.minimal: (*_PROJECTIONS, *_MLP),
    Remat.save_dot_with_context_except_mlp: (*_PROJECTIONS, Point.context),
    Remat.save_dot_except_mlpwi: (*_PROJECTIONS, Point.down),
    Remat.save_dot_except_mlp: _PROJECTIONS,
    Remat.save_qkv_proj: (Point.q, Point.k, Point.v),
    Remat.save_out_proj: (Point.out,),
    Remat.full: (),
}
