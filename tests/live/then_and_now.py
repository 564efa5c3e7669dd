# SPDX-License-Identifier: Apache-2.0
"""What each row of docs/then-and-now.md is checked by: a text of the session, and its patterns.

"@NAME" goes on with another text. tests/live/test_then_and_now_live.py makes the session.
"""

from __future__ import annotations


def event(name: str, *fields: str) -> str:
    """A record in JSON with these fields, as `name` or `name":VALUE`, in this order."""
    return rf'"type":"{name}".*' + ".*".join(f'"{field}' for field in fields)


A, B, C = "decode 1987", "decode 1988", "decode 2007"
CHECKS: dict[str, dict[str, tuple[str, ...]]] = {
    "The UBC event monitor": {
        "`monitor -on`": ("on", r"^exit 0$", r"^MONITOR version "),
        "`-off`: MONITOR is turned OFF; Event data collected in file": (
            "off", r"MONITOR is turned OFF\nEvent data collected in file monitor.out$"),
        "`-status`, `-s`": ("nobody status", r"^Size of each CPU's ring \(bytes\) : 16777216$",
            r"^Events recorded : \d+, lost : \d+$"),
        "`-help`, `-h`; without an option the usage": ("monitor", r"^Usage: monitor -on \| -off"),
        "`-buffer nbufs bufsize`, `-b`": ("on", r"buffer \(bytes\) : 12000000$", r"16777216 bytes"),
        "`-events 1 3 5`, `-e`": ("on", r"^1\. Transaction\n2\. Login/Logout\n3\. Pagein\n"),
        "`-file fname`, `-f`, default monitor.out": ("on", r"^Output file name : monitor.out$"),
        "an existing file: the user is asked": ("on exists", r"^monitor.out exists. Overwrite it"),
        "a second -on: MONITOR is already turned on": (
            "on again", r"^MONITOR is already turned on"),
        "super-user only": ("nobody on", r"needs root"),
        "`probe(event_group, event_type, auxinfo, auxlen)` in the kernel": (
            C, event("MINE", 'way":"RUDE"')),
        "probe() in user programs": (
            B, event("USER_EVENT", 'group":7', 'type":1', 'aux":"hello"')),
        "is the monitor on, is the event selected": (
            "one disabled", r'"EVENT_STOP"[^}]*"enabled": false'),
        "no empty buffer: count; never wait": ("verify 1987", r"total +\d+ .* \d+$"),
        "`struct event_record`: len, event_id, user_id, pid, cpu_time, real_time, auxinfo": (
            "old", r"^6\.1 len 16 user 65534 pid \d+ cpu \d+ aux $",
            r"^5\.0 len 20 user \d+ pid \d+ cpu \d+ aux [0-9a-f]{8}$"),
        "its shape of 1987": (
            "both shapes", r"^began [1-9]\d* ended [1-9]\d* the same \(True, True\) threads left "
            r"out [1-9]", "@records", r"^exit [03]$"),
        "header record": ("old", r"^header year \d+ user \w+ cpus \d+ memory \d+ nusers [2-9]"),
        "trailer record": ("old", r"^0\.1 len 16 user 0 pid 0 cpu 0 aux $"),
        "`lost_event` of each buffer": (
            "old", r"^0\.2 len 18 user 0 pid \d+ cpu 0 aux [0-9a-f]{4}$"),
        "discard a buffer that lost much": (
            "condense --discard-lossy 0", r"^Note: 1 of 4 buffers left out, with 3 events: more",
            "@condense --discard-lossy 3", r"\A(?![\s\S]*left out)",
            r"^Note: 3 events were lost"),
        "1 Transaction START: a line, in raw mode a character": (
            A, event("TRANSACTION_START", 'raw":1')),
        "1 Transaction END: the first output": (A, event("TRANSACTION_END", 'raw":1')),
        "2 Login": (A, event("LOGIN", r"session", 'loginuid":12345')),
        "2 Logout": (A, event("LOGOUT", r"session", 'loginuid":12345')),
        "3 Pagein START, END with the page number": (
            A, event("PAGEIN_END", r'page":\d', "with_io")),
        "4 Pageout": ("page-outs", r"^swapped out ([1-9]\d{3,}) started \1 ended \1$"),
        "5 Disk I/O with the device": (A, event("DISK_COMPLETE", r'device":\d')),
        "6 Fork, Exit": (
            A, event("FORK", 'kind":"PROCESS"', 'uid":0'), event("EXIT", 'uid":65534')),
        "Monitor started on, version, user name and number, CPU, memory": (
            "condense", r"^Monitor started on .*\nMonitor Version: .*\nMonitor User Name: \w+\n"
            r"Monitor User Number: \d+\nCPU: .*\nMemory: \d+ Megabytes"),
        "Elapsed time, number of events, blocks/buffers read": (
            "condense", r"^Elapsed time = .*\nNumber of events processed = \d+\n"
            r"Total blocks/buffers read = [1-9]"),
        "Light, Medium, Heavy, Overall": (
            "condense", r"^Classes of processes",
            r"^System Parameters +Light +Medium +Heavy +Over"),
        "response time, think time": ("condense", r"^Response time \(secs\) .*0\.1\d\d$"),
        "true CPU": ("condense", r"^True CPU \(ms\) .*\d\.\d{3}$"),
        "true I/O": ("condense", r"^True I/O \(ms\) .*\d\.\d{3}$"),
        "physical, virtual page faults": (
            "condense", r"^Physical Page Fault \(number\) .* \d+$", r"^Virtual Page .* [1-9]\d*$"),
        "login, logout in seconds: of sessions, or of child processes": (
            "condense", r"^Login \(secs\) .*\d\.\d{3}$",
            r"^Life of a process \(secs\) .*\d\.\d{3}$",
            r"^Between processes \(secs\) .*\d\.\d{3}$"),
        "CPU utilisation: true, virtual, total": (
            "condense", r"^CPU Utili\S+ \(percent\)( +\d+\.\d+){3}$"),
        "disk utilisation without queueing": (
            "condense", r"^Disk Utili\S+ \(percent\)( +\d+\.\d+){3}$", r"^device \d+:\d+ "),
        "page fault rate": ("condense", r"^Page Fault Rate .*( +\d+\.\d+){3}$"),
        "a report per user": ("condense", r"^65534 +[1-9]", r"^Cgroup "),
        "means over hours hide peaks": ("condense", r"^From s .*Peak of", r" transactions,|, cpu"),
    },
    "The measurement system of HP-UX": {
        "`msmod -l`: what this kernel can measure, by anyone": (
            "msmod -l", r"^exit 0$", r"^BKL_LOCK_FINISH: not on this kernel: "),
        "lines that describe themselves": (
            "msmod -l", r"^syscallstart \(SYSCALL_START\): seconds, microseconds, "),
        "msmod switches by name": ("scan status", r'"SCHEDOUT"[^}]*"enabled": false'),
        # Each needs a log level of its schema; what is not asked for is not in the log.
        "iscan collects": ("scanned", *(rf" {name} " for name in (
            "SLEEP", "PAGE_DIRTY", "DISK_QUEUE", "SAMPLE_FRAME", "RESHUFFLE", "SYSCALL_START")),
            r"\A(?!.* (FORK|TRY_TO_WAKEUP|PAGEIN_END) )"),
        "translate prints: id, decimal words, the time as two words": (
            "translate", r"^setrq 1\d{9} \d+ \d+ "),
        "versions: a mismatch warns and goes on": (
            "version", r"^exit [03]$", r"warning: the log is of version 0\.0\.7", r"^swtch "),
        "a pid and a priority share a word: 66070": (
            "legend", r"swtch: .*pid<<16\|priority<<8", "@version", rf"^swtch .* {66070 & ~0xFF}$"),
        "sleep: the address slept on": (
            B, event("SLEEP", r'place":[1-9]', r'symbol":"\w', r'class":"(TIMER|POLL|WAIT)"')),
        "swtch": ("translate", r"^swtch 1\d{9} "),
        "setrq, remrq": ("translate", r"^setrq 1\d{9} ", r"^remrq 1\d{9} "),
        "trap: where it touches the run queue": ("translate", r"^trap 1\d{9} "),
        "syscall: the same; shuffled, not run": ("translate", r"^shuffle 1\d{9} "),
        "exec, three records": (
            "translate", r"^exec (\d+ \d+) (\d+) \d+ \d+ \d+ \d+ \d+\nexec \1 \2( \d+){4}\n"
            r"exec \1 \2( \d+){24}$"),
        "exit": ("translate", r"^exit 1\d{9} "),
        "disk: queued, off the queue, complete": (
            "translate", r"^disc_queue 1\d{9} ", r"^disc_start 1\d{9} ", r"^disc_done 1\d{9} "),
        "timeshare_insert: the queue in order, realtime negative, at most 1000": (
            "translate", r"^timeshare_insert 1\d{9} "),
        "bread: hit or not": (B, event("FILE_READ", 'hit":0'), event("FILE_READ", 'hit":1')),
        "breada: the block, and the one ahead": (
            B, event("FILE_READ", 'hit":0'), event("FILE_READAHEAD", 'demand":1')),
        "bwrite, bdwrite": (
            B, event("FILE_WRITE", 'offset":8192', 'bytes":4096', 'synchronous":1'),
            event("FILE_WRITE", 'offset":0', 'bytes":4096', 'synchronous":0'),
            event("PAGE_DIRTY", r'bytes":[1-9]'), event("FILE_SYNC", 'result":0')),
        "syscallstart": (B, event("SYSCALL_START", *(f"arg{number}" for number in range(6)))),
        "the return pointer of a call: where the program goes on": (
            B, event("SYSCALL_START", r'ip":[1-9]\d{10}')),
        "syscallexit": (B, event("SYSCALL_EXIT", "result", "error")),
        "sampler: every 4th tick, adjustable; pid -1, state 0 to 3": (
            B, event("SAMPLE", r'pid":-1.*"state":"\w+"|state":"\w+"'), r'"period":5000000'),
        "(none: stacks)": ("flamegraph", r"^\S.*;.* \d+$"),
        "kernel preemption, the fifth group": ("msmod -l", r"^PREEMPT_OFF: (not on|seconds)"),
        "networking, ids that appear after an ioctl": (B, event("UDP_SEND", 'bytes":5')),
    },
    "Klogger": {
        "enabled: 1 or 0": ("disabled", r'"enabled": false'),
        "a file for each event: 1 or 0": ("one disabled", r'"EVENT_STOP"[^}]*"enabled": false'),
        "/tmp/kernlog.dump.cpuN": ("files", r"^kernlog\.dump\.cpu0"),
        "buffer_size, in MB, 4MB/CPU": ("size", r"^4.*MB"),
        "lowwater, 10%": ("low now", r"^10%$"),
        "no setting changes while it is enabled": ("size refused", r"cannot change while logging"),
        "benchmarks/EVENT, iterations": (
            "benchmark", r"^base +KLOGGER_START +\d", r"^stopwatch +EVENT_START +\d"),
        "mark": (C, event("MARK", 'number":77')),
        "klogger_decoder: an array of Perl hashes": (
            "perl", r'^\{\n    header => \{\n            "type" +=> "EVENT_START",\n'),
        "klogger-autogen.pl --list-counters": ("counters", r"context_switches"),
        "the Perl module's control functions": (C, event("MARK", 'number":78')),
        "the Perl module's log analysis functions, Algorithm 1": ("log", r"^ascending"),
        ".klogger.conf.NAME": ("check", r"^exit 0$"),
        "the schema's kernel patch": (C, event("MINE", "way")),
        "event, its types, enum": (C, event("MINE", 'way":"RUDE"', r'comm":"\w')),
        "loglevel, include, omit, using": (C, r'"enabled":1,"name":"MINE"', r"\A(?!.*:\"NOT\",)"),
        "`klogger(EVENT, ...)`": (C, event("MINE", "way")),
        "CONFIG_KLOGGER": (C, event("MINE", "way")),
        "arch ARCH_NAME, counter1 ... counterN": (C, event("MINE", 'switches":1')),
        "klogger_get_counter(), klogger_get_NAME(), their _ll, KLOGGER_ARCH_COMPILED": (
            C, event("MINE", 'switches":1', 'arch":1')),
        "KLOGGER_START: kernel version, buffer size": (
            C, event("KLOGGER_START", r'kernel":"\d+\.\d', r'buffer_bytes":4194304')),
        "KLOGGER_FINISH": (C, event("KLOGGER_FINISH", 'reason":"DISABLED"')),
        "PROCESS_EXISTS: pid, priority, policy, command line": (
            C, event("PROCESS_EXISTS", r'pid":1,', 'priority":', 'policy":', r'cmdline":"\S',
            'uid":0')),
        "LOGGING_EVENT for each event": (C, event("LOGGING_EVENT", 'enabled":1')),
        "DUMP_BEGIN with its index": (
            C, event("DUMP_BEGIN", 'index":0'), event("DUMP_BEGIN", r'index":[1-9]',
            r'wrote_from":[1-9]')),
        "DUMP_FINISH with its bytes": (C, event("DUMP_FINISH", r'bytes":[1-9]')),
        "telling Klogger's own traffic from the rest": ("log", r"own True left 0$"),
        "MARK: number, pid": (C, event("MARK", 'number":77', r'pid":[1-9]')),
        "serial numbers with gaps where events were lost": ("verify 2007", r"adds up"),
        "the cycle counter as time, whose synchronisation is untested": ("log", "ascending True"),
        "stopwatch: EVENT_START, EVENT_STOP": (
            C, event("EVENT_START", 'id":5'), event("EVENT_STOP", 'id":5')),
        "scheduler: TRY_TO_WAKEUP, REMOVE_FROM_RUNQ, ADD_TO_RUNQ, SCHEDOUT, SCHEDIN": (
            B, *(event(name, "pid") for name in ("REMOVE_FROM_RUNQ", "ADD_TO_RUNQ", "SCHEDOUT"))),
        "scheduler: FORK, EXEC, EXIT": (
            C, *(event(name, "pid") for name in ("FORK", "EXEC", "EXIT"))),
        "locking: a spinlock, a read/write lock was initialised, released": (
            "msmod -l", r"^SPINLOCK_FINISH: ", r"^RWLOCK_INIT: ", r"^WRITELOCK_FINISH: "),
        "network: socket, connection, protocol and IP level, for IPv4": (
            B, event("SOCKET_CREATE", "socket"), event("UDP_SEND", 'bytes":5'),
            event("IP_SENDPACKET", "size")),
    },
}  # fmt: skip
