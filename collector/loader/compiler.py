# SPDX-License-Identifier: Apache-2.0
"""Compiles C text to an image of bytecode and maps: by BCC in a child process, or from the cache.

collector/loader/prepare.py makes the text, and collector/loader/programs.py loads the image. The
cache is /var/cache/tcpkmon (or $TCPKMON_CACHE): with an unchanged text a start does not run BCC.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import glob
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tcpkmon.collector.loader.image_cache import PrivateFolder, cache_folder
from tcpkmon.formats.base.errors import KernelError, PrivilegeError

PYTHON = "/usr/bin/python3"
CHILD = Path(__file__).with_name("bcc_child.py")
STUB_HEADERS = Path(__file__).parents[2] / "bpf" / "include" / "stub"
FORMAT = "tcpkmon-image-1"
SUFFIX = ".tcpkmon-image"
# An emulated kernel takes 20 s for a large text.
TIME_LIMIT_S = 300
_MOST_CHILDREN = 4
INSTALL_HINT = "install it: apt install python3-bpfcc"
# The files of BCC in several distributions: their sizes and times are part of the cache's key.
_BCC_FILES = (
    "/usr/lib/*/libbcc.so.0",
    "/usr/lib/libbcc.so.0",
    "/usr/lib64/libbcc.so.0",
    "/usr/lib/python3/dist-packages/bcc/*.py",
    "/usr/lib/python3*/site-packages/bcc/*.py",
)
_ERROR = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<what>.*)$", re.M
)
# LLVM's assembler ends the process at a .error directive in the text.
_DIRECTIVE = re.compile(r"^error: <inline asm>:\d+:\d+: (.*)$", re.M)


_IS_BYTES = re.compile(r"member reference base type '(?:u8|unsigned char)\[")
_NAME_THE_TYPE = (
    "a type inside another is only bytes until the schema names it: add it, as in "
    "`struct sock_common;`"
)


class CompileError(KernelError):
    """A shipped program did not compile; `diagnostics` is clang's whole output."""

    def __init__(self, message: str, hint: str = "", diagnostics: str = "") -> None:
        super().__init__(message, hint)
        self.diagnostics = diagnostics


class UserCompileError(CompileError):
    """A user's own program did not compile."""

    exit_code = 2

    def lines(self) -> tuple[str, ...]:
        """One line for each of clang's errors, and what to try."""
        return (*self.message.split("\n"), *([self.hint] if self.hint else []))


@dataclass(frozen=True)
class MapSpec:
    """A map that the text declares: `type` is a BPF_MAP_TYPE_ number, sizes are bytes."""

    name: str
    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


