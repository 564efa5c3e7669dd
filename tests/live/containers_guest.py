# SPDX-License-Identifier: Apache-2.0
"""Run as a program by root in a Debian guest whose process 1 is systemd: whose are the connections
of real containers, of Podman, systemd-nspawn, Docker, and containerd as ctr and kubelet call it?

The last line is passed, or failed. What the files say is compared with what the managers say
themselves. See tests/live/test_service_live.py.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import cri_client
import grpc
from guest_tools import OUT, PORT, capturing, play, rows_of, run, say, serving

CALL = ("/bin/busybox", "nc", "127.0.0.1", str(PORT))
IMAGE = "docker.io/library/bb:1"
PYTHON = "/usr/lib/tcpkmon/bin/python3"
GROUPS = """
import json, sys, tcpkmon
from dataclasses import asdict
from tcpkmon.formats.analysis import why
with tcpkmon.open(sys.argv[1]) as capture, why.Source(capture.reader) as source:
    for _ in source.read():
        pass
    print(json.dumps([asdict(group) for _, group in source.groups.items()]))
"""
TAR = Path("/var/tmp/image.tar")
SOCKET = "unix:///run/containerd/containerd.sock"
UID = "0f3c5bd2-8e1a-4c11-9d0e-52a4c7b1f0aa"
PARENT = "kubepods-burstable-pod" + UID.replace("-", "_") + ".slice"
"""As kubelet names the group of a pod."""


def groups_of(name: str) -> dict[str, dict[str, str]]:
    """What a capture says of the groups of containers, by the container's name."""
    told = json.loads(run(PYTHON, "-c", GROUPS, f"{OUT}/{name}.pm"))
    return {group["container"]: group for group in told if group["container"]}


def owners_of(name: str) -> list[tuple[str, str]]:
    """Unit and container of each connection, in order."""
    return [(row["unit"], row["container"]) for row in rows_of(name) if row["rport"] == PORT]


def make_image() -> None:
    """A tar file with busybox, and an image of it for Docker and containerd."""
    folder = Path("/var/tmp/image")
    (folder / "bin").mkdir(parents=True)
    run("cp", "/bin/busybox", str(folder / "bin"))
    run("tar", "-C", str(folder), "-cf", str(TAR), ".")
    TAR.chmod(0o644)


def test_podman() -> None:
    """Containers of Podman, as root and rootless; a machine of systemd-nspawn."""
    run("useradd", "-m", "-u", "1234", "mona")
    run("loginctl", "enable-linger", "mona")
    for _ in range(100):
        if Path("/run/user/1234/bus").exists():
            break
        time.sleep(0.5)
    as_mona = ("runuser", "-u", "mona", "--", "env", "XDG_RUNTIME_DIR=/run/user/1234",
               "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1234/bus",
               "HOME=/home/mona")  # fmt: skip
    box = Path("/var/tmp/box")
    run("cp", "-r", "/var/tmp/image", str(box))
    for name in ("etc", "usr", "dev", "proc", "sys", "run", "tmp"):
        (box / name).mkdir()
    (box / "etc/os-release").write_text("ID=box\n")
    runs = (
        ("podman", "run", "--rm", "--network", "host", "--name", "web", "bb"),
        (*as_mona, "podman", "run", "--rm", "--network", "host", "--name", "app", "bb"),
        ("systemd-nspawn", "-q", "-M", "crate", "-D", str(box), "--as-pid2", "--pipe"),
    )  # fmt: skip
    for prefix in ((), as_mona):
        run(*prefix, "podman", "import", str(TAR), "bb", cwd="/")
    with serving(PORT), capturing(names=f"--ports {PORT}"):
        for words in runs:
            begun_s = time.monotonic()
            run(*words, *CALL, cwd="/", input="x" * 100)
            say(f"{words[0]}: ran for {time.monotonic() - begun_s:.1f} s")
    found = [(row["unit"], row["container"], row["uid"])
             for row in rows_of("names") if row["rport"] == PORT]  # fmt: skip
    say(f"containers: {found}")
    (root, rootless, machine) = found
    assert root[1:] == ("web", 0) and machine == ("machine-crate.scope", "crate", 0), found
    # Whose files nobody but root may write have names: of the user's container the id is known.
    assert rootless[0] == f"libpod-{rootless[0][7:-6]}.scope" and rootless[2] == 1234, found
    assert rootless[1] == rootless[0][7:19], found


