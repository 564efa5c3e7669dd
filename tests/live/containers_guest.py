# SPDX-License-Identifier: Apache-2.0
"""Run as a program by root: whose are the connections of real containers, of Docker, and of
containerd as kubelet and ctr call it? The last line is passed, or failed.

What the files say is compared with what the daemons say themselves. It runs in a Debian guest whose
process 1 is systemd (test_service_live.py), or in namespaces of its own (test_containers_live.py),
where it starts the daemons itself; they do not see those of the machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import cri_client
import grpc
from cri_client import UID
from guest_tools import OUT, PORT, WAIT_S, capturing, play, rows_of, run, say, serving

BY_SYSTEMD = Path("/run/systemd/system").is_dir()
IMAGE = "docker.io/library/bb:1"
PYTHON = Path(shutil.which("tcpkmon") or "").resolve().with_name("python3")
GROUPS = """
import json, sys
from dataclasses import asdict
from tcpkmon.formats.analysis import why
from tcpkmon.formats.registry import open_files
with open_files(sys.argv[1]) as reader, why.Source(reader) as source:
    for _ in source.read():
        pass
    print(json.dumps([asdict(group) for _, group in source.groups.items()]))
"""
TAR, RUNTIME = Path("/run/image.tar"), Path("/run/runc")
SOCKET = "/run/containerd/containerd.sock"
PARENTS = ("/kubepods/burstable/pod" + UID,
           "kubepods-burstable-pod" + UID.replace("-", "_") + ".slice")  # fmt: skip
"""How kubelet names the group of a pod: without systemd, and with."""
RUNC = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc'
CONTAINERD = f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
[{RUNC}]
runtime_type = "io.containerd.runc.v2"
[{RUNC}.options]
BinaryName = "{RUNTIME}"
SystemdCgroup = {str(BY_SYSTEMD).lower()}
"""
WITHOUT_CPU = """#!/usr/bin/python3
import json, os, sys
if "create" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    spec = json.loads(open(path).read())
    spec["linux"]["resources"].pop("cpu", None)
    open(path, "w").write(json.dumps(spec))
os.execv("/usr/sbin/runc", sys.argv)
"""
"""runc for a machine whose controllers are in groups of version 1: it must not ask for a share."""
_running: list[subprocess.Popen[bytes]] = []


def restart(name: str, *words: str, ready: Callable[[], object]) -> None:
    """Start a daemon anew, and wait until it answers."""
    begun_s = time.monotonic()
    if BY_SYSTEMD:
        run("systemctl", "restart", name)
    else:
        with Path(f"/run/{name}.log").open("ab") as log:
            _running.append(subprocess.Popen([*words], stdout=log, stderr=log))
    while True:
        try:
            ready()
        except AssertionError:
            assert time.monotonic() - begun_s < WAIT_S, f"{name} does not answer"
            time.sleep(0.2)
        else:
            break
    say(f"{name} was ready in {time.monotonic() - begun_s:.1f} s")


def stop_all() -> None:
    """End the daemons that this program started."""
    while _running:
        one = _running.pop()
        one.terminate()
        one.wait(WAIT_S)


def groups_of(name: str) -> dict[str, dict[str, str]]:
    """What a capture says of the groups of containers, by the container's name."""
    told = json.loads(run(str(PYTHON), "-c", GROUPS, f"{OUT}/{name}.pm"))
    return {group["container"]: group for group in told if group["container"]}


def owners_of(name: str) -> list[tuple[str, str]]:
    """Unit and container of each connection, in order."""
    return [(row["unit"], row["container"]) for row in rows_of(name) if row["rport"] == PORT]


def make_image() -> None:
    """A tar file with busybox."""
    folder = Path("/run/image")
    (folder / "bin").mkdir(parents=True)
    run("cp", "/bin/busybox", str(folder / "bin"))
    run("tar", "-C", str(folder), "-cf", str(TAR), ".")


def docker_run(name: str, *words: str, address: str = "127.0.0.1") -> None:
    """A container that makes a connection, and ends."""
    begun_s = time.monotonic()
    run("docker", "run", "-i", "--name", name, *words, IMAGE,
        "/bin/busybox", "nc", address, str(PORT), input="x" * 100)  # fmt: skip
    say(f"docker run {name} {' '.join(words)}: {time.monotonic() - begun_s:.1f} s")


