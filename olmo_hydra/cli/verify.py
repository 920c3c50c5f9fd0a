"""`olmo-hydra convert verify`: what a comparison found, for people and as JSON."""

import argparse
import json

from olmo_hydra.config.errors import RunFailed, require
from olmo_hydra.interop.verify import Report, verify
from olmo_hydra.interop.weights import open_weights


def run(parsed: argparse.Namespace) -> None:
    """Compares the weights at two places and prints what was found. Raises RunFailed where it does not pass."""
    a, b = open_weights(parsed.a, parsed.root), open_weights(parsed.b, parsed.root)
    ids, most = a.model.vocab_size, max(parsed.top_k)
    require(most <= ids, f"is more than the {ids} ids of the vocabulary", key="--top-k", value=most)
    found = verify(
        a,
        b,
        prompts=parsed.prompts,
        length=parsed.length,
        kl=parsed.kl,
        logits=parsed.logits,
        tensor=parsed.tensor,
        top_k=parsed.top_k,
    )
    print(json.dumps(found.as_json(), allow_nan=False) if parsed.json else "\n".join(_lines(found)))
    if not found.passed:
        verdict = "differs by no more than rounding from" if found.rounding_only else "is not"
        verdict = "is not shown to be" if found.not_finite else verdict
        raise RunFailed(f"{parsed.b} {verdict} {parsed.a}: {'; '.join(found.failures)}")


def _lines(found: Report) -> list[str]:
    tensors, worst, logits = found.tensors, found.tensors["worst"], found.logits
    limits = {name: f"{limit:.3g}" for name, limit in found.limits.items() if limit is not None}
    rounded = tensors["equal_when_rounded"]
    lines = [
        *(
            f"{name}            {side['place']} ({side['dtype']}; logits by {side['logits_from']})"
            for name, side in (("A", found.a), ("B", found.b))
        ),
        f"tensors      {tensors['equal']} of {tensors['count']} equal bit for bit"
        + ("" if rounded == tensors["equal"] else f", {rounded} once rounded to the narrower dtype"),
        f"worst        {worst['name']}: relative error {worst['relative_error']:.3g} (limit {limits['tensor']}), "
        f"difference {worst['max_abs']:.3g}",
        f"prompts      {found.prompts} of {found.length} random tokens (seed {found.seed})",
        f"KL           mean {logits['kl_mean']:.3g}{_limit(limits, 'kl_mean')}, "
        f"max {logits['kl_max']:.3g}{_limit(limits, 'kl_max')}",
        f"logits       largest difference {logits['max_abs']:.3g}{_limit(limits, 'logits')}, "
        f"spread of A's {logits['spread']:.3g}",
        *(
            f"top {k:<8} {shared:.3f} shared{_limit(limits, 'overlap') if k == '10' else ''}"
            for k, shared in logits["overlap"].items()
        ),
        *(f"note         {note}" for note in found.notes),
    ]
    if found.first_difference is not None:
        stage = found.first_difference["stage"]
        lines.append(
            f"first        {stage}: the residual stream differs by more than {limits['stage']} for the first time"
            if stage is not None
            else f"first        no layer: the residual stream never differs by more than {limits['stage']}"
        )
    return [*lines, "passed" if found.passed else "failed"]


def _limit(limits: dict[str, str], name: str) -> str:
    return f" (limit {limits[name]})" if name in limits else ""
