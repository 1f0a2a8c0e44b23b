"""Headless Chromium, as a process of a test."""
import contextlib
import os
import pathlib
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service


# Driver and daemon are on this machine, whatever proxy the environment names for others.
os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy"), "127.0.0.1", "localhost"]))


class Browser:
    """One window on a page. Colours as in a light or a dark theme."""

    def __init__(self, folder, width=1500, height=1000, scheme="light"):
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", "--disable-background-networking", "--no-first-run",
                     f"--user-data-dir={folder}/chromium", f"--window-size={width},{height}"):
            options.add_argument(flag)
        # Everything that the page writes to the console, and every request that it makes.
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.driver.set_script_timeout(120)
        self.set_view(width, height, scheme)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self.driver.quit()

    def set_view(self, width, height, scheme, reduced_motion=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else ""}]})

    def open(self, url):
        self.driver.get(url)

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def wait(self, code, seconds=30):
        """Until the script returns something true; that."""
        deadline = time.monotonic() + seconds
        while True:
            value = self.script(code)
            if value:
                return value
            if time.monotonic() > deadline:
                shown = self.script("return document.body.innerText")
                raise TimeoutError(f"never true: {code}\n{shown}")
            time.sleep(0.1)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0]).textContent", selector)

    def press(self, key):
        """A key of the keyboard, by its name: Tab, Enter, ArrowRight, ..."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38,
                 "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        if key == "Enter":
            event["text"] = "\r"
        self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def screenshot(self, path):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        if not self.driver.save_screenshot(str(path)):
            raise OSError(f"no screenshot {path}")

    def complaints(self):
        """What the page has written to the console since the last call."""
        return self.driver.get_log("browser")
