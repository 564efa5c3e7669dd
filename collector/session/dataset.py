# SPDX-License-Identifier: Apache-2.0
"""Adds sealed segments to a dataset, for --dataset, in a process of its own.

It is who owns the dataset's folder, and has CAP_DAC_READ_SEARCH alone, as segments are root's. It
writes in that folder, and unpacks archives in the folder for temporary files. A segment is opened
once, by open_own(): what is read is that descriptor.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tcpkmon.collector.linux.privileges import User, settle
from tcpkmon.collector.linux.trusted_files import open_folder
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.collector.session.archive import ENDING, import_pyarrow, tell
from tcpkmon.collector.writer.output_file import trusted_users
from tcpkmon.collector.writer.own_files import open_own
from tcpkmon.formats.base.errors import FileError, TcpkmonError
from tcpkmon.formats.base.segments import find_segments

READING = ("CAP_DAC_READ_SEARCH",)
_TRIES = 3
"""At a segment at which so many processes ended it goes on with the next."""
_NAMED = re.compile(r"/proc/self/fd/\d+")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Adder:
    """Adds segments of `folder` (a descriptor) to the dataset at a path. FileError.

    Make it before its process gives up its privileges. place: a descriptor of the dataset's folder.
    """

    def __init__(self, path: str, folder: int) -> None:
        self._path, self._folder = os.path.abspath(path), folder
        self._users = {os.geteuid(), *trusted_users()}
        try:
            self.place = open_folder(self._path, trusted_users())
        except OSError as error:
            hint = "make the folder of the dataset first: its owner gets the files"
            raise FileError(f"{path}: {error.strerror}", hint) from error
        self._place = f"/proc/self/fd/{self.place}"
        """The folder that was opened: its path may lead elsewhere by now."""
        self._left: list[str] = []
        """Names that are tried again: the dataset could not be written."""
        self._workers = 0
        """The guard counts them, and each knows which one it is."""

    def begin(self) -> int:
        """Before each worker; it gets no descriptor."""
        self._workers += 1
        return -1

    def give_up(self) -> None:
        """Become the owner of the dataset. PrivilegeError."""
        os.nice(19)
        import_pyarrow()
        import tcpkmon.formats.dataset  # noqa: F401

        owner = None
        if os.geteuid() == 0:
            status = os.fstat(self.place)
            owner = User(status.st_uid, status.st_gid)
        unpacked = os.open(tempfile.gettempdir(), _FOLDER)
        settle(READING, owner, [self.place, unpacked], forks=True)
        os.close(unpacked)

    def live(
        self, following: Callable[[], str | None], done: Callable[[], object], collector: int,
        _: int, deaths: int, busy: Callable[[bool], None],
    ) -> None:  # fmt: skip
        """What the folder has that is not archived, then each name that is `following`, until None;
        done() is called when it is done with. collector: a pidfd; it ends with that."""
        for one in find_segments(self._folder) if self._workers <= _TRIES else ():
            if one.sealed and not one.archived:
                self._add(one.name)
            if readable([collector], 0):
                return
        while (name := following()) is not None:
            busy(True)
            if deaths >= _TRIES:
                tell(f"{name} is not added to the dataset: {deaths} processes ended at it")
                deaths = 0
            else:
                self._add_all(name)
            done()
            busy(False)

    def _add_all(self, name: str) -> None:
        """Add it, and before it what could not be added earlier."""
        waiting, self._left = [*self._left, name], []
        for at, each in enumerate(waiting):
            if not self._add(each):
                self._left = waiting[at:]
                return

    def _add(self, name: str) -> bool:
        """False where it shall be tried again."""
        from tcpkmon.formats.dataset import Store, StoreError, add

        try:
            with self._opened(name) as path:
                add(Store(self._place, self._path), path, name=name)
        except (OSError, TcpkmonError) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            names = {self._place: self._path}  # any other descriptor is the segment's
            why = _NAMED.sub(lambda found: names.get(found[0], name), why)
            tell(f"{name} is not added to the dataset: {why}")
            return not isinstance(error, StoreError)
        return True

    @contextmanager
    def _opened(self, name: str) -> Iterator[str]:
        """A path that leads to the segment, or to what it was archived as meanwhile. OSError."""
        gone = FileNotFoundError()
        for one in (name, name + ENDING):
            try:
                fd = open_own(one, self._folder, users=self._users)
                break
            except FileNotFoundError as error:
                gone = error
        else:
            raise gone
        try:
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
