# SPDX-License-Identifier: Apache-2.0
"""Fetches Debian's kernels, by package lists of our own: the system's apt sources are not touched.

A kernel is named by its release (6.1.0-56-amd64), its series (6.1), or as `newest`. Behind a series
or `newest`, -rt, -cloud, -16k and -64k (pages, arm64 only) choose that flavour; arm64- before it
chooses that machine. Those with pages of 64 kB are Ubuntu's.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from scripts.vm import ubuntu
from scripts.vm.tools import APT, Failure, apt_environment, cache, run, say

SOURCES = Path(__file__).with_name("debian.sources")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LISTS_AGE_S = 86400.0
"""Older lists are refreshed."""
PARTS = ("linux-image", "linux-binary", "linux-modules", "linux-base")
"""A kernel's packages. Since 6.19 linux-image is empty, and the others have the files."""
_END = r"-(?:amd64|arm64(?:-16k)?|generic-64k)"
_RELEASE = rf"\d+\.\d+\.\d+(?:-\d+)?(?:\+deb[\d.]+)?(?:-(?:rt|cloud))?{_END}"
_PACKAGE = re.compile(rf"^(linux-[a-z]+)-({_RELEASE}) ", re.M)
_NAME = re.compile(r"(?:arm64-)?(newest|\d+(?:\.\d+)*)(-rt|-cloud|-16k|-64k)?")
_FLAVOUR = re.compile(r"-(?:rt|cloud)(?=-a[mr][dm]64$)|-(?:16|64)k$")
_ENDS = re.compile(f"{_END}$")
PAGES_64K = "arm64-64k"
"""An archive; the others have the names of machines."""


def arch_of(name: str) -> str:
    """Debian's name for the machine that a kernel's name, or a release, is for."""
    return "arm64" if "arm64" in name or name.endswith("-64k") else "amd64"


def archive_of(name: str) -> str:
    """Where the kernel of this name, or release, comes from."""
    return PAGES_64K if name.endswith("-64k") else arch_of(name)


def apt_place(archive: str) -> Path:
    """The folder of an archive's lists and packages."""
    return cache() / ("apt" if archive == "amd64" else f"apt-{archive}")