def check_docker(capture: str, *names: str) -> None:
    """Container, image, runtime and id are as docker inspect says."""
    groups = groups_of(capture)
    for name in names:
        (truth,) = json.loads(run("docker", "inspect", name))
        group = groups[name]
        say(f"{capture}: {group}")
        assert (group["container_id"], f"/{group['container']}", group["image"]) == (
            truth["Id"], truth["Name"], truth["Config"]["Image"])  # fmt: skip
        assert group["runtime"] == "docker" and not group["pod"]


def restart_docker(driver: str) -> None:
    Path("/etc/docker/daemon.json").write_text(
        json.dumps({"exec-opts": [f"native.cgroupdriver={driver}"]})
    )
    restart("docker", "dockerd", ready=lambda: run("docker", "info"))


def test_docker() -> None:
    """Containers in the daemon's network and behind its bridge, and one that is gone at once."""
    restart_docker("systemd" if BY_SYSTEMD else "cgroupfs")
    run("docker", "import", "--change", 'CMD ["/bin/busybox", "sleep", "3600"]', str(TAR), IMAGE)
    ports = f"--ports {PORT}"
    with serving(PORT), capturing(
        docker=ports, chosen=f"{ports} --container web",
    ):  # fmt: skip
        docker_run("web", "--network", "host")
        docker_run("cart", address="172.17.0.1")
        docker_run("gone", "--network", "host", "--rm")
    check_docker("docker", "web", "cart")
    found = owners_of("docker")
    say(f"docker: {found}")
    assert [container for _, container in found] == ["web", "cart", "gone"]
    chosen = [container for _, container in owners_of("chosen")]
    say(f"--container web: {chosen}")
    assert "web" in chosen and len(chosen) < len(found)


def test_the_other_driver() -> None:
    """With cgroupfs, where systemd is."""
    restart_docker("cgroupfs")
    with serving(PORT), capturing(cgroupfs=f"--ports {PORT}"):
        docker_run("plain", "--network", "host")
    check_docker("cgroupfs", "plain")


def test_containerd() -> None:
    """A pod as kubelet makes it, by containerd's CRI; containers of ctr, which have no names."""
    saved = "/run/saved.tar"
    run("docker", "save", "-o", saved, IMAGE)
    stop_all()
    Path("/etc/containerd/config.toml").write_text(CONTAINERD)
    if "cpu" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split():
        RUNTIME.symlink_to("/usr/sbin/runc")
    else:
        RUNTIME.write_text(WITHOUT_CPU)
        RUNTIME.chmod(0o755)
    restart("containerd", "containerd", ready=lambda: run("ctr", "version"))
    for space in ("k8s.io", "default"):
        run("ctr", "-n", space, "images", "import", saved)
    call = cri_client.caller(grpc.insecure_channel(f"unix://{SOCKET}"))
    nc = f"/bin/busybox nc 127.0.0.1 {PORT}"
    with serving(PORT), capturing(
        cri=f"--ports {PORT}", pod=f"--ports {PORT} --pod shop/cart-*",
    ):  # fmt: skip
        config = cri_client.sandbox("cart-7", UID, "shop", PARENTS[BY_SYSTEMD])
        pod = call("RunPodSandbox", (1, config))
        made = cri_client.container("app", IMAGE, "/bin/busybox", "sh", "-c",
                                    f"echo x | {nc}; exec /bin/busybox sleep 3600")  # fmt: skip
        number = call("CreateContainer", (1, pod), (2, made), (3, config))
        call("StartContainer", (1, number))
        for name in ("tool", "f" * 64):
            run("ctr", "run", "--runc-binary", str(RUNTIME), "--rm", "--net-host", IMAGE, name,
                *nc.split(), input="x" * 100)  # fmt: skip
    owners, groups = owners_of("cri"), groups_of("cri")
    say(f"cri: {owners}")
    app = groups["app"]
    say(f"cri: {app}")
    assert [container for _, container in owners] == ["app", None, "f" * 12]
    assert groups["f" * 12]["runtime"] == "containerd"
    assert (app["runtime"], app["container_id"], app["image"], app["pod"], app["pod_uid"]) == (
        "containerd", number, IMAGE, "shop/cart-7", UID)  # fmt: skip
    (row,) = [row for row in rows_of("pod") if row["rport"] == PORT]
    assert (row["container"], row["pod"]) == ("app", "shop/cart-7")
    told = json.loads(run("ctr", "-n", "k8s.io", "containers", "info", number))
    assert told["Image"] == IMAGE
    assert told["Spec"]["annotations"]["io.kubernetes.cri.container-name"] == "app"
    call("RemovePodSandbox", (1, pod))


make_image()
try:
    play(test_docker, *[test_the_other_driver] * BY_SYSTEMD, test_containerd)
finally:
    stop_all()
