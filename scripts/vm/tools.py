# SPDX-License-Identifier: Apache-2.0
"""The programs that boot guests, and the cache that keeps them, kernels and logs."""

from __future__ import annotations

import fcntl
import os
import platform
import pwd
import shutil
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VIRTME = "virtme-ng==1.42"
PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "depmod": "kmod", "busybox": "busybox-static"}
ARM64_PACKAGES = {
    "qemu-system-aarch64": "qemu-system-arm", "zstd": "zstd",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "/usr/aarch64-linux-gnu/include/stdint.h": "libc6-dev-arm64-cross",
}  # fmt: skip
"""By program, or by file: what the guests need, and those of arm64 too."""
APT = ("apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=2",
       "-o", "Acquire::http::Timeout=40", "-o", "Dpkg::Use-Pty=0")  # fmt: skip
_saying = threading.Lock()


class Failure(Exception):
    """An error that ends this program with one line."""


def say(text: str) -> None:
    with _saying:
        print(text, flush=True)


def run(*command: str, **options: Any) -> str:
    """A command's standard output; Failure with the last line of its errors."""
    options = {
        "capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 900, **options
    }  # fmt: skip
    try:
        done = subprocess.run(list(command), check=False, **options)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{command[0]} took over {error.timeout:.0f} s") from error
    if done.returncode:
        complaint = (done.stderr or "").strip().splitlines()
        raise Failure(f"{command[0]} failed: {complaint[-1] if complaint else done.returncode}")
    return str(done.stdout or "")


def cache() -> Path:
    """The folder of kernels, virtme-ng and logs."""
    home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    base = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    for folder in (base, f"/var/tmp/cache-{os.getuid()}"):
        if folder:
            try:
                path = Path(folder) / "tcpkmon"
                path.mkdir(parents=True, exist_ok=True)
                if os.access(path, os.W_OK):
                    return path
            except OSError:
                continue
    raise Failure("no folder to keep kernels in; set XDG_CACHE_HOME")


@contextmanager
def alone() -> Iterator[None]:
    """Holds the cache's lock: one program at a time changes it."""
    with (cache() / "lock").open("w") as lock:
        for _ in range(600):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(1)
        else:
            raise Failure(f"another vmtest holds {lock.name}")
        yield


def use_tools() -> None:
    """Sets PATH to what get_tools() has installed."""
    programs = cache() / "virtme-ng" / "bin"
    os.environ["PATH"] = f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
    os.environ.setdefault("HOME", pwd.getpwuid(os.getuid()).pw_dir)


def get_tools(machines: Collection[str] = ()) -> None:
    """Installs what is missing, and sets PATH; Failure when that is not possible."""
    if platform.machine() != "x86_64":
        raise Failure(f"the guests are for x86_64, this is {platform.machine()}")
    use_tools()
    run("bash", str(ROOT / "scripts/setup"), "--tests", capture_output=False)
    needed = PACKAGES | (ARM64_PACKAGES if "arm64" in machines else {})
    missing = [needed[tool] for tool in needed if not (shutil.which(tool) or Path(tool).exists())]
    if missing:
        if os.getuid() != 0:
            raise Failure(f"not installed: {' '.join(missing)}; run this as root (sudo)")
        say(f"vmtest: apt: installing {' '.join(missing)}")
        refresh_lists()
        run(*APT, "install", "--no-install-recommends", *missing, env=apt_environment())
    programs = cache() / "virtme-ng" / "bin"
    stamp = cache() / "virtme-ng" / "ready"
    if stamp.exists() and stamp.read_text() == VIRTME:
        try:
            run(str(programs / "vng"), "--version")
            return
        except Failure:
            stamp.unlink()
    say(f"vmtest: python: installing {VIRTME}")
    run("/usr/bin/python3", "-I", "-m", "venv", "--clear", str(programs.parent))
    pip = (str(programs / "python"), "-I", "-m", "pip", "install", "-q", "--retries", "3")
    run(*pip, "--timeout", "60", VIRTME, timeout=400)
    stamp.write_text(VIRTME)


def apt_environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def refresh_lists() -> None:
    """Refreshes apt's lists; an error is only printed, the next step may do without."""
    try:
        run(*APT, "update", env=apt_environment())
    except Failure as failure:
        say(f"vmtest: {failure}")
