"""Which checkpoints may go."""

from collections.abc import Collection, Mapping

from olmo_hydra.tracking.checkpoints import Kind


def superfluous(
    kinds: Mapping[int, Kind], keep: int | None, landmarks: Collection[int], before: int | None
) -> list[int]:
    """The steps of whole checkpoints that are to be removed, in order.

    The newest always stays. Of the others an ephemeral one goes, a permanent one where more than `keep` are there, a
    landmark never.

    Args:
      kinds: Of every whole checkpoint, by step.
      keep: Newest permanent ones that stay; None: all.
      landmarks: Steps that stay whatever their checkpoints say of themselves: the config came to name them later.
      before: The newest checkpoint before this step stays too, if given.
    """
    steps = sorted(kinds)
    permanent = [step for step in steps if kinds[step] is Kind.permanent]
    stay = {*landmarks, *steps[-1:], *(permanent if keep is None else permanent[-keep:])}
    stay |= {step for step in steps if kinds[step] is Kind.landmark}
    if before is not None:
        stay |= set([step for step in steps if step < before][-1:])
    return [step for step in steps if step not in stay]