def test_docker() -> None:
    """Containers in the host's network and behind Docker's bridge; with its other driver too."""
    run("systemctl", "start", "docker")
    waiting = 'CMD ["/bin/busybox", "sleep", "3600"]'
    run("docker", "import", "--change", waiting, str(TAR), IMAGE)
    with serving(PORT), capturing(
        all=f"--ports {PORT}", chosen=f"--ports {PORT} --container web",
        other=f"--ports {PORT} --container nothing",
    ):  # fmt: skip
        for name, network, address in (
            ("web", "host", "127.0.0.1"), ("cart", "bridge", "172.17.0.1"),
        ):  # fmt: skip
            begun_s = time.monotonic()
            run("docker", "run", "--name", name, "--network", network, "-i", IMAGE,
                "/bin/busybox", "nc", address, str(PORT), input="x" * 100)  # fmt: skip
            say(f"docker run --network {network}: {time.monotonic() - begun_s:.1f} s")
    check_docker("all", "web", "cart")
    found = owners_of("chosen")
    assert ("web" in dict(map(reversed, found))) and len(found) <= 2, found
    say(f"--container web: {found}; --container nothing: {owners_of('other')}")
    Path("/etc/docker/daemon.json").write_text('{"exec-opts": ["native.cgroupdriver=cgroupfs"]}')
    run("systemctl", "restart", "docker")
    with serving(PORT), capturing(fs=f"--ports {PORT}"):
        run("docker", "run", "--name", "plain", "--network", "host", "-i", IMAGE, *CALL,
            input="x" * 100)  # fmt: skip
    check_docker("fs", "plain")


def check_docker(capture: str, *names: str) -> None:
    """Container, image, runtime and id are as docker inspect says."""
    groups, owners = groups_of(capture), owners_of(capture)
    say(f"docker: {owners}")
    assert [container for _, container in owners] == [*names]
    for name in names:
        (truth,) = json.loads(run("docker", "inspect", name))
        group = groups[name]
        say(f"docker: {group}")
        assert (group["container_id"], f"/{group['container']}", group["image"]) == (
            truth["Id"], truth["Name"], truth["Config"]["Image"])  # fmt: skip
        assert group["runtime"] == "docker" and not group["pod"]


def test_containerd() -> None:
    """A pod as kubelet makes it, by containerd's CRI; and a container of ctr."""
    tar = "/var/tmp/saved.tar"
    run("docker", "save", "-o", tar, IMAGE)
    for space in ("k8s.io", "default"):
        run("ctr", "-n", space, "images", "import", tar)
    Path("/etc/containerd/config.toml").write_text(f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
""")
    run("systemctl", "restart", "containerd")
    call = cri_client.caller(grpc.insecure_channel(SOCKET))
    with serving(PORT), capturing(
        cri=f"--ports {PORT}", pod=f"--ports {PORT} --pod shop/cart-*",
    ):  # fmt: skip
        config = cri_client.sandbox("cart-7", UID, "shop", PARENT)
        pod = call("RunPodSandbox", (1, config))
        say(f"containerd: the pod's sandbox is {pod}")
        command = ("/bin/busybox", "sh", "-c", f"echo x | {' '.join(CALL)}; sleep 3600")
        made = cri_client.container("app", IMAGE, *command)
        number = call("CreateContainer", (1, pod), (2, made), (3, config))
        call("StartContainer", (1, number))
        run("ctr", "run", "--rm", "--net-host", IMAGE, "tool", *CALL, input="x" * 100)
    owners, groups = owners_of("cri"), groups_of("cri")
    say(f"containerd: {owners}")
    for group in groups.values():
        say(f"containerd: {group}")
    app = groups["app"]
    assert (app["runtime"], app["container_id"], app["image"], app["pod"], app["pod_uid"]) == (
        "containerd", number, IMAGE, "shop/cart-7", UID)  # fmt: skip
    (row,) = [row for row in rows_of("pod") if row["rport"] == PORT]
    assert (row["container"], row["pod"]) == ("app", "shop/cart-7")
    call("RemovePodSandbox", (1, pod))


make_image()
play(test_podman, test_docker, test_containerd)
