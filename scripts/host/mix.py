# SPDX-License-Identifier: Apache-2.0
"""The two benchmark scripts of the thesis (section 5.2): commands, users, pauses, CPU time."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAUSES = 200
"""The pauses of 1987 divided by so much: what took seconds takes milliseconds."""
TR = "cat driver.c | tr a-z A-Z > upper"


@dataclass(frozen=True)
class Command:
    """As in the thesis, and as it is called here. users run it at the same time, each `runs` times:
    mtime's -u and -r."""

    name: str
    shell: str
    users: int = 1
    runs: int = 1


Step = Command | float
"""A command that is started, or a pause in seconds of 1987."""
CC_DRIVER = Command("cc -DSYS3 -c driver.c", "cc -DSYS3 -c driver.c -o driver.o")
CC_EDITOR = Command("cc -DSYS3 -c editor.c", "cc -DSYS3 -c editor.c -o editor.o")
CC_BOTH = (
    Command(CC_DRIVER.name, "cc -DSYS3 driver.c -o driver"),
    Command(CC_EDITOR.name, "cc -DSYS3 editor.c -o editor"),
)
SORT = Command("sort -r words", "sort -r words -o /dev/null")
NROFF = Command("nroff -man nroff.l", "groff -Tascii -man nroff.l > /dev/null")
CP = Command("cp editor.c", "cp editor.c copy.c")
PWD, CD, WHO = Command("pwd", "pwd"), Command("cd /tmp", "cd /tmp"), Command("who", "who")
TSH = Command("tsh", "sh < tsh")
CAT = Command("cat driver.c", TR)


def ed(users: int) -> Command:
    return Command("ed edscript", "ed -s text < edscript > /dev/null", users)


def fork(times: int) -> Command:
    return Command("fork", f"i=0; while [ $i -lt {times} ]; do (:); i=$((i + 1)); done")


BENCHMARKS: dict[str, Sequence[Step]] = {
    "Benchmark I": (
        CC_DRIVER, 10, ed(2), 5, SORT, 50, NROFF, 60, CP, 24, PWD, CD, fork(5), 15, WHO, TSH, 17,
        CC_EDITOR, CAT,
    ),
    "Benchmark II": (
        CC_BOTH[0], ed(4), 5, SORT, NROFF, CC_BOTH[1], 4, PWD, CD, fork(20), WHO, TSH, CP, CAT,
    ),
}  # fmt: skip
THEN = {
    CC_DRIVER.name: (7.832, 7.836, 7.835), "ed edscript": (0.133, 0.134, 0.133),
    SORT.name: (0.149, 0.150, 0.152), NROFF.name: (3.967, 3.967, 3.968),
    CP.name: (0.117, 0.117, 0.118), PWD.name: (0.084, 0.083, 0.089),
    CD.name: (0.017, 0.016, 0.015), WHO.name: (0.162, 0.164, 0.164),
    CC_EDITOR.name: (12.048, 12.047, 12.049), CAT.name: (0.534, 0.535, 0.535),
}  # fmt: skip
"""Table 5.3: CPU seconds of a command, monitor not installed, installed but off, on."""


class Mix:
    """The files that the commands work on, in a new folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mix"
        self.folder.mkdir()
        for name, functions in (("driver.c", 150), ("editor.c", 300)):
            (self.folder / name).write_text(_program(functions))
        chosen = random.Random(1987)
        letters = "abcdefghijklmnopqrstuvwxyz"
        words = ("".join(chosen.choices(letters, k=chosen.randint(3, 9))) for _ in range(20_000))
        (self.folder / "words").write_text("\n".join(words) + "\n")
        (self.folder / "text").write_text("a line of text\n" * 2000)
        (self.folder / "edscript").write_text("1,$s/line/row/\ng/row/s/text/words/\n1,$p\nQ\n")
        page = ".TH NROFF 1\n" + ".SH NAME\nnroff \\- text\n.PP\nSome \\fBbold\\fP text.\n" * 400
        (self.folder / "nroff.l").write_text(page)
        (self.folder / "tsh").write_text("for i in 1 2 3; do echo $i > /dev/null; true; done\n")
        # The first run of a program reads it from the disk.
        for steps in BENCHMARKS.values():
            self.run(steps)

    def run(self, steps: Sequence[Step]) -> dict[str, float]:
        """A benchmark: CPU seconds of a run of a user's command, by the command's name."""
        running: list[tuple[Command, subprocess.Popen[bytes]]] = []
        for step in steps:
            if not isinstance(step, Command):
                time.sleep(step / PAUSES)
                continue
            running += [(step, self._start(step, user)) for user in range(step.users)]
        used: dict[str, list[float]] = defaultdict(list)
        for step, process in running:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise ValueError(f"{step.name}: exit code {process.returncode}")
            used[step.name].append((usage.ru_utime + usage.ru_stime) / step.runs)
        return {name: sum(each) / len(each) for name, each in used.items()}

    def _start(self, command: Command, user: int) -> subprocess.Popen[bytes]:
        """Each user has a shell, as with mtime, so that its children count."""
        shell = command.shell
        if command.runs > 1:
            shell = f"for run in $(seq {command.runs}); do ({shell}) || exit; done"
        return subprocess.Popen(
            ["/bin/sh", "-c", shell], cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "USER": f"user{user}"},
        )  # fmt: skip


def _program(functions: int) -> str:
    body = "\n".join(
        f"int f{n}(int a, int b)\n{{\n    int i, sum = {n};\n    for (i = a; i < b; i++)\n"
        f"        sum += i % {n + 2} ? i * sum : sum - a;\n"
        f'    printf("%d %s\\n", sum, "f{n}");\n    return sum;\n}}'
        for n in range(functions)
    )
    calls = "\n".join(f"    f{n}(1, argc);" for n in range(functions))
    return (
        f"#include <stdio.h>\n#include <stdlib.h>\n{body}\n"
        f"int main(int argc, char **argv)\n{{\n{calls}\n    return argv == NULL;\n}}\n"
    )
