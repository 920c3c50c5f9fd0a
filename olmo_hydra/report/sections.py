"""The sections of a run's page. Each returns None when the run has nothing to show for it."""

from dataclasses import replace
from itertools import groupby

from olmo_hydra.report.content import Block, Chart, Code, Facts, Prose, Role, Samples, Section, Series, Table
from olmo_hydra.report.curves import curve, smooth, thin
from olmo_hydra.report.evidence import Evidence, Row
from olmo_hydra.report.text import bits, count, moment, ratio, short, size, spread
from olmo_hydra.report.verdict import BASELINES

STEP = "step (updates done)"
MOST_CURVES = 30  # of domains in a chart
MOST_SAMPLES = 100
MOST_EVENTS = 400  # lines of a timeline
MOST_DETAILS = 2000  # characters that say more of an event


def what_ran(run: Evidence) -> Section:
    """The config at a glance."""
    config = run.config
    optim, schedule, train, hardware = (config[group] for group in ("optim", "schedule", "train", "hardware"))
    batch, length = train["global_batch"], config["data"]["seq_len"]
    of_starts = [start["operations"]["hardware"] for start in run.starts]
    used = [name for name, _ in groupby(f"{one['devices']} x {one['name']}" for one in of_starts)]
    recipe = [
        ("updates", f"{count(run.steps)} ({short(run.steps * run.tokens_per_update)} tokens)"),
        ("global batch", f"{count(batch)} x {count(length)} = {count(run.tokens_per_update)} tokens"),
        ("optimizer", f"{optim['name']}, weight decay {optim['weight_decay']}, clip {optim['clip_norm']}"),
        ("peak learning rate", f"{optim['lr']:g}"),
        ("schedule", f"{schedule['name']}, {count(schedule['warmup_steps'])} steps of warm-up"),
        ("z-loss weight", f"{train['z_loss']:g}"),
        ("seed", str(train["seed"])),
        ("hardware", ", then ".join(used) or f"{hardware['devices']} x {hardware['name']}"),
    ]
    return Section("config", "What ran", [the_model(run), Facts("Training", recipe)])


def the_model(run: Evidence) -> Facts:
    """Its shape."""
    model = run.config["model"]
    grouped = "" if model["n_kv_heads"] == model["n_heads"] else f", {model['n_kv_heads']} for keys and values"
    parameters = [start["parameters"] for start in run.starts[-1:]]
    shape = [
        *(("parameters", f"{short(number)} ({count(number)})") for number in parameters),
        ("d_model", count(model["d_model"])),
        ("layers", f"{model['n_layers']}: {', '.join(model['window_pattern'])}, repeated"),
        ("heads", f"{model['n_heads']} of {model['head_dim']}{grouped}"),
        ("d_ff", count(model["d_ff"])),
        ("sliding window", f"{count(model['window'])} tokens"),
        ("vocabulary", count(model["vocab_size"])),
        ("norms", f"{model['block_norm']} block norm, QK-norm: {model['qk_norm']}"),
        ("dtypes", f"{model['param_dtype']} parameters, {model['compute_dtype']} matmuls"),
    ]
    return Facts(f"Model: {model['name']}", shape)


def learning(run: Evidence) -> Section | None:
    """Held-out curves with their baselines, the final table, and the training loss."""
    blocks: list[Block] = []
    if run.heldout:
        blocks += [heldout_chart(run), heldout_table(run)]
    if run.metrics:
        blocks.append(loss_chart(run))
    return Section("learning", "What it learned", blocks) if blocks else None


def heldout_chart(run: Evidence) -> Chart:
    """Bits per byte over steps: the mean, each domain, and the baselines' means as levels."""
    series = [curve("mean over domains", run.heldout, "bits_per_byte")]
    shown = list(run.heldout[-1]["domains"])[:MOST_CURVES]
    for name in shown:
        rows = [{"step": row["step"], **row["domains"][name]} for row in run.heldout if name in row["domains"]]
        series.append(curve(name, rows, "bits_per_byte", Role.part))
    across: list[float | int | None] = [0, max(run.done, 1)]
    for suite, label in BASELINES.items():
        if suite in run.baselines:
            level = run.baselines[suite]["bits_per_byte"]
            series.append(Series(f"{label} baseline", across, [level, level], Role.baseline))
    rest = len(run.heldout[-1]["domains"]) - len(shown)
    note = f"{count(rest)} more domains are in the table." if rest else ""
    return Chart("heldout", "Held-out text", STEP, "bits per byte", [thin(one) for one in series], note=note)


def heldout_table(run: Evidence) -> Table:
    """The last evaluation by domain, beside the first and the baselines on the same text."""
    first, last = run.heldout[0], run.heldout[-1]
    beside = {label: run.baselines[suite] for suite, label in BASELINES.items() if suite in run.baselines}
    if first is not last:
        beside[f"step {count(first['step'])}"] = first
    per_token = [] if run.config["data"]["tokenizer"] == "bytes" else ["nats per token"]
    columns = ["domain", f"step {count(last['step'])}", "std. error", *per_token, *beside, "documents", "text"]
    rows = []
    for name, domain in last["domains"].items():
        there = [row["domains"] for row in beside.values()]
        others = [bits(domains[name]["bits_per_byte"]) if name in domains else "" for domains in there]
        tokens = [ratio(domain["nats"], domain["targets"])] if per_token else []
        error = spread(domain)
        rows.append([name, bits(domain["bits_per_byte"]), error and f"± {error}", *tokens, *others,
                     count(domain["documents"]), size(domain["bytes"])])  # fmt: skip
    documents, n_bytes = (sum(domain[key] for domain in last["domains"].values()) for key in ("documents", "bytes"))
    means = [bits(row["bits_per_byte"]) for row in beside.values()]
    blank = ["" for _ in per_token]
    rows.append(["mean over domains", bits(last["bits_per_byte"]), "", *blank, *means, count(documents), size(n_bytes)])
    note = (
        "Bits per byte; lower is better. Standard errors are over documents. Baselines are fitted to the training text."
    )
    return Table(columns, rows, total=True, note=note)