@dataclass(frozen=True)
class Code:
    """A function's bytecode with 0 for map descriptors; map_refs: (instruction's index, map)."""

    instructions: bytes
    map_refs: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Image:
    """The compiled text: its maps, and the code of the functions."""

    maps: tuple[MapSpec, ...]
    programs: Mapping[str, Code]

    def to_json(self) -> str:
        """The image as text, for from_json."""
        programs = {
            name: {"code": base64.b64encode(code.instructions).decode(), "maps": code.map_refs}
            for name, code in self.programs.items()
        }
        maps = [asdict(spec) for spec in self.maps]
        return json.dumps({"format": FORMAT, "maps": maps, "programs": programs})

    @classmethod
    def from_json(cls, text: str) -> Image:
        """The image that to_json() wrote; ValueError for any other text."""
        try:
            made = json.loads(text)
            if made["format"] != FORMAT:
                raise ValueError(f"not a {FORMAT}")
            maps = tuple(
                MapSpec(str(m.pop("name")), **{k: int(v) for k, v in m.items()})
                for m in made["maps"]
            )
            names = {spec.name for spec in maps}
            programs = {}
            for name, program in made["programs"].items():
                code = base64.b64decode(program["code"], validate=True)
                refs = tuple((int(index), str(used)) for index, used in program["maps"])
                if len(code) % 8 or any(
                    used not in names or not 0 <= 8 * index < len(code) for index, used in refs
                ):
                    raise ValueError(f"bad code of {name}")
                programs[str(name)] = Code(code, refs)
        except (KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ValueError(f"damaged image: {error!r}") from error
        return cls(maps, programs)


class Later(NamedTuple):
    """Text that is made when there is no image in the cache; `key` changes when the text does."""

    key: str
    make: Callable[[], str]


def compile_text(
    text: str,
    functions: Sequence[str],
    cache: bool = True,
    user_schema: bool = False,
    flags: Sequence[str] = (),
    headers: Path = STUB_HEADERS,
    before: Later | None = None,
    divide: bool = False,
) -> Image:
    """Compile the text's functions (each `int NAME(void *ctx)`).

    CompileError (UserCompileError with `user_schema`) has clang's errors (it stops at 20), with the
    files and lines of the text's #line directives. KernelError where BCC is not installed,
    PrivilegeError where the caller may not make maps. A cache that cannot be used is ignored.
    before: what comes before the text. divide: several children compile, each some functions; the
    text has #ifndef OMIT_NAME around function NAME.
    """
    wanted = sorted(set(functions))
    inputs = [text, *wanted, *flags, before.key if before else ""]
    key = _cache_key(inputs, headers) if cache else None
    folder = PrivateFolder(cache_folder(), SUFFIX)
    if key is not None:
        with contextlib.suppress(OSError, ValueError):
            return Image.from_json(folder.read(key).decode())
    whole = (before.make() if before else "") + text
    shares = _divide(wanted) if divide else [wanted]
    requests = [
        {
            "text": whole,
            "functions": share,
            "flags": [*flags, *(f"-DOMIT_{name}" for name in wanted if name not in share)],
        }
        for share in shares
    ]
    images = _run_children(requests, headers, user_schema)
    maps = {spec.name: spec for image in images for spec in image.maps}
    programs = {name: code for image in images for name, code in image.programs.items()}
    image = Image(tuple(maps[name] for name in sorted(maps)), programs)
    if key is not None:
        with contextlib.suppress(OSError):
            folder.write(key, image.to_json().encode())
    return image


def _divide(functions: Sequence[str]) -> list[Sequence[str]]:
    """Shares of the functions, one for each child: what all share takes as long as four functions.

    Only CPUs that others leave idle shorten it: two children take half as much CPU again as one.
    """
    idle = len(os.sched_getaffinity(0)) - round(os.getloadavg()[0])
    count = min(idle, _MOST_CHILDREN, len(functions) // 4)
    return [functions[first::count] for first in range(count)] if count > 1 else [functions]


def _cache_key(inputs: Sequence[str], headers: Path) -> str | None:
    """A hash of all that the image depends on; None where BCC's files are not found."""
    found = sorted(path for pattern in _BCC_FILES for path in glob.glob(pattern))
    if not any("libbcc" in path for path in found):
        return None
    system = os.uname()
    parts = [FORMAT, *inputs, system.release, system.version, system.machine]
    with contextlib.suppress(OSError):
        # BCC declares perf arrays with an entry for each CPU.
        parts.append(Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii"))
    parts.append(CHILD.read_text(encoding="utf-8"))
    for path in found:
        status = os.stat(path)
        parts.append(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    for header in sorted(headers.rglob("*.h")):
        parts += (str(header), header.read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _run_children(
    requests: Sequence[Mapping[str, Any]], headers: Path, user_schema: bool
) -> list[Image]:
    """Their answers, in order; the first error is raised."""
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "BCC_KERNEL_SOURCE": str(headers)}
    children = []
    with contextlib.ExitStack() as stack:
        for request in requests:
            # A file, not a pipe: nobody need write it while the children run.
            asked = stack.enter_context(os.fdopen(os.memfd_create("request"), "w+b"))
            asked.write(json.dumps(request).encode())
            asked.seek(0)
            try:
                # In a session of its own: Ctrl-C reaches only this process, which then ends it.
                child = subprocess.Popen(
                    [PYTHON, "-I", str(CHILD)],
                    stdin=asked,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    cwd="/",
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise KernelError(f"{PYTHON} is missing, and with it BCC", INSTALL_HINT) from error
            stack.enter_context(child)
            stack.callback(child.kill)
            children.append(child)
        return [_read_answer(child, user_schema) for child in children]


def _read_answer(child: subprocess.Popen[bytes], user_schema: bool) -> Image:
    try:
        answered, complained = child.communicate(timeout=TIME_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"BCC did not finish within {TIME_LIMIT_S} s") from error
    said = complained.decode(errors="replace")
    try:
        answer = json.loads(answered)
    except ValueError as error:
        if refused := _DIRECTIVE.search(said):
            failure = UserCompileError if user_schema else CompileError
            raise failure(f"the program does not compile: {refused[1]}", diagnostics=said) from None
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        raise CompileError(
            f"the compiler ended with status {child.returncode}: {last[0]}", diagnostics=said
        ) from error
    if "error" in answer:
        raise _error_of(answer["error"], answer["detail"], said, user_schema)
    return Image.from_json(json.dumps({"format": FORMAT, **answer}))


def _error_of(kind: str, detail: str, said: str, user_schema: bool) -> KernelError | PrivilegeError:
    """The error to raise for the child's answer {"error": kind}."""
    failure = UserCompileError if user_schema else CompileError
    if kind == "bcc":
        return KernelError(f"BCC cannot be used: {detail}", INSTALL_HINT)
    if kind == "function":
        return failure(f"the program text has no function {detail}", diagnostics=said)
    if kind == "code":
        return failure(f"the program cannot be loaded: {detail}", diagnostics=said)
    # Clang reports a mistake in a macro for each use of the macro.
    errors = list(
        dict.fromkeys(
            f"{m['file']}:{m['line']}:{m['column']}: {m['what']}" for m in _ERROR.finditer(said)
        )
    )
    if errors and user_schema:
        hint = _NAME_THE_TYPE if any(map(_IS_BYTES.search, errors)) else ""
        return UserCompileError("\n".join(errors), hint, diagnostics=said)
    if errors:
        return CompileError(f"the program does not compile: {'; '.join(errors)}", diagnostics=said)
    last = (said.strip().splitlines() or ["it gave no reason"])[-1]
    if os.geteuid() != 0:
        return PrivilegeError(f"BCC may not compile here: {last}", "run it as root")
    return failure(f"BCC refuses the program: {last}", diagnostics=said)
