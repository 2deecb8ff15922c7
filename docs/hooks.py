"""A hook of MkDocs: links to files outside docs/ become their paths, since the site does not hold them."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)\s]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def shown(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[3]))
        inside = target == "docs" or target.startswith("docs/")
        return match[0] if inside else f"{match[2]} (`{target}`)"

    return LINK.sub(shown, markdown)