def loss_chart(run: Evidence) -> Chart:
    """Cross-entropy of the training batches, smoothed, with skipped updates marked."""
    raw = curve("each update" if _every_step(run) else "logged updates", run.metrics, "loss", Role.raw)
    width = 2 * min(25, len(raw.x) // 40) + 1
    series = [thin(raw), thin(smooth(raw, f"mean of {width}", width))] if width > 1 else [replace(raw, role=Role.main)]
    if marks := run.skipped_rows:
        series.append(thin(curve("skipped update", marks, "loss", Role.mark)))
    note = "Cross-entropy without z-loss, on training text: it proves nothing about held-out text."
    return Chart("loss", "Training loss", STEP, "nats per token", series, note=note)


def dynamics(run: Evidence) -> Section | None:
    """Schedule, norms and skipped updates."""
    if not run.metrics:
        return None
    gradient = [thin(curve("gradient norm", run.metrics, "grad_norm"))]
    if marks := run.skipped_rows:
        gradient.append(thin(curve("skipped update", marks, "grad_norm", Role.mark)))
    clip = run.config["optim"]["clip_norm"]
    if clip is not None:
        across = [run.metrics[0]["step"], run.metrics[-1]["step"]]
        gradient.append(Series(f"clipped above {clip:g}", across, [clip, clip], Role.baseline))
    charts = [
        Chart("lr", "Learning rate", STEP, "learning rate", [thin(curve("learning rate", run.metrics, "lr"))]),
        Chart("grad_norm", "Gradient norm", STEP, "L2 norm before clipping", gradient, log_y=True),
        Chart("param_norm", "Parameter norm", STEP, "L2 norm", [thin(curve("norm", run.metrics, "param_norm"))]),
        Chart("z_loss", "z-loss", STEP, "z-loss per token", [thin(curve("z-loss", run.metrics, "z_loss"))]),
    ]
    steps = run.skipped
    listed = ", ".join(map(str, steps[:20])) + (", …" if len(steps) > 20 else "")
    skipped = f"{count(len(steps))} updates were skipped: {listed}." if steps else "No update was skipped."
    if run.passed_over:
        ranges = ", ".join(f"{count(first)} to {count(last)}" for first, last in run.passed_over[:20])
        skipped += f" Of these updates the batches were read, and nothing else done (train.skip_batches): {ranges}"
        skipped += ", …" if len(run.passed_over) > 20 else "."
    return Section("dynamics", "How it trained", [*charts, Prose(skipped)])


def speed(run: Evidence) -> Section | None:
    """Tokens per second, and model FLOPs utilisation where the peak is known."""
    if not run.throughput:
        return None
    series = thin(curve("tokens per second", run.throughput, "tokens_per_second"))
    blocks: list[Block] = [Chart("throughput", "Throughput", STEP, "tokens per second", [series], from_zero=True)]
    if any(row["mfu"] is not None for row in run.throughput):
        percent = [{**row, "mfu": None if row["mfu"] is None else 100 * row["mfu"]} for row in run.throughput]
        utilisation = thin(curve("MFU", percent, "mfu"))
        blocks.append(Chart("mfu", "Model FLOPs utilisation", STEP, "% of peak", [utilisation], from_zero=True))
    else:
        blocks.append(Prose(f"MFU: peak unknown (hardware={run.config['hardware']['name']} names no peak)."))
    return Section("speed", "How fast it ran", blocks)


def samples(run: Evidence) -> Section | None:
    """Text that the model wrote."""
    if not run.samples:
        return None
    temperature = run.config["eval"]["temperature"]
    lead = Prose(f"Sampled at the end of the run at temperature {temperature:g}; the prompt is highlighted.")
    pairs = [(sample["prompt"], sample["text"]) for sample in run.samples[:MOST_SAMPLES]]
    return Section("samples", "What it writes", [lead, Samples(pairs)])


def timeline(run: Evidence) -> Section | None:
    """Events; of long series of one kind the first and the last, and of very many the first and the last of all."""
    if not run.events:
        return None
    rows = []
    for _, same in groupby(run.events, key=lambda event: event["event"]):
        group = list(same)
        if len(group) > 3:
            rows += [_event(group[0]), ["", f"… {count(len(group) - 2)} more", "", ""], _event(group[-1])]
        else:
            rows += [_event(event) for event in group]
    if len(rows) > MOST_EVENTS:
        half = MOST_EVENTS // 2
        rows = [*rows[:half], ["", f"… {count(len(rows) - 2 * half)} more lines", "", ""], *rows[-half:]]
    return Section("events", "What happened", [Table(["time (UTC)", "event", "step", "details"], rows, text_columns=4)])


def _event(event: Row) -> list[str]:
    rest = "; ".join(f"{key}: {value}" for key, value in event.items() if key not in ("time", "event", "step"))
    details = rest if len(rest) <= MOST_DETAILS else f"{rest[:MOST_DETAILS]}… (events.jsonl has it all)"
    return [moment(event["time"]), event["event"], count(event["step"]) if "step" in event else "", details]


def config_file(run: Evidence) -> Code:
    """The frozen config, whole."""
    return Code("The whole config (config.yaml)", run.config_text, folded=True)


def _every_step(run: Evidence) -> bool:
    return len(run.metrics) > 1 and run.metrics[1]["step"] - run.metrics[0]["step"] == 1
