# SPDX-License-Identifier: Apache-2.0
"""Makes the pages columns, locations, connections and tables, and the man pages, from code.

    scripts/docs            writes them
    scripts/docs --check    fails when one of them is out of date
    scripts/docs --folder F [--check]    elsewhere than in docs/

What is written by hand is in docs/man/*.1.in (all but the options) and in the texts below.
"""

from __future__ import annotations

import html
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import markdown
from connections_page import connections_page
from tables_page import tables_page

from tcpkmon.collector.commands import collect, tcpkmon
from tcpkmon.collector.commands import schema as schema_command
from tcpkmon.collector.plan.columns import (
    EVENT,
    LOCATIONS,
    SETS,
    choose_columns,
    load_schema,
    make_layout,
    smallest_set,
)
from tcpkmon.collector.plan.probes import find_probes
from tcpkmon.collector.plan.schema_sources import TCP, find_sources, read_texts
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.control import EXISTING, FIRST_CONTROL
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.commands import decode
from tcpkmon.formats.psc.columns import CLASSIC
from tcpkmon.formats.schema import Field, Schema, field_type

ROOT = Path(__file__).resolve().parent.parent
COMMANDS: dict[str, click.Command] = {
    "collect": collect.command,
    "tcpkmon": tcpkmon.command,
    "tcpkmon-schema": schema_command.command,
    "tcpkmon-decode": decode.command,
}
NEEDS = re.compile(r'^NEEDS\(\s*(\w+),\s*"([^"]*)"\s*\)', re.MULTILINE)
BY_SCRIPT = "Made by scripts/docs; do not edit."

# Of each column of struct tpm_entry: what it was in 2000 (the report's comment), and which value of
# the Linux kernel it has now.
ON_LINUX = {
    "seq_no": ("tpm entry number", "given by the collector after it merged the CPUs; a lost "
               "record has one too"),
    "time": ("time of entry", "CLOCK_MONOTONIC at the probe, converted to time of day with "
             "the clock pairs of the file"),
    "callvalue": ("used for debugging", "the location's own argument, see "
                  "[locations](locations.md)"),
    "location": ("unique value identifying triggering code point", "the number of the location, "
                 "see [locations](locations.md)"),
    "lport": ("local port number", "skc_num; inet_sport if that is 0 already"),
    "rport": ("remote port number", "skc_dport"),
    "snd_cwnd": ("congestion window", "snd_cwnd (segments) x mss_cache"),
    "snd_max": ("highest sequence number sent", "snd_nxt, which Linux never decreases"),
    "snd_fack": ("highest sequence number (s)acked", "tcp_highest_sack_seq(): the sequence "
                 "number after the highest sacked segment; snd_una if nothing is sacked"),
    "sb_hiwat": ("send socket buffer hi water mark", "sk_sndbuf, which includes the kernel's "
                 "overhead"),
    "snd_sb_cc": ("space used in send socket buf", "write_seq - snd_una: payload only"),
    "rcv_sb_cc": ("space used in rcv socket buf", "rcv_nxt - copied_seq: payload only"),
    "sb_target_hiwat": ("sb_mem_target for same", "net.ipv4.tcp_wmem[2] of the connection's "
                        "network namespace"),
    "sb_net_target": ("sb_net_target for same", "what tcp_sndbuf_expand() computes: factor x "
                      "max(10, snd_cwnd, reordering + 1) x memory of a full segment; the factor "
                      "is 2, for bbr 3"),
    "hiwat_fair_share": ("per-connection buffer fair share", "net.ipv4.tcp_mem[1] x page size / "
                         "number of TCP sockets (sockets_allocated)"),
    "m_clused": ("m_clusters - m_clfree", "memory_allocated of TCP, in pages: KIND_MCLSIZE is "
                 "the page size"),
}  # fmt: skip

CONTROL_CALLVALUES = {
    "START": "2, the version of the control entries",
    "CLOCK": "0",
    "EXISTING": "0",
    "LOSS": "the CPU; 65535 if the losses may be of several",
    "CHECKPOINT": "its number, from 0",
    "MARK": "the mark's own number",
    "END": "why: 0 asked, 1 duration, 2 count, 3 the command ended, 4 an error, "
    "6 rotated, 7 dumped",
    "LEDGER": "CPU x 65536 + location",
    "LOSSES": "CPU x 65536 + location",
    "CPU": "the CPU",
    "PROGRAM": "the location",
    "COLLECTOR": "CPU x 65536 + location",
    "CHANGE": "kind x 65536 + location or CPU; 0 switch, 1 limit, 2 ring, 3 wake-up threshold, "
    "4 filters",
    "TRIGGER": "number of the trigger, from 1; 0: a user asked; 65535: those not named",
    "RECONCILED": "when x 65536 + what: 0 at the start, 1 at the end; 0 the sum, others a "
    "difference",
    "CGROUP": "part x 65536 + parts",
    "UNSEEN": "0",
    "DROP_PLACE": "its number, from 1",
}


