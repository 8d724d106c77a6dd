"""A studio in the browser: what the tests of its pages have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congeal.studio import Studio

if TYPE_CHECKING:
    from playwright.sync_api import Page


def enter(page: Page, studio: Studio) -> Page:
    """Open the studio, and wait until it is ready and shows its images."""
    page.goto(studio.url)
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_selector(".original")
    return page


def expect_said(page: Page, text: str, timeout: float = 5000) -> None:
    """Wait until the studio says this; milliseconds."""
    from playwright.sync_api import expect

    expect(page.locator("#said")).to_contain_text(text, timeout=timeout)
