"""`olmo-hydra models`: every option of the `model` group and its size, from the configs alone. Needs no JAX."""

import json
from typing import Any

from hydra import compose
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from olmo_hydra.config.compose import conf_found
from olmo_hydra.config.model import Attention, ModelConfig
from olmo_hydra.config.paths import CONF

TITLES = ("d_\nmodel", "layers", "full", "heads\n/kv", "head_\ndim", "d_ff", "parameters", "without\ninput table")


def run(as_json: bool) -> None:
    """Prints a row for each file in `conf/model/`, smallest model first."""
    found = sorted((facts(model) for model in options()), key=lambda row: row["parameters"])
    if as_json:
        print(json.dumps(found))
        return
    table = Table("model", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in TITLES:
        table.add_column(title, justify="right")
    for row in found:
        table.add_row(
            row["model"],
            *(f"{row[key]}" for key in ("d_model", "n_layers", "full_attention_layers")),
            f"{row['n_heads']}/{row['n_kv_heads']}",
            *(f"{row[key]}" for key in ("head_dim", "d_ff")),
            *(f"{row[key]:,}" for key in ("parameters", "parameters_without_input_table")),
        )
    # As wide as it is, whatever the terminal: rich would cut numbers.
    Console(width=Console(width=1000).measure(table).maximum).print(table)


def options() -> list[ModelConfig]:
    """The options of the `model` group, derived and checked."""
    with conf_found():
        return [_model(path.stem) for path in sorted((CONF / "model").glob("*.yaml"))]


def _model(option: str) -> ModelConfig:
    model = OmegaConf.to_object(compose(f"model/{option}").model)
    assert isinstance(model, ModelConfig)
    model.derive()
    model.check()
    return model


def facts(model: ModelConfig) -> dict[str, Any]:
    """Shape and number of parameters of a model, its padded vocabulary included."""
    periods = model.n_layers // len(model.window_pattern)
    return {
        "model": model.name,
        "d_model": model.d_model,
        "n_layers": model.n_layers,
        "full_attention_layers": periods * model.window_pattern.count(Attention.full),
        "n_heads": model.n_heads,
        "n_kv_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "d_ff": model.d_ff,
        "parameters": model.num_params,
        "parameters_without_input_table": model.num_params_without_input_table,
    }