# Tables


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Its text; cells are as HTML has them."""
    escaped = [[html.escape(text, quote=False) for text in row] for row in rows]
    return "\n".join(markdown.table(headings, escaped))


def page(*parts: str) -> str:
    """A Markdown page: titles and tables stay as they are, paragraphs are filled."""
    head = f"<!-- SPDX-License-Identifier: Apache-2.0 -->\n<!-- {BY_SCRIPT} -->\n"
    return head + "\n\n".join(part if part[0] in "#|" else fill(part) for part in parts) + "\n"


def fill(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False
    )


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _tcp_text() -> str:
    """The C text of the schema tcp."""
    return read_texts(find_sources([TCP]))


def columns_page(schema: Schema) -> str:
    """docs/columns.md."""
    needs = dict(NEEDS.findall(_tcp_text()))
    event = schema.event(EVENT)
    rows = [
        [code(field.name), str(field_type(schema, field).width), smallest_set(field.tags),
         field.unit, field.doc, _null(field),
         " ".join(code(member) for member in needs.get(field.name, "").split())]
        for field in event.fields
    ]  # fmt: skip
    classic = [
        [code(name), str(offset), str(length), *ON_LINUX[name]]
        for name, (offset, length) in CLASSIC.items()
    ]
    stored = ", ".join(
        f"{name} {make_layout(schema, choose_columns(event, name), ()).entry_size}"
        for name in SETS
    )
    return page(
        "# Columns",
        f"""`collect --columns` selects the columns: the sets `classic`, `default`, `full` and
        `all`, of which each includes those before it, or names with commas. The sixteen of
        classic are always stored. Bytes of an entry: {stored}.""",
        """Numbers are in the byte order of the file, except ports, which are in network order;
        `laddr`, `raddr`, `comm` and `ca_name` are raw bytes, addresses in network order, names
        padded with NUL. A column is absent (its length in the file is 0) on a kernel that
        lacks a member in the last column of the table.""",
        """Where a column has the value under null, the kernel had none yet, or there is none, so
        nobody should count with it. It is null in what `tcpkmon export` and `decode` write (nothing
        between the commas of CSV), and in the tables of `tcpkmon.open()`. The file itself, `pmgraph
        -T` and numpy arrays have the value.""",
        table(["column", "bytes:", "set", "unit", "meaning", "null", "needs"], rows),
        "## The sixteen columns of 2000",
        """`struct tpm_entry` of the PSC kernel monitor (CMU-PSC-TR-2000-0001, section 7.2), with a
        `u_long` of 4 bytes, begins every entry. On Linux its columns have these values:""",
        table(["column", "offset:", "bytes:", "in 2000", "on Linux"], classic),
    )


def _null(field: Field) -> str:
    """What is null in tables."""
    if field.none is None:
        return ""
    return "empty" if field.type.startswith("string") else str(field.none)


def locations_page(schema: Schema) -> str:
    """docs/locations.md."""
    ways: dict[str, str] = {}
    for probe in find_probes(_tcp_text()):
        text = ", ".join(code(f"{kind}:{target}") for kind, target in probe.alternatives)
        ways.update(dict.fromkeys(probe.locations, text))
    events, control = [], []
    for member in schema.enum(LOCATIONS).members:
        meaning, _, value = member.doc.partition("; callvalue: ")
        if member.value < FIRST_CONTROL:
            default = "no" if "extra" in member.tags else "yes"
            row = [str(member.value), code(member.name), default, meaning, value or "0"]
            events.append([*row, ways[member.name]])
        else:
            value = CONTROL_CALLVALUES[member.name]
            control.append([str(member.value), code(member.name), meaning, value])
    return page(
        "# Locations",
        """The places in the kernel's TCP where a snapshot is made. `collect --locations` selects:
        `default`, `all`, names with commas, or `-NAME` to remove one from the default. The
        default records what the stack does; calls of the application are recorded on request
        (`--locations default,SEND_CALL,RECEIVE_CALL`). Each location is attached in the first of
        its ways that the running kernel offers, best first. If it offers none, a location that
        was selected by name is reported, and the capture continues without it. `tcpkmon doctor`
        reports the way on this kernel, `collect -v` the way of a capture.""",
        table(["number:", "location", "default", "meaning", "callvalue", "attached as"], events),
        """Ways: `btf` is a tracepoint with BTF types (fields are plain loads), `raw` a raw
        tracepoint, `fentry` and `fexit` the begin and end of a function by trampoline, `kprobe` a
        breakpoint at its begin. With a kprobe, SEND_CALL and RECEIVE_CALL have the requested
        bytes instead of the result.""",
        """The columns `pid` and `comm` are the last caller on the socket: connect, listen, accept
        if fexit is allowed, each receive, recorded or not, and each send if it is recorded or
        `--pid` is given. Calls that are not recorded are checked once a jiffy (1 to 10 ms), or
        each with `--pid`.""",
        "## Control entries",
        f"""They are among the other entries, with the ports 0 and 0; [the file
        format](psc-format.md) describes them. EXISTING ({EXISTING}) is the exception: an ordinary
        snapshot, with ports, of a connection that was open when the capture began
        ({ways["EXISTING"]}).""",
        table(["number:", "location", "meaning", "callvalue"], control),
    )


# Man pages


def roff(text: str) -> str:
    """Text for a man page: `code` becomes bold, roff's own characters are escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", " ".join(text.split()))
    return "\\&" + text if text[:1] in (".", "'") else text


