"""What a command says of a run when it ends, read from the run directory."""

from olmo_hydra.report.text import bits, spread
from olmo_hydra.report.verdict import BASELINES
from olmo_hydra.tracking import history
from olmo_hydra.tracking.run_dir import RunDir


def summary(run_dir: RunDir) -> str:
    """Held-out bits per byte of the newest evaluation beside the baselines, and where everything is."""
    rows = history.of_one_text(run_dir.rows("evals"), history.starts_of(run_dir))
    heldout = [row for row in rows if row["suite"] == "heldout"]
    lines = ["no held-out text was evaluated: nothing here says what was learned", ""]
    if heldout:
        lines = _table(heldout[0], heldout[-1], {row["suite"]: row for row in rows})
    lines += [f"run directory  {run_dir.path}"]
    if run_dir.report.exists():
        lines += [f"report         {run_dir.report}"]
    return "\n".join(lines)


def _table(first: dict, last: dict, by_suite: dict[str, dict]) -> list[str]:
    baselines = {title: by_suite[suite] for suite, title in BASELINES.items() if suite in by_suite}
    columns = baselines | {f"step {first['step']}": first, f"step {last['step']}": last}
    width = max(len(name) for name in (*last["domains"], "held-out bits/byte"))
    lines = [f"{'held-out bits/byte':{width}}" + "".join(f"{title:>12}" for title in columns) + f"{'stderr':>10}"]
    for name, domain in last["domains"].items():
        cells = "".join(f"{bits(row['domains'][name]['bits_per_byte']):>12}" for row in columns.values())
        lines.append(f"{name:{width}}{cells}{spread(domain):>10}")
    means = "".join(f"{bits(row['bits_per_byte']):>12}" for row in columns.values())
    return [*lines, f"{'mean of domains':{width}}{means}", ""]
