from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.allocate import ALLOCATORS
from malletrain.config import AllocatorName, Config, _numbers, parse
from malletrain.core.settings import AdvisorKind, ObjectiveKind
from malletrain.errors import ConfigError


def test_no_file_and_an_empty_file_give_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch()
    assert Config.load(None) == Config.load(tmp_path / "empty.toml") == Config()


def test_every_part_can_be_set() -> None:
    config = parse(
        """
        [core]
        objective = "fair"
        quotas = { ada = 4 }
        [core.advisor]
        kind = "inverse-order"
        [core.horizon]
        fixed_s = 60
        [live]
        agent_away_limit_s = 3
        allocator = "equal-share"
        [worker]
        interface = "ib0"
        [local]
        max_nodes = 16
        hang_limit_s = 600
        heartbeat_limit_s = 30
        """
    )
    assert config.core.objective is ObjectiveKind.FAIR
    assert config.core.quotas == {"ada": 4}
    assert config.core.advisor.kind is AdvisorKind.INVERSE_ORDER
    assert config.core.horizon.fixed_s == 60.0
    assert config.live.agent_away_limit_s == 3.0
    assert config.live.allocator is AllocatorName.EQUAL_SHARE
    assert config.worker.interface == "ib0"
    assert config.local.max_nodes == 16
    assert config.local.hang_limit_s == 600.0
    assert config.local.heartbeat_limit_s == 30.0


def test_every_allocator_can_be_named() -> None:
    assert [name.value for name in AllocatorName] == list(ALLOCATORS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[core]\nobjektive = 'fair'", "unknown key core.objektive: did you mean objective?"),
        ("[banana]", "unknown key banana: known keys: core, live, worker, local"),
        ("core = 1", r"core must be a table: write \[core\]"),
        ("[core]\nadvisor = 'x'", r"core.advisor must be a table: write \[core.advisor\]"),
        ("[live]\nping_every_s = 'often'", "live.ping_every_s: expected `float`, got `str`"),
        ("[core]\nobjective = 'best'", "core.objective: .*'best'.* samples, speedup"),
        ("[live]\nallocator = 'best'", "live.allocator: .*'best'.* exact, milp, fifo, equal-share"),
        ("[core.advisor]\nmin_steps = 1", "core.advisor.min_steps = 1 is out of range: at least 2"),
        ("[core.advisor]\nrelative_precision = 2.0", "out of range: at most 1"),
        ("[live]\nreattach_s = -1", "live.reattach_s = -1 is out of range: at least 0"),
        (
            "[local]\nheartbeat_limit_s = 1",
            "local.heartbeat_limit_s = 1 is out of range: at least 2",
        ),
        ("[local]\nhang_limit_s = 0", "local.hang_limit_s = 0 is out of range: at least 1"),
        (
            "[live]\nreattach_s = nan",
            r"reattach_s = nan is out of range: a number from 0 to 1e\+09",
        ),
        ("[live]\nreattach_s = inf", r"live.reattach_s = inf is out of range: at most 1e\+09"),
        ("[live]\nsettle_s = inf", "live.settle_s = inf is out of range: at most 60"),
        ("[core.horizon]\nfixed_s = inf", "core.horizon.fixed_s = inf is out of range: at most"),
        ("[core.horizon]\nmax_s = -inf", "core.horizon.max_s = -inf is out of range: at least 0"),
        ("[core.quotas]\nada = 2000000000", r"core.quotas.ada = 2e\+09 is out of range: at most"),
        pytest.param(f"[local]\nmax_nodes = 1{'0' * 400}", "local.max_nodes", id="a long number"),
        pytest.param(f"[live]\nsettle_s = 1{'0' * 400}", "live.settle_s", id="no float"),
        ("[core.quotas]\nada = -1", "core.quotas.ada = -1 is out of range"),
        ("a = ", "not TOML"),
        ("a = " + "[" * 5000, "numbers too long or tables too deep"),
        ("a = " + "9" * 5000, "numbers too long or tables too deep"),
    ],
)
def test_a_wrong_file_is_told_in_one_line_with_its_name(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Config.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_no_setting_can_be_other_than_a_finite_number(value: str) -> None:
    numbers = dict(_numbers(Config(), ""))
    assert len(numbers) > 40
    for key, default in numbers.items():
        if isinstance(default, float):
            table, _, name = key.rpartition(".")
            with pytest.raises(ConfigError, match=rf"{key} = {value} is out of range"):
                parse(f"[{table}]\n{name} = {value}")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.toml: No such file"):
        Config.load(tmp_path / "gone.toml")


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        Config.load(tmp_path / "binary.toml")