def describe_option(option: click.Option) -> str:
    """One entry of a list of options."""
    names = [*option.opts, *option.secondary_opts]
    names.sort(key=lambda name: name.startswith("--"))
    text = ", ".join(f"\\fB{roff(name)}\\fR" for name in names)
    if not option.is_flag and not option.count:
        text += f" \\fI{roff(value_name(option))}\\fR"
    notes = [roff(option.help)] if option.help else []
    if isinstance(option.type, (click.IntRange, click.FloatRange)) and option.type.max is not None:
        notes.append(roff(f"From {option.type.min} to {option.type.max}."))
    if option.required:
        notes.append("Required.")
    if option.show_default and not option.is_flag:
        notes.append(f"Default: {roff(str(option.default))}.")
    return ".TP\n" + text + "\n" + "\n".join(notes or ["\\&"]) + "\n"


def value_name(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return option.type.name.upper()


def describe_options(command: click.Command) -> str:
    """All options of a command."""
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    listed = "".join(describe_option(option) for option in options)
    return listed + ".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nShow a short help and exit.\n"


def describe_help(text: str) -> str:
    """A command's help text: paragraphs are filled; after \\b, lines stay as they are."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = paragraph.strip().splitlines()
        if lines[0] == "\b":
            kept = "\n".join(roff(line) for line in lines[1:])
            parts.append(f".nf\n{kept}\n.fi\n")
        else:
            parts.append(roff(" ".join(lines)) + "\n")
    return ".PP\n".join(parts)


def describe_commands(group: click.Command) -> str:
    """The subcommands of a group: usage, help, options."""
    assert isinstance(group, click.Group)
    text = ""
    for name, command in sorted(commands_of(group)):
        arguments = "".join(
            f" \\fI{roff(p.metavar or (p.name or '').upper())}\\fR"
            for p in command.params
            if isinstance(p, click.Argument)
        )
        path = f"{'' if group.name == 'tcpkmon' else 'tcpkmon '}{group.name} {name}"
        usage = f"\\fB{roff(path)}\\fR [\\fIOPTIONS\\fR]{arguments}"
        text += f".SS {roff(name)}\n{usage}\n"
        text += f".PP\n{describe_help(command.help or '')}{describe_options(command)}"
    return text


def commands_of(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group and of the groups in it, by the words that the user types."""
    for name, command in tcpkmon.parts(group).items():
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", part) for inner, part in commands_of(command))
        else:
            yield name, command


def man_page(name: str) -> str:
    """docs/man/NAME.1: the handwritten text with the generated options."""
    command = COMMANDS[name]
    text = (ROOT / "docs" / "man" / f"{name}.1.in").read_text(encoding="utf-8")
    text = text.replace("@VERSION@", version()).replace("@MADE@", BY_SCRIPT)
    text = text.replace("@OPTIONS@\n", describe_options(command))
    if "@COMMANDS@\n" in text:
        text = text.replace("@COMMANDS@\n", describe_commands(command))
    return text


def version() -> str:
    """The version in pyproject.toml; the installed one may be older."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise TcpkmonError("pyproject.toml gives no version")
    return found[1]


def make_pages() -> dict[str, str]:
    """The text of each generated file, by its path in docs/."""
    schema = load_schema()
    pages = {"columns.md": columns_page(schema), "locations.md": locations_page(schema)}
    pages["connections.md"] = connections_page()
    pages["tables.md"] = tables_page(schema)
    pages.update({f"man/{name}.1": man_page(name) for name in COMMANDS})
    return pages


@click.command("docs", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Write nothing; fail when a file is out of date.")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=ROOT / "docs", help="Where the files are."
)
def main(check: bool, folder: Path) -> int:
    """Make the documentation that comes from the schema and the commands."""
    stale = []
    for name, text in make_pages().items():
        path = folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            click.echo(f"docs: wrote {path}", err=True)
    if check and stale:
        raise TcpkmonError(f"out of date: {', '.join(stale)}", "run scripts/docs")
    return 0


if __name__ == "__main__":
    sys.exit(run(main, prog="docs"))
