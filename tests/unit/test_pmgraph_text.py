# SPDX-License-Identifier: Apache-2.0
"""pmgraph -T, -D and -M against a decode by hand of the same bytes."""

from __future__ import annotations

import re
import struct
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tcpkmon.formats.base import cli
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.pmgraph import command
from tcpkmon.formats.pmgraph.options import parse_connection, parse_scale
from tests.unit.psc_files import (
    BOOT_NS,
    EPOCH_S,
    NAMES,
    REPORT_COLUMNS,
    RETRANSMIT,
    Builder,
    mapped,
    merge,
    sawtooth,
)


def run(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = cli.run(command, [str(arg) for arg in args], prog="pmgraph")
    out, err = capfd.readouterr()
    return code, out, err


def by_hand(path: Path, builder: Builder) -> list[dict[str, str]]:
    """Every entry of a file, decoded with struct from the bytes, as -T should print it."""
    data = path.read_bytes()[len(builder.header()) :]
    texts = []
    for start in range(0, len(data), builder.entry_size):
        row = data[start : start + builder.entry_size]
        text = {}
        for name, offset, length, flags in builder.columns:
            part = row[offset : offset + length]
            if name == "time":
                seconds, micros = struct.unpack(builder.order + "II", part)
                text[name] = f"{seconds}.{micros:06d}"
            elif flags == 2:
                text[name] = part.hex()
            else:
                big = flags == 1 or builder.order == ">"
                text[name] = str(int.from_bytes(part, "big" if big else "little"))
        texts.append(text)
    return texts


@pytest.fixture
def ours() -> Builder:
    builder = Builder(tcpkmon=True)
    sawtooth(builder, 1055, 5050, 1, rounds=30)
    builder.lose(5, 0.9)
    sawtooth(builder, 1056, 5051, 2, start_s=1.0, rounds=20, raddr=mapped("fd00::2"))
    builder.end(2.0)
    return builder


@pytest.mark.parametrize("order", ["<", ">"])
def test_all_columns_in_file_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], order: str
) -> None:
    builder = Builder(order)
    sawtooth(builder, 1055, 5050, 1, rounds=50)
    path = builder.write(tmp_path / "a.pm")
    code, out, err = run(capfd, path, "-T")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "# " + "\t".join(NAMES)
    assert lines[1:] == ["\t".join(text.values()) for text in by_hand(path, builder)]


def test_chosen_columns_in_the_order_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ours: Builder
) -> None:
    path = ours.write(tmp_path / "a.pm")
    code, out, _ = run(capfd, path, "-THc", "--show", "conn_id,srtt_us", "-v", "-c")
    names = ["time", "lport", "rport", "sb_hiwat", "snd_cwnd", "conn_id", "srtt_us", "callvalue"]
    expected = [
        "\t".join(text[name] for name in names)
        for text in by_hand(path, ours)
        if text["lport"] != "0"
    ]
    assert code == 0
    assert out.splitlines() == ["# " + "\t".join(names), *expected]


@pytest.mark.parametrize("chosen", [("-p", "1056.5051"), ("-p1055.5050", "-p", "1056.5051")])
def test_connections_leave_control_entries_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ours: Builder, chosen: tuple[str, ...]
) -> None:
    path = ours.write(tmp_path / "a.pm")
    code, out, _ = run(capfd, "-T", *chosen, path)
    wanted = {"1056"} if len(chosen) == 2 else {"1055", "1056"}
    expected = ["\t".join(t.values()) for t in by_hand(path, ours) if t["lport"] in wanted]
    assert code == 0
    assert expected
    assert out.splitlines()[1:] == expected


def test_clusters_in_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    builder = Builder(mclsize=4096)
    for pages in (3, 2**32 - 1, 7):
        builder.add(1.5, m_clused=pages)
    path = builder.write(tmp_path / "a.pm")
    _, out, _ = run(capfd, path, "-Tm")
    assert out.splitlines()[0] == "# time\tlport\trport\tm_clused_bytes"
    assert [line.split("\t")[3] for line in out.splitlines()[1:]] == [
        str(pages * 4096) for pages in (3, 2**32 - 1, 7)
    ]
    assert run(capfd, path, "-M")[:2] == (0, f"{(2**32 - 1) * 4096}\n")
    code, _, err = run(capfd, Builder(mclsize=0).write(tmp_path / "b.pm"), "-M")
    assert code == 1
    assert "KIND_MCLSIZE" in err


