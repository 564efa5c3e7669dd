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
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from formats.base.closing import Closing
from formats.base.errors import FileError, TcpkmonError

_REQUEST = struct.Struct("=IQ")
_ANSWER = struct.Struct("=i")
_TEXT_BYTES = 4096
_MOST_FDS = 4
_MOST_BYTES = 1 << 26
"""Of a request: it may have the header of a file."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Deputy(Closing):
    """The child process, until close(). Make it while there is one thread alone.

    open_file(number, bytes, *descriptors): returns a descriptor, which the deputy closes after
    sending it, as it does those that came.
    at_end: called when this process closes the deputy, or has ended. settle: called first, to give
    up what the two do not need. keep: the descriptors that they use; all others are closed.
    """

    def __init__(
        self,
        open_file: Callable[..., int],
        at_end: Callable[[], None],
        settle: Callable[[], None],
        keep: Iterable[int] = (),
    ) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._pid = os.fork()
            if not self._pid:
                try:
                    isolate({*keep, theirs.fileno()})
                    settle()
                    while _serve(theirs, open_file):
                        pass
                    at_end()
                finally:
                    os._exit(0)

    def open_file(self, number: int, data: bytes, fds: Sequence[int] = ()) -> int:
        """The descriptor that the deputy opened. FileError, from an OSError where that was why."""
        try:
            socket.send_fds(self._socket, [_REQUEST.pack(number, len(data))], fds)
            self._socket.sendall(data)
            answer, fds, _, _ = socket.recv_fds(self._socket, _ANSWER.size + _TEXT_BYTES, 1)
        except OSError as error:
            raise FileError(f"the process that opens files has ended: {error.strerror}") from error
        if fds:
            return fds[0]
        if len(answer) < _ANSWER.size:
            raise FileError("the process that opens files has ended")
        (code,) = _ANSWER.unpack_from(answer)
        message = answer[_ANSWER.size :].decode(errors="replace")
        raise FileError(message) from OSError(code, os.strerror(code))

    def close(self) -> None:
        """Let the deputy end, and wait for that."""
        if self._pid:
            self._socket.close()
            os.waitpid(self._pid, 0)
            self._pid = 0


def isolate(keep: set[int]) -> None:
    """Keep signals, terminals and open files of the parent away."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with suppress(OSError):  # that of the listing
                os.close(int(name))


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
