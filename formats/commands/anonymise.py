# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon anonymise FILE -o OUT`: a capture that names nobody, which is proven as before."""

from __future__ import annotations

from pathlib import Path

import click

from tcpkmon.formats.base.cli import say
from tcpkmon.formats.commands.shared import PATH, output_option, split_names


@click.command("anonymise")
@click.argument("file", metavar="FILE", type=PATH)
@output_option("The file or folder to write; it must not be there yet.", required=True)
@click.option("--keep", metavar="KIND,...", default="",
              help="Do not replace these: addresses, hosts, names, users, cgroups, devices, "
                   "commands, paths, notes, texts.")
@click.option("--also", metavar="KIND,...", default="",
              help="Replace these too: ports, special (loopback, link-local, multicast), kernel.")
@click.option("--key", metavar="KEY", type=PATH,
              help="A file of 32 random bytes: the same key replaces the same by the same, in "
                   "several captures. Keep it secret. Default: a random one, which is forgotten.")
def command(file: Path, output: Path, keep: str, also: str, key: Path | None) -> int:
    """Make of a PSC file, a Klogger log, or a folder of them, one that names nobody.

    IP addresses are replaced by others that share prefixes as before (Crypto-PAn), special ones
    and ports stay. Names of processes and hosts, users, cgroups, command lines, paths, marks,
    comments and texts of unknown meaning are replaced; docs/anonymise.md has the list. Times,
    sequence numbers and sizes stay. What is damaged, or unknown to this version, is left out and
    counts as lost. OUT says that it was anonymised, and verify proves it.

    Exit code 3: records are lost, in FILE already or as they were left out; 5: OUT does not add
    up, as FILE did not.
    """
    from tcpkmon.formats.anonymise import ALWAYS_KEPT, KINDS, Who, anonymise, choose, read_key

    replaced = choose(split_names(keep), split_names(also))
    done = anonymise(file, output, Who(read_key(key), replaced))
    kept = [kind for kind in KINDS if kind not in replaced]
    say(f"tcpkmon anonymise: replaced: {', '.join(kind for kind in KINDS if kind in replaced)}")
    say(f"tcpkmon anonymise: kept: {', '.join(kept)}; and {ALWAYS_KEPT}")
    for line in done.left_out.repaired:
        say(f"tcpkmon anonymise: left out as damaged: {line}")
    if done.left_out.names:
        say(f"tcpkmon anonymise: left out of headers: {', '.join(done.left_out.names)}")
    for report in done.reports[-1:]:
        say(f"tcpkmon anonymise: {output}: {report.verdict}")
    return done.exit_code
