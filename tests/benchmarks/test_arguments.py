"""What the benchmarks' command lines refuse, before anything is measured."""

import argparse
import importlib
import sys

import pytest

from benchmarks import arguments


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "²"])
def test_a_count_is_a_whole_number_from_1_on(text: str) -> None:
    assert arguments.count("12") == 12
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.count(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "long"])
def test_an_amount_is_finite_and_above_zero(text: str) -> None:
    assert arguments.amount("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.amount(text)


def test_a_folder_is_there_before_the_results(tmp_path) -> None:
    assert arguments.folder(str(tmp_path / "a" / "b")).is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written"):
        arguments.folder(str(tmp_path / "file" / "b"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("benchmarks.first_step --rounds 0", "0 is no whole number"),
        ("benchmarks.gpu --rehearse --minutes nan", "nan is no number above zero"),
        ("benchmarks.gpu --rehearse --remat none,nope", "nope is none of none, minimal_with_context"),
        ("benchmarks.kills.__main__ --kills -1", "-1 is no whole number"),
        ("benchmarks.peers.__main__ --cells tiny,x", "x is none of tiny"),
        ("benchmarks.peers.__main__ --programs ours,", "nothing is none of"),
        ("benchmarks.peers.__main__ model.n_layers=nope", "instead: a whole number"),
    ],
)
def test_a_command_refuses_it_with_status_2(command: str, said: str, monkeypatch, capsys) -> None:
    module, *typed = command.split()
    monkeypatch.setattr(sys, "argv", [module, *typed])
    try:
        status = importlib.import_module(module).main()
    except SystemExit as end:
        status = end.code
    assert status == 2 and said in capsys.readouterr().err