def apt_options(archive: str) -> tuple[str, ...]:
    """Options by which apt sees our sources and lists only, and neither hooks nor the system."""
    place, arch = apt_place(archive), arch_of(archive)
    for folder in ("lists/partial", "archives/partial", "empty"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    settings = {
        "Dir::Etc::sourcelist": ubuntu.sources_in(place) if archive == PAGES_64K else SOURCES,
        "Dir::Etc::sourceparts": place / "empty",
        "Dir::Etc::preferences": place / "none",
        "Dir::Etc::preferencesparts": place / "empty",
        "Dir::State": place,
        "Dir::State::status": "/dev/null",
        "Dir::Cache": place,
        "Acquire::Languages": "none",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        "APT::Sandbox::User": "",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    words += [f"#clear=APT::Update::Post-Invoke{when}" for when in ("", "-Success")]
    return tuple(argument for word in words for argument in ("-o", word))


def refresh_lists(archive: str, age_s: float = 0.0) -> None:
    """Refreshes the lists if they are older [s]; an error is only printed, old lists may do."""
    stamp = apt_place(archive) / "refreshed"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < age_s:
        return
    try:
        if not KEYRING.exists():
            raise Failure(f"no {KEYRING}: install debian-archive-keyring")
        if archive == PAGES_64K:
            ubuntu.write_sources(apt_place(archive))
        run(*APT, *apt_options(archive), "update", env=apt_environment())
        stamp.touch()
    except Failure as failure:
        say(f"vmtest: the package lists of {archive}: {failure}")


def version_key(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", _ENDS.sub("", release)))


def flavour_of(release: str) -> str:
    """-rt, -cloud, -16k, -64k or nothing."""
    found = _FLAVOUR.search(release)
    return found[0] if found else ""


def list_packages(archive: str) -> dict[str, list[str]]:
    """Release -> its packages, oldest release first."""
    refresh_lists(archive, LISTS_AGE_S)
    kinds = "|".join(part.removeprefix("linux-") for part in PARTS)
    ending = "generic-64k" if archive == PAGES_64K else f"{archive}(-16k)?"
    pattern = f"^linux-({kinds})-[0-9].*-{ending}$"
    listing = run("apt-cache", *apt_options(archive), "search", "-n", pattern)
    found: dict[str, list[str]] = {}
    for kind, release in _PACKAGE.findall(listing):
        found.setdefault(release, []).append(f"{kind}-{release}")
    whole = (release for release in found if f"linux-image-{release}" in found[release])
    return {release: found[release] for release in sorted(whole, key=version_key)}


def list_names() -> dict[str, str]:
    """Each series and flavour that there is, and its newest release; oldest first."""
    names = {}
    for archive, before in (("amd64", ""), ("arm64", "arm64-"), (PAGES_64K, "arm64-")):
        for release in list_packages(archive):
            series = ".".join(map(str, version_key(release)[:2]))
            names[before + series + flavour_of(release)] = release
    return names


def fits(release: str, wanted: str) -> bool:
    """Whether a name stands for a release."""
    if release == wanted:
        return True
    name = _NAME.fullmatch(wanted)
    if name is None or arch_of(release) != arch_of(wanted):
        return False
    if flavour_of(release) != (name[2] or ""):
        return False
    return name[1] == "newest" or release.startswith(f"{name[1]}.")


def find_release(wanted: str) -> str:
    """The newest release that a name stands for, of those that the archive or the cache has."""
    known = {path.name for path in (cache() / "kernels").glob("[0-9]*64*")}
    offered = list_packages(archive_of(wanted))
    fitting = [release for release in {*known, *offered} if fits(release, wanted)]
    if not fitting:
        raise Failure(f"there is no kernel {wanted}: see --list")
    return max(fitting, key=version_key)


def get_kernel(wanted: str) -> tuple[str, Path]:
    """The release, and the folder with its unpacked packages, after depmod."""
    try:
        return fetch_kernel(find_release(wanted))
    except Failure:
        refresh_lists(archive_of(wanted))  # an old list names packages that are gone
        return fetch_kernel(find_release(wanted))


def fetch_kernel(release: str) -> tuple[str, Path]:
    folder = cache() / "kernels" / release
    if (folder / "boot" / f"vmlinuz-{release}").exists():
        return release, folder
    archive = archive_of(release)
    packages = list_packages(archive).get(release)
    if not packages:
        raise Failure(f"there is no package linux-image-{release}")
    say(f"vmtest: fetching {' '.join(packages)}")
    new = folder.with_name(f".{release}.{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        run(*APT, *apt_options(archive), "download", *packages, cwd=new, env=apt_environment())
        for package in new.glob("*.deb"):
            run("dpkg", "-x", str(package), str(new))
            package.unlink()
        arrange(release, new)
        run("depmod", "-b", str(new), release)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return release, folder


def arrange(release: str, folder: Path) -> None:
    """Gives the packages since 6.19 the layout of the older ones, by links."""
    if not (folder / "lib").exists():
        (folder / "lib").symlink_to("usr/lib")
    image = folder / "boot" / f"vmlinuz-{release}"
    if not image.exists():
        image.parent.mkdir(exist_ok=True)
        image.symlink_to(Path("../lib/modules") / release / "vmlinuz")
    if not image.exists():
        raise Failure(f"the packages of {release} have no vmlinuz")
    if archive_of(release) == PAGES_64K:
        ubuntu.unpack_image(image)


def check_bootable(release: str, folder: Path) -> None:
    """Failure where the kernel has no 9p, by which guests see the host's files: Debian's -cloud."""
    if not (folder / "lib/modules" / release / "kernel/fs/9p").is_dir():
        raise Failure(f"{release} cannot be booted here: it has no 9p file system")
