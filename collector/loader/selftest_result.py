# SPDX-License-Identifier: Apache-2.0
"""The result of tcpkmon selftest, kept until the next boot for the headers of captures."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.collector.linux.machine import describe_kernel
from tcpkmon.collector.loader.image_cache import PrivateFolder, cache_folder
from tcpkmon.collector.loader.kernel_answers import boot_id

_FOLDER_SUFFIX = ".tcpkmon-selftest"
_KEPT = 1
_NAME = "last"


@dataclass(frozen=True)
class Result:
    """What a selftest found on this kernel. digest: SHA-256 of the findings, kernel and version."""

    kernel: str
    version: str
    time: str
    boot: str
    findings: Sequence[Mapping[str, str]]
    digest: str

    @classmethod
    def of(cls, findings: Sequence[Mapping[str, str]]) -> Result:
        """The result of now, with these findings."""
        from tcpkmon.formats.base.installing import own_version

        kernel, own = describe_kernel(), own_version()
        text = json.dumps([kernel, own, [dict(one) for one in findings]], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return cls(kernel, own, now, boot_id().decode().strip(), findings, digest)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(vars(self))

    def keep(self) -> None:
        """Keep it for later captures. A folder that cannot be used is ignored."""
        with contextlib.suppress(OSError):
            folder = PrivateFolder(cache_folder(), _FOLDER_SUFFIX, _KEPT)
            folder.write(_NAME, json.dumps(self.as_dict()).encode())


def last_result() -> dict[str, Any] | None:
    """Of the last selftest since the boot, for a header: digest, time, version, how many checks
    had which result. None without one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(PrivateFolder(cache_folder(), _FOLDER_SUFFIX, _KEPT).read(_NAME))
        if kept["boot"] != boot_id().decode().strip():
            return None
        results = [one["result"] for one in kept["findings"]]
        counts = {name: results.count(name) for name in dict.fromkeys(results)}
        return {name: kept[name] for name in ("digest", "time", "version")} | {"results": counts}
    return None
