"""The page's first words: what a run has shown, said without more certainty than its held-out text gives."""

from statistics import median

from olmo_hydra.report.evidence import Evidence, Row
from olmo_hydra.report.reading import other_text, repeats
from olmo_hydra.report.text import bits, count, duration, short

BASELINES = {"baseline_trigram": "trigram", "baseline_unigram": "unigram"}


def verdict(run: Evidence) -> str:
    """Some sentences: that skipped updates stopped it; data that was read twice; held-out bits per byte at the start
    and now, beside the baselines.

    Where the held-out text was exchanged, it says so, and speaks of the evaluations after that.
    """
    return " ".join(filter(None, (stopped(run), repeats(run), other_text(run), _learned(run))))


def stopped(run: Evidence) -> str | None:
    """What to say of skipped updates that ended the run; None if they did not."""
    end = run.stopped
    if end is None:
        return None
    first, last, before = end["first"], end["last"], end["checkpoint"]
    text = f"Training stopped at update {count(last)}: every update from {count(first)} on was skipped ({end['why']})."
    if before is None:
        return f"{text} No checkpoint is from before them."
    return f"{text} Checkpoint {count(before)} is the newest from before them."


def _learned(run: Evidence) -> str:
    if run.done == 0 and not run.heldout:
        return f"No update has been made yet, of {count(run.steps)}."
    made = f"{count(run.done)} updates" if run.finished else f"{count(run.done)} of {count(run.steps)} updates"
    if not run.heldout and run.config["data"].get("heldout_mix", "") is None:
        return f"No text is held out (data.heldout_mix=null): after {made} there is no evidence of what was learned."
    if not run.heldout:
        return (
            f"After {made} nothing has been evaluated on held-out text, so nothing can be said about what was learned."
        )
    first, last = run.heldout[0], run.heldout[-1]
    where = f" at step {count(last['step'])}" if last["step"] != run.done else ""
    text = f"After {made} ({short(run.done * run.tokens_per_update)} tokens), "
    if last["bits_per_byte"] is None:
        text += f"held-out bits per byte are not finite{where}: the model gives some text no probability."
    elif last is first:
        text += f"held-out bits per byte stand at {bits(last['bits_per_byte'])}{where}; there is one evaluation so far."
    elif first["bits_per_byte"] is None:
        text += f"held-out bits per byte stand at {bits(last['bits_per_byte'])}{where}; the first were not finite."
    else:
        fell = "fell" if last["bits_per_byte"] < first["bits_per_byte"] else "did not fall: they went"
        ends = f"from {bits(first['bits_per_byte'])} to {bits(last['bits_per_byte'])}{where}"
        text += f"held-out bits per byte {fell} {ends}."
    return text + _against_baselines(run, last)


def _against_baselines(run: Evidence, last: Row) -> str:
    if last["bits_per_byte"] is None:
        return ""
    rows = {label: run.baselines[suite] for suite, label in BASELINES.items() if suite in run.baselines}
    levels = {label: level for label, row in rows.items() if (level := row["bits_per_byte"]) is not None}
    beaten = [f"{label} ({bits(level)})" for label, level in levels.items() if last["bits_per_byte"] < level]
    ahead = [f"{label} ({bits(level)})" for label, level in levels.items() if last["bits_per_byte"] >= level]
    text = ""
    if beaten:
        text += f" On the same text that is better than the {' and the '.join(beaten)} model{'s' * (len(beaten) > 1)}."
    if ahead:
        text += f" It has not beaten the {' or the '.join(ahead)} model{'' if beaten else ' on the same text'}."
    return text


def key_numbers(run: Evidence) -> list[tuple[str, str, str]]:
    """Label, value and remark of the numbers a reader looks for first."""
    numbers = [("Updates", count(run.done), f"of {count(run.steps)}")]
    if run.heldout:
        remark = "bits per byte"
        if "baseline_trigram" in run.baselines:
            remark += f"; trigram {bits(run.baselines['baseline_trigram']['bits_per_byte'])}"
        numbers.append(("Held-out", bits(run.heldout[-1]["bits_per_byte"]), remark))
    if run.metrics:
        losses = [row["loss"] for row in run.metrics[-20:] if row["loss"] is not None]
        mean = f"{sum(losses) / len(losses):.3f}" if losses else "nan"
        numbers.append(("Training loss", mean, f"nats per token, last {len(losses) or len(run.metrics[-20:])} rows"))
    speeds = [row["tokens_per_second"] for row in run.throughput if row["tokens_per_second"] is not None]
    if speeds:
        utilisation = [row["mfu"] for row in run.throughput if row["mfu"] is not None]
        remark = f"MFU {median(utilisation):.1%}" if utilisation else "MFU: peak unknown"
        numbers.append(("Tokens per second", short(median(speeds)), f"median; {remark}"))
    if len(run.events) > 1:
        numbers.append(
            (
                "Duration",
                duration(run.events[0]["time"], run.events[-1]["time"]),
                "first to last event, pauses included",
            )
        )
    return numbers
