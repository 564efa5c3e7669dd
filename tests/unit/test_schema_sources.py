# SPDX-License-Identifier: Apache-2.0
"""Which schemata a capture takes: shipped ones by name, a user's own if only root can write it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tcpkmon.collector.plan.columns import SCHEMATA
from tcpkmon.collector.plan.schema_sources import (
    ENGINE,
    Source,
    find_sources,
    load_schema_of,
    paste_texts,
    read_texts,
    shipped_names,
)
from tcpkmon.formats.base.errors import (
    FileError,
    PrivilegeError,
    SchemaError,
    TcpkmonError,
    UsageError,
)

BASE = Source("base", SCHEMATA / "base.conf", None, True)


def write(path: Path, text: str = "") -> Path:
    """A file, and its folder, that only their owner can write, whatever the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o755)
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The folder of a user's schema."""
    write(tmp_path / "sched-tutorial" / "sched-tutorial.conf", "event OUT { int pid }\n")
    return write(tmp_path / "sched-tutorial" / "sched-tutorial.bpf.c", "// text\n").parent


def include(mine: Path, name: str) -> Path:
    """A file of that name beside the schema, which includes it."""
    write(mine / "sched-tutorial.bpf.c", f'#include "{name}"\nmine\n')
    return write(mine / name, "included\n")


def make_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the file somebody else's; without root, makes us somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)


def test_base_is_first_and_named_once() -> None:
    tcp = Source("tcp", SCHEMATA / "tcp.conf", SCHEMATA / "tcp.bpf.c", True)
    assert find_sources([]) == find_sources(["base"]) == (BASE,)
    assert find_sources(["tcp", "base", "tcp"]) == (BASE, tcp)
    assert {"base", "tcp"} <= set(shipped_names())


