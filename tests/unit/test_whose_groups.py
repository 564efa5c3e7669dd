# SPDX-License-Identifier: Apache-2.0
"""Whose a control group is: by its path, by the files of managers, through a file and back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tcpkmon.collector.plan.cgroups import walk_cgroups
from tcpkmon.collector.plan.filters import parse
from tcpkmon.collector.session import container_names
from tcpkmon.collector.session.container_names import (
    OF_CONTAINERD,
    OF_DOCKER,
    OF_PODMAN,
    Names,
    from_container_logs,
    from_machines,
    from_pod_logs,
    open_for_names,
)
from tcpkmon.formats.base import facts
from tcpkmon.formats.base.errors import PrivilegeError, UsageError
from tcpkmon.formats.base.group_names import group_of
from tcpkmon.formats.base.whose import GroupPart, Groups, entries_of, unknown_entry

ID = "0123456789abcdef" * 4
UID = "0f3c5bd2-8e1a-4c11-9d0e-52a4c7b1f0aa"
SLICE = "kubepods-burstable-pod" + UID.replace("-", "_") + ".slice"


@pytest.mark.parametrize(
    ("path", "unit", "runtime", "container", "pod", "user"),
    [
        ("/", "", "", "", "", ""),
        ("/system.slice/nginx.service", "nginx.service", "", "", "", ""),
        ("/system.slice/nginx.service/workers", "nginx.service", "", "", "", ""),
        ("/system.slice/system-a.slice/a@tty1.service", "a@tty1.service", "", "", "", ""),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", "a.service", "", "",
         "", "1000"),
        ("/user.slice/user-7.slice/session-3.scope", "session-3.scope", "", "", "", "7"),
        (f"/system.slice/docker-{ID}.scope/init.scope", f"docker-{ID}.scope", "docker", ID[:12],
         "", ""),
        (f"/docker/{ID}", "", "docker", ID[:12], "", ""),
        (f"/default/{ID}", "", "containerd", ID[:12], "", ""),
        ("/default/tool", "", "", "", "", ""),
        (f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope",
         f"cri-containerd-{ID}.scope", "containerd", ID[:12], UID, ""),
        (f"/kubepods.slice/{SLICE}/crio-{ID}.scope", f"crio-{ID}.scope", "cri-o", ID[:12], UID, ""),
        (f"/kubepods.slice/{SLICE}", SLICE, "", "", UID, ""),
        (f"/kubepods/burstable/pod{UID}/{ID}", "", "", ID[:12], UID, ""),
        (f"/system.slice/containerd.service/{SLICE}:cri-containerd:{ID}", "containerd.service",
         "containerd", ID[:12], UID, ""),
        (f"/machine.slice/libpod-{ID}.scope/x", f"libpod-{ID}.scope", "podman", ID[:12],
         "", ""),
        (f"/user.slice/user-5.slice/user@5.service/user.slice/libpod-{ID}.scope",
         f"libpod-{ID}.scope", "podman", ID[:12], "", "5"),
        (f"/machine.slice/libpod-conmon-{ID}.scope", f"libpod-conmon-{ID}.scope", "", "",
         "", ""),
        (r"/machine.slice/machine-a\x2db.scope", r"machine-a\x2db.scope", "machined", "a-b",
         "", ""),
        ("/lxc.payload.web/system.slice/x.service", "", "lxc", "web", "", ""),
        (f"/system.slice/{ID}", "system.slice", "", "", "", ""),
    ],
)  # fmt: skip
def test_paths(
    path: str, unit: str, runtime: str, container: str, pod: str, user: str
) -> None:
    found = group_of(path)
    told = (found.unit, found.runtime, found.container, found.pod, found.user)
    assert told == (unit, runtime, container, pod, user)
    assert found.told() == {"path": path}


def test_through_control_entries() -> None:
    group = group_of(f"/docker/{ID}", container="wéb", image="nginx:1")
    entries = [*entries_of(7, group), *unknown_entry(3)]
    assert len(entries) > 3
    groups = Groups({"groups": {"9": {"path": "/a.service"}, "unknown": 2, "x": 1}})
    for entry in entries:  # as a PSC file has them
        groups.feed(facts.decode(entry.callvalue(), entry.location, entry.words()))
    assert groups.get(7) == group and groups.unknown == 3
    assert (nine := groups.get(9)) is not None and nine.unit == "a.service"


def test_parts_that_lack_and_nonsense_are_left_out() -> None:
    first, second, *rest = entries_of(7, group_of("/" + "x" * 200))
    for lacking in ([first, *rest], [second, *rest], [first, second]):
        groups = Groups()
        for entry in lacking:
            groups.feed(entry)
        assert not len(groups)
    groups = Groups({"groups": {"5": 5, "6": {"path": 6}, "9" * 30: {"path": "/"}}})
    groups.feed(GroupPart(0, 1, 8, b"[" * 32))
    groups.feed(GroupPart(0, 0, 0, b""))
    assert not len(groups)


def test_filters() -> None:
    def chosen(path: str, **asked: list[str]) -> bool:
        return parse(**asked).decide(group_of(path))

    assert chosen("/system.slice/nginx.service/w", units=["nginx.service"])
    assert chosen("/system.slice/nginx.service", units=["system.slice"])
    assert not chosen("/system.slice/ssh.service", units=["nginx*"])
    assert chosen(f"/docker/{ID}", containers=[ID[:12]])
    pod = group_of(f"/kubepods/pod{UID}/{ID}", pod="shop/cart-7")
    for asked, answer in (("shop/cart-*", True), ("cart-7", True), ("shop/*", True),
                          ("pay/*", False), (UID, True)):  # fmt: skip
        assert parse(pods=[asked]).decide(pod) is answer, asked
    assert not parse(pods=["shop/*"], units=["x"]).decide(pod)
    docker, kube = group_of(f"/docker/{ID}"), group_of(f"/kubepods/pod{UID}/{ID}", container="app")
    assert parse(containers=["x"]).awaits(docker) and not parse(units=["x"]).awaits(docker)
    assert parse(pods=["x"]).awaits(kube) and not parse(containers=["x"]).awaits(kube)
    assert not parse(pods=["x"]).awaits(pod)
    for wrong in ([""], ["a\nb"], ["x" * 600], [f"u{n}" for n in range(65)]):
        with pytest.raises(UsageError):
            parse(units=wrong)


def test_units_that_are_not_there() -> None:
    paths = ["/", "/system.slice", "/system.slice/nginx.service", "/user.slice/a"]
    filters = parse(units=["ngnix.service", "nginx.service", "sys*", "a.scope"])
    assert filters.absent_units(iter(paths)) == [
        "there is no unit ngnix.service now (did you mean 'nginx.service'?): its sockets are "
        "recorded from when it starts",
        "there is no unit a.scope now: its sockets are recorded from when it starts",
    ]
    assert parse().absent_units(iter(paths)) == []


def test_names_of_kubelet(tmp_path: Path) -> None:
    (tmp_path / f"shop_cart-7_{UID}").mkdir()
    (tmp_path / f"cart-7_shop_app-{ID}.log").symlink_to("gone")
    assert from_pod_logs(UID, tmp_path) == {"pod": "shop/cart-7"}
    assert from_container_logs(ID, tmp_path) == {"container": "app", "pod": "shop/cart-7"}
    assert from_pod_logs("1", tmp_path) == from_container_logs("1", tmp_path / "no") == {}


def test_names_of_docker_and_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / ID / "config.v2.json"
    docker.parent.mkdir()
    podman = tmp_path / "containers.json"
    docker.write_text(json.dumps({"ID": ID, "Name": "/web", "Config": {"Image": "nginx:1"}}))
    metadata = json.dumps({"image-name": "docker.io/redis:7", "name": "cache"})
    cache = {"id": ID, "names": ["cache"], "metadata": metadata}
    podman.write_text(json.dumps([{"id": "1"}, cache]))
    paths = {OF_DOCKER: docker, OF_PODMAN: podman}
    names = Names(lambda which, data: os.open(paths[which], os.O_RDONLY))
    found = names.of(group_of(f"/docker/{ID}"))
    assert (found.container, found.image, found.is_named) == ("web", "nginx:1", True)
    assert found.told() == {"path": f"/docker/{ID}", "container": "web", "image": "nginx:1"}
    found = names.of(group_of(f"/machine.slice/libpod-{ID}.scope"))
    assert (found.container, found.image) == ("cache", "docker.io/redis:7")
    for text in ("[" * 100_000, "[]", '{"Name": 5}', "", '{"ID": "other", "Name": "/x"}'):
        docker.write_text(text)
        assert not names.of(group_of(f"/docker/{ID}")).is_named, text[:20]
    for told in (5, {}, None, [5], [{"id": ID, "names": {"a": 1}}], [{"id": ID, "metadata": 5}]):
        podman.write_text(json.dumps(told))
        assert not names.of(group_of(f"/machine.slice/libpod-{ID}.scope")).is_named, told
    # A link, and a name that is no id, are refused.
    monkeypatch.setattr(container_names, "DOCKER", tmp_path)
    docker.unlink()
    docker.symlink_to(podman)
    with pytest.raises(PrivilegeError):
        open_for_names(OF_DOCKER, ID.encode())
    with pytest.raises(ValueError, match="no container"):
        open_for_names(OF_DOCKER, b"../../etc/shadow")


CRI = {
    "ociVersion": "1.1.0", "annotations": {
        "io.kubernetes.cri.container-name": "app", "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.image-name": "docker.io/library/nginx:1",
        "io.kubernetes.cri.sandbox-name": "cart-7", "io.kubernetes.cri.sandbox-namespace": "shop",
    },
}  # fmt: skip
"""What containerd's CRI plugin writes into a bundle (its package annotations)."""


