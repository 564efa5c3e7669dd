# SPDX-License-Identifier: Apache-2.0
"""compile_text around its child: what it caches, when it does not, and what its errors say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tcpkmon.collector.loader import compiler
from tcpkmon.collector.loader.compiler import CompileError, UserCompileError, compile_text
from tcpkmon.formats.base.errors import KernelError

# Stands in for compile_child.py: notes that it ran, and answers with an image of one function.
CHILD = """
import json, sys
request = json.load(sys.stdin)
with open({log!r}, "a") as log:
    log.write(" ".join(request["functions"]) + "\\n")
code = "twAAAAAAAACVAAAAAAAAAA=="
programs = {{name: {{"code": code, "maps": []}} for name in request["functions"]}}
print(json.dumps({{"maps": [], "programs": programs}}))
"""


class Compiler:
    """compile_text with a child that counts its runs."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "runs"
        self.cache = folder / "cache"
        self.bcc = folder / "libbcc.so.0"

    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    fake = Compiler(tmp_path)
    child = tmp_path / "child.py"
    child.write_text(CHILD.format(log=str(fake.log)))
    fake.bcc.write_text("library")
    monkeypatch.setattr(compiler, "CHILD", child)
    monkeypatch.setattr(compiler, "_BCC_FILES", (str(fake.bcc),))
    monkeypatch.setenv("TCPKMON_CACHE", str(fake.cache))
    return fake


def test_the_second_time_no_child_runs(fake: Compiler) -> None:
    first = compile_text("text", ["b", "a"])
    assert compile_text("text", ["a", "b", "a"]) == first
    assert fake.runs() == 1
    assert set(first.programs) == {"a", "b"}


def test_all_that_matters_is_in_the_key(fake: Compiler, tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    header = headers / "types.h"
    header.write_text("// one")
    compile_text("text", ["a"], headers=headers)
    compile_text("other text", ["a"], headers=headers)
    assert fake.runs() == 2
    compile_text("text", ["a", "b"], headers=headers)
    assert fake.runs() == 3
    compile_text("text", ["a"], flags=["-DX"], headers=headers)
    assert fake.runs() == 4
    header.write_text("// two")
    compile_text("text", ["a"], headers=headers)
    assert fake.runs() == 5
    fake.bcc.write_text("a newer library")
    compile_text("text", ["a"], headers=headers)
    assert fake.runs() == 6
    compile_text("text", ["a"], headers=headers)
    assert fake.runs() == 6


def test_the_cache_folder_is_made_for_its_owner_alone(fake: Compiler) -> None:
    compile_text("text", ["a"])
    assert fake.cache.stat().st_mode & 0o777 == 0o700
    (file,) = fake.cache.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_may_write_is_not_believed(fake: Compiler, which: str) -> None:
    compile_text("text", ["a"])
    (file,) = fake.cache.iterdir()
    if which == "folder":
        fake.cache.chmod(0o720)
    else:
        file.chmod(0o602)
    compile_text("text", ["a"])
    assert fake.runs() == 2


def test_symbolic_links_are_not_followed(fake: Compiler, tmp_path: Path) -> None:
    compile_text("text", ["a"])
    (file,) = fake.cache.iterdir()
    elsewhere = tmp_path / "elsewhere"
    os.rename(file, elsewhere)
    file.symlink_to(elsewhere)
    compile_text("text", ["a"])
    assert fake.runs() == 2
    assert not file.is_symlink(), "the link itself is replaced"
    os.rename(fake.cache, tmp_path / "moved")
    fake.cache.symlink_to(tmp_path / "moved")
    compile_text("text", ["a"])
    assert fake.runs() == 3


def test_a_damaged_or_impossible_cache_is_passed_over(fake: Compiler) -> None:
    compile_text("text", ["a"])
    (file,) = fake.cache.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    good = compile_text("text", ["a"])
    assert compile_text("text", ["a"]) == good
    assert fake.runs() == 2
    file.unlink()
    fake.cache.rmdir()
    fake.cache.write_text("a file where the folder should be")
    assert compile_text("text", ["a"]) == good


def test_old_images_go_and_foreign_files_stay(fake: Compiler) -> None:
    fake.cache.mkdir(mode=0o700)
    foreign = fake.cache / "passwd"
    foreign.write_text("not ours")
    os.utime(foreign, (0, 0))
    for number in range(262):
        old = fake.cache / f"{number}{compiler.SUFFIX}"
        old.write_text("old")
        os.utime(old, (number, number))
    compile_text("text", ["a"])
    kept = list(fake.cache.glob(f"*{compiler.SUFFIX}"))
    assert len(kept) == 256
    assert not (fake.cache / f"6{compiler.SUFFIX}").exists()
    assert (fake.cache / f"7{compiler.SUFFIX}").exists()
    assert foreign.exists()


def answer_with(fake: Compiler, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    child = fake.log.with_name("other.py")
    child.write_text("import sys\n" + code)
    monkeypatch.setattr(compiler, "CHILD", child)


def test_clangs_errors_are_named_with_file_and_line(
    fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"/x/tcp.bpf.c:{n}:3: error: bad thing {n}\\n  x\\n  ^" for n in range(7, 12)]
    said = "\\n".join(["/x/tcp.bpf.c:3:1: warning: hm", *lines])
    answer = '{"error": "compile", "detail": ""}'
    answer_with(
        fake,
        monkeypatch,
        f"print('''{answer}''')\nsys.stdin.read()\nsys.stderr.write('''{said}''')",
    )
    with pytest.raises(CompileError) as caught:
        compile_text("text", ["a"])
    listed = [f"/x/tcp.bpf.c:{n}:3: bad thing {n}" for n in range(7, 12)]
    assert caught.value.lines() == (f"the program does not compile: {'; '.join(listed)}",)
    assert "bad thing 11" in caught.value.diagnostics
    assert caught.value.exit_code == KernelError.exit_code
    with pytest.raises(UserCompileError) as users:
        compile_text("text", ["a"], user_schema=True)
    assert users.value.exit_code == 2
    assert users.value.lines() == tuple(listed)


def test_a_child_that_dies_is_an_error_and_not_a_traceback(
    fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(fake, monkeypatch, "sys.stdin.read()\nsys.exit('out of memory')")
    with pytest.raises(CompileError, match=r"status 1: out of memory"):
        compile_text("text", ["a"])


def test_children_share_the_functions_and_omit_the_others(
    fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    load = [0.3]
    monkeypatch.setattr(os, "getloadavg", lambda: (load[0], 0.0, 0.0))
    names = [f"f{number}" for number in range(9)]
    image = compile_text("text", names, divide=True)
    assert set(image.programs) == set(names)
    assert sorted(fake.log.read_text().split("\n")) == ["", "f0 f2 f4 f6 f8", "f1 f3 f5 f7"]
    assert compile_text("text", names, divide=True) == image
    assert fake.runs() == 2
    compile_text("text", names[:7], divide=True)
    assert fake.runs() == 3, "too few to share"
    load[0] = 0.9
    compile_text("another text", names, divide=True)
    assert fake.runs() == 4, "the other CPU is busy"
