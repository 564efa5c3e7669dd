# SPDX-License-Identifier: Apache-2.0
"""A child process that keeps a right of this process which gives it up: the one to open files.

It is forked before this process becomes another user. It runs one function for numbers and bytes
that it is sent, and another when this process has ended.

    this process     u32 number, u64 length, bytes,       deputy: open_file(number, bytes,
                     perhaps descriptors ->                                 *descriptors)
                     <- i32 error, text; or i32 0 and a descriptor
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from tcpkmon.collector.linux.confinement import deny_calls
from tcpkmon.collector.linux.lasting import Lasting
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import FileError, TcpkmonError

_REQUEST = struct.Struct("=IQ")
_ANSWER = struct.Struct("=i")
_TEXT_BYTES = 4096
_MOST_FDS = 4
_MOST_BYTES = 1 << 26
"""Of a request: it may have the header of a file."""
ANSWER_S = 10.0
"""In this time another deputy is there, where one was killed."""


class Deputy(Closing):
    """The child process, until close(). Make it while there is one thread alone.

    open_file(number, bytes, *descriptors): returns a descriptor, which the deputy closes after
    sending it, as it does those that came. Where the deputy is killed another is asked the same
    again, so what was done must not be an error.
    at_end: called when this process closes the deputy, or has ended. settle: called first, to give
    up what the two do not need, but to make processes. keep: the descriptors that they use; all
    others are closed. what: for people.
    """

    def __init__(
        self,
        open_file: Callable[..., int],
        at_end: Callable[[], None],
        settle: Callable[[], None],
        keep: Iterable[int] = (),
        what: str = "the process that opens files",
        confine: Callable[[], None] = deny_calls,
    ) -> None:
        self.what = what
        self._socket: socket.socket | None = None
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(ANSWER_S)

        def begin() -> int:
            """A connection for the next deputy; this process gets its other end."""
            ours, other = socket.socketpair()
            with ours, suppress(OSError):  # this process has ended
                socket.send_fds(theirs, [b"!"], [ours.fileno()])
            return other.detach()

        def live(fd: int, deaths: int, busy: Callable[[bool], None]) -> None:
            theirs.close()
            with socket.socket(fileno=fd) as connection:
                while _serve(connection, open_file):
                    pass
            at_end()

        with theirs:
            keep = {*keep, theirs.fileno()}
            self._process = Lasting(what, live, settle, keep, begin, confine)
        self.check = self._process.check
        """KernelError where it was killed."""

    def open_file(self, number: int, data: bytes, fds: Sequence[int] = ()) -> int:
        """The descriptor that the deputy opened. FileError, from an OSError where that was why."""
        for is_last in (False, False, True):
            try:
                return self._ask(number, data, fds)
            except _Ended as error:
                if self._socket is not None:
                    self._socket.close()
                self._socket = None
                if is_last:
                    raise FileError(f"{self.what} has ended") from error
        raise AssertionError

    def _ask(self, number: int, data: bytes, fds: Sequence[int]) -> int:
        try:
            if self._socket is None:
                _, new, _, _ = socket.recv_fds(self._line, 1, 1)
                if not new:
                    raise _Ended
                self._socket = socket.socket(fileno=new[0])
            socket.send_fds(self._socket, [_REQUEST.pack(number, len(data))], fds)
            self._socket.sendall(data)
            answer, given, _, _ = socket.recv_fds(self._socket, _ANSWER.size + _TEXT_BYTES, 1)
        except OSError as error:
            raise _Ended from error
        if given:
            return given[0]
        if len(answer) < _ANSWER.size:
            raise _Ended
        (code,) = _ANSWER.unpack_from(answer)
        message = answer[_ANSWER.size :].decode(errors="replace")
        raise FileError(message) from OSError(code, os.strerror(code))

    def close(self) -> None:
        """Let the deputy end, and wait for that."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._line.close()
        self._process.close()


class _Ended(Exception):
    """The deputy has."""


def _serve(connection: socket.socket, open_file: Callable[..., int]) -> bool:
    """Answer one request; False when there are no more."""
    head, given, _, _ = socket.recv_fds(connection, _REQUEST.size, _MOST_FDS)
    try:
        rest = _receive(connection, _REQUEST.size - len(head)) if head else None
        if rest is None:
            return False
        number, length = _REQUEST.unpack(head + rest)
        data = _receive(connection, length) if length <= _MOST_BYTES else None
        if data is None:
            return False
        return _answer(connection, lambda: open_file(number, data, *given))
    finally:
        for fd in given:
            os.close(fd)


def _answer(connection: socket.socket, open_file: Callable[[], int]) -> bool:
    try:
        fd = open_file()
    except (TcpkmonError, OSError, LookupError, TypeError, ValueError) as error:
        cause = error.__cause__ if isinstance(error, TcpkmonError) else error
        code = cause.errno if isinstance(cause, OSError) and cause.errno else 5
        text = str(error).encode()[: _TEXT_BYTES]
        connection.sendall(_ANSWER.pack(code) + text)
        return True
    socket.send_fds(connection, [_ANSWER.pack(0)], [fd])
    os.close(fd)
    return True


def _receive(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
