"""What a compiled TPU program says of itself: estimated cycles, collectives, and loops with their trip counts.

Read from the text of its final HLO, which has no promise of stability: what is not understood is told, not guessed.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
COMPUTES = ("fusion", "convolution", "dot", "sort", "scatter", "gather", "reduce", "reduce-window", "custom-call")
HOUSEKEEPING = ("AllocateBuffer", "AssumeGatherIndicesInBound")  # custom calls that do nothing at run time
PIECE = '"async_collective_fusion_config"'  # of a collective that goes on, piece by piece, in several fusions
ENDS = 'custom_call_target="AsyncCollective'  # `Start` or `Done`, in the first and the last of those fusions
PALLAS = "tpu_custom_call"
MEGASCALE = "_xla_megascale_"  # the runtime that joins slices: what a device sends to its host for it
SUM_OVER_SLICES = re.compile(r'_xla_megascale_target="\{([\d,]+)\}.*_xla_megascale_transfer_type="ALL_REDUCE"')
NO_ESTIMATE = 2**63 - 1
HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) \(")
BETWEEN = re.compile(r"\n(?=  (?:ROOT )?%|%|ENTRY |\}\n)")  # instructions; strings in one may have lines of their own
LINE = re.compile(r"  (ROOT )?%([\w.\-]+) = ")
ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
CHANNEL = re.compile(r"channel_id=\d+")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
CALLED = re.compile(
    r"\b(?:calls|to_apply|body|true_computation|false_computation)=%([\w.\-]+)|"
    r"\b(?:called_computations|branch_computations)=\{([^}]*)\}"
)
SCOPE = re.compile(r'op_name="([^"]*)"')
DIFFERENTIATED = re.compile(r"(transpose\()?jvp\((\w+)\)")


@dataclass(frozen=True)
class Instruction:
    """One line: its result's type, its opcode, what stands in its parentheses, and what follows them, as written."""

    name: str
    type: str
    opcode: str
    arguments: str
    rest: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        """Names of the instructions that it reads."""
        return re.findall(r"%([\w.\-]+(?:#\d+)?)", self.arguments)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None where it has none."""
        found = CYCLES.search(self.rest)
        return None if found is None or int(found[1]) == NO_ESTIMATE else int(found[1])

    @property
    def calls(self) -> list[str]:
        """Names of the computations that it runs."""
        return [name for found in CALLED.findall(self.rest) for name in re.findall(r"[\w.\-]+", " ".join(found))]

    @property
    def scope(self) -> str:
        """Where in the program it comes from (`jit(step)/jvp(blocks)/while/body/...`); empty: it does not say."""
        found = SCOPE.search(self.rest)
        return found[1] if found else ""


Computation = dict[str, Instruction]  # by name, in the order in which they run


@dataclass(frozen=True)
class Module:
    """The computations of a program by name, and the name of the one that it starts with."""

    entry: str
    computations: dict[str, Computation]
    devices: int


@dataclass(frozen=True)
class Executed:
    """An instruction where it runs.

    Attributes:
      computation: That it stands in.
      times: How often it runs in a run of the program.
      in_core: Whether the core itself runs it, one after the other, and not within a fusion or beside the core.
      scope: Its own, or of whoever calls the computation.
    """

    instruction: Instruction
    computation: Computation
    times: int
    in_core: bool
    scope: str

    @property
    def part(self) -> str:
        """The outermost named scope that was differentiated, and in which pass; `update` for what was not."""
        found = DIFFERENTIATED.search(self.scope)
        return "update" if found is None else f"{found[2]}, {'backward' if found[1] else 'forward'}"


@dataclass(frozen=True)
class Collective:
    """One that runs `times` in a run of the program.

    Attributes:
      kind: `all-gather`, ...
      part: Of the program.
      devices: That take part in it together; of a sum over slices one of each.
      size: Bytes of the whole array that is gathered, summed, scattered or exchanged, at one time.
      times: How often.
      over_slices: Whether they lie in different slices: bytes go by the data center's network, not by links.
    """

    kind: str
    part: str
    devices: int
    size: int
    times: int
    over_slices: bool = False

    @property
    def sent(self) -> float:
        """Bytes that a device sends in a run of the program, by ring algorithms: n - 1 parts of n, twice to sum."""
        share = (self.devices - 1) / self.devices
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)
        return factor * self.size * self.times


@dataclass(frozen=True)
class Unestimated:
    """Work for which the compiler has no estimate, and how often it runs."""

    name: str
    part: str
    times: int


@dataclass(frozen=True)
class Loop:
    """A loop, how often it is entered, and its iterations each time; None: not found in the text, counted as one."""

    scope: str
    times: int
    trips: int | None


@dataclass(frozen=True)
class Estimate:
    """What one device does in a run of the program, as far as the compiler says.

    Attributes:
      cycles: Estimated, by part, of everything that has an estimate. No collective has one.
      collectives: All of them.
      kernels: Pallas kernels: none has an estimate.
      unestimated: Other work without an estimate.
      loops: All of them.
    """

    cycles: dict[str, int]
    collectives: list[Collective]
    kernels: list[Unestimated]
    unestimated: list[Unestimated]
    loops: list[Loop]


def parse(text: str) -> Module:
    """The module whose HLO this is, as XLA dumps it.

    Raises:
      ValueError: It has no entry computation.
    """
    entry, computations, body = "", {}, Computation()
    for line in BETWEEN.split(text):
        if named := LINE.match(line):
            one = _instruction(named[2], line[named.end() :], is_root=bool(named[1]))
            body.update((name, _element_of(body, name)) for name in one.operands if "#" in name and name not in body)
            body[named[2]] = one
        elif header := HEADER.match(line):
            body = computations[header[2]] = Computation()
            entry = header[2] if header[1] else entry
    if not entry:
        raise ValueError("the text is no HLO module: it has no entry computation")
    devices = re.search(r"num_partitions=(\d+)", text.partition("\n")[0])
    return Module(entry, computations, int(devices[1]) if devices else 1)


def _element_of(computation: Computation, name: str) -> Instruction:
    """Of `tuple#2`, as jax 0.12 writes element 2 of a tuple, the instruction that older texts spell out."""
    whole, _, index = name.partition("#")
    types = _members(computation[whole].type.strip()) if whole in computation else []
    type_ = types[int(index)] if int(index) < len(types) else ""
    return Instruction(name, type_, "get-tuple-element", f"%{whole}", f", index={index}", is_root=False)


def _members(type_: str) -> list[str]:
    """Of the type of a tuple; one may be a tuple itself."""
    depths, ends = 0, [0]
    for at, letter in enumerate(type_):
        depths += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depths == 1) or depths == 0:
            ends.append(at)
    return [type_[start + 1 : end].strip() for start, end in itertools.pairwise(ends)]


def _instruction(name: str, text: str, *, is_root: bool) -> Instruction:
    """Of `f32[8]{0} add(%a, %b), metadata=...`; the type of a tuple has parentheses of its own."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opens = text.index("(", end)
    closes = _closing(text, opens)
    opcode = text[end:opens].strip()
    return Instruction(name, text[:end], opcode, text[opens + 1 : closes], text[closes + 1 :], is_root)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at `start` closes; a line that ends before it does closes it."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    return len(text)


def sizes(type_: str) -> list[int]:
    """Bytes of every array in a type, without what layouts pad."""
    return [
        -(-math.prod(int(n) for n in dims.split(",") if n) * _bits(name) // 8) for name, dims in ARRAY.findall(type_)
    ]


def _bits(name: str) -> int:
    """Of an element: `pred` is a byte, others have their bits in the name (`bf16`, `f8e4m3fn`)."""
    digits = re.search(r"\d+", name)
    return int(digits[0]) if digits else 8


def estimate(module: Module) -> Estimate:
    """All that a run of the program does on a device: every instruction, times the trips of the loops around it.

    A collective in pieces is one, where it starts; if the text shows no start of it, it is listed without an estimate.
    Of a conditional every branch counts. Copies on the SparseCores and other work beside the core's count nothing.
    """
    found = Estimate(defaultdict(int), [], [], [], [])
    pieces: dict[str, Unestimated | None] = {}  # by channel; None: it is counted at its start
    for here in _walk(module, module.entry, 1, True, ""):
        one, part, times = here.instruction, here.part, here.times
        kind = one.opcode.removesuffix("-start")
        if kind in COLLECTIVES and PIECE in one.rest and not _starts(here.computation):
            pieces.setdefault(str(CHANNEL.findall(one.rest)), Unestimated(_stem(one.name), part, times))
        elif kind in COLLECTIVES:
            if PIECE in one.rest:
                pieces[str(CHANNEL.findall(one.rest))] = None
            if not here.in_core and _is_scattered(module, one, here.computation):
                kind = "reduce-scatter"
            devices = _group(one.rest) or module.devices
            found.collectives.append(Collective(kind, part, devices, _moved(kind, here), times))
        elif one.opcode == "send" and MEGASCALE in one.rest:
            if summed := SUM_OVER_SLICES.search(one.rest):
                slices = summed[1].count(",") + 1
                found.collectives.append(Collective("all-reduce", part, slices, sizes(one.type)[0], times, True))
            else:
                found.unestimated.append(Unestimated(_stem(one.name), part, times))
        elif one.opcode == "while":
            found.loops.append(Loop(here.scope, times, trips(module, one, here.computation)))
        elif PALLAS in one.rest:
            found.kernels.append(Unestimated(_stem(one.name), part, times))
        elif here.in_core and one.cycles is not None:
            found.cycles[part] += one.cycles * times
        elif here.in_core and one.opcode in COMPUTES and not _adds_nothing(module, one):
            found.unestimated.append(Unestimated(_stem(one.name), part, times))
    found.unestimated.extend(one for one in pieces.values() if one is not None)
    return found


def _starts(computation: Computation) -> bool:
    return any(f'{ENDS}Start"' in one.rest for one in computation.values())


def _adds_nothing(module: Module, one: Instruction) -> bool:
    """Whether it does nothing at run time, or only what is listed as a collective."""
    called = [module.computations[name] for name in one.calls if "kind=kCustom" in one.rest]
    sends = (ENDS in each.rest or _is_scattered(module, each, body) for body in called for each in body.values())
    return any(name in one.rest for name in HOUSEKEEPING) or any(sends)


def _is_scattered(module: Module, summed: Instruction, computation: Computation) -> bool:
    """Whether it is a sum of which each device keeps its own part, a `dynamic-slice`, and nothing else reads it."""
    names, kept = {summed.name}, 0
    for one in computation.values():
        reads = not names.isdisjoint(one.operands)
        if reads and one.opcode == "dynamic-slice":
            kept += sum(sizes(one.type))
        elif reads and one.opcode in ("get-tuple-element", "bitcast", "copy"):
            names.add(one.name)
        elif reads:
            return False
    return summed.opcode == "all-reduce" and kept * (_group(summed.rest) or module.devices) == sum(sizes(summed.type))


def _stem(name: str) -> str:
    return re.sub(r"[.\d]+$", "", name)


def _walk(module: Module, name: str, times: int, in_core: bool, scope: str) -> Iterator[Executed]:
    computation = module.computations[name]
    for one in computation.values():
        here = Executed(one, computation, times, in_core, one.scope or scope)
        yield here
        found = trips(module, one, computation) if one.opcode == "while" else 1
        inside = times * (1 if found is None else found)
        runs_in_core = in_core and one.opcode in ("while", "conditional", "call")
        for called in one.calls:
            yield from _walk(module, called, inside, runs_in_core, here.scope)


def trips(module: Module, loop: Instruction, computation: Computation) -> int | None:
    """Iterations of a loop that counts from a constant by constants up to another one; None of any other loop."""
    bodies = re.search(r"condition=%([\w.\-]+), body=%([\w.\-]+)", loop.rest)
    assert bodies is not None
    condition, body = (module.computations[name] for name in bodies.groups())
    test, carried, following = _root(condition), computation[loop.operands[0]], _root(body)
    if test.opcode != "compare" or "direction=LT" not in test.rest or len(test.operands) != 2:
        return None
    at = _element(condition, test.operands[0])
    if at is None or carried.opcode != "tuple" or following.opcode != "tuple":
        return None
    begin, end = _number(computation, carried.operands[at]), _number(condition, test.operands[1])
    step = _added(body, following.operands[at], at)
    if begin is None or end is None or not step:
        return None
    return max(0, -(-(end - begin) // step))


def _root(computation: Computation) -> Instruction:
    return next(one for one in computation.values() if one.is_root)


def _source(computation: Computation, name: str) -> Instruction | None:
    """What an instruction's value comes from, past copies."""
    one = computation.get(name)
    while one is not None and one.opcode in ("copy", "bitcast"):
        one = computation.get(one.operands[0])
    return one


def _number(computation: Computation, name: str) -> int | None:
    one = _source(computation, name)
    is_number = one is not None and one.opcode == "constant" and re.fullmatch(r"-?\d+", one.arguments)
    return int(one.arguments) if one is not None and is_number else None


def _element(computation: Computation, name: str) -> int | None:
    """Which element of a tuple it is."""
    one = _source(computation, name)
    index = re.search(r"\bindex=(\d+)", one.rest) if one is not None and one.opcode == "get-tuple-element" else None
    return int(index[1]) if index else None


def _added(body: Computation, name: str, at: int) -> int | None:
    """The sum of constants by which element `at` of a loop's state has grown when it is this."""
    total = 0
    while (one := _source(body, name)) is not None and one.opcode == "add":
        name, added = one.operands
        number = _number(body, added)
        if number is None:
            return None
        total += number
    return total if _element(body, name) == at else None


def _moved(kind: str, here: Executed) -> int:
    """Bytes of the whole array: what is read, but the larger result of a gathering. A start's type has both."""
    one, computation = here.instruction, here.computation
    read = sum(size for name in one.operands if name in computation for size in sizes(computation[name].type))
    written = sum(sizes(one.type))
    if kind != "all-gather":
        return read
    return written - read if one.opcode.endswith("-start") else written


def _group(rest: str) -> int | None:
    """Devices of one group: `{{0,1},{2,3}}`, `[2,4]<=[8]`, `mesh['a'=2,'b'=4] {'b'}`, or pairs of one sends to another.

    None: all of them.
    """
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", rest):
        whole = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or whole[axis]) for axis, part in axes)
    if tiled := re.search(r"replica_groups=\[\d+,(\d+)\]<=", rest):
        return int(tiled[1])
    if listed := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", rest):
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return len(groups) if "source_target_pairs" in rest else groups[0].count(",") + 1
    return None
