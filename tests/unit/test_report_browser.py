# SPDX-License-Identifier: Apache-2.0
"""The page of `tcpkmon report` in a real browser, chromium without a window."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tcpkmon
from tcpkmon.formats.analysis import why
from tcpkmon.formats.report import collect, make_page
from tests.unit.psc_files import write_capture
from tests.unit.test_timeline import write_host

webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
DRIVER = shutil.which("chromedriver")
if DRIVER is None or shutil.which("chromium") is None:
    pytest.skip("needs chromium and chromium-driver", allow_module_level=True)
HOSTILE = '</script><script>document.title="owned"</script><img src=http://192.0.2.1/x>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 "--window-size=1300,1800"):  # fmt: skip
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_capture(folder / "a.pm", 900, 3, lose=set(range(400, 430)))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_host(tmp_path_factory.mktemp("host") / "log", lose=5)


@pytest.fixture
def page(browser: Any, capture: Path) -> Any:
    """The browser with the page of the capture; a name in its table is hostile."""
    with tcpkmon.open(capture) as reader:
        report = collect([capture], reader, 2)
    table = report.plots["connections"]
    role = [one["name"] for one in table["columns"]].index("role")
    table["rows"][0][role] = HOSTILE
    path = capture.with_name("a.html")
    path.write_text(make_page(dataclasses.replace(report, name=HOSTILE)), encoding="utf-8")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.as_uri())
    return browser


def rows(page: Any) -> list[list[str]]:
    found: list[list[str]] = page.execute_script(
        "return [...document.querySelectorAll('#connections tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return found


def key(page: Any, name: str, shift: bool = False) -> None:
    page.execute_script(
        "document.getElementById('plots').dispatchEvent(new KeyboardEvent('keydown',"
        "{key: arguments[0], shiftKey: arguments[1], bubbles: true}))", name, shift)  # fmt: skip


def ticks(page: Any) -> list[str]:
    """A picture of each graph: it changes when the graph does."""
    found: list[str] = page.execute_script(
        "return [...document.querySelectorAll('.uplot canvas')].map(one => one.toDataURL())"
    )
    return found


def values(page: Any) -> str:
    return str(page.execute_script("return document.getElementById('values').textContent"))


def test_it_loads_without_an_error_or_a_request(page: Any) -> None:
    assert len(ticks(page)) == 3
    assert page.get_log("browser") == []
    sent = [json.loads(one["message"])["message"] for one in page.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in sent
            if one["method"] == "Network.requestWillBeSent"]  # fmt: skip
    assert all(url.endswith("a.html") or url.startswith("data:") for url in urls), urls


def test_hostile_names_are_text(page: Any) -> None:
    assert HOSTILE in page.execute_script("return document.querySelector('h1').textContent")
    assert any(HOSTILE in row for row in rows(page))
    assert page.title.startswith("tcpkmon report: ")
    assert page.execute_script("return document.images.length") == 0


def test_nothing_can_be_sent_from_the_page(page: Any) -> None:
    told = page.execute_async_script(
        "const done = arguments[0];"
        "fetch('http://127.0.0.1:9/').then(() => done('sent'), error => done(String(error)))"
    )
    assert "Failed to fetch" in told
    assert any("Content Security Policy" in one["message"] for one in page.get_log("browser"))


@pytest.mark.full
def test_the_table_sorts_and_searches(page: Any) -> None:
    head = page.find_elements("css selector", "#connections th button")
    port = next(n for n, one in enumerate(head) if one.text == "lport")
    head[port].click()
    assert [row[port] for row in rows(page)] == ["5003", "5002", "5001"]
    head[port].click()
    assert [row[port] for row in rows(page)] == ["5001", "5002", "5003"]
    page.find_element("id", "search").send_keys("5002")
    assert [row[port] for row in rows(page)] == ["5002"]


@pytest.mark.full
def test_the_value_under_the_cursor_is_that_of_the_record(page: Any, capture: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    with tcpkmon.open(capture) as reader, why.Source(reader) as source:
        (piece,) = source.read()
        conn = int(page.find_element("id", "which").text.rpartition(" ")[2].rstrip(")"))
        mine = piece.take((piece["conn_id"] == conn).nonzero()[0])
        begin = int(piece.times_ns[0])
    for _ in range(6):
        key(page, "ArrowRight")
    assert f"srtt {mine['srtt_us'][5] / 1000:.4g} ms" in values(page)
    assert f"cwnd {int(mine['snd_cwnd_segs'][5])} segments" in values(page)

    ActionChains(page).move_to_element_with_offset(
        page.find_element("css selector", ".u-over"), 123, 10).perform()  # fmt: skip
    at_ns = begin + round(float(values(page).partition(" s")[0]) * 1e9)
    row = int(abs(mine.times_ns - at_ns).argmin())
    assert abs(int(mine.times_ns[row]) - at_ns) <= 1000
    assert f"srtt {mine['srtt_us'][row] / 1000:.4g} ms" in values(page)
    assert f"peer's window {int(mine['snd_wnd'][row]):,} bytes" in values(page)


def test_a_gap_says_not_known(page: Any) -> None:
    for _ in range(300):
        key(page, "ArrowRight")
        if "NOT KNOWN: 30 records missing" in values(page):
            return
    raise AssertionError("no gap under the cursor")


@pytest.mark.full
def test_rows_of_the_host_follow_the_graphs(browser: Any, host: Path) -> None:
    """Both on one axis: zoomed together, one crosshair, the values of both."""
    from selenium.webdriver.common.action_chains import ActionChains

    path = write_capture(host.with_name("b.pm"), 9000, 3)
    with tcpkmon.open(path) as reader, tcpkmon.open(host) as log:
        report, tracks = collect([path], reader, 1), collect([host], log).plots["tracks"]
    for row in tracks["rows"]:  # 1.2 us of the log in the connection's 9 ms
        for name, form in (("begin", "<f8"), ("length", "<f4")):
            slow = np.frombuffer(base64.b64decode(row[name]), form) * 5000
            row[name] = base64.b64encode(slow.astype(form).tobytes()).decode()
    report.plots["tracks"] = tracks | {"gaps": {}}
    path = host.with_name("both.html")
    path.write_text(make_page(report), encoding="utf-8")
    browser.get(path.as_uri())
    before = ticks(browser)
    assert len(before) == 5
    over = browser.find_elements("css selector", ".u-over")
    ActionChains(browser).move_to_element_with_offset(over[0], 0, 10).perform()
    lines = browser.execute_script(
        "return [...document.querySelectorAll('.u-cursor-x')].map(one => one.style.transform)")
    assert len(lines) == 5 and len(set(lines)) == 1
    assert "CPU 1: woken (8)" in values(browser) and "srtt" in values(browser)
    assert "goodput: acknowledged or SACKed 3,8" in values(browser)  # Mbit/s: 1448 bytes each 3 us
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", over[4])
    chain = ActionChains(browser).move_to_element_with_offset(over[4], -200, 0).click_and_hold()
    chain.move_by_offset(300, 0).release().perform()
    browser.execute_async_script("requestAnimationFrame(arguments[0])")
    assert all(a != b for a, b in zip(before, ticks(browser), strict=True))