@pytest.mark.parametrize(
    ("told", "space", "path", "expected"),
    [
        (CRI, "k8s.io", f"/kubepods.slice/{SLICE}/cri-containerd-{ID}.scope",
         ("app", "docker.io/library/nginx:1", "shop/cart-7")),
        (CRI, "k8s.io", f"/kubepods/burstable/pod{UID}/{ID}",
         ("app", "docker.io/library/nginx:1", "shop/cart-7")),
        ({"annotations": {"nerdctl/name": "web"}}, "default", f"/system.slice/nerdctl-{ID}.scope",
         ("web", "", "")),
        ({"annotations": {"nerdctl/name": 5}}, "default", f"/system.slice/nerdctl-{ID}.scope",
         (ID[:12], "", "")),
        ({"annotations": []}, "k8s.io", f"/kubepods.slice/{SLICE}/cri-containerd-{ID}.scope",
         (ID[:12], "", UID)),
    ],
)  # fmt: skip
def test_names_of_containerd(
    told: object, space: str, path: str, expected: tuple[str, str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By its own files, where kubelet has none: /run/containerd/.../NAMESPACE/ID/config.json."""
    bundle = tmp_path / space / ID
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text(json.dumps(told))
    monkeypatch.setattr(container_names, "CONTAINERD", tmp_path)
    monkeypatch.setattr(
        container_names, "open_trusted", lambda path, *_: os.open(path, os.O_RDONLY)
    )
    found = Names(open_for_names).of(group_of(path))
    assert (found.container, found.image, found.pod, found.runtime) == (*expected, "containerd")
    with pytest.raises(ValueError, match="no container"):
        open_for_names(OF_CONTAINERD, b"..")


def test_names_of_machined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs in a service of any name: machined's link says so."""
    (tmp_path / "unit:box.service").symlink_to("crate")
    assert from_machines("box.service", tmp_path) == {"container": "crate", "runtime": "machined"}
    assert from_machines("ssh.service", tmp_path) == from_machines("box.slice", tmp_path) == {}
    monkeypatch.setattr(container_names, "MACHINES", tmp_path)
    found = Names(open_for_names).of(group_of("/system.slice/box.service/payload"))
    assert (found.unit, found.container, found.runtime) == ("box.service", "crate", "machined")
    assert group_of(**found.told()) == found


def test_a_walk(tmp_path: Path) -> None:
    inner = tmp_path / "a.slice" / "b.service"
    inner.mkdir(parents=True)
    info = tmp_path / "mountinfo"
    info.write_text(f"30 25 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    found = dict(walk_cgroups(9, info))
    assert found[inner.stat().st_ino] == "/a.slice/b.service"
    assert found[tmp_path.stat().st_ino] == "/" and len(found) == 3
    assert len(dict(walk_cgroups(2, info))) == 2
