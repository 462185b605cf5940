"""The page of a report, taken apart."""

import json
from html.parser import HTMLParser

from gmkcf_dask.results.report import render
from gmkcf_dask.results.schemas import parse_insight


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.attributes, self.ids, self.texts = [], [], [], []
        self.scripts = {}
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.elements.append(tag)
        self.attributes += attributes
        self.ids += [found["id"]] if "id" in found else []
        self._inside = found.get("type", tag) if tag in ("script", "style") else ""

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, text):
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + text
        else:
            self.texts.append(text)

    @property
    def text(self):
        return "".join(self.texts)

    @property
    def data(self):
        return json.loads(self.scripts["application/json"])


def render_report(insight):
    return render.render_report(parse_insight(insight))
