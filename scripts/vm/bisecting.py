# SPDX-License-Identifier: Apache-2.0
"""A guest that serves runs to `tcpkmon bisect --over kernels`.

    python -I bisecting.py --resolve 6.1 newest     fetches kernels, prints their releases
    python -I bisecting.py RELEASE FOLDER           boots one, which serves until FOLDER/end
                                                    is there, or stdin ends
FOLDER gets NAME.order, and from the guest NAME.pm and NAME.answer: see bisect_guest.py.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.vm import guests, kernels, tools
from scripts.vm.tools import Failure, say

LIMIT_S = 6 * 3600.0
MODULE = "scripts.vm.bisect_guest"


def resolve(names: list[str]) -> list[str]:
    """The releases that names stand for, fetched. Failure."""
    releases = []
    with tools.alone():
        tools.get_tools({kernels.arch_of(name) for name in names})
        for name in names:
            release, folder = kernels.get_kernel(name)
            kernels.check_bootable(release, folder)
            releases.append(release)
    return releases


def serve(release: str, results: Path) -> str:
    """Boots and waits for the guest's end; what broke, or an empty text."""
    signal.signal(signal.SIGTERM, lambda *_: guests.stopping.set())
    threading.Thread(target=stop_with_parent, daemon=True).start()
    tools.use_tools()  # --resolve has installed them
    _, folder = kernels.fetch_kernel(release)
    return guests.boot(release, folder, (), results, time.monotonic() + LIMIT_S, MODULE)


def stop_with_parent() -> None:
    """Ends the guest when the process that ordered it is gone, however it ended."""
    sys.stdin.read()
    guests.stopping.set()


def main(arguments: list[str]) -> int:
    """The exit code."""
    try:
        if arguments[0] == "--resolve":
            out, sys.stdout = sys.stdout, sys.stderr  # what is fetched is told there
            try:
                releases = resolve(arguments[1:])
            finally:
                sys.stdout = out
            print("\n".join(releases))
            return 0
        broken = serve(arguments[0], Path(arguments[1]))
    except (Failure, OSError) as failure:
        print(f"guests: {failure}", file=sys.stderr)
        return 1
    if broken:
        say(broken)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
