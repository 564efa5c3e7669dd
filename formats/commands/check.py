# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon check FILE... EXPR...`: assertions on captures, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.commands.shared import PATH

FAILED = 6
_ENDINGS = (".pm", ".pm.zst", ".klog")
"""No assertion ends so."""


@click.command("check")
@click.argument("arguments", metavar="FILE... EXPR...", nargs=-1, required=True)
@click.option("--unproven-ok", is_flag=True,
              help="Take a capture too that does not prove that nothing is missing.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: an object with `files`.")
@click.option("--junit", metavar="FILE", type=PATH,
              help="Also write JUnit XML to this file.")
@click.option("--github", is_flag=True, help="Also print annotations for GitHub's workflows.")
def command(
    arguments: tuple[str, ...], unproven_ok: bool, as_json: bool, junit: Path | None, github: bool
) -> int:
    """Check that assertions hold for captures of the schema tcp, such as
    'retrans_ratio < 1e-3', 'limit_share("rwnd") < 20%', no_loss or
    'snd_cwnd_segs <= 10 where ca_state == TCP_CA_Open'.

    The arguments that are files or folders are captures, the others assertions. Exit code 0: all
    hold. 6: one does not. 5: a capture is not proven. No data is a failure.
    """
    from tcpkmon.formats.analysis.check import (
        Capture,
        as_dict,
        as_junit,
        as_lines,
        check,
        github_lines,
    )

    paths = [Path(text) for text in arguments if _is_path(text)]
    texts = [text for text in arguments if not _is_path(text)]
    if missing := [text for text in texts if text.endswith(_ENDINGS)]:
        raise FileError(f"no such file: {', '.join(missing)}")
    if not paths:
        raise UsageError("no capture to check", "name a file that is there before the assertions")
    if not texts:
        raise UsageError("no assertion to check", "give one, such as no_loss")
    found = []
    for path in paths:
        capture = Capture(path)
        found.append((capture, check(capture, texts)))
    for capture, results in found:
        if not as_json:
            if len(found) > 1:
                click.echo(f"{for_terminal(str(capture.path))}:")
            for result in results:
                for line in as_lines(result):
                    click.echo(line)
        if not capture.proven:
            name = for_terminal(str(capture.path))
            hint = "" if unproven_ok else "; --unproven-ok takes it all the same"
            say(f"tcpkmon check: {name}: not proven: {for_terminal(capture.verdict)}{hint}")
        if github and not as_json:
            for line in github_lines(capture, results):
                click.echo(line)
    if junit is not None:
        with create_file(junit, force=True) as out:
            out.write(as_junit(found))
    code = 0
    if not unproven_ok and not all(capture.proven for capture, _ in found):
        code = DamagedError.exit_code
    if not all(result.ok for _, results in found for result in results):
        code = FAILED
    if as_json:
        files = [as_dict(capture, results) for capture, results in found]
        click.echo(json.dumps({"files": files, "exit_code": code}, indent=2))
    return code


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False
