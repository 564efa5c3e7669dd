# SPDX-License-Identifier: Apache-2.0
"""Cases with nginx, whose access log tells the times of each request."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from scripts.requests_truth import python
from scripts.requests_truth.clients import Talk, by_connection, get, http, storm
from scripts.requests_truth.stage import Stage
from scripts.requests_truth.truth import Exchange
from tcpkmon.formats.base.errors import TcpkmonError

PORT, TLS, H2, UPSTREAM = 8080, 8443, 8444, 9000
_MS = 1_000_000
Found = list[Exchange]
_CONF = """
daemon off; worker_processes 1; user root; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 1024; }}
http {{
    log_format truth '$remote_port $connection_requests $msec $request_time '
                     '$upstream_response_time $request_length $bytes_sent $status';
    access_log {folder}/access.log truth;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000; sendfile on; tcp_nopush on; tcp_nodelay on;
    proxy_max_temp_file_size 0;
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    upstream slow {{ server 127.0.0.1:{upstream}; keepalive 8; }}
    server {{
        listen {address}:{port}; listen {address}:{tls} ssl; listen {address}:{h2} ssl http2;
        root {folder}/www;
        location /up/ {{
            proxy_pass http://slow/; proxy_http_version 1.1; proxy_set_header Connection "";
        }}
    }}
}}
"""


@contextmanager
def server(stage: Stage) -> Iterator[Path]:
    """nginx with files of 4 kB and 5 MB, and what is under /up/ from a slow upstream; its log."""
    folder = stage.folder
    (folder / "www").mkdir(exist_ok=True)
    for name, size in (("small", 4096), ("large", 5_000_000)):
        (folder / "www" / name).write_bytes(bytes(size))
    if not (folder / "cert.pem").exists():
        words = "req -x509 -newkey rsa:2048 -nodes -subj /CN=truth -keyout key.pem -out cert.pem"
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True, cwd=folder)
    conf = folder / "nginx.conf"
    conf.write_text(_CONF.format(folder=folder, address=stage.address, port=PORT, tls=TLS, h2=H2,
                                 upstream=UPSTREAM))  # fmt: skip
    folder.chmod(0o755)
    with stage.serving(["nginx", "-p", str(folder), "-c", str(conf)], PORT):
        yield folder / "access.log"


def with_log(found: Found, log: Path, thinks: bool = False) -> Found:
    """The exchanges with nginx's log: its clock has steps of a millisecond.

    thinks: the upstream's time is what nginx needs before it answers.
    """
    rows = defaultdict(list)
    for line in log.read_text().splitlines():
        port, _, _, took, upstream, asked, sent, status = line.split()
        if status != "200":
            raise TcpkmonError(f"nginx answered {line}")
        rows[int(port)].append((took, upstream, asked, sent))
    for (client, _), each in by_connection(found).items():
        asking = [one for one in each if one.last]
        for one, (took, upstream, asked, sent) in zip(asking, rows[client], strict=True):
            if one.asked >= 0 and (one.asked, one.answered) != (int(asked), int(sent)):
                raise TcpkmonError(f"nginx has {asked} and {sent} bytes, the client {one}")
            served = int(float(took) * 1000) * _MS
            one.serving = (max(0, served - _MS), max(served + _MS, one.last - one.send))
            if thinks:
                one.think = max(0, int(float(upstream) * 1000) - 1) * _MS
    return found


def _play(
    stage: Stage, paths: Sequence[str], port: int, rest_s: float, close: bool
) -> Found:
    """One request after the other."""
    chance = random.Random("nginx")
    found: Found = []
    talk = None
    for path in paths:
        talk = talk or Talk(stage.address, port, port == TLS)
        time.sleep(chance.uniform(0, 0.01))
        talk.ask(get(path, close), size=http, rest_s=rest_s)
        if close:
            found += talk.close()
            talk = None
    return found + (talk.close() if talk else [])


def ask(
    stage: Stage, paths: Sequence[str], *, port: int = PORT, rest_s: float = 0.0,
    close: bool = False, slow: bool = False,
) -> Found:  # fmt: skip
    """These files, with nginx's log. rest_s: before each piece that is read. close: a connection
    each. slow: from the upstream, whose own exchanges with nginx are checked too."""
    upstream = python.server(stage, "http", UPSTREAM, "127.0.0.1") if slow else nullcontext()
    with upstream as upstream_log, server(stage) as log:
        with stage.capturing():
            found = stage.client(lambda: _play(stage, paths, port, rest_s, close))
        time.sleep(0.05)  # nginx logs after the last byte
        with_log(found, log, slow)
        if upstream_log is not None:
            # One request at a time, so both have them in the same order.
            outer = [one.first - one.send for one in found if one.last]
            found += [Exchange(port, UPSTREAM, think=ns, think_most=most) for (port, ns), most
                      in zip(python.read_log(upstream_log), outer, strict=True)]  # fmt: skip
        return found


def slow_paths(count: int) -> list[str]:
    """Answers of 4 kB from the upstream, after 3 to 80 ms."""
    chance = random.Random("slow")
    return [f"/up/{int(chance.uniform(3000, 80_000))}/4096" for _ in range(count)]


def many(stage: Stage, count: int = 100_000) -> Found:
    """Sixteen connections, 100,000 requests of 4 kB."""
    requests = [[get("/small")] * (count // 16)] * 16
    with server(stage) as log:
        with stage.capturing():
            found = stage.client(lambda: storm(stage.address, PORT, requests, http))
        time.sleep(0.05)
        return with_log(found, log)


def http2(stage: Stage) -> Found:
    """h2load: 4 connections, ten streams at a time. Nobody knows the single ones by their bytes."""
    if not shutil.which("h2load"):
        raise TcpkmonError("h2load is missing; try: apt-get install nghttp2-client")
    with server(stage) as log, stage.capturing():
        url = f"https://{stage.address}:{H2}/small"
        stage.run(["h2load", "-n", "4000", "-c", "4", "-m", "10", url])
    ports = {int(line.split()[0]) for line in log.read_text().splitlines()}
    return [Exchange(port, H2) for port in ports]
