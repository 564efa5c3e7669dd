# SPDX-License-Identifier: Apache-2.0
"""collect --format magnet: captures into a log, of which the file is made when the capture ends.

The file is made by a process that is the user whose file it is, without root's rights: it gets the
log's folder and the new file as descriptors. Another process, which reads neither, keeps the right
to give the file its name and to remove the log. Both are forked before the capture begins.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tcpkmon.collector.commands.afterwards import Afterwards
from tcpkmon.collector.linux.privileges import User, settle
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.writer.log_folder import LogFolder
from tcpkmon.collector.writer.output_file import Output, find_owner
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import FileError, TcpkmonError
from tcpkmon.formats.base.text import human_bytes

FIELDS = ("connection",)
"""What each event of a MAGNeT file has."""
_NAMING = ("CAP_DAC_OVERRIDE",)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_and_convert(request: Request, run: Callable[[Request], int]) -> int:
    """run() the capture into a log, and make the file of it, which is its exit code too.

    UsageError and FileError before it begins. The log stays where no file could be made of it.
    """
    check_request(request)
    log = f"{request.output}.klog"
    if os.path.lexists(log):
        raise FileError(
            f"{log} is there: the log of a capture that was not converted",
            f"tcpkmon export --format magnet {log} -o {request.output}, or remove it",
        )
    output = Output(request.output, request.force, owner=find_owner())
    made = _Conversion(log, output, request.quiet)
    unneeded = [] if request.ready_fd is None else [request.ready_fd]
    with Afterwards(made.make, unneeded, made.begin, output.discard) as converting:
        try:
            code = run(replace(request, file_format="klogger", output=log, needs=FIELDS))
        finally:
            converted = converting.run()
    return code or converted


class _Conversion:
    """The two processes. begin() and make() are called in the one that names the file."""

    def __init__(self, log: str, output: Output, quiet: bool) -> None:
        self._log, self._output, self._quiet = log, output, quiet

    def begin(self) -> None:
        """Fork the process that makes the file, and give up what this one does not need."""
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # they are the capture's
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._child = os.fork()
        if not self._child:
            self._line.close()
            self._convert(theirs)
        theirs.close()
        settle(_NAMING, folders=[self._output.folder])

    def make(self) -> int:
        """The capture is over: have the file made, name it, remove the log; the exit code."""
        output = self._output
        try:
            folder = LogFolder(self._log, force=True)
            if folder.made:  # the capture has not begun
                folder.discard()
                output.discard()
                return 0
            socket.send_fds(self._line, [b"!"], [folder.fd])
            _, status = os.waitpid(self._child, 0)
            if os.WIFSIGNALED(status):
                name = signal.Signals(os.WTERMSIG(status)).name
                say(f"collect: {name} while {output.path} was made")
            size = os.fstat(output.fd).st_size
            if status == 0:
                output.begin(b"")
                folder.remove()
                if not self._quiet:
                    say(f"collect: {output.path} is made of it ({human_bytes(size)})")
                return 0
        except (TcpkmonError, OSError) as error:
            say(f"collect: {output.path}: {error}")
        output.discard()
        again = f"tcpkmon export --format magnet {self._log} -o {output.path}"
        say(f"collect: the log stays, as no file could be made of it: {again}")
        return FileError.exit_code

    def _convert(self, line: socket.socket) -> None:
        """The process that makes the file; it ends here."""
        from tcpkmon.collector.session.preload import CONVERTER, import_all

        import_all(CONVERTER)
        code = FileError.exit_code
        try:
            owner = find_owner()
            settle(user=User(owner.uid, max(owner.gid, 0) or owner.uid) if owner else None)
            _, folders, _, _ = socket.recv_fds(line, 1, 1)
            if folders:
                for number in _ENDING:
                    signal.signal(number, signal.SIG_DFL)
                os.fchdir(folders[0])
                self._write()
            code = 0
        except (TcpkmonError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            with suppress(OSError):
                say(f"collect: {self._output.path}: {why}")
        except Exception as error:  # or nobody would hear of it: this process ends below
            with suppress(OSError):
                say(f"collect: {self._output.path}: {type(error).__name__}: {error}")
        finally:
            os._exit(code)

    def _write(self) -> None:
        from tcpkmon.formats.export.magnet import convert
        from tcpkmon.formats.registry import open_files

        with open_files(Path()) as log, os.fdopen(os.dup(self._output.fd), "wb") as out:
            convert(log, out)