def test_gaps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    builder = Builder()
    for at, seq in ((0, 2**32 - 2), (1, 2**32 - 1), (2, 4), (2.5, 5), (3, 9)):
        builder.seq = seq - 1
        builder.add(at)
    path = builder.write(tmp_path / "a.pm")
    code, out, err = run(capfd, path, "-D")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{2**32 - 1}\t{2**32 + 4}\t4\t{EPOCH_S + 1}.000000\t{EPOCH_S + 2}.000000",
        f"{2**32 + 5}\t{2**32 + 9}\t3\t{EPOCH_S + 2}.500000\t{EPOCH_S + 3}.000000",
    ]
    assert run(capfd, path, "-D", "--time", "rel")[1].splitlines()[0].endswith("1.000000\t2.000000")
    assert run(capfd, path, "-DTc")[1].startswith(f"# gap {2**32 - 1}\t")


def test_clocks(tmp_path: Path, capfd: pytest.CaptureFixture[str], ours: Builder) -> None:
    path = ours.write(tmp_path / "a.pm")

    def first(clock: str) -> str:
        return run(capfd, path, "-Tc", "--time", clock)[1].splitlines()[1].split("\t")[0]

    assert first("epoch") == f"{EPOCH_S}.100000"
    assert first("rel") == "0.100000"
    stamp = datetime.fromtimestamp(EPOCH_S, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    assert first("iso") == f"{stamp}.100000Z"
    assert first("mono") == f"{BOOT_NS // 10**9}.100000000"
    classic = Builder()
    classic.add(1)
    code, _, err = run(capfd, classic.write(tmp_path / "b.pm"), "-T", "--time", "mono")
    assert code == 2
    assert "time_ns" in err


def test_damaged_file(tmp_path: Path, capfd: pytest.CaptureFixture[str], ours: Builder) -> None:
    path = ours.write(tmp_path / "a.pm", cut=10)
    code, out, err = run(capfd, path, "-T")
    assert code == 5
    assert len(out.splitlines()) == len(ours.rows)  # the heading and all but the last
    assert f"at offset {path.stat().st_size - ours.entry_size + 10}" in err
    assert "no end record: tail unknown" in err
    path.write_bytes(b"\0\4\0")
    code, out, err = run(capfd, path, "-T")
    assert (code, out) == (5, "")
    assert err.count("\n") == 1


def test_unknown_and_absent_columns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    columns = tuple((n, o, 0 if n == "snd_fack" else size, f) for n, o, size, f in REPORT_COLUMNS)
    builder = Builder(columns=columns)
    builder.add(1, location=RETRANSMIT)
    path = builder.write(tmp_path / "a.pm")
    heading = run(capfd, path, "-T")[1].splitlines()[0]
    assert "snd_fack" not in heading and "snd_max" in heading
    for args in (("-f",), ("--show", "nothing_such")):
        code, out, err = run(capfd, path, "-T", *args)
        assert (code, out) == (2, "")
        assert "has no column" in err


def test_hostile_names_are_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    builder = Builder(columns=(*REPORT_COLUMNS, (b"\x1b[31m\tred", 64, 4, 0)))
    builder.add(1)
    code, out, _ = run(capfd, builder.write(tmp_path / "a.pm"), "-T", "-d")
    assert code == 0
    assert "\x1b" not in out
    assert len(out.splitlines()[0].split("\t")) == len(out.splitlines()[1].split("\t"))


def test_a_column_that_the_kernel_had_no_use_for_is_no_column(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By its mask: a kernel without FACK (psc_mods 4) has no snd_fack."""
    for mods, mask, has in ((7, 4, True), (3, 4, False), (3, 6, True), (3, 0, True), (0, 4, True)):
        builder = Builder(tcpkmon=True, mods=mods, masks={"snd_fack": mask})
        sawtooth(builder, 1055, 5050, 1)
        path = builder.write(tmp_path / "a.pm")
        code, out, said = run(capfd, path, "-T", "-d")
        assert code == 0 and ("snd_fack" in out.splitlines()[0].split()) == has
        (told,) = (line for line in said.splitlines() if "options that it can show" in line)
        assert ("-f" in told.split()) == has
        code, _, said = run(capfd, path, "-T", "-f")
        assert (code, "has no column snd_fack" in said) == ((0, False) if has else (2, True))
        if mask != 4:
            continue
        assert run(capfd, path, "-f", "-o", tmp_path / "x.png", "--force")[0] == (0 if has else 2)


REPORT = {
    "b": "snd_sb_cc", "c": "snd_cwnd", "f": "snd_fack", "F": "hiwat_fair_share", "H": "sb_hiwat",
    "l": "location", "m": "m_clused_bytes", "n": "sb_net_target", "r": "rcv_sb_cc",
    "s": "snd_max", "t": "sb_target_hiwat", "v": "callvalue",
}  # fmt: skip
"""What the letters of CMU-PSC-TR-2000-0001 show."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    builder = Builder()
    sawtooth(builder, 1055, 5050, 1, rounds=10)
    sawtooth(builder, 1056, 5051, 2, rounds=10)
    merge(builder)
    return builder.write(tmp_path / "na.pm")


def heading(capfd: pytest.CaptureFixture[str], *args: object) -> str:
    assert cli.run(command, [str(arg) for arg in args], prog="pmgraph") == 0
    return capfd.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("letter", REPORT)
def test_letters(path: Path, capfd: pytest.CaptureFixture[str], letter: str) -> None:
    assert heading(capfd, path, "-T", f"-{letter}") == f"# time\tlport\trport\t{REPORT[letter]}"


def test_clusters_of_letters(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert heading(capfd, "-TcHp1055.5050", path) == "# time\tlport\trport\tsnd_cwnd\tsb_hiwat"
    assert heading(capfd, path, "-PTHc", "-S", "1000l").split("\t")[3:] == [
        "sb_hiwat", "snd_cwnd", "location",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "65536", "1055:5050", "1055.", "65536.1", "1.2.3", "1055.-1"])
def test_bad_connections(text: str) -> None:
    with pytest.raises(UsageError):
        parse_connection(text)


@pytest.mark.parametrize("text", ["", "l", "1000", "1000d", "xl", "0l", "1e999l", "infl", "nanl"])
def test_bad_scales(text: str) -> None:
    with pytest.raises(UsageError):
        parse_scale(text)


@pytest.mark.parametrize(
    "args",
    [
        ("-q",), ("-p", "x"), ("-S", "l"), ("-T", "-x"), ("-T", "-o", "x.png"), ("-o", "x.gif"),
        ("--show", ","), ("--time", "utc"), ("--axis", "day"),
    ],
)  # fmt: skip
def test_wrong_usage(path: Path, capfd: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    assert cli.run(command, [str(path), *args], prog="pmgraph") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("pmgraph: ") and err.count("\n") == 1


def test_nowhere_to_draw(
    path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert cli.run(command, [str(path), "-c"], prog="pmgraph") == 2
    assert "-o FILE" in capfd.readouterr().err


def test_picture_never_replaces_the_capture(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    builder = Builder(columns=REPORT_COLUMNS)
    builder.add(1)
    path = builder.write(tmp_path / "odd.png")
    before = path.read_bytes()
    assert cli.run(command, [str(path), "-c", "-o", str(path)], prog="pmgraph") == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["docs/pmgraph.md", "docs/man/pmgraph.1"])
def test_documents_name_every_option(name: str) -> None:
    text = (Path(__file__).parents[2] / name).read_text().replace("\\-", "-")
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("-") and parameter.param_type_name == "option":
                is_named = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
                assert is_named or (name.endswith(".md") and len(option) > 2), option