def test_a_users_schema_by_folder_and_by_file(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = mine / "sched-tutorial.conf"
    wanted = Source("sched-tutorial", conf, mine / "sched-tutorial.bpf.c", False)
    monkeypatch.chdir(mine.parent)
    for word in (str(mine), f"{mine}/", str(conf), "sched-tutorial", "./sched-tutorial/",
                 "sched-tutorial/sched-tutorial.conf", f"{mine}/../sched-tutorial"):  # fmt: skip
        assert find_sources([word]) == (BASE, wanted), word
    assert find_sources([str(mine), str(conf)]) == (BASE, wanted)
    schema = load_schema_of((BASE, wanted))
    assert schema.events[0].name == "KLOGGER_START" and schema.events[-1].name == "OUT"
    assert schema.name == "base+sched-tutorial"


def test_the_file_name_of_2007(mine: Path) -> None:
    (mine / "sched-tutorial.conf").rename(mine / ".klogger.conf.sched-tutorial")
    assert find_sources([str(mine)])[1].name == "sched-tutorial"


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("shed", r"unknown schema 'shed' \(did you mean 'sched'\?\)", "shipped are .*tcp"),
        ("/nowhere/x", "there is no schema /nowhere/x: no such file", ""),
        ("x.conf", "there is no schema x.conf: no such file", ""),
        ("/etc/passwd", "/etc/passwd is no NAME.conf", "name the folder"),
        ("/\x1b", "unprintable", ""),
    ],
)
def test_what_is_no_schema(
    word: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = "tcpkmon.collector.plan.schema_sources.shipped_names"
    monkeypatch.setattr(shipped, lambda: ("base", "sched", "tcp"))
    with pytest.raises(UsageError, match=message) as caught:
        find_sources([word])
    assert hint == "" or caught.match(hint)


def test_folders_that_hold_no_schema(mine: Path) -> None:
    (mine / "sched-tutorial.bpf.c").unlink()
    with pytest.raises(UsageError, match=r"holds no sched-tutorial\.bpf\.c"):
        find_sources([str(mine)])
    assert find_sources([str(mine)], text_needed=False)[1].text is None
    write(mine / "other.conf")
    with pytest.raises(UsageError, match=r"several schemata: other\.conf, sched-tutorial\.conf"):
        find_sources([str(mine)])
    for path in mine.glob("*.conf"):
        path.unlink()
    with pytest.raises(UsageError, match=r"holds no NAME\.conf"):
        find_sources([str(mine)])


def test_two_of_one_name(mine: Path) -> None:
    other = mine.parent / "other"
    write(other / "sched-tutorial.conf")
    write(other / "sched-tutorial.bpf.c")
    with pytest.raises(UsageError, match="two schemata are called 'sched-tutorial'"):
        find_sources([str(mine), str(other)])
    write(other / "tcp.conf")
    write(other / "tcp.bpf.c")
    with pytest.raises(UsageError, match="two schemata are called 'tcp'"):
        find_sources(["tcp", str(other / "tcp.conf")])


HELPERS = ["helper.h", "helper.inc", "helper"]
PARTS = ["..", ".", "sched-tutorial.conf", "sched-tutorial.bpf.c", *HELPERS]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_refused(mine: Path, part: str, mode: int) -> None:
    include(mine, part if part in HELPERS else "helper.h")
    path = (mine / part).resolve()
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(PrivilegeError, match=f"{path} may be written by others") as caught:
        find_sources([str(mine)])
    assert f"chmod go-w {path}" in caught.value.hint
    assert len(find_sources([str(mine)], trusted_only=False)) == 2


@pytest.mark.parametrize("part", PARTS)
def test_what_is_somebody_elses_is_refused(
    mine: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    include(mine, part if part in HELPERS else "helper.h")
    make_foreign((mine / part).resolve(), monkeypatch)
    with pytest.raises(PrivilegeError, match="belongs to ") as caught:
        find_sources([str(mine)])
    assert "chown root: " in caught.value.hint
    assert len(find_sources([str(mine)], trusted_only=False)) == 2


@pytest.mark.parametrize("part", PARTS[1:])
def test_links_are_not_followed(mine: Path, part: str) -> None:
    include(mine, part if part in HELPERS else "helper.h")
    path = mine if part == "." else mine / part
    path.rename(mine.parent / "real")
    path.symlink_to(mine.parent / "real")
    with pytest.raises(PrivilegeError, match=f"{path} is a symbolic link"):
        find_sources([str(mine)])
    assert len(find_sources([str(mine)], trusted_only=False)) == 2


def test_a_sticky_folder_is_shared_too_when_it_is_the_schemas_own(mine: Path) -> None:
    """Others could add a file of an included name there."""
    mine.chmod(0o1777)
    with pytest.raises(PrivilegeError, match=f"{mine} may be written by others") as caught:
        find_sources([str(mine / "sched-tutorial.conf")])
    assert caught.value.hint == "copy the schema to where only root writes, /etc/tcpkmon say"


def test_only_what_is_included_counts(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("other.h", "sock_filter.h"):
        make_foreign(write(mine / name), monkeypatch) if os.geteuid() == 0 else None
        (mine / name).chmod(0o666)
    (mine / "link.h").symlink_to("/nowhere")
    include(mine, "helper.h")
    assert places(read_texts(find_sources([str(mine)])))["included"] == f"{mine}/helper.h:1"
    write(mine / "sched-tutorial.bpf.c", '#include "sock_filter.h"\n')
    with pytest.raises(PrivilegeError, match=r"sock_filter\.h (belongs to|may be written)"):
        find_sources([str(mine)])


@pytest.mark.parametrize(
    "text",
    [
        '#include "helper.inc"', ' # include "helper.inc"', '#include \\\n "helper.inc"',
        '#inc\\\nlude "helper.inc"', '%:include "helper.inc"', '??=include "helper.inc"',
        '#include /* why */ "helper.inc"', '#include_next "helper.inc"', '#import "helper.inc"',
        "#define HELPER </tmp/helper.inc>\n#include HELPER", "#include </tmp/helper.inc>",
        "#include <../../../tmp/helper.inc>", '#embed "helper.inc"',
    ],
)  # fmt: skip
def test_clang_itself_opens_no_file_of_a_users(mine: Path, text: str) -> None:
    """Either the text is pasted, or the line is an error."""
    write(mine / "helper.inc", "included\n")
    write(mine / "sched-tutorial.bpf.c", f"{text}\n")
    pasted, problems = paste_texts(find_sources([str(mine)]))
    own = pasted[pasted.index("sched-tutorial.bpf.c") :]
    assert ("included" in own) != bool(problems)
    assert problems or "helper.inc" not in own.replace('helper.inc"\nincluded', "")


def test_what_was_checked_is_what_is_read(mine: Path) -> None:
    """Each file is read once: who swaps it afterwards changes nothing."""
    include(mine, "helper.h")
    sources = find_sources([str(mine)])
    before = read_texts(sources), load_schema_of(sources)
    for path in mine.iterdir():
        path.write_text("event EVIL { int pid }\n")
    (mine / "helper.h").unlink()
    (mine / "sock_filter.h").write_text("evil")
    assert (read_texts(sources), load_schema_of(sources)) == before


def test_a_swap_while_it_is_read_is_found(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's folder takes the place of the checked one, just before each file is opened."""
    include(mine, "helper.h")
    evil = mine.parent / "evil"
    for path in mine.iterdir():
        write(evil / path.name, "evil")
    if os.geteuid() == 0:
        for path in (evil, *evil.iterdir()):
            os.chown(path, 4242, -1)
    real = os.open
    swapped = False

    def swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        nonlocal swapped
        if path == "helper.h" and not swapped:
            swapped = True
            mine.rename(mine.parent / "gone")
            evil.rename(mine)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    text = read_texts(find_sources([str(mine)]))
    assert swapped and "included" in text and "evil" not in text


@pytest.mark.parametrize("trusted_only", [True, False])
def test_a_pipe_is_no_schema(mine: Path, trusted_only: bool) -> None:
    (mine / "sched-tutorial.conf").unlink()
    os.mkfifo(mine / "sched-tutorial.conf", 0o600)
    with pytest.raises(TcpkmonError, match="is no regular file"):
        find_sources([str(mine)], trusted_only)


def source(path: Path) -> Source:
    return Source(path.stem, path, path, False)


def places(text: str) -> dict[str, str]:
    """What the compiler would say of each line that is only a word: file:line."""
    found = {}
    file, number = "", 0
    for line in text.splitlines():
        number += 1
        if line.startswith("#line "):
            _, first, name = line.split(" ", 2)
            file, number = name.strip('"'), int(first) - 1
        elif line.isidentifier():
            found[line] = f"{file}:{number}"
    return found


def test_includes_are_put_in_place_once(tmp_path: Path) -> None:
    one = write(
        tmp_path / "one.c",
        '#include "klogger.h"\nfirst\n  # include "mine.h" // why\nsecond\n#include <mine.h>\n'
        '#include "mine.h"\n#include "sock_filter.h"\nthird\n/*\n#include "nowhere.h"\n*/\n',
    )
    write(tmp_path / "mine.h", '#include "other.h"\nfourth\n#include "mine.h"\n')
    write(tmp_path / "other.h", "fifth")
    two = write(tmp_path / "two" / "two.c", '#include <linux/klogger.h>\n#include "mine.h"\nsixth')
    write(tmp_path / "two" / "mine.h", "seventh\n")
    text = read_texts([BASE, source(one), source(two)])
    assert {word: place.removeprefix(f"{tmp_path}/") for word, place in places(text).items()} == {
        "first": "one.c:2",
        "second": "one.c:4",
        "third": "one.c:8",
        "fourth": "mine.h:2",
        "fifth": "other.h:1",
        "sixth": "two/two.c:3",
        "seventh": "two/mine.h:1",
    }
    assert text.startswith(f'#line 1 "{ENGINE}"\n')
    assert text.count(ENGINE.read_text()) == 1
    assert text.count((ENGINE.parent / "sock_filter.h").read_text().partition("#include")[0]) == 1
    assert "#include <mine.h>" in text
    assert '#include "nowhere.h"' in text


def test_a_quote_in_a_path_stays_in_its_string(tmp_path: Path) -> None:
    path = write(tmp_path / 'a"\\b' / "a.c", "alone")
    name = str(path).replace("\\", "\\\\").replace('"', '\\"')
    assert f'\n#line 1 "{name}"\nalone' in read_texts([source(path)])


def test_headers_that_are_not_there_are_told_together(tmp_path: Path) -> None:
    text = '#include "mien.h"\n#include "../up.h"\n#include "/etc/passwd"\n#include ""\n'
    one = write(tmp_path / "one.c", text)
    two = write(tmp_path / "two.c", '\n #include "mine.h"\n')
    write(tmp_path / "mine.h", '#include "sock_filtr.h"')
    write(tmp_path.parent / "up.h")
    with pytest.raises(SchemaError) as caught:
        read_texts([source(one), source(two)])
    told = [(p.file, p.line, p.column, p.message) for p in caught.value.problems]
    expected = f"expected a header beside this file or of {ENGINE.parent}, found"
    assert told == [
        (str(one), 1, 11, f"{expected} 'mien.h' (did you mean 'mine.h'?)"),
        (str(one), 2, 11, f"{expected} '../up.h'"),
        (str(one), 3, 11, f"{expected} '/etc/passwd'"),
        (str(one), 4, 11, f"{expected} ''"),
        (str(tmp_path / "mine.h"), 1, 11, f"{expected} 'sock_filtr.h'"
         " (did you mean 'sock_filter.h'?)"),
    ]  # fmt: skip


def test_texts_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.c"
    with pytest.raises(FileError, match="No such file"):
        read_texts([source(path)])
    path.write_bytes(b"a\n\xff")
    _, problems = paste_texts([source(path)])
    assert [str(problem) for problem in problems] == [f"{path}:2:1: expected text in UTF-8"]
    path.write_bytes(b" " * ((1 << 19) + 1))
    _, problems = paste_texts([source(path)])
    assert [problem.message for problem in problems] == ["expected at most 524288 characters"]
