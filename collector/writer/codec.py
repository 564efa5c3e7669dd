# SPDX-License-Identifier: Apache-2.0
"""What differs between the formats of files: a codec, a file each. Stream and writer are one.

The reading thread takes batches of records in the format's order from it, the writing thread has
it make bytes: of records, and of the items of collector/writer/tape.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tcpkmon.collector.ring.journal import Journal
from tcpkmon.collector.ring.notes import STATE
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.ordered import Ordered
from tcpkmon.collector.sequencer.sequencer import Queues
from tcpkmon.collector.writer.capture_info import CaptureInfo, Current
from tcpkmon.collector.writer.file_sink import FileSink
from tcpkmon.collector.writer.output_file import Output, Owner
from tcpkmon.collector.writer.output_folder import OutputFolder
from tcpkmon.collector.writer.states import States
from tcpkmon.collector.writer.tape import Beginning, Item
from tcpkmon.collector.writer.written import Place, Written
from tcpkmon.formats.base.control import Clock

ALL = 0
"""The number of the file, where one has the records of all CPUs."""
Show = Callable[..., None]
"""Sees entries that go into the file; see Watching.add() in collector/metrics/watching.py."""
Look = Callable[..., Sequence[Any]]
"""Looks for triggers: see collector/plan/trigger_watch.py and event_triggers.py."""


class Batch(Protocol):
    """Records on their way into a file. span: how many sequence numbers they take; records: how
    many of the entries are records; first_ns: CLOCK_MONOTONIC of the first; last: by CPU, the last
    serial that it holds or counts as lost, where the codec is_noted."""

    @property
    def span(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def records(self) -> int: ...

    @property
    def first_ns(self) -> int: ...

    @property
    def last(self) -> Mapping[int, int]: ...

    def __len__(self) -> int: ...

    def numbers(self, stop: int) -> int:
        """How many sequence numbers the first `stop` entries take."""
        ...

    def counts(self, start: int = 0, stop: int | None = None) -> Counter[Place]:
        """The records of a range, by (cpu, location)."""
        ...


@dataclass(frozen=True)
class Frame:
    """Bytes for a file: whole or not at all, but for records that are entries of one size.

    state: the file's when they are in it. size: how many entries of control. The rest is what
    Written counts: entries; sequence numbers, and those of them that LOSS entries count;
    checkpoints.
    """

    pieces: Sequence[bytes | memoryview]
    state: Any = None
    size: int = 0
    entries: int = 0
    numbers: int = 0
    skipped: int = 0
    checkpoints: int = 0
    whole: bool = True

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.pieces))


@dataclass
class File:
    """A file that is written. cpu: whose records it has, or ALL. state: the codec's, where it is.

    head: its beginning, until that is written. owed: what could not be written, and is tried again
    first. records: how many this process wrote into it.
    """

    cpu: int
    sink: FileSink
    state: Any = None
    head: Frame | None = None
    head_bytes: int = 0
    owed: list[Item] = field(default_factory=list)
    records: int = 0


@dataclass
class Left:
    """A file that goes on. fd: open for writing. end_bytes: what is behind that is cut off.
    state: see File."""

    fd: int
    end_bytes: int
    state: Any = None


@dataclass
class Tail:
    """Files that go on, by CPU or ALL. path, name: of the file, or of a log its folder.

    released, late: see Queues.resume(); killed: by CPU, as it says already. capture, number: of a
    segment. before: records and lost numbers in the files before it.
    """

    files: dict[int, Left]
    path: str
    name: str
    written: Written
    released: dict[int, tuple[int, int]]
    late: Counter[Place]
    killed: Counter[int]
    offset_ns: int
    capture: str = ""
    number: int = 1
    before: tuple[int, int] = (0, 0)
    older: list[str] = field(default_factory=list)
    """Segments that ended, and have not got their names."""


@dataclass(frozen=True)
class Segment:
    """The beginning of files, as the writer knows it. settings: of their headers; notes: of
    Codec.notes(). cpus: those that have a file from the beginning on."""

    beginning: Beginning
    settings: Mapping[str, Any]
    notes: Sequence[Any]
    cpus: Collection[int]


class Codec(ABC):
    """A format's part. prepare() comes first."""

    suffix: ClassVar[str]
    """Of a segment."""
    per_cpu: ClassVar[bool] = False
    """Whether a capture is a folder with a file for each CPU. Then the writer numbers no records:
    their serials do."""
    is_noted: ClassVar[bool] = False
    """Whether the journal has where the files end: see collector/ring/notes.py."""
    largest_mark: ClassVar[int] = (1 << 64) - 1
    """The highest number of a mark that the format can hold."""
    unit: int = 1
    """Bytes of an entry."""
    reserve_bytes: int
    """What the end of a file needs at most."""
    states_cpu: int = -1
    """The CPU's number of last records that a later file repeats."""
    order: Queues
    """Counts records before they reach the file: read, late and lost."""
    states: States | None = None
    """Keeps the last record of each connection."""
    journal: Journal | None = None

    @abstractmethod
    def prepare(
        self, info: CaptureInfo, current: Current, clocks: Clocks, rotates: bool, last_seq: int
    ) -> None:
        """Know the capture. last_seq: of the last entry before the first record."""

    # In the reading thread.

    @abstractmethod
    def take(self, watermark_ns: int, show: Show | None) -> Iterator[tuple[Any, Sequence[Any]]]:
        """All records up to this time: batches, and the parts of the rings that look() may see."""

    @abstractmethod
    def missing(self, serials: Mapping[int, int], mono_ns: int) -> Iterable[Any]:
        """What stands for the serials after each CPU's last record, when all is taken."""

    def look(self, feed: Look, batch: Any, parts: Sequence[Any], counts: Counter[Any]) -> list[Any]:
        """The triggers that records fire."""
        return [hit for part in parts for hit in feed(part.rows, part.times_ns)]

    def repeat(
        self, mono_ns: int, offset_ns: int, most_bytes: int | None = None
    ) -> tuple[Ordered | None, int]:
        """Last records of connections for a file that begins then, in its time of day; and how
        many are known. offset_ns: time of day less monotonic time."""
        return None, 0

    def logging(self, clock: Clock) -> Sequence[Item]:
        """What is logged now."""
        return ()

    def switched(self, names: Sequence[str]) -> Sequence[Item]:
        """Which of these events are switched on now."""
        return ()

    def existing(self, sockets: Callable[[], Iterable[Item]]) -> Sequence[Item]:
        """What the first file says of what there is already. sockets: lists all of them."""
        return ()

    def cpus(self) -> Sequence[int]:
        """Those that have a file from the beginning on."""
        return (ALL,)

    def output(self, path: str | Path, force: bool, owner: Owner | None) -> Output | OutputFolder:
        """The output of a capture that does not rotate."""
        return Output(path, force, owner=owner)

    def numbers_of(self, state: Any) -> tuple[int, ...]:
        """STATE numbers for the journal, of File.state; open_state() makes one of them again."""
        return (0,) * STATE

    def open_state(self, numbers: Sequence[int], fd: int, end_bytes: int) -> Any:
        """The state of a file that goes on there. FileError, OSError."""
        return None

    @abstractmethod
    def kill(self, counts: Mapping[int, int], mono_ns: int) -> Iterable[Any]:
        """So many records by CPU had been read, after those in the file, by who was killed."""

    # In the writing thread.

    def by_file(self, batches: Sequence[Any]) -> Iterable[tuple[int, Sequence[Any]]]:
        """The batches that are written at once, each time with the number of their file."""
        return ((ALL, batches),) if batches else ()

    def settings(self, settings: Mapping[str, Any], cpus: Collection[int]) -> dict[str, Any]:
        """Those of a header, from those of the capture."""
        return dict(settings)

    def notes(
        self, items: Sequence[Item], written: Written, cpus: Collection[int]
    ) -> Sequence[Any]:
        """Items as control() takes them. cpus: those that have a file."""
        return items

    def named(self, notes: Sequence[Any]) -> set[int]:
        """The CPUs whose files must get some of these."""
        return set()

    @abstractmethod
    def head(self, segment: Segment, cpu: int, written: Written) -> Frame:
        """What a file begins with."""

    @abstractmethod
    def control(
        self, notes: Sequence[Any], file: File, cpus: Collection[int], written: Written,
        mono_ns: int,
    ) -> Frame | None:  # fmt: skip
        """What a file gets of these items; None: nothing. cpus: those that have a file."""

    @abstractmethod
    def records(self, file: File, batches: Sequence[Any], first: int) -> Frame:
        """Batches of by_file(). first: the sequence number of the first entry."""

    def moved(self, file: File) -> None:  # noqa: B027 - whole
        """The file's end is another one now."""
