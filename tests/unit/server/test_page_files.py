"""The page's files: what a browser is told about them, and that none of them leaves the folder."""

import re

import httpx2
import pytest
from starlette.applications import Starlette

from fanout.orchestrator.server.page import FILES, HEADERS, page_routes

MAX_BYTES = 300_000
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc\s*=|\beval\(|new Function|DOMParser"
)


@pytest.fixture
async def browser():
    app = httpx2.ASGITransport(app=Starlette(routes=page_routes()))
    async with httpx2.AsyncClient(transport=app, base_url="http://page") as client:
        yield client


async def test_every_file_has_the_strict_policy_and_is_checked_for_a_newer_one(browser):
    for path in ("/", "/static/main.js", "/static/style.css", "/static/icon.svg"):
        first = await browser.get(path)
        assert first.status_code == 200, path
        assert {name: first.headers[name] for name in HEADERS} == HEADERS, path
        assert "unsafe" not in first.headers["Content-Security-Policy"]
    again = await browser.get("/static/main.js", headers={"If-None-Match": '"other"'})
    assert again.status_code == 200
    same = await browser.get("/static/main.js", headers={"If-None-Match": again.headers["ETag"]})
    assert same.status_code == 304
    assert same.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../routes.py",
        "/static/%2e%2e/routes.py",
        "/static/..%2froutes.py",
        "/static/",
        "/static",
    ],
)
async def test_no_path_leaves_the_folder(browser, path):
    answer = await browser.get(path, follow_redirects=True)

    assert answer.status_code == 404


def test_the_page_is_small_and_makes_no_markup_from_text():
    files = [path for path in FILES.iterdir() if path.is_file()]

    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    assert [
        f"{path.name}: {found[0]}"
        for path in files
        for found in MARKUP.finditer(path.read_text("utf-8"))
    ] == []
    shell = (FILES / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|https?://", shell) == []
