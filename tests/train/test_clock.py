"""The stopwatch that always runs."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from olmo_hydra.tracking import goodput
from olmo_hydra.train import clock
from olmo_hydra.train.clock import Clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time; the clock of the process is replaced."""
    fake = SimpleNamespace(s=10.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: fake.s))
    return fake


def spent(watch: Clock) -> dict[str, float]:
    return {name: value for name, value in watch.reading().items() if value and name != "step"}


def test_every_second_is_spent_on_one_thing(now: SimpleNamespace) -> None:
    watch = Clock(began=7.0)
    now.s += 2
    with watch.spent("restore"):
        now.s += 4
    watch.turn_to("updates")
    with pytest.raises(RuntimeError), watch.spent("save"):
        now.s += 100
        raise RuntimeError
    now.s += 1
    with watch.spent("eval"):
        now.s += 8
        with watch.spent("data"):
            now.s += 16
        assert spent(watch)["eval"] == 8, "what is going on counts as well"
    watch.turn_to("ending")
    now.s += 32
    expected = {"import": 3, "open": 2, "restore": 4, "updates": 1, "data": 16, "eval": 8, "save": 100, "ending": 32}
    assert spent(watch) == expected
    assert sum(expected.values()) == now.s - 7


def test_accounts_know_everything_that_time_is_spent_on() -> None:
    assert set(get_args(clock.Spent)) == set(goodput.KEYS)


def test_a_lap_is_of_updates_and_their_data(now: SimpleNamespace) -> None:
    watch = Clock(began=10.0)
    watch.turn_to("updates")
    now.s += 1
    with watch.spent("data"):
        now.s += 2
    with watch.spent("eval"):
        now.s += 100
    assert watch.lap() == 3
    now.s += 4
    assert watch.lap() == 4


def test_another_thread_never_sees_time_twice_or_not_at_all() -> None:
    began = time.perf_counter()
    watch, done, wrong = Clock(began), threading.Event(), []

    def read() -> None:
        while not done.is_set():
            before = time.perf_counter() - began
            total = sum(watch.reading().values())
            if not before <= total + 1e-6 <= time.perf_counter() - began + 2e-6:
                wrong.append((before, total))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20_000):
        with watch.spent("data"):
            pass
    done.set()
    reader.join()
    assert not wrong


def test_the_first_start_begins_with_the_process_and_the_next_when_it_asks() -> None:
    """The age of a process that has slept before it asked, seen from inside, is at least that; the next is new."""
    code = (
        "import time; time.sleep(0.3)\n"
        "from olmo_hydra.train.clock import start_begins\n"
        "ages = [-(start_begins() - time.perf_counter()) for _ in range(2)]\n"
        "print(*ages)"
    )
    before = time.perf_counter()
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    first, second = map(float, printed.split())
    assert 0.3 <= first <= time.perf_counter() - before + 0.02  # the kernel counts in hundredths of a second
    assert 0 <= second < first


def test_where_the_kernel_does_not_say_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "Path", lambda _: Path("/nonexistent"))
    assert clock.process_start() == clock.olmo_hydra.IMPORTED
