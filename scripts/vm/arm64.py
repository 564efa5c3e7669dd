# SPDX-License-Identifier: Apache-2.0
"""Guests of arm64: a userland of Debian's packages, and the command that boots a kernel with it.

The packages are unpacked, not installed: nothing of them runs here. The guest has this repository
and the kernel's modules at their places in it. There is no virtme-ng in it, whose init takes 40 s
there: arm64-init.sh does what is needed in two.
"""

from __future__ import annotations

import lzma
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from scripts.vm.kernels import apt_options, apt_place, refresh_lists
from scripts.vm.tools import APT, ROOT, apt_environment, cache, run, say

SUITE = "bookworm"
PYTHON = "3.11"
"""Of that suite."""
PACKAGES = (
    "base-files", "base-passwd", "bash", "busybox-static", "coreutils", "dash", "e2fsprogs",
    "ethtool", "findutils", "gawk", "grep", "hostname", "iproute2", "kmod", "libc-bin", "login",
    "mount", "nftables", "passwd", "procps", "python3", "python3-bpfcc", "sed", "tcpdump",
    "util-linux",
)  # fmt: skip
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
TESTING = ("pytest", "hypothesis")
LIBRARIES = ("collector/ring/drain", "formats/lines/lines")
APPEND = "console=ttyAMA0 panic=-1 maxcpus=1 mitigations=off nowatchdog audit=0 tcpkmon-guest"
BIND = """\
tree=$1 seen=$2 modules=$3 in_it=$4; shift 4
mount --bind "$tree" "$seen" && mount --bind "$modules" "$in_it" && exec "$@"
"""


def get_userland() -> None:
    """Makes the userland, if the cache has none of these packages."""
    place = cache() / "arm64"
    wanted = "\n".join((SUITE, *PACKAGES, *requirements()))
    stamp = place / "made-of"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("vmtest: making a userland of arm64")
    shutil.rmtree(place, ignore_errors=True)
    root, site = place / "root", place / "root/opt/site"
    for folder in ("bin", "sbin", "lib"):
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    refresh_lists("arm64")
    debs = apt_place("arm64") / "archives"
    run(*APT, *apt_options("arm64"), "-o", f"APT::Default-Release={SUITE}", "--download-only",
        "--no-install-recommends", "install", *PACKAGES, env=apt_environment())  # fmt: skip
    unpack = 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"'
    for package in sorted(debs.glob("*.deb")):
        run("sh", "-c", unpack, "sh", str(package), str(root))
        package.unlink()
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (root / "usr/bin/awk").symlink_to("gawk")
    wheels = [f"--platform=manylinux{kind}_aarch64" for kind in ("2014", "_2_28", "_2_34")]
    pip = (str(ROOT / ".venv/bin/python"), "-I", "-m", "pip", "install", "-q", "--retries", "3")
    run(*pip, *wheels, f"--python-version={PYTHON}", "--only-binary=:all:", "--target", str(site),
        *requirements())  # fmt: skip
    # Of use where this Python is that one: else the guest compiles at each boot.
    run("/usr/bin/python3", "-I", "-m", "compileall", "-q", "-s", str(root), str(root / "usr/lib"))
    stamp.write_text(wanted)


def requirements() -> list[str]:
    """What tcpkmon, its pictures and the tests in guests need of Python's packages."""
    code = "import importlib.metadata; print(*importlib.metadata.requires('tcpkmon'), sep='\\n')"
    needed = run(str(ROOT / ".venv/bin/python"), "-I", "-c", code).splitlines()
    chosen = [each for each in needed if "extra ==" not in each or each.startswith(TESTING)]
    chosen += [each for each in needed if 'extra == "plot"' in each]
    return [each.partition("; extra ==")[0] for each in chosen]


def boot_command(release: str, folder: Path, results: Path) -> list[str]:
    """Boots the kernel and runs guest.sh, which finds the tests in `results`."""
    root = cache() / "arm64/root"
    seen = root / ROOT.relative_to("/")
    for place in (seen, root / "usr/lib/modules"):
        place.mkdir(parents=True, exist_ok=True)
    options = ("-std=c11", "-O3", "-fvisibility=hidden", "-shared", "-fPIC")  # as in setup.py
    for library in LIBRARIES:
        made = results / f"_{Path(library).name}.so"
        run("aarch64-linux-gnu-gcc", *options, "-o", str(made), str(ROOT / f"{library}.c"))
    run("aarch64-linux-gnu-gcc", "-std=c11", "-O2", "-static", "-o", str(results / "link"),
        str(ROOT / "collector/lab/link.c"), "-lm")  # fmt: skip
    initrd = make_initrd(folder / "lib/modules" / release, root / "usr/bin/busybox", results)
    files = [
        argument
        for tag, path, only in (("cached", root, ",readonly=on"), ("results", results, ""))
        for argument in (
            "-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{only}",
            "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
        )
    ]  # fmt: skip
    bind = ("unshare", "-m", "sh", "-c", BIND, "sh", ROOT, seen, folder / "lib/modules",
            root / "usr/lib/modules")  # fmt: skip
    return [
        *map(str, bind), "qemu-system-aarch64", "-machine", "virt", "-cpu", "neoverse-n1",
        "-accel", "tcg,thread=single", "-smp", "2", "-m", "4G", "-nographic", "-no-reboot",
        "-nic", "none", "-monitor", "none", "-serial", "stdio", *files,
        "-kernel", str(folder / "boot" / f"vmlinuz-{release}"), "-initrd", str(initrd),
        "-append", APPEND,
    ]  # fmt: skip


def make_initrd(modules: Path, busybox: Path, results: Path) -> Path:
    """The first file system of the guest: busybox, modules in the order of loading, /init."""
    work, image = results / "initrd", results / "initrd.cpio"
    (work / "modules").mkdir(parents=True)
    (work / "bin").mkdir()
    shutil.copy(busybox, work / "bin")
    for number, path in enumerate(in_order(modules)):
        target = work / f"modules/{number:02}-{path.name}"
        if path.suffix == ".zst":
            run("zstd", "-dq", str(path), "-o", str(target))
            continue
        content = path.read_bytes()
        target.write_bytes(lzma.decompress(content) if path.suffix == ".xz" else content)
    settings = {"root": ROOT, "results": results, "python": PYTHON}
    lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()]
    (work / "settings").write_text("".join(lines))
    shutil.copy(ROOT / "scripts/vm/arm64-init.sh", work / "init")
    archive = 'cd "$1" && find . | busybox cpio -o -H newc >"$2"'
    run("sh", "-c", archive, "sh", str(work), str(image))
    shutil.rmtree(work)
    return image


def in_order(modules: Path, names: Sequence[str] = MODULES) -> list[Path]:
    """The files of these modules and of those that they need, each after what it needs."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path.rpartition("/")[2].partition(".")[0].replace("-", "_")] = [path, *others.split()]
    found = [path for name in names for path in reversed(needs.get(name, []))]
    return [modules / path for path in dict.fromkeys(found)]
