# SPDX-License-Identifier: Apache-2.0
"""Inside a guest: makes the runs that `tcpkmon bisect` orders, until there is a file `end`.

An order is NAME.order in $TCPKMON_RESULTS, a Scenario as JSON; the answer, NAME.answer, says the
error and its exit code. The capture is made in the guest's memory, and copied when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from tcpkmon.collector.commands.bisect_scenario import Scenario, play
from tcpkmon.formats.base.errors import TcpkmonError

STEP_S = 0.2
ALIVE_S = 60.0
"""How often it says so: a guest that says nothing for long is taken for dead."""


def answer(order: Path, folder: Path) -> dict[str, object]:
    """Makes a run; copies capture and log beside the order, also of a run that failed."""
    text = json.loads(order.read_text())
    text["command"] = tuple(text["command"])
    scenario = Scenario(**text)
    output = folder / f"{order.stem}.pm"
    told: dict[str, object] = {"error": "", "code": 0}
    try:
        play(scenario, {}, output)
    except TcpkmonError as error:
        told = {"error": str(error), "code": error.exit_code}
    except OSError as error:
        told = {"error": str(error), "code": 1}
    for ending in (".log", ".pm"):
        made = output.with_suffix(ending)
        if made.exists():
            shutil.copyfile(made, order.with_suffix(ending))
            made.unlink()
    return told


def main() -> None:
    results = Path(os.environ["TCPKMON_RESULTS"])
    (results / "ready").touch()
    said = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while not (results / "end").exists():
            for order in sorted(results.glob("*.order")):
                told = answer(order, Path(folder))
                order.unlink()
                new = order.with_suffix(".told")
                new.write_text(json.dumps(told))
                new.rename(order.with_suffix(".answer"))
                print(order.name, told, flush=True)
            if time.monotonic() - said > ALIVE_S:
                said = time.monotonic()
                print("waiting", flush=True)
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
